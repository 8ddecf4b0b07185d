"""Contexts: which tokens the target sees when it scores the positions of a round."""

import jax
import jax.numpy as jnp

from cspd_jax.continuous import contract, head as head_lib
from cspd_jax.continuous.base import Condition, Context, Env, Params, Target
from cspd_jax.continuous.span import Span


def true_contexts(target: Target, params: Params, condition: Condition, tokens: jax.Array,
                  rank_of_position: jax.Array, ranks: jax.Array,
                  positions: jax.Array) -> jax.Array:
  """Returns the transformer's output for tokens, each conditioned on all tokens before it.

  In a masked bidirectional model a new token changes every hidden state, so each of these tokens
  requires one row of a wide batch.

  Args:
    target: the model.
    params: its parameters.
    condition: leading axis `B`.
    tokens: `[B, T, C]` committed tokens and drafts.
    rank_of_position: `[B, T]` rank of every position.
    ranks: `[B, n]` ranks of the tokens; those of lower rank are visible.
    positions: `[B, n]` positions of the tokens.

  Returns:
    `z` `[S, B, n, D]`.
  """
  num_rows, num = ranks.shape
  wide = lambda leaf: jnp.repeat(leaf, num, axis=0)
  visible = rank_of_position[:, None] < ranks[:, :, None]
  z = contract.transform(target, params, jax.tree.map(wide, condition), wide(tokens),
                         visible.reshape(-1, rank_of_position.shape[1]))
  picked = head_lib.pick(z, positions.reshape(-1, 1))
  return picked.reshape(z.shape[0], num_rows, num, -1)


def _true(env: Env, span: Span, tokens: jax.Array) -> jax.Array:
  return true_contexts(env.target, env.params, env.condition, tokens, span.rank_of_position,
                       span.ranks, span.positions)


def _block(env: Env, span: Span, tokens: jax.Array) -> jax.Array:
  z = contract.transform(env.target, env.params, env.condition, tokens,
                         span.rank_of_position < span.count[:, None])
  return head_lib.pick(z, span.positions)


# Every token sees all tokens of lower rank, drafts included; one pass of the target per token.
TRUE = Context('true', _true, lambda span: span.size)
# All tokens see those committed before the round; one pass of the target.
BLOCK = Context('block', _block, lambda span: span.active.astype(jnp.int32))
