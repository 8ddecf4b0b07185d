"""Sampling tokens with a diffusion head, one kernel after the other.

In the shape descriptions, `N` is the number of tokens sampled side by side and `L`
the number of levels.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import contract, noise as noise_lib, schedule as schedule_lib
from cspd_jax.continuous.base import Params, Target
from cspd_jax.continuous.noise import TokenKeys
from cspd_jax.continuous.sampling import per_row
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.core.random import RowKeys

# More than this is not kept for the sake of speed.
_MODULATION_BYTES = 2**30


class Batch(NamedTuple):
  """Tokens to be sampled, as the head sees them.

  Attributes:
    z: `[S, N, D]` what the head is conditioned on.
    scale: `[N]` guidance scale.
    temperature: `[N]`.
    keys: `[N]` random state.
    active: `[N]` which tokens are wanted; the others need not be finished.
    modulation: what the head makes of every level and `z`, leaves `[S, N, levels, ...]`, or
      None to make it at every call; see `modulated`.
  """

  z: jax.Array
  scale: jax.Array
  temperature: jax.Array
  keys: TokenKeys
  active: jax.Array
  modulation: Any = None


def batch(rows: RowKeys, z: jax.Array, positions: jax.Array, scale: jax.Array,
          temperature: jax.typing.ArrayLike, active: jax.Array) -> Batch:
  """Lays tokens of all rows side by side, `N = B n`.

  Args:
    rows: `[B]` random state.
    z: `[S, B, n, D]` what the transformer returned for the tokens.
    positions: `[B, n]` of the tokens.
    scale: `[B, n]` their guidance scale.
    temperature: a scalar or `[B]`.
    active: `[B, n]`.
  """
  temperature = jnp.broadcast_to(per_row(temperature, positions.shape[0]), positions.shape)
  keys = noise_lib.token_keys(rows, positions)
  flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
  return Batch(z.reshape(z.shape[0], -1, z.shape[-1]), flat(scale), flat(temperature),
               jax.tree.map(flat, keys), flat(active))


def pick(z: jax.Array, positions: jax.Array) -> jax.Array:
  """Picks the entries `[S, B, n, D]` of `z` `[S, B, T, D]` at `positions` `[B, n]`."""
  return jnp.take_along_axis(z, positions[None, :, :, None], axis=2)


def modulated(target: Target, schedule: Schedule, params: Params, batch: Batch) -> Batch:
  """The batch with `modulation` for all levels, if the head has one and memory allows."""
  if target.modulation is None or batch.modulation is not None:
    return batch
  make = lambda: target.modulation.make(
      params, jnp.asarray(schedule.steps), batch.z.reshape(-1, batch.z.shape[-1]))
  size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize
             for leaf in jax.tree.leaves(jax.eval_shape(make)))
  if size > _MODULATION_BYTES:
    return batch
  return batch._replace(modulation=jax.tree.map(
      lambda leaf: leaf.reshape(*batch.z.shape[:2], *leaf.shape[1:]), make()))


class Sampled(NamedTuple):
  """Tokens and what they cost; see `result`.

  Attributes:
    tokens: `[N, C]`.
    calls: `[N]` head calls until the token was complete.
    rows: `[N]` states the head was asked about.
    tested: `[N, M]` drafts tested, by level.
    accepted: `[N, M]` drafts accepted.
    trials: `[N]` proposals for residual draws.
    missed: `[N]` residual draws of which no proposal was taken.
  """

  tokens: jax.Array
  calls: jax.Array
  rows: jax.Array
  tested: jax.Array
  accepted: jax.Array
  trials: jax.Array
  missed: jax.Array


class Head(NamedTuple):
  """A way to sample tokens.

  Attributes:
    sample: `(params, batch) -> Sampled`.
    levels: `M`, levels whose tests are counted; 0 if there are none.
    guarantee: how near the tokens are to the target's distribution, in words.
  """

  sample: Callable[[Params, Batch], Sampled]
  levels: int
  guarantee: str


class Kernel(NamedTuple):
  """The kernels of some states, leaves `[N, ..., C]`; `eps` and `v` as the head gave them."""

  mean: jax.Array
  std: jax.Array
  eps: jax.Array
  v: jax.Array


def kernel(target: Target, schedule: Schedule, params: Params, batch: Batch, x: jax.Array,
           level: jax.Array) -> Kernel:
  """One call of the head: the true kernels of states `x` `[N, ..., C]` at `level` `[N, ...]`.

  With guidance one state is evaluated with both streams' `z`. MAR runs a doubled batch
  whose second half is overwritten by the first at every kernel; this is what remains of
  it: the noise is guided, the variance is the conditional stream's.
  """
  def spread(leaf):
    """`[S, N, ...]` to `[S * N * ..., ...]`, one entry per state and stream."""
    middle = (1,) * (level.ndim - 1)
    leaf = leaf.reshape(leaf.shape[:2] + middle + leaf.shape[2:])
    shape = (target.num_streams, *level.shape, *leaf.shape[1 + level.ndim:])
    return jnp.broadcast_to(leaf, shape).reshape(-1, *leaf.shape[1 + level.ndim:])

  streams = target.num_streams
  states = jnp.broadcast_to(x, (streams, *x.shape)).reshape(-1, x.shape[-1])
  steps = jnp.broadcast_to(jnp.asarray(schedule.steps)[level], (streams, *level.shape)).reshape(-1)
  if batch.modulation is None:
    eps, v = target.denoise(params, states, steps, spread(batch.z))
  else:
    first = jnp.arange(streams * level.shape[0]) * schedule.num_levels
    row = (first.reshape(streams, -1, *(1,) * (level.ndim - 1)) + level).reshape(-1)
    made = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), batch.modulation)
    eps, v = target.modulation.apply(params, states, made, row)
  contract.check_head(states, eps, v)
  eps, v = (leaf.reshape(streams, *x.shape) for leaf in (eps, v))
  per_token = lambda leaf: leaf.reshape(-1, *(1,) * level.ndim)
  if streams == 2:
    guided = eps[1] + per_token(batch.scale) * (eps[0] - eps[1])
  else:
    guided = eps[0]
  mean, std = schedule_lib.posterior(schedule, level, x, guided, v[0])
  return Kernel(mean, per_token(batch.temperature) * std, guided, v[0])


def ancestral(target: Target, schedule: Schedule, last_noise: bool = False) -> Head:
  """The sampler of DDPM and MAR: as many head calls as levels.

  Args:
    target: the model.
    schedule: the levels.
    last_noise: whether kernel 0 adds its noise too (a standard deviation of 0.0064).
      MAR's sampler does not, and emits the mean.
  """
  levels = schedule.num_levels

  def sample(params, batch):
    num = batch.active.shape[0]
    batch = modulated(target, schedule, params, batch)
    noise = noise_lib.chain_normal(batch.keys, noise_lib.STEP, levels, target.token_dim)
    if not last_noise:
      noise = noise.at[:, 0].set(0)

    def step(i, x):
      level = levels - 1 - i
      k = kernel(target, schedule, params, batch, x, jnp.full((num,), level))
      return k.mean + k.std * noise[:, level]

    x = start(batch, target)
    x = jax.lax.fori_loop(0, levels, step, x)
    count = jnp.full((num,), levels, jnp.int32)
    nothing, none = jnp.zeros((num, 0), jnp.int32), jnp.zeros_like(count)
    return Sampled(x, count, target.num_streams * count, nothing, nothing, none, none)

  return Head(sample, 0, 'exact: this is the sampler that defines the distribution')


def start(batch: Batch, target: Target) -> jax.Array:
  """Draws the first state `[N, C]` of the chain: pure noise, not scaled by the temperature."""
  return noise_lib.normal(batch.keys, noise_lib.START, 0, target.token_dim)
