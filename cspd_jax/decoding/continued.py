"""Images whose first rows are given: the same model, with these rows as a part of its condition.

`target` and `network` turn a model of images of `T` tokens into one of the `T - P` tokens behind
`P` given ones. They count from the first token that is free, so every decoder decodes them as it
is; the distribution is the model's, given the tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.values import is_concrete
from cspd_jax.decoding import base
from cspd_jax.decoding.drafters.feature_network import Network
from cspd_jax.decoding.tree import chain
from cspd_jax.decoding.warp import Warp


class Continued(NamedTuple):
  """A condition with the first tokens of the images.

  Attributes:
    condition: what the model takes without them.
    tokens: `[B, P]` int, whole rows.
  """

  condition: Any
  tokens: jax.Array


def target(model: base.Target, given: int) -> base.Target:
  """A model that continues images; its condition is a `Continued`.

  Args:
    model: the model of whole images.
    given: `P`, tokens that are given: whole rows, but not all of the image. With 0 it is the model.

  Raises:
    ValueError: for another number of tokens.
  """
  if not given:
    return model
  check_given(model, given)

  def prefill(params, condition, num_slots):
    batch = condition.tokens.shape[0]
    _, before, cache = model.prefill(params, condition.condition, given + num_slots)
    logits, features, cache = model.score(
        params, cache, condition.tokens, jnp.zeros(batch, jnp.int32), chain(given - 1))
    if features is not None:
      features = jnp.concatenate([before, features], axis=2)
    return logits[:, :, -1], features, cache

  return model._replace(
      prefill=prefill,
      score=lambda params, cache, tokens, start, tree: model.score(
          params, cache, tokens, given + start, tree),
      commit=lambda cache, start, path: model.commit(cache, given + start, path),
      num_tokens=model.num_tokens - given, forced=_later(model.forced, given),
      check_condition=lambda condition: _check(model, given, condition))


def network(made: Network, given: int) -> Network:
  """A drafting network for `target(model, given)`; arguments as there."""
  if not given:
    return made

  def prefill(params, condition, features, num_slots):
    last = features.shape[2] - given
    cache = made.prefill(params, condition.condition, features[:, :, :last], given + num_slots)
    depth, start = np.arange(given), jnp.zeros(condition.tokens.shape[0], jnp.int32)
    return made.step(params, cache, condition.tokens, features[:, :, last - 1:-1], start, depth,
                     np.tri(given, dtype=bool))[1]

  return made._replace(
      prefill=prefill,
      step=lambda params, cache, tokens, features, start, depth, visible: made.step(
          params, cache, tokens, features, given + start, depth, visible),
      num_tokens=made.num_tokens - given)


def sampling(warp: Warp, given: int) -> Warp:
  """Options for whole images as those of `target(model, given)`, host values.

  Only `guidance_interval` belongs to places of the image.

  Raises:
    ValueError: for an interval that ends at the first token that is free.
  """
  interval = np.asarray(warp.guidance_interval)
  # Tokens `0 .. last` of the whole image are guided.
  everywhere, last = interval == -1, interval + 1
  if not given or np.all(everywhere):
    return warp
  if np.any(~everywhere & (last == given)):
    raise ValueError(
        f'guidance_interval is {warp.guidance_interval} with {given} tokens given, so that one '
        f'more is guided, which cannot be said; give {given - 2} or {given}, or other rows.')
  return warp._replace(
      guidance_interval=np.maximum(interval - given, -1),
      guidance_scale=np.where(~everywhere & (last < given), np.float32(1), warp.guidance_scale))


def check_given(model: base.Target, given: int) -> None:
  """Raises ValueError unless so many tokens of an image can be given."""
  width = model.row_width
  if not 0 < given < model.num_tokens or given % width:
    raise ValueError(
        f'{given} tokens are given; they must be whole rows of {width} tokens, 1 to '
        f'{(model.num_tokens - 1) // width} of them, so that something is left to generate.')


def _later(forced: Callable | None, given: int) -> Callable | None:
  return None if forced is None else lambda positions: forced(given + positions)


def _check(model: base.Target, given: int, condition: Any) -> Any:
  """Which rows can be; see `base.Target.check_condition`."""
  if not isinstance(condition, Continued):
    raise ValueError(f'condition is a {type(condition).__name__}; a model that continues images '
                     'takes a continued.Continued.')
  tokens = (np.asarray if is_concrete(condition.tokens) else jnp.asarray)(condition.tokens)
  if tokens.ndim != 2 or tokens.shape[1] != given or not jnp.issubdtype(
      tokens.dtype, jnp.integer):
    raise ValueError(f'tokens of the condition are {tokens.dtype}{list(tokens.shape)}; they must '
                     f'be whole numbers [B, {given}].')
  known = (tokens >= 0) & (tokens < model.vocab_size)
  if model.forced is not None:
    with jax.ensure_compile_time_eval():
      grammar = np.asarray(model.forced(jnp.arange(given)))
      # What is forced somewhere stands nowhere else.
      ends = np.unique(np.asarray(model.forced(jnp.arange(model.num_tokens))))
    free = ~np.isin(tokens, ends) if isinstance(tokens, np.ndarray) else ~jnp.isin(tokens, ends)
    known = known & ((grammar < 0) & free | (tokens == grammar))
  known = known.all(axis=1)
  if isinstance(known, np.ndarray) and not known.all():
    row = int(np.argmin(known))
    raise ValueError(
        f'tokens of the condition, row {row}, hold one that cannot stand where it does; they must '
        f'be 0 to {model.vocab_size - 1}, with the tokens of the grammar in their places.')
  ours = model.check_condition(condition.condition)
  return known if ours is None else ours & known
