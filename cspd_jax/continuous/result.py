"""The result of decoders of continuous tokens."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.core import decoder


class Costs(NamedTuple):
  """Passes and head calls of each row.

  Counts are of the row alone: in a batch, a row may wait for others. The number of head calls
  of a batch that one device runs together is `head_calls.max(0).sum()`.

  Attributes:
    target_passes: `[B]` int32 passes of the target's transformer, made in parallel within a round.
    draft_passes: `[B]` int32 passes of the draft model's transformer, one after the other.
    head_calls: `[B, R]` int32 calls of the target's head in every round, one after the other;
      0 beyond the last round.
    head_rows: `[B]` int32 states at which the target's head was needed, per stream. Calls have
      static shapes, so a compiled program evaluates the head at more states than that.
    draft_head_calls: `[B]` int32 calls of the draft model's head, one after the other.
  """

  target_passes: jax.Array
  draft_passes: jax.Array
  head_calls: jax.Array
  head_rows: jax.Array
  draft_head_calls: jax.Array


class Tests(NamedTuple):
  """Tests of drafts and residual draws; all zero for decoders without drafts.

  Attributes:
    tested: `[B, T]` int32 how many drafts of a position were tested: of kernels of its head
      (speculation inside the head), or of its token. Rates of different decoders do not compare.
    accepted: `[B, T]` int32 how many of them were accepted.
    trials: `[B]` int32 proposals evaluated for residual draws.
    missed: `[B]` int32 residual draws for which every proposal was rejected.
  """

  tested: jax.Array
  accepted: jax.Array
  trials: jax.Array
  missed: jax.Array


class Kernels(NamedTuple):
  """Tests of denoising kernels by level, summed over positions.

  Attributes:
    tested: `[B, M]` int32 for `M` levels.
    accepted: `[B, M]` int32 how many of them were accepted.
  """

  tested: jax.Array
  accepted: jax.Array


class Errors(NamedTuple):
  """Distances of tokens to those that the target would have emitted.

  Attributes:
    squared: `[B, T]` float32 by position, the squared distance; 0 for tokens of the target.
    bound: `[B, T]` float32 a bound on the expectation of `squared`.
  """

  squared: jax.Array
  bound: jax.Array


class Decoded(NamedTuple):
  """The result of a decode, or of its rounds so far: tokens that are not yet committed are 0.

  `cspd_jax.decoding.base.Decoded` has the first six fields, too.

  Attributes:
    tokens: `[B, T, C]` float32 the images' tokens.
    rounds: `[B]` int32 rounds until the image was complete.
    accepted: `[B, W + 1]` int32; entry `n`: rounds that committed `n` tokens.
    round_of_token: `[B, T]` int32 the round that committed the token of a position.
    tv_bound: `[B]` float32; its mean bounds the total variation between the distribution of the
      image's tokens and the decoder's `distribution`. For exact decoders, the number of residual
      draws whose proposals were all rejected, 0 in an exact run. NaN without a bound.
    valid: `[B]` bool; False if an option or the condition of the row was out of range, or a token
      has NaN or infinity. The tokens are meaningless then.
    order: `[B, T]` int32 the positions in the order in which they are committed.
    costs: passes and head calls.
    tests: tests of drafts.
    kernels: tests by level, of decoders that speculate inside the head; else None.
    errors: by position, of decoders that bound them; else None.
  """

  tokens: jax.Array
  rounds: jax.Array
  accepted: jax.Array
  round_of_token: jax.Array
  tv_bound: jax.Array
  valid: jax.Array
  order: jax.Array
  costs: Costs
  tests: Tests
  kernels: Kernels | None = None
  errors: Errors | None = None

  def __repr__(self) -> str:
    return decoder.summary(self)


def empty(order: jax.Array, valid: jax.Array, token_dim: int, rounds: int, width: int,
          levels: int, bounded: bool) -> Decoded:
  """Returns the result before the first round of a decoder.

  It has at most `rounds` of at most `width` tokens, tests at `levels`, and `errors` if `bounded`.
  """
  batch, size = order.shape
  zeros = lambda *shape: jnp.zeros((batch, *shape), jnp.int32)
  floats = lambda *shape: jnp.zeros((batch, *shape), jnp.float32)
  return Decoded(
      tokens=floats(size, token_dim), rounds=zeros(), accepted=zeros(width + 1),
      round_of_token=zeros(size), tv_bound=floats(), valid=valid, order=order,
      costs=Costs(target_passes=zeros(), draft_passes=zeros(), head_calls=zeros(rounds),
                  head_rows=zeros(), draft_head_calls=zeros()),
      tests=Tests(tested=zeros(size), accepted=zeros(size), trials=zeros(), missed=zeros()),
      kernels=Kernels(zeros(levels), zeros(levels)) if levels else None,
      errors=Errors(floats(size), floats(size)) if bounded else None)
