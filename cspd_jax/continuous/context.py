"""What the target sees of an image when it looks at the places of a round."""

import jax
import jax.numpy as jnp

from cspd_jax.continuous import contract, head as head_lib
from cspd_jax.continuous.base import Condition, Params, Target
from cspd_jax.continuous.parts import Context, Env
from cspd_jax.continuous.span import Span


def true_contexts(target: Target, params: Params, condition: Condition, tokens: jax.Array,
                  place: jax.Array, at: jax.Array, positions: jax.Array) -> jax.Array:
  """What the transformer returns for tokens given all that come before each of them.

  In a masked bidirectional model a new token changes every hidden state, so this is one
  row of a wide batch per token.

  Args:
    target: the model.
    params: its parameters.
    condition: leading axis `B`.
    tokens: `[B, T, C]` fixed tokens and drafts.
    place: `[B, T]` place of every position in the order.
    at: `[B, n]` places of the tokens; those before them are visible.
    positions: `[B, n]` their positions.

  Returns:
    `z` `[S, B, n, D]`.
  """
  num_rows, num = at.shape
  wide = lambda leaf: jnp.repeat(leaf, num, axis=0)
  visible = place[:, None] < at[:, :, None]
  z = contract.transform(target, params, jax.tree.map(wide, condition), wide(tokens),
                         visible.reshape(-1, place.shape[1]))
  picked = head_lib.pick(z, positions.reshape(-1, 1))
  return picked.reshape(z.shape[0], num_rows, num, -1)


def _true(env: Env, span: Span, tokens: jax.Array) -> jax.Array:
  return true_contexts(env.target, env.params, env.condition, tokens, span.place, span.at,
                       span.positions)


def _block(env: Env, span: Span, tokens: jax.Array) -> jax.Array:
  z = contract.transform(
      env.target, env.params, env.condition, tokens, span.place < span.count[:, None])
  return head_lib.pick(z, span.positions)


# Every place given all places before it, drafts included; a pass of the target for each.
TRUE = Context('true', _true, lambda span: span.size)
# All places given the tokens that were fixed before the round; one pass of the target.
BLOCK = Context('block', _block, lambda span: span.active.astype(jnp.int32))
