"""Whether the passes that decoders make are those of the network over a whole image."""

from collections.abc import Iterator
from typing import Any

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


def check(model: Any, condition: Any, tokens: np.ndarray) -> Iterator[Result]:
  """Yields whether windows on the cache, one long pass and the training's pass agree.

  `tokens` `[B, T]` are those of whole images for the rows of the condition.
  """
  target, count = model.target(True), min(model.num_tokens, _MOST)
  tokens = jnp.asarray(tokens, jnp.int32)
  last = (count - 1) // _WINDOW * _WINDOW
  start = lambda number: jnp.full(len(tokens), number, jnp.int32)

  def whole(params, condition, tokens):
    _, _, cache = target.prefill(params, condition, count + _WINDOW)
    return target.score(params, cache, tokens[:, :last], start(0), chain(last - 1))[0]

  def windows(params, condition, tokens):
    _, _, cache = target.prefill(params, condition, count + _WINDOW)

    def step(cache, number):
      window = jax.lax.dynamic_slice_in_dim(tokens, number, _WINDOW, axis=1)
      logits, _, cache = target.score(params, cache, window, start(number), chain(_WINDOW - 1))
      return cache, logits

    logits = jax.lax.scan(step, cache, jnp.arange(0, last, _WINDOW))[1]  # [n, S, B, W, V]
    return jnp.moveaxis(logits, 0, 2).reshape(*logits.shape[1:3], last, -1)

  passes = [np.asarray(programs.jit(run)(model.params, condition, tokens), np.float32)
            for run in (whole, windows)]
  allowed, apart = probe.tolerance(model.params), float(probe.distance(*passes).max())
  yield judged('windows', apart < allowed,
               f'{last} tokens in windows of {_WINDOW} and in one pass have distributions '
               f'{apart:.2g} apart at most', total_variation=apart)
  if model.teacher is None:
    yield skipped("the training's pass", 'the family has none')
    return
  drop = jnp.repeat(jnp.array([False, True]), len(tokens))
  both = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), condition)
  logits = np.asarray(programs.jit(model.teacher.forward)(
      model.params, both, jnp.concatenate([tokens, tokens]), drop)[0], np.float32)
  trained = logits[:, 1:1 + last].reshape(2, len(tokens), last, -1)
  apart = float(probe.distance(passes[0], trained).max())
  yield judged("the training's pass", apart < allowed,
               f'{last} tokens after the cache of the prompt and in a pass without a cache, with '
               f'and without the condition, have distributions {apart:.2g} apart at most',
               total_variation=apart)
