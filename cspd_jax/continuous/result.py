"""What a decoder of continuous tokens returns."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous.base import Target


class Generated(NamedTuple):
  """The result of a decode, for every decoder alike.

  Counts are those of the row by itself: in a batch, a row may wait for others. Head
  calls of a batch that one device runs together are `head_calls.max(0).sum()`.

  Attributes:
    tokens: `[B, T, C]` float32 the images' tokens.
    order: `[B, T]` int32 the positions in the order in which they were fixed.
    round_of_token: `[B, T]` int32 the round (autoregressive step) that fixed a position.
    rounds: `[B]` int32 rounds until the image was complete. Passes of the target's
      transformer within a round run side by side.
    target_passes: `[B]` int32 passes of the target's transformer, one per context.
    draft_passes: `[B]` int32 passes of the draft model's transformer, one after the other.
    head_calls: `[B, R]` int32 calls of the target's head in every round, one after the
      other; 0 beyond the last round.
    head_rows: `[B]` int32 states the target's head was asked about; with guidance a
      state counts once per stream.
    draft_head_calls: `[B]` int32 calls of the draft model's head, one after the other.
    tested: `[B, M]` int32 how many drafts were tested. What the columns stand for
      differs between decoders: kernels (`exact_head`), places in the order
      (`exact_path`), nothing (`M = 0`) without tests.
    accepted: `[B, M]` int32 how many of them were accepted.
    trials: `[B]` int32 proposals looked at for residual draws.
  """

  tokens: jax.Array
  order: jax.Array
  round_of_token: jax.Array
  rounds: jax.Array
  target_passes: jax.Array
  draft_passes: jax.Array
  head_calls: jax.Array
  head_rows: jax.Array
  draft_head_calls: jax.Array
  tested: jax.Array
  accepted: jax.Array
  trials: jax.Array


def empty_result(target: Target, order: jax.Array, rounds: int, columns: int) -> Generated:
  """The result before the first round.

  Args:
    target: the model.
    order: `[B, T]` the positions in the order in which they will be fixed.
    rounds: `R`, the most rounds there can be.
    columns: `M`.
  """
  batch, size = order.shape
  zeros = lambda *shape: jnp.zeros((batch, *shape), jnp.int32)
  return Generated(
      tokens=jnp.zeros((batch, size, target.token_dim), jnp.float32), order=order,
      round_of_token=zeros(size), rounds=zeros(), target_passes=zeros(), draft_passes=zeros(),
      head_calls=zeros(rounds), head_rows=zeros(), draft_head_calls=zeros(),
      tested=zeros(columns), accepted=zeros(columns), trials=zeros())
