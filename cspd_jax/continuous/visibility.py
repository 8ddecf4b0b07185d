"""Visibilities: which tokens the target sees when it scores the positions of a round."""

from typing import Any

import jax
import jax.numpy as jnp

from cspd_jax.continuous import head as head_lib
from cspd_jax.continuous.base import Condition, DecodeContext, Params, Target, Visibility
from cspd_jax.continuous.span import Span
from cspd_jax.core import contracts


def true_contexts(target: Target, params: Params, condition: Condition, tokens: jax.Array,
                  rank_of_position: jax.Array, ranks: jax.Array,
                  positions: jax.Array, missing: jax.Array | None = None) -> jax.Array:
  """Returns the transformer's output for tokens, each conditioned on all tokens before it.

  In a masked bidirectional model a new token changes every hidden state, so each of these tokens
  requires one row of a wide batch. `tokens` `[B, T, C]` are committed tokens and drafts, those of
  lower rank than `ranks` `[B, n]` are visible, but for the `missing` ones. Further `positions` see
  what the last one sees. Returns their `z`, `[S, B, ..., D]`.
  """
  num_rows, num = ranks.shape
  wide = lambda leaf: jnp.repeat(leaf, num, axis=0)
  visible = rank_of_position[:, None] < ranks[:, :, None]
  if missing is not None:
    visible &= ~missing[:, None]
  z = contracts.transform(target, params, jax.tree.map(wide, condition), wide(tokens),
                         visible.reshape(-1, rank_of_position.shape[1]))
  picked = head_lib.pick(z, positions[:, :num].reshape(-1, 1))
  picked = picked.reshape(z.shape[0], num_rows, num, -1)
  if positions.shape[1] == num:
    return picked
  ahead = head_lib.pick(z[:, num - 1::num], positions[:, num:])
  return jnp.concatenate([picked, ahead], axis=2)


def causal_contexts(target: Target, params: Params, condition: Condition, tokens: jax.Array
                    ) -> jax.Array:
  """Returns the output `[S, B, T, D]` of a causal transformer for all tokens `[B, T, C]`."""
  num_rows, size = tokens.shape[:2]
  first, cache = contracts.cached_prefill(target, params, condition, size)
  z, _ = contracts.cached_score(target, params, cache, tokens, jnp.zeros(num_rows, jnp.int32))
  return jnp.concatenate([first[:, :, None].astype(z.dtype), z[:, :, :-1]], axis=2)


def true_window(window: int | None = None) -> Visibility:
  """Returns a visibility in which tokens see all tokens of earlier steps, drafts included.

  One pass of the target per token. Tokens of a round behind the first `window` are drawn ahead:
  they see what the last of these sees, so that they need no pass of their own, and cannot be final.
  """
  def transform(context: DecodeContext, span: Span, tokens: jax.Array, missing: jax.Array | None,
                cache: Any) -> tuple[jax.Array, Any]:
    z = true_contexts(
        context.target, context.params, context.condition, tokens, span.rank_of_position,
        span.begin[:, :window], span.positions, missing)
    return z, cache

  passes = lambda span: span.size if window is None else jnp.minimum(span.size, window)
  return Visibility('true', transform, passes, lambda width: min(width, window or width))


def _block(context: DecodeContext, span: Span, tokens: jax.Array, missing: jax.Array | None,
           cache: Any) -> tuple[jax.Array, Any]:
  del missing  # The drafts of the round are not visible.
  z = contracts.transform(context.target, context.params, context.condition, tokens,
                         span.rank_of_position < span.count[:, None])
  return head_lib.pick(z, span.positions), cache


def _cached(context: DecodeContext, span: Span, tokens: jax.Array, missing: jax.Array | None,
            cache: Any) -> tuple[jax.Array, Any]:
  del missing  # A causal model reads whatever is there.
  first, layers = cache
  width = span.ranks.shape[1]
  # The token before the round was drawn after the last pass. Token 0 has no predecessor.
  start = jnp.maximum(span.count - 1, 0)
  index = jnp.minimum(start[:, None] + jnp.arange(width), tokens.shape[1] - 1)
  scored = jnp.take_along_axis(tokens, index[:, :, None], axis=1)
  z, layers = contracts.cached_score(context.target, context.params, layers, scored, start)
  z = jnp.concatenate([first[:, :, None].astype(z.dtype), z], axis=2)
  z = head_lib.pick(z, (span.count > 0)[:, None] + jnp.arange(width))
  return z, (first, layers)


def _one(span: Span) -> jax.Array:
  return span.active.astype(jnp.int32)


TRUE = true_window()
# All tokens see those committed before the round; one pass of the target.
BLOCK = Visibility('block', _block, _one)
# Every token of a causal model sees all tokens before it, drafts included; one pass of the target.
CACHED = Visibility('cached', _cached, _one, lambda width: width)
