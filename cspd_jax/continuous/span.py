"""The places that a round is about."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import head as head_lib, sampling as sampling_lib
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.core.random import RowKeys


class Span(NamedTuple):
  """What a round is about; place `p` is the `p`-th position to be fixed.

  Attributes:
    rng: `[B]` random state.
    place: `[B, T]` place of every position.
    count: `[B]` fixed tokens.
    stop: `[B]` place where the round ends at the latest; `count` for rows that are complete.
    at: `[B, W]` the places.
    positions: `[B, W]` their positions; those past the end repeat the last.
    scale: `[B, W]` their guidance scale.
    draft_scale: `[B, W]` the guidance scale of drafts there.
    temperature: a scalar or `[B]`.
  """

  rng: RowKeys
  place: jax.Array
  count: jax.Array
  stop: jax.Array
  at: jax.Array
  positions: jax.Array
  scale: jax.Array
  draft_scale: jax.Array
  temperature: jax.Array

  @property
  def wanted(self) -> jax.Array:
    """Tells which places `[B, W]` the round has."""
    return self.at < self.stop[:, None]

  @property
  def size(self) -> jax.Array:
    """Counts the places of the round, `[B]`."""
    return self.stop - self.count

  @property
  def active(self) -> jax.Array:
    """Tells which rows `[B]` are not complete yet."""
    return self.stop > self.count

  def drafts(self, bonus: int) -> jax.Array:
    """Counts the places `[B]` that get drafts if `bonus` are kept for what follows them."""
    return jnp.maximum(self.size - bonus, 0)

  def batch(self, z: jax.Array) -> head_lib.Batch:
    """All places for the head; `z` is `[S, B, W, D]`."""
    return head_lib.batch(
        self.rng, z, self.positions, self.scale, self.temperature, self.wanted)

  def pick(self, index: jax.Array) -> 'Span':
    """The places number `index` `[B, n]`, leaves `[B, n]`."""
    pick = lambda leaf: jnp.take_along_axis(leaf, index, axis=1)
    return self._replace(at=pick(self.at), positions=pick(self.positions),
                         scale=pick(self.scale), draft_scale=pick(self.draft_scale))


def open_span(rng: RowKeys, order: jax.Array, place: jax.Array, count: jax.Array, stops: jax.Array,
              width: int, sampling: Sampling, guidance: str, guidance_of_last: bool,
              guided_as_verified: bool) -> Span:
  """The next places of every row: `width` of them, or fewer up to the next stop.

  Args:
    rng: `[B]` random state.
    order: `[B, T]` the positions in the order in which they are fixed.
    place: `[B, T]` its inverse.
    count: `[B]` fixed tokens.
    stops: `[n]` ascending places where rounds end.
    width: `W`.
    sampling: the options.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`.
    guidance_of_last: whether all places have the guidance scale of the round's last; else each
      has its own.
    guided_as_verified: whether that goes for drafts as well.
  """
  size = order.shape[1]
  following = jnp.append(stops, size)[jnp.sum(count[:, None] >= stops, axis=1)]
  stop = jnp.minimum(following, count + width)
  at = count[:, None] + jnp.arange(width)
  scale = lambda hidden: sampling_lib.scale(sampling, guidance, size, hidden)
  own = scale(size - 1 - at)
  verified = scale(jnp.broadcast_to(size - stop[:, None], at.shape)) if guidance_of_last else own
  return Span(
      rng=rng, place=place, count=count, stop=stop, at=at,
      positions=jnp.take_along_axis(order, jnp.minimum(at, size - 1), axis=1),
      scale=verified, draft_scale=verified if guided_as_verified else own,
      temperature=sampling.temperature)
