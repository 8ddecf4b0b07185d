"""The tokens that a round covers, and batches of tokens for the diffusion head."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import noise as noise_lib, sampling as sampling_lib
from cspd_jax.continuous.noise import TokenKeys
from cspd_jax.core.random import RowKeys


class TokenBatch(NamedTuple):
  """Tokens to be sampled by a diffusion head."""

  z: jax.Array  # `[S, N, D]` what the head is conditioned on.
  scale: jax.Array  # `[N]` guidance scale.
  temperature: jax.Array  # `[N]`.
  keys: TokenKeys  # `[N]` random state.
  active: jax.Array  # `[N]` which tokens are needed; the others need not be finished.
  # The first part of the head at every level for every `z`, leaves `[S, N, levels, ...]`; None to
  # compute it at every call. See `head.modulated`.
  modulation: Any = None


def token_batch(rows: RowKeys, z: jax.Array, positions: jax.Array, scale: jax.Array,
                temperature: jax.typing.ArrayLike, active: jax.Array) -> TokenBatch:
  """Joins tokens of all rows into one batch, `N = B n`.

  `z` `[S, B, n, D]` is what the transformer returned for the tokens at `positions` `[B, n]`;
  `scale` and `active` are `[B, n]`, the temperature a scalar or `[B]`.
  """
  temperature = sampling_lib.per_row(temperature, positions.shape[0])
  temperature = jnp.broadcast_to(jnp.maximum(temperature, sampling_lib.SMALLEST), positions.shape)
  keys = noise_lib.token_keys(rows, positions)
  flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
  return TokenBatch(z.reshape(z.shape[0], -1, z.shape[-1]), flat(scale), flat(temperature),
                    jax.tree.map(flat, keys), flat(active))


class Span(NamedTuple):
  """The tokens that a round covers: the next ranks of every row."""

  rng: RowKeys  # `[B]` random state.
  rank_of_position: jax.Array  # `[B, T]` rank of every position.
  count: jax.Array  # `[B]` committed tokens.
  stop: jax.Array  # `[B]` rank at which the round ends at the latest; `count` for complete rows.
  ranks: jax.Array  # `[B, W]` ranks of the tokens; those at or beyond `stop` are not in the round.
  begin: jax.Array  # `[B, W]` rank at which the autoregressive step of the tokens begins.
  end: jax.Array  # `[B, W]` rank at which it ends.
  positions: jax.Array  # `[B, W]` positions of the tokens; past the end of the image, the last one.
  scale: jax.Array  # `[B, W]` guidance scale of the tokens.
  draft_scale: jax.Array  # `[B, W]` guidance scale of their drafts.
  temperature: jax.Array  # A scalar or `[B]`.

  @property
  def in_round(self) -> jax.Array:
    """Tells which of `ranks` `[B, W]` are in the round."""
    return self.ranks < self.stop[:, None]

  @property
  def size(self) -> jax.Array:
    """Counts the tokens of the round, `[B]`."""
    return self.stop - self.count

  @property
  def active(self) -> jax.Array:
    """Tells which rows `[B]` are not complete yet."""
    return self.stop > self.count

  def num_drafts(self, bonus: int) -> jax.Array:
    """Counts the tokens `[B]` that get drafts if the last `bonus` of a round get none."""
    return jnp.maximum(self.size - bonus, 0)

  def batch(self, z: jax.Array) -> TokenBatch:
    """Returns all tokens as a batch for the head; `z` is `[S, B, W, D]`."""
    return token_batch(self.rng, z, self.positions, self.scale, self.temperature, self.in_round)

  def select(self, index: jax.Array) -> 'Span':
    """Returns tokens number `index` `[B, n]` of the round, leaves `[B, n]`."""
    select = lambda leaf: jnp.take_along_axis(leaf, index, axis=1)
    return self._replace(**{name: select(getattr(self, name)) for name in (
        'ranks', 'begin', 'end', 'positions', 'scale', 'draft_scale')})


def step_of(ranks: jax.Array, steps: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
  """Returns the ranks at which the autoregressive steps of `ranks` begin and end, in its shape.

  `steps` are the ranks at which steps end, ascending; that of the last, `size`, may be missing.
  """
  step = jnp.sum(ranks[..., None] >= steps, axis=-1)
  return jnp.insert(steps, 0, 0)[step], jnp.append(steps, size)[step]
