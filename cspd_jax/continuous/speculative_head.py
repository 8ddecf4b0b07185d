"""Speculation inside the diffusion head: the same distribution with fewer head calls in sequence.

The chain of denoising states is a sequence like any other: draft the next `L` states, evaluate the
head at all of them in one call, and move each from the kernel that it was drawn from to the true
one, up to the first that moves. The speed of a small head is limited by the number of its calls,
not by their size, so 100 calls with one state become about 9 calls with 32.

A round, for a token at level `l` with state `y_0`:

    draft   y_1 .. y_L by the kernels of a drafter, levels l - 1 .. l - L
    score   the head on y_0 .. y_{L-1}: the true kernel of every transition
    verify  `coupling.move` keeps transitions until one moves; the chain continues from there
    commit  the token if the head was evaluated at a true state of level 0: the mean of its kernel

The drafter extrapolates from the last answer of the head at a level at or above the one it drafts,
also if that answer is at a draft that was discarded: such a state is close to the one that replaced
it. Drafting is affine in the state, so all drafts of a round follow from a prefix scan.

Tokens advance independently; each has its own level. The distribution is that of `head.ancestral`,
because each transition, kept or moved, has the distribution of the true kernel given the state
before it. The noise of a kernel has one key whatever the round, see `noise`; the drafter's answer
for a kernel depends only on states before that kernel.

Reference: De Bortoli, Galashov, Gretton & Doucet, Accelerated Diffusion Models via
Speculative Sampling, 2025 (arXiv:2501.05370), with `coupling.compare` for learned variances.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import coupling, head_drafter, noise as noise_lib, schedule as schedule_lib
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.coupling import Gaussian
from cspd_jax.continuous.head import Head, HeadSampler, Kernel, Sampled
from cspd_jax.continuous.head_drafter import Frozen
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import TokenBatch
from cspd_jax.core import fields, rows

DEFAULT_KERNELS = 16  # Default number of states per head call, or all levels if there are fewer.


class HeadState(NamedTuple):
  """The state of the loop over rounds, for `N` tokens."""

  x: jax.Array  # `[N, C]` the state.
  level: jax.Array  # `[N]` its level; -1 when the token is complete.
  answers: Frozen  # The head's answers of the last round, leaves `[N, L, C]`.
  first: jax.Array  # `[N]` the level of the first of them.
  sampled: Sampled  # Tokens and counts so far.


class HeadNoise(NamedTuple):
  """The noise of drafts and tests, drawn before the first round."""

  draft: jax.Array  # `[N, levels, C]` noise of the drafter's kernels.
  split: jax.Array | None  # `[N, levels, C]`, None if no deviations are learned, and
  log_uniform: jax.Array  # `[N, levels]` of the moves to the true kernels.

  def at(self, level: jax.Array) -> 'HeadNoise':
    """Returns the noise of the kernels at `level` `[N, L]`, leaves `[N, L, ...]`."""
    level = jnp.maximum(level, 0)
    return jax.tree.map(lambda leaf: rows.take(leaf, level), self)


class HeadDrafts(NamedTuple):
  """Drafted transitions, from state `x` at `level` to state `next`."""

  x: jax.Array  # `[N, L, C]`; the first is the token's true state.
  next: jax.Array  # `[N, L, C]`.
  level: jax.Array  # `[N, L]`; negative past the end of the chain.
  predicted: Gaussian  # The kernels that `next` was drawn from, `[N, L, C]`.


def speculative(target: Target, schedule: Schedule, kernels_per_call: int | None = None,
                rho: np.ndarray | None = None) -> HeadSampler:
  """Returns a sampler with the distribution of `head.ancestral` without last noise.

  Arguments as for `decoders.exact_head`. Raises ValueError for options out of range.
  """
  levels = schedule.num_levels
  length = min(DEFAULT_KERNELS, levels) if kernels_per_call is None else kernels_per_call
  rho = check(schedule, length, rho)

  def one_round(head, batch, noise, state):
    noise = noise.at(state.level[:, None] - jnp.arange(length))
    drafts = propose(schedule, rho, batch, noise, state)
    kernel = head.kernel(batch, drafts.x, jnp.maximum(drafts.level, 0))
    return verify(schedule, target, noise, state, drafts, kernel)

  def sample(params, batch):
    head = Head(target, schedule, params)
    batch = head.modulated(batch)
    normal = lambda purpose: noise_lib.chain_normal(batch.keys, purpose, levels, target.token_dim)
    noise = HeadNoise(
        normal(noise_lib.DRAFT),
        # Equal deviations have no noise to split.
        normal(noise_lib.PROPOSE) if schedule_lib.learned(schedule) else None,
        noise_lib.chain_log_uniform(batch.keys, noise_lib.ACCEPT, levels))
    x = head.start(batch)
    count = jnp.zeros(batch.active.shape, jnp.int32)
    per_level = jnp.zeros((*count.shape, levels), jnp.int32)
    answers = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], length, axis=1),
                           head_drafter.frozen_start(x))
    level = jnp.where(batch.active, levels - 1, -1)
    state = HeadState(x, level, answers, level, Sampled(
        jnp.zeros_like(x), count, count, per_level, per_level, count, count))
    state = jax.lax.while_loop(lambda state: jnp.any(state.level >= 0),
                               lambda state: one_round(head, batch, noise, state), state)
    return state.sampled

  return HeadSampler(
      sample, levels, 'exact up to rounding: the same distribution, fewer head calls in sequence',
      length)


def check(schedule: Schedule, kernels_per_call: int, rho: np.ndarray | None) -> np.ndarray:
  """Checks options, and returns the blend of the head's drafter, by default `default_rho`."""
  levels = schedule.num_levels
  words = f'a whole number from 1 to the number of levels, {levels}'
  fields.check_whole('kernels_per_call', kernels_per_call, words, 1, levels)
  rho = head_drafter.default_rho(schedule) if rho is None else np.asarray(rho, np.float64)
  if rho.shape != (levels,) or not np.all(np.isfinite(rho)):
    raise ValueError(
        f'rho has shape {rho.shape} and {np.isfinite(rho).sum()} finite numbers; it must have one '
        f'finite number per level, ({levels},).')
  return rho


