"""Whether the passes that decoders make are those of the network over a whole image."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.decoding.tree import chain
from cspd_jax.testing import probe
from cspd_jax.verify.result import Result, judged, skipped

_WINDOW = 8
# Tokens that are compared, so that a large network costs little; enough to see positions.
_MOST = 128


class Passes(NamedTuple):
  """Logits `[S, B, n, V]` of the same tokens, by every stream `S` of guidance.

  Attributes:
    whole: of one pass over `n` tokens after the cache of the prompt: of tokens 1 to `n`.
    windows: of passes over a few tokens each.
    trained: of the training's pass over prompt and tokens without a cache, `[S, B, n + 1, V]`: of
      tokens 0 to `n`; None if the family has none.
    prompts: its logits of the code after every token of the prompt, `[S, B, C, V]`.
  """

  whole: np.ndarray
  windows: np.ndarray
  trained: np.ndarray | None = None
  prompts: np.ndarray | None = None


def passes(model: Any, condition: Any, tokens: np.ndarray) -> Passes:
  """Runs the passes over tokens `[B, T]` of whole images for the rows of a condition."""
  target, count = model.target(True), min(model.num_tokens, _MOST)
  tokens = jnp.asarray(tokens, jnp.int32)
  width = min(_WINDOW, max(1, (count - 1) // 2))
  last = (count - 1) // width * width
  start = lambda number: jnp.full(len(tokens), number, jnp.int32)

  def cached(params, condition, tokens):
    _, _, cache = target.prefill(params, condition, count + width)

    def step(cache, number):
      window = jax.lax.dynamic_slice_in_dim(tokens, number, width, axis=1)
      logits, _, cache = target.score(params, cache, window, start(number), chain(width - 1))
      return cache, logits

    whole = target.score(params, cache, tokens[:, :last], start(0), chain(last - 1))[0]
    logits = jax.lax.scan(step, cache, jnp.arange(0, last, width))[1]  # [n, S, B, W, V]
    return whole, jnp.moveaxis(logits, 0, 2).reshape(whole.shape)

  numbers = lambda run: (np.asarray(part, np.float32) for part in programs.jit(run)(
      model.params, condition, tokens))
  if model.teacher is None:
    return Passes(*numbers(cached))

  def trained(params, condition, tokens):
    drop = jnp.repeat(jnp.arange(target.num_streams) == 1, len(tokens))
    both = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * target.num_streams), condition)
    tokens = jnp.tile(tokens[:, :last + 1], (target.num_streams, 1))
    logits, features = model.teacher.forward(params, both, tokens, drop)
    prompts = model.teacher.ends.logits(params, features[:, :features.shape[1] - last])
    split = lambda x: x.reshape(target.num_streams, -1, *x.shape[1:])
    return split(logits), split(prompts)

  return Passes(*numbers(cached), *numbers(trained))


def vectors(model: Any, condition: Any, tokens: np.ndarray) -> np.ndarray | None:
  """Returns what the head of a masked model reads, `[S, B, T, D]`; None for another model.

  Hidden tokens, of `[B, T, C]`, are NaN.
  """
  transform = model.target(True).transform
  return None if transform is None else np.asarray(programs.jit(transform)(
      model.params, condition, tokens, ~np.isnan(tokens).any(axis=2)), np.float32)


def check(model: Any, made: Passes) -> Iterator[Result]:
  """Yields whether windows on the cache, one long pass and the training's pass agree."""
  count = made.whole.shape[2]
  allowed = probe.tolerance(model.params)
  apart = float(probe.distance(made.whole, made.windows).max())
  yield judged('windows', apart < allowed,
               f'{count} tokens in windows of at most {_WINDOW} and in one pass have distributions '
               f'{apart:.2g} apart at most', total_variation=apart)
  if made.trained is None:
    yield skipped("the training's pass", 'the family has none')
    return
  apart = float(probe.distance(made.whole, made.trained[:, :, 1:]).max())
  yield judged("the training's pass", apart < allowed,
               f'{count} tokens after the cache of the prompt and in a pass without a cache, with '
               f'and without the condition, have distributions {apart:.2g} apart at most',
               total_variation=apart)
