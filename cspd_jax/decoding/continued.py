"""Continues images: the same model, with the first rows as a part of its condition.

`target` and `network` turn a model of images of `T` tokens into one of the `T - P` tokens that
follow a prefix of `P` tokens. Positions count from the first token after the prefix, so that every
decoder works without changes; the distribution is that of the model conditional on the prefix.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.tracing import is_concrete
from cspd_jax.decoding import base
from cspd_jax.decoding.drafters.feature_network import Network
from cspd_jax.decoding.tree import chain
from cspd_jax.decoding.warp import Warp


class Continued(NamedTuple):
  """A condition with the prefixes of the images.

  Attributes:
    condition: the condition of the model.
    tokens: `[B, P]` int, the tokens of the prefixes, whole rows.
  """

  condition: Any
  tokens: jax.Array


def target(model: base.Target, length: int) -> base.Target:
  """Returns a model that continues images; its condition is a `Continued`.

  Args:
    model: the model of whole images.
    length: `P`, the length of the prefixes: whole rows, but not the whole image. With 0 the model
      is returned unchanged.

  Raises:
    ValueError: for another length.
  """
  if not length:
    return model
  check_length(model, length)

  def prefill(params, condition, num_slots):
    batch = condition.tokens.shape[0]
    _, before, cache = model.prefill(params, condition.condition, length + num_slots)
    logits, features, cache = model.score(
        params, cache, condition.tokens, jnp.zeros(batch, jnp.int32), chain(length - 1))
    if features is not None:
      features = jnp.concatenate([before, features], axis=2)
    return logits[:, :, -1], features, cache

  return model._replace(
      prefill=prefill,
      score=lambda params, cache, tokens, start, tree: model.score(
          params, cache, tokens, length + start, tree),
      commit=lambda cache, start, path: model.commit(cache, length + start, path),
      num_tokens=model.num_tokens - length, forced=_later(model.forced, length),
      check_condition=lambda condition: _check(model, length, condition))


def network(whole: Network, length: int) -> Network:
  """Returns a drafting network for `target(model, length)`, from one for `model`."""
  if not length:
    return whole

  def prefill(params, condition, features, num_slots):
    last = features.shape[2] - length
    cache = whole.prefill(params, condition.condition, features[:, :, :last], length + num_slots)
    depth, start = np.arange(length), jnp.zeros(condition.tokens.shape[0], jnp.int32)
    return whole.step(params, cache, condition.tokens, features[:, :, last - 1:-1], start, depth,
                     np.tri(length, dtype=bool))[1]

  return whole._replace(
      prefill=prefill,
      step=lambda params, cache, tokens, features, start, depth, visible: whole.step(
          params, cache, tokens, features, length + start, depth, visible),
      num_tokens=whole.num_tokens - length)


def sampling(warp: Warp, length: int) -> Warp:
  """Converts concrete sampling options of whole images to those of `target(model, length)`.

  Only `guidance_interval` depends on positions of the image.

  Raises:
    ValueError: for an interval that ends at the first token after the prefix.
  """
  interval = np.asarray(warp.guidance_interval)
  # Tokens `0 .. last` of the whole image are guided.
  is_unlimited, last = interval == -1, interval + 1
  if not length or np.all(is_unlimited):
    return warp
  if np.any(~is_unlimited & (last == length)):
    raise ValueError(
        f'guidance_interval is {warp.guidance_interval} with a prefix of {length} tokens, so that '
        f'one more token is guided, which no interval can express; pass {length - 2} or {length}, '
        'or another prefix.')
  return warp._replace(
      guidance_interval=np.maximum(interval - length, -1),
      guidance_scale=np.where(~is_unlimited & (last < length), np.float32(1), warp.guidance_scale))


def check_length(model: base.Target, length: int) -> None:
  """Raises ValueError unless a prefix of an image can have `length` tokens."""
  width = model.row_width
  if not 0 < length < model.num_tokens or length % width:
    raise ValueError(
        f'the prefix has {length} tokens; it must have whole rows of {width} tokens, 1 to '
        f'{(model.num_tokens - 1) // width} of them, so that tokens remain to generate.')


def _later(forced: Callable | None, length: int) -> Callable | None:
  return None if forced is None else lambda positions: forced(length + positions)


def _check(model: base.Target, length: int, condition: Any) -> Any:
  """Checks a `Continued`; see `base.Target.check_condition`."""
  if not isinstance(condition, Continued):
    raise ValueError(f'condition is a {type(condition).__name__}; a model that continues images '
                     'requires a continued.Continued.')
  tokens = (np.asarray if is_concrete(condition.tokens) else jnp.asarray)(condition.tokens)
  if tokens.ndim != 2 or tokens.shape[1] != length or not jnp.issubdtype(
      tokens.dtype, jnp.integer):
    raise ValueError(f'tokens of the condition are {tokens.dtype}{list(tokens.shape)}; they must '
                     f'be whole numbers [B, {length}].')
  valid = (tokens >= 0) & (tokens < model.vocab_size)
  if model.forced is not None:
    with jax.ensure_compile_time_eval():
      forced = np.asarray(model.forced(jnp.arange(length)))
      # A token that the grammar forces somewhere is not allowed at other positions.
      reserved = np.unique(np.asarray(model.forced(jnp.arange(model.num_tokens))))
    isin = np.isin if isinstance(tokens, np.ndarray) else jnp.isin
    valid = valid & ((forced < 0) & ~isin(tokens, reserved) | (tokens == forced))
  valid = valid.all(axis=1)
  if isinstance(valid, np.ndarray) and not valid.all():
    row = int(np.argmin(valid))
    raise ValueError(
        f'tokens of the condition, row {row}, hold one that is invalid at its position; they must '
        f'be 0 to {model.vocab_size - 1}, with the tokens of the grammar at their positions.')
  supported = model.check_condition(condition.condition)
  return valid if supported is None else supported & valid
