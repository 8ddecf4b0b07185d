"""Calls of a diffusion head, and sampling of tokens one kernel after the other.

In the shape descriptions, `N` is the number of tokens sampled in parallel.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import noise as noise_lib, schedule as schedule_lib
from cspd_jax.continuous.base import Cost, DecodeContext, Draft, Params, Target, Verdict, Verifier
from cspd_jax.continuous.result import Kernels
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import Span, TokenBatch
from cspd_jax.core import contracts

MODULATION_BYTES = 2**30  # A larger modulation is computed at every call instead of being stored.


def pick(z: jax.Array, positions: jax.Array) -> jax.Array:
  """Returns the entries `[S, B, n, D]` of `z` `[S, B, T, D]` at `positions` `[B, n]`."""
  return jnp.take_along_axis(z, positions[None, :, :, None], axis=2)


class Kernel(NamedTuple):
  """The kernels of states, leaves `[N, ..., C]`; `eps` is guided, `v` as the head returned it."""

  mean: jax.Array
  std: jax.Array
  eps: jax.Array
  v: jax.Array


class Head(NamedTuple):
  """The diffusion head of a model, sampled at the levels of a schedule."""

  target: Target
  schedule: Schedule
  params: Params

  def modulated(self, batch: TokenBatch) -> TokenBatch:
    """Adds the `modulation` for all levels to a batch, if the head has one and memory allows."""
    modulation = self.target.modulation
    if modulation is None or batch.modulation is not None:
      return batch
    make = lambda: modulation.make(
        self.params, _steps(self.schedule), batch.z.reshape(-1, batch.z.shape[-1]))
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize
               for leaf in jax.tree.leaves(jax.eval_shape(make)))
    if size > MODULATION_BYTES:
      return batch
    return batch._replace(modulation=jax.tree.map(
        lambda leaf: leaf.reshape(*batch.z.shape[:2], *leaf.shape[1:]), make()))

  def start(self, batch: TokenBatch) -> jax.Array:
    """Draws the first state `[N, C]` of the chain: pure noise, not scaled by the temperature."""
    return noise_lib.normal(batch.keys, noise_lib.START, 0, self.target.token_dim)

  def kernel(self, batch: TokenBatch, x: jax.Array, level: jax.typing.ArrayLike) -> Kernel:
    """Returns the true kernels of states `x` `[N, ..., C]` of the tokens `[N]`: one head call.

    Their levels are `[N, ...]`, or one for all. With guidance each state is evaluated with the `z`
    of both streams. MAR runs a doubled batch, whose second half it overwrites with the first at
    every kernel; this is equivalent: the noise is guided, the variance is the conditional stream's.
    """
    target, streams, modulation = self.target, self.target.num_streams, self.target.modulation
    shape, params = x.shape[:-1], self.params
    level = jnp.broadcast_to(level, shape)
    token = jnp.arange(shape[0]).reshape(-1, *(1,) * (level.ndim - 1))
    token, level = jnp.broadcast_to(token, shape).reshape(-1), level.reshape(-1)
    states = jnp.broadcast_to(x, (streams, *x.shape)).reshape(-1, x.shape[-1])
    if batch.modulation is None or modulation is None:
      steps = jnp.tile(_steps(self.schedule)[level], streams)
      eps, v = target.denoise(params, states, steps, batch.z[:, token].reshape(len(states), -1))
    else:
      first = jnp.arange(streams)[:, None] * batch.active.shape[0]
      row = ((first + token) * self.schedule.num_levels + level).reshape(-1)
      rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), batch.modulation)
      eps, v = modulation.apply(params, states, rows, row)
    contracts.check_head(states, eps, v)
    eps, v = (leaf.reshape(streams, *x.shape) for leaf in (eps, v))
    per_token = lambda leaf: leaf[token].reshape(*shape, 1)
    guided = eps[0]
    if streams == 2:
      guided = eps[1] + per_token(batch.scale) * (eps[0] - eps[1])
    mean, std = schedule_lib.posterior(self.schedule, level.reshape(shape), x, guided, v[0])
    return Kernel(mean, per_token(batch.temperature) * std, guided, v[0])


class Sampled(NamedTuple):
  """Sampled tokens and their costs.

  Attributes:
    tokens: `[N, C]`.
    calls: `[N]` head calls until the token was complete.
    rows: `[N]` states that the head was evaluated at.
    tested: `[N, M]` drafts tested, by level.
    accepted: `[N, M]` drafts accepted.
    trials: `[N]` proposals for residual draws.
    missed: `[N]` residual draws for which every proposal was rejected.
  """

  tokens: jax.Array
  calls: jax.Array
  rows: jax.Array
  tested: jax.Array
  accepted: jax.Array
  trials: jax.Array
  missed: jax.Array


class HeadSampler(NamedTuple):
  """A way to sample tokens with a diffusion head.

  Attributes:
    sample: `(params, batch) -> Sampled`.
    levels: `M`, levels whose tests are counted; 0 if none are.
    guarantee: how close the tokens are to the target's distribution, in words.
    states: the most states of a token in one call of the head.
  """

  sample: Callable[[Params, TokenBatch], Sampled]
  levels: int
  guarantee: str
  states: int = 1


def ancestral(target: Target, schedule: Schedule, last_noise: bool = False) -> HeadSampler:
  """Returns the sampler of DDPM and MAR: one head call per level.

  With `last_noise` kernel 0 adds its noise too (a standard deviation of 0.0064), unlike in MAR.
  """
  levels = schedule.num_levels

  def sample(params, batch):
    head = Head(target, schedule, params)
    batch = head.modulated(batch)
    noise = noise_lib.chain_normal(batch.keys, noise_lib.STEP, levels, target.token_dim)
    if not last_noise:
      noise = noise.at[:, 0].set(0)

    def step(i, x):
      level = levels - 1 - i
      k = head.kernel(batch, x, level)
      return k.mean + k.std * noise[:, level]

    x = jax.lax.fori_loop(0, levels, step, head.start(batch))
    calls = jnp.full(batch.active.shape, levels, jnp.int32)
    no_tests, zeros = jnp.zeros((*calls.shape, 0), jnp.int32), jnp.zeros_like(calls)
    return Sampled(x, calls, target.num_streams * calls, no_tests, no_tests, zeros, zeros)

  return HeadSampler(sample, 0, 'exact: this is the sampler that defines the distribution')


def _steps(schedule: Schedule) -> jax.Array:
  """Returns the steps of all levels as the head reads them, int32 or float32."""
  whole = np.issubdtype(schedule.steps.dtype, np.integer)
  return jnp.asarray(schedule.steps, jnp.int32 if whole else jnp.float32)


def no_drafts(sampler: HeadSampler) -> Verifier:
  """Commits tokens that a sampler of the target draws, conditioned on those committed before."""
  def verify(context: DecodeContext, span: Span, draft: Draft | None, z: jax.Array) -> Verdict:
    in_round = span.in_round
    sampled = sampler.sample(context.params, span.batch(z))
    sampled = jax.tree.map(lambda leaf: leaf.reshape(*in_round.shape, *leaf.shape[1:]), sampled)
    count = lambda leaf: jnp.where(
        in_round.reshape(in_round.shape + (1,) * (leaf.ndim - 2)), leaf, 0)
    total = lambda leaf: count(leaf).sum(axis=1)
    kernels = Kernels(total(sampled.tested), total(sampled.accepted)) if sampler.levels else None
    return Verdict(
        tokens=sampled.tokens, length=span.size,
        tested=sampled.tested.sum(axis=-1), accepted=sampled.accepted.sum(axis=-1),
        trials=total(sampled.trials), missed=total(sampled.missed),
        cost=Cost(count(sampled.calls).max(axis=1), total(sampled.rows)), kernels=kernels)

  return Verifier(verify, None, sampler.guarantee, visibility='block', commits_all=True,
                  levels=sampler.levels, exact=True,
                  head_states=lambda width: width * sampler.states)
