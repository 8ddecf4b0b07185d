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
    tested: `[B, T]` int32 how many drafts of a position were tested: of kernels of its head
      (`exact_head`), or of its token. Rates of different decoders do not compare.
    accepted: `[B, T]` int32 how many of them were accepted.
    tested_kernels: `[B, M]` int32 tests by level, all positions together; `exact_head`
      has `M` levels, others none.
    accepted_kernels: `[B, M]` int32 how many of them were accepted.
    trials: `[B]` int32 proposals looked at for residual draws.
    missed: `[B]` int32 residual draws of which no proposal was taken.
    error: `[B, E]` float32 by position, squared distance of the token to the one that the
      target would have emitted; `E = T` for `cspd_relaxed`, others have none.
    error_bound: `[B, E]` float32 what its expectation is bounded by.
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
  tested_kernels: jax.Array
  accepted_kernels: jax.Array
  trials: jax.Array
  missed: jax.Array
  error: jax.Array
  error_bound: jax.Array


def empty_result(target: Target, order: jax.Array, rounds: int, kernels: int = 0,
                 bounded: bool = False) -> Generated:
  """The result before the first round.

  Args:
    target: the model.
    order: `[B, T]` the positions in the order in which they will be fixed.
    rounds: `R`, the most rounds there can be.
    kernels: `M`.
    bounded: whether there are errors.
  """
  batch, size = order.shape
  zeros = lambda *shape: jnp.zeros((batch, *shape), jnp.int32)
  error = jnp.zeros((batch, size if bounded else 0), jnp.float32)
  return Generated(
      tokens=jnp.zeros((batch, size, target.token_dim), jnp.float32), order=order,
      round_of_token=zeros(size), rounds=zeros(), target_passes=zeros(), draft_passes=zeros(),
      head_calls=zeros(rounds), head_rows=zeros(), draft_head_calls=zeros(),
      tested=zeros(size), accepted=zeros(size), tested_kernels=zeros(kernels),
      accepted_kernels=zeros(kernels), trials=zeros(), missed=zeros(), error=error,
      error_bound=error)