def propose(schedule: Schedule, rho: np.ndarray, batch: TokenBatch, noise: HeadNoise,
            state: HeadState) -> HeadDrafts:
  """Drafts as many transitions as there are answers, without a call of a network."""
  length = state.answers.eps.shape[1]
  level = state.level[:, None] - jnp.arange(length)
  here = jnp.maximum(level, 0)
  nearest = jnp.clip(state.first[:, None] - level, 0, length - 1)
  answers = jax.tree.map(lambda leaf: rows.take(leaf, nearest), state.answers)
  slope = head_drafter.slope(schedule, rho, here)
  offset, std = head_drafter.draft_kernel(schedule, rho, answers, jnp.zeros_like(answers.eps), here)
  std = batch.temperature[:, None, None] * std
  next_x = _affine_chain(slope, offset + std * noise.draft, state.x)
  x = jnp.concatenate([state.x[:, None], next_x[:, :-1]], axis=1)
  return HeadDrafts(x, next_x, level, Gaussian(slope * x + offset, std))


def _affine_chain(slope: jax.Array, offset: jax.Array, x: jax.Array) -> jax.Array:
  """Returns `y_1 .. y_L` `[N, L, C]` of `y_{j+1} = slope_j y_j + offset_j`, `y_0 = x` `[N, C]`."""
  length, shift = offset.shape[1], 1
  before = lambda leaf, fill: jnp.pad(
      leaf, ((0, 0), (shift, 0), (0, 0)), constant_values=fill)[:, :length]
  while shift < length:  # Every pass composes twice as many steps.
    slope, offset = slope * before(slope, 1), offset + slope * before(offset, 0)
    shift *= 2
  return slope * x[:, None] + offset


def verify(schedule: Schedule, target: Target, noise: HeadNoise, state: HeadState,
           drafts: HeadDrafts, kernel: Kernel) -> HeadState:
  """Moves transitions to the true kernels, up to the first that is not kept."""
  length = drafts.level.shape[1]
  true = Gaussian(kernel.mean, kernel.std)
  compared = coupling.compare(drafts.next, drafts.predicted, true, noise.split)
  moved = coupling.move(drafts.next, compared, noise.log_uniform)
  # Kernel 0 is not tested: it has no noise.
  accepted = coupling.accepted_length(moved.kept & (drafts.level > 0))
  # The last true state that the head was evaluated at.
  last = jnp.minimum(accepted, length - 1)
  at_last = lambda leaf: rows.take(leaf, last[:, None])[:, 0]
  level, mean, x = jax.tree.map(at_last, (drafts.level, kernel.mean, moved.x))
  active = state.level >= 0
  complete = active & (level == 0)

  x0 = schedule_lib.predict_x0(schedule, jnp.maximum(drafts.level, 0), drafts.x, kernel.eps)
  sampled = state.sampled
  # The index in the round of the transition at every level; out of range without one.
  index = state.level[:, None] - jnp.arange(schedule.num_levels)
  tested = (jnp.arange(schedule.num_levels) > 0) & active[:, None] & (index >= 0) & (
      index <= last[:, None])
  states = target.num_streams * jnp.minimum(length, state.level + 1)
  return HeadState(
      x=x, level=jnp.where(active, level - 1, -1), answers=Frozen(kernel.eps, x0, kernel.v),
      first=state.level, sampled=sampled._replace(
          tokens=jnp.where(complete[:, None], mean, sampled.tokens),
          calls=sampled.calls + active, rows=sampled.rows + jnp.where(active, states, 0),
          tested=sampled.tested + tested,
          accepted=sampled.accepted + (tested & (index < accepted[:, None]))))
