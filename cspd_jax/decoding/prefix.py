"""Images whose first rows the caller supplies: these rows become a part of the model's condition.

`target` and `network` turn a model of images of `T` tokens into a model of the `T - P` tokens that
follow a prefix of `P` tokens. Positions then count from the first token after the prefix, so every
decoder works unchanged; its distribution is the model's, given the prefix.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.tracing import is_concrete
from cspd_jax.decoding import base
from cspd_jax.decoding.drafters.feature_network import Network
from cspd_jax.decoding.tree import chain


class Prefixed(NamedTuple):
  """A condition together with the first tokens of the images."""

  condition: Any  # The condition of the model of whole images.
  tokens: jax.Array  # `[B, P]` int, whole rows.


def target(model: base.Target, prefix_length: int) -> base.Target:
  """Returns the model of the tokens after a prefix; its condition is a `Prefixed`.

  `prefix_length` is `P`, whole rows, but not the whole image, else ValueError; 0 returns `model`.
  """
  if not prefix_length:
    return model
  check_length(prefix_length, model.num_tokens, model.row_width)
  forced, small = model.forced, model.small

  def prefill(params, condition, num_slots):
    batch = condition.tokens.shape[0]
    _, before, cache = model.prefill(params, condition.condition, prefix_length + num_slots)
    logits, features, cache = model.score(
        params, cache, condition.tokens, jnp.zeros(batch, jnp.int32), chain(prefix_length - 1))
    if features is not None:
      features = jnp.concatenate([before, features], axis=2)
    return logits[:, :, -1], features, cache

  return model._replace(
      prefill=prefill,
      score=lambda params, cache, tokens, start, tree: model.score(
          params, cache, tokens, prefix_length + start, tree),
      commit=lambda cache, start, path: model.commit(cache, prefix_length + start, path),
      num_tokens=model.num_tokens - prefix_length,
      forced=forced and (lambda positions: forced(prefix_length + positions)),
      small=small and (lambda positions: jnp.maximum(
          small(prefix_length + positions) - prefix_length, -1)),
      check_condition=lambda condition: _check(model, prefix_length, condition))


def network(whole: Network, prefix_length: int) -> Network:
  """Returns the drafting network that belongs to `target(model, prefix_length)`."""
  if not prefix_length:
    return whole

  def prefill(params, condition, features, num_slots):
    last = features.shape[2] - prefix_length
    cache = whole.prefill(
        params, condition.condition, features[:, :, :last], prefix_length + num_slots)
    depth, start = np.arange(prefix_length), jnp.zeros(condition.tokens.shape[0], jnp.int32)
    return whole.step(params, cache, condition.tokens, features[:, :, last - 1:-1], start, depth,
                      np.tri(prefix_length, dtype=bool))[1]

  return whole._replace(
      prefill=prefill,
      step=lambda params, cache, tokens, features, start, depth, visible: whole.step(
          params, cache, tokens, features, prefix_length + start, depth, visible),
      num_tokens=whole.num_tokens - prefix_length)


def sampling(sampling: SamplingParams, prefix_length: int) -> SamplingParams:
  """Converts options for whole images to options for `target(model, prefix_length)`.

  Only `guidance_interval` refers to positions in the image. For host values. Raises ValueError for
  an interval that ends at the first token after the prefix, which cannot be shifted.
  """
  interval = np.asarray(sampling.guidance_interval).astype(np.int64)  # Unsigned ones would wrap.
  # Tokens `0 .. interval + 1` of the whole image are guided.
  everywhere = interval == -1
  if not prefix_length or np.all(everywhere):
    return sampling
  if np.any(~everywhere & (interval == prefix_length - 1)):
    raise ValueError(
        f'guidance_interval is {sampling.guidance_interval} with a prefix of {prefix_length} '
        'tokens, so that only the first token after the prefix would be guided, which is not '
        f'supported; set it to {prefix_length - 2} or {prefix_length}, or change the number of '
        'rows.')
  return sampling._replace(
      guidance_interval=np.maximum(interval - prefix_length, -1),
      guidance_scale=np.where(
          ~everywhere & (interval < prefix_length - 1), np.float32(1), sampling.guidance_scale))


def narrow(tokens: np.ndarray) -> np.ndarray:
  """Returns whole numbers as int32, with -1, which is no token, for those that it cannot hold."""
  return np.where(tokens == tokens.astype(np.int32), tokens, -1).astype(np.int32)


def check_length(prefix_length: int, num_tokens: int, row_width: int) -> None:
  """Raises ValueError unless a prefix of an image can have this number of tokens."""
  if num_tokens <= row_width:
    raise ValueError(f'the prefix has {prefix_length} tokens; it must be whole rows, and images of '
                     'this model are one row; leave the prefix out.')
  if not 0 < prefix_length < num_tokens or prefix_length % row_width:
    raise ValueError(
        f'the prefix has {prefix_length} tokens; it must be whole rows of {row_width} tokens, 1 to '
        f'{(num_tokens - 1) // row_width} of them, so that tokens are left to generate.')


def _check(model: base.Target, prefix_length: int, condition: Any) -> Any:
  """Returns which rows are supported."""
  if not isinstance(condition, Prefixed):
    raise ValueError(f'condition is a {type(condition).__name__}; a model with a prefix requires a '
                     'decoding.prefix.Prefixed.')
  tokens = (np.asarray if is_concrete(condition.tokens) else jnp.asarray)(condition.tokens)
  if tokens.ndim != 2 or tokens.shape[1] != prefix_length or not jnp.issubdtype(
      tokens.dtype, jnp.integer):
    raise ValueError(f'tokens of the prefix are {tokens.dtype}{list(tokens.shape)}; they must be '
                     f'integers [B, {prefix_length}].')
  valid = (tokens >= 0) & (tokens < model.vocab_size)
  if model.forced is not None:
    with jax.ensure_compile_time_eval():
      grammar = np.asarray(model.forced(jnp.arange(prefix_length)))
      # A token that the grammar forces at some position occurs at no free position.
      ends = np.unique(np.asarray(model.forced(jnp.arange(model.num_tokens))))
    free = ~np.isin(tokens, ends) if isinstance(tokens, np.ndarray) else ~jnp.isin(tokens, ends)
    valid = valid & ((grammar < 0) & free | (tokens == grammar))
  valid = valid.all(axis=1)
  if isinstance(valid, np.ndarray) and not valid.all():
    row = int(np.argmin(valid))
    raise ValueError(
        f'tokens of the prefix, row {row}, include one that is not allowed at its position; they '
        f"must be 0 to {model.vocab_size - 1}, with the grammar's tokens at the positions that it "
        'forces.')
  supported = model.check_condition(condition.condition)
  return valid if supported is None else supported & valid
