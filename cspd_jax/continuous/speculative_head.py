"""Speculation inside the diffusion head: the same distribution with fewer head calls in sequence.

The chain of denoising states is a sequence like any other: draft the next `L` states, evaluate the
head at all of them in one call, accept those that pass the test of `coupling`, replace the first
that does not. The speed of a small head is limited by the number of its calls, not by their size,
so 100 calls with one state become about 16 calls with eight.

A round, for a token at level `l` with state `y_0`:

    draft   y_1 .. y_L by the kernels of a drafter, levels l - 1 .. l - L
    score   the head on y_0 .. y_{L-1}: the true kernel of every transition
    verify  accept transitions until one fails; draw that one's residual
    commit  the token if the head was evaluated at a true state of level 0: the mean of its kernel

Tokens advance independently; each has its own level. The distribution is that of `head.ancestral`,
with any guidance, temperature and number of levels, because each transition, accepted or not, has
the distribution of the true kernel given the state before it.

The noise of a kernel has one key whatever the round (see `noise`). This requires that the drafter's
state comes from accepted states, never from discarded ones.

Reference: De Bortoli, Galashov, Gretton & Doucet, Accelerated Diffusion Models via
Speculative Sampling, 2025 (arXiv:2501.05370), with a density-ratio test in place of the
reflection coupling, so that learned variances need no special case.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import (
  coupling,
  head as head_lib,
  head_drafter,
  noise as noise_lib,
  schedule as schedule_lib,
)
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.head import HeadSampler, Kernel, Sampled
from cspd_jax.continuous.head_drafter import Frozen
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import TokenBatch

# Default number of states per head call.
DEFAULT_KERNELS = 8
# Default `eta` of the test of one kernel.
DEFAULT_ETA = 0.98


class State(NamedTuple):
  """The state of the loop over rounds, for `N` tokens.

  Attributes:
    x: `[N, C]` the state.
    level: `[N]` its level; -1 when the token is complete.
    frozen: the drafter's input.
    sampled: tokens and counts so far.
  """

  x: jax.Array
  level: jax.Array
  frozen: Frozen
  sampled: Sampled


class Noise(NamedTuple):
  """The noise of drafts and tests, drawn before the first round.

  Attributes:
    draft: `[N, levels, C]` noise of the drafter's kernels.
    log_uniform: `[N, levels]` logarithms of the tests' uniform numbers.
  """

  draft: jax.Array
  log_uniform: jax.Array

  def at(self, level: jax.Array) -> 'Noise':
    """Returns the noise of the kernels at `level` `[N, L]`, leaves `[N, L, ...]`."""
    level = jnp.maximum(level, 0)
    return Noise(jnp.take_along_axis(self.draft, level[:, :, None], axis=1),
                 jnp.take_along_axis(self.log_uniform, level, axis=1))


class Drafts(NamedTuple):
  """Drafted transitions, from state `x` at `level` to state `next`.

  Attributes:
    x: `[N, L, C]`; the first is the token's true state.
    next: `[N, L, C]`.
    level: `[N, L]`; negative past the end of the chain.
    mean: `[N, L, C]` of the drafter's kernel.
    std: `[N, L, C]` of the drafter's kernel.
    log_uniform: `[N, L]` of the transition's test.
  """

  x: jax.Array
  next: jax.Array
  level: jax.Array
  mean: jax.Array
  std: jax.Array
  log_uniform: jax.Array


def speculative(target: Target, schedule: Schedule, kernels_per_call: int = DEFAULT_KERNELS,
                rho: np.ndarray | None = None, eta: float = DEFAULT_ETA,
                max_trials: int = coupling.DEFAULT_TRIALS) -> HeadSampler:
  """Returns a sampler with the distribution of `head.ancestral` without last noise.

  Arguments as for `decoders.exact_head`.

  Raises:
    ValueError: for options out of range.
  """
  levels = schedule.num_levels
  rho = check(schedule, kernels_per_call, rho)
  coupling.check_eta(eta)
  coupling.check_max_trials(max_trials)

  def one_round(params, batch, noise, state):
    drafts = propose(schedule, rho, kernels_per_call, batch, noise, state)
    kernel = head_lib.kernel(
        target, schedule, params, batch, drafts.x, jnp.maximum(drafts.level, 0))
    return verify(schedule, target, eta, max_trials, batch, state, drafts, kernel)

  def sample(params, batch):
    batch = head_lib.modulated(target, schedule, params, batch)
    noise = Noise(
        noise_lib.chain_normal(batch.keys, noise_lib.DRAFT, levels, target.token_dim),
        noise_lib.chain_log_uniform(batch.keys, noise_lib.ACCEPT, levels))
    x = head_lib.start(batch, target)
    count = jnp.zeros(batch.active.shape, jnp.int32)
    per_level = jnp.zeros((*count.shape, levels), jnp.int32)
    state = State(x, jnp.where(batch.active, levels - 1, -1), head_drafter.frozen_start(x),
                  Sampled(jnp.zeros_like(x), count, count, per_level, per_level, count, count))
    state = jax.lax.while_loop(lambda state: jnp.any(state.level >= 0),
                               lambda state: one_round(params, batch, noise, state), state)
    return state.sampled

  guarantee = (f'{coupling.guarantee(eta, max_trials)}: the same distribution, fewer head calls in '
               'sequence')
  return HeadSampler(sample, levels, guarantee, kernels_per_call)


def check(schedule: Schedule, kernels_per_call: int, rho: np.ndarray | None) -> np.ndarray:
  """Checks options and returns the blend of the head's drafter, by default `default_rho`.

  Raises:
    ValueError: for options out of range.
  """
  levels = schedule.num_levels
  if not 1 <= kernels_per_call <= levels:
    raise ValueError(f'kernels_per_call is {kernels_per_call}; it must be from 1 to the number of '
                     f'levels, {levels}.')
  rho = head_drafter.default_rho(schedule) if rho is None else np.asarray(rho, np.float64)
  if rho.shape != (levels,) or not np.all(np.isfinite(rho)):
    raise ValueError(
        f'rho has shape {rho.shape}, values {rho}; it must have one finite number per level, '
        f'({levels},).')
  return rho


def propose(schedule: Schedule, rho: np.ndarray, length: int, batch: TokenBatch, noise: Noise,
            state: State) -> Drafts:
  """Drafts `length` transitions without a call of a network."""
  levels = state.level[:, None] - jnp.arange(length)
  noise = noise.at(levels)
  x, drafts = state.x, []
  for j in range(length):  # Unrolled: in a loop these few products take as long as a head call.
    level = levels[:, j]
    mean, std = head_drafter.draft_kernel(schedule, rho, state.frozen, x, jnp.maximum(level, 0))
    std = batch.temperature[:, None] * std
    next_x = mean + std * noise.draft[:, j]
    drafts.append(Drafts(x, next_x, level, mean, std, noise.log_uniform[:, j]))
    x = next_x
  return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *drafts)


def verify(schedule: Schedule, target: Target, eta: float, max_trials: int, batch: TokenBatch,
           state: State, drafts: Drafts, kernel: Kernel) -> State:
  """Accepts transitions up to the first failure and replaces that one."""
  length = drafts.level.shape[1]
  # Kernel 0 is not tested: it has no noise.
  testable = drafts.level > 0
  log_ratio = (coupling.log_density(drafts.next, kernel.mean, kernel.std) -
               coupling.log_density(drafts.next, drafts.mean, drafts.std))
  passed = testable & coupling.accept(log_ratio, drafts.log_uniform, eta)
  accepted = coupling.accepted_length(passed)
  # The last true state that the head was evaluated at.
  last = jnp.minimum(accepted, length - 1)
  at_last = lambda leaf: jnp.take_along_axis(
      leaf, last.reshape(-1, *(1,) * (leaf.ndim - 1)), axis=1)[:, 0]
  kernel, drafts_last = jax.tree.map(at_last, (kernel, drafts))
  active = state.level >= 0
  complete = active & (drafts_last.level == 0)
  failed = active & (accepted < length) & ~complete
  replaced, trials, missed = kernel_residual(
      batch, drafts_last.level, kernel, drafts_last.mean, drafts_last.std, failed, eta, max_trials)

  x = jnp.where(failed[:, None], replaced, drafts_last.next)
  frozen = Frozen(
      kernel.eps, schedule_lib.predict_x0(
          schedule, jnp.maximum(drafts_last.level, 0), drafts_last.x, kernel.eps), kernel.v)
  sampled = state.sampled
  # The index in the round of the transition at every level; out of range without one.
  index = state.level[:, None] - jnp.arange(schedule.num_levels)
  tested = (jnp.arange(schedule.num_levels) > 0) & active[:, None] & (index >= 0) & (
      index <= last[:, None])
  rows = target.num_streams * jnp.minimum(length, state.level + 1)
  return State(
      x=x, level=jnp.where(active, drafts_last.level - 1, -1), frozen=frozen,
      sampled=Sampled(
          tokens=jnp.where(complete[:, None], kernel.mean, sampled.tokens),
          calls=sampled.calls + active, rows=sampled.rows + jnp.where(active, rows, 0),
          tested=sampled.tested + tested,
          accepted=sampled.accepted + (tested & (index < accepted[:, None])),
          trials=sampled.trials + trials, missed=sampled.missed + missed))


def kernel_residual(
    batch: TokenBatch, level: jax.Array, kernel: Kernel, draft_mean: jax.Array,
    draft_std: jax.Array, pending: jax.Array, eta: float, max_trials: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Draws the next state from the residual of one kernel; see `coupling.residual`.

  Args:
    batch: the tokens `[N]`.
    level: `[N]` level of the kernel.
    kernel: the true kernel, `[N, C]`.
    draft_mean: `[N, C]` of the drafter's kernel.
    draft_std: `[N, C]` of the drafter's kernel.
    pending: `[N]` which tokens need a residual draw.
    eta: that of the test.
    max_trials: see `coupling`.
  """
  keys = jax.tree.map(lambda leaf: leaf[:, None], batch.keys)
  level = jnp.maximum(level, 0)[:, None]
  wide = lambda leaf: leaf[:, None]

  def proposals(trials):
    noise = noise_lib.normal(
        keys, noise_lib.PROPOSE, level, kernel.mean.shape[-1], trials[None])
    y = wide(kernel.mean) + wide(kernel.std) * noise
    log_ratio = (coupling.log_density(y, wide(kernel.mean), wide(kernel.std)) -
                 coupling.log_density(y, wide(draft_mean), wide(draft_std)))
    return y, log_ratio, noise_lib.log_uniform(keys, noise_lib.RESIDUAL, level, trials[None])

  return coupling.residual(proposals, pending, eta, max_trials)
