"""Speculation inside the diffusion head: the same distribution with fewer head calls in sequence.

The chain of denoising states is a sequence like any other: draft the next `L` states,
ask the head about all of them in one call, keep those that pass the test of
`couple`, replace the first that does not. What limits a small head is the number of its
calls, not their size, so 100 calls of one state become about 16 calls of eight.

A round, for a token at level `l` with state `y_0`:

    draft   y_1 .. y_L by the kernels of a drafter, levels l - 1 .. l - L
    call    the head on y_0 .. y_{L-1}: the true kernel of every transition
    walk    accept transitions until one fails; draw that one's residual
    token   if a state at level 0 is reached and known: the mean of its kernel

Tokens advance each by itself; every one has its own level. The distribution is that of
`head.ancestral`, with any guidance, temperature and number of levels, because each
transition, accepted or not, has the distribution of the true kernel given the state before it.

The noise of a kernel has one key whatever the round (see `random`). This needs that the
drafter's memory comes from states that were kept, never from discarded ones.

Reference: De Bortoli, Galashov, Gretton & Doucet, Accelerated Diffusion Models via
Speculative Sampling, 2025 (arXiv:2501.05370), with a density-ratio test in place of the
reflection coupling, so that learned variances need no special case.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import (
  blend,
  couple,
  head as head_lib,
  noise as noise_lib,
  schedule as schedule_lib,
)
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.blend import Frozen
from cspd_jax.continuous.head import Batch, Head, Kernel, Sampled
from cspd_jax.continuous.schedule import Schedule

# States per head call.
DEFAULT_KERNELS = 8
# Of the test of one kernel.
DEFAULT_ETA = 0.98


class State(NamedTuple):
  """What the loop over rounds carries, for `N` tokens.

  Attributes:
    x: `[N, C]` the state.
    level: `[N]` its level; -1 when the token is complete.
    frozen: what the drafter knows.
    sampled: tokens and counts so far.
  """

  x: jax.Array
  level: jax.Array
  frozen: Frozen
  sampled: Sampled


class Noise(NamedTuple):
  """What chains are drafted and tested with, drawn before the first round.

  Attributes:
    draft: `[N, levels, C]` noise of the drafter's kernels.
    log_uniform: `[N, levels]` logarithms of the tests' uniform numbers.
  """

  draft: jax.Array
  log_uniform: jax.Array

  def of(self, level: jax.Array) -> 'Noise':
    """That of the kernels at `level` `[N, L]`, leaves `[N, L, ...]`."""
    level = jnp.maximum(level, 0)
    return Noise(jnp.take_along_axis(self.draft, level[:, :, None], axis=1),
                 jnp.take_along_axis(self.log_uniform, level, axis=1))


class Drafts(NamedTuple):
  """Drafted transitions, from state `x` at `level` to state `next`.

  Attributes:
    x: `[N, L, C]`; the first is the token's true state.
    next: `[N, L, C]`.
    level: `[N, L]`; negative where there is no such level.
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
                max_trials: int = couple.DEFAULT_TRIALS) -> Head:
  """A head sampler with the distribution of `head.ancestral` without last noise.

  Arguments as for `decoders.exact_head`.

  Raises:
    ValueError: for options out of range.
  """
  levels = schedule.num_levels
  if not 1 <= kernels_per_call <= levels:
    raise ValueError(f'kernels_per_call is {kernels_per_call}; it must be from 1 to the number of '
                     f'levels, {levels}.')
  couple.check_eta(eta)
  couple.check_max_trials(max_trials)
  rho = blend.default_rho(schedule) if rho is None else np.asarray(rho, np.float64)
  if rho.shape != (levels,) or not np.all(np.isfinite(rho)):
    raise ValueError(
        f'rho has shape {rho.shape}, values {rho}; it must have one finite number per level, '
        f'({levels},).')

  def one_round(params, batch, noise, state):
    drafts = propose(schedule, rho, kernels_per_call, batch, noise, state)
    kernel = head_lib.kernel(
        target, schedule, params, batch, drafts.x, jnp.maximum(drafts.level, 0))
    return walk(schedule, target, eta, max_trials, batch, state, drafts, kernel)

  def sample(params, batch):
    batch = head_lib.modulated(target, schedule, params, batch)
    noise = Noise(
        noise_lib.chain_normal(batch.keys, noise_lib.DRAFT, levels, target.token_dim),
        noise_lib.chain_log_uniform(batch.keys, noise_lib.ACCEPT, levels))
    x = head_lib.start(batch, target)
    count = jnp.zeros(batch.active.shape, jnp.int32)
    per_level = jnp.zeros((*count.shape, levels), jnp.int32)
    state = State(x, jnp.where(batch.active, levels - 1, -1), blend.frozen_start(x),
                  Sampled(jnp.zeros_like(x), count, count, per_level, per_level, count, count))
    state = jax.lax.while_loop(lambda state: jnp.any(state.level >= 0),
                               lambda state: one_round(params, batch, noise, state), state)
    return state.sampled

  return Head(sample, levels, f'{couple.guarantee(eta, max_trials)}: the same distribution, fewer '
              'head calls in sequence')


def propose(schedule: Schedule, rho: np.ndarray, length: int, batch: Batch, noise: Noise,
            state: State) -> Drafts:
  """Drafts `length` transitions; no network is asked."""
  levels = state.level[:, None] - jnp.arange(length)
  noise = noise.of(levels)
  x, drafts = state.x, []
  for j in range(length):  # Unrolled: as steps of a loop these few products cost a head call.
    level = levels[:, j]
    mean, std = blend.draft_kernel(schedule, rho, state.frozen, x, jnp.maximum(level, 0))
    std = batch.temperature[:, None] * std
    following = mean + std * noise.draft[:, j]
    drafts.append(Drafts(x, following, level, mean, std, noise.log_uniform[:, j]))
    x = following
  return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *drafts)


def walk(schedule: Schedule, target: Target, eta: float, max_trials: int, batch: Batch,
         state: State, drafts: Drafts, kernel: Kernel) -> State:
  """Accepts transitions up to the first failure and replaces that one."""
  length = drafts.level.shape[1]
  # Kernel 0 is not drafted: it has no noise.
  testable = drafts.level > 0
  log_ratio = (couple.log_density(drafts.next, kernel.mean, kernel.std) -
               couple.log_density(drafts.next, drafts.mean, drafts.std))
  passed = testable & couple.accept(log_ratio, drafts.log_uniform, eta)
  accepted = couple.leading(passed)
  # The last state that is true and known to the head.
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
  done = state.sampled
  # Transition number `index` of the round is at this level; there are none for other levels.
  index = state.level[:, None] - jnp.arange(schedule.num_levels)
  tested = (jnp.arange(schedule.num_levels) > 0) & active[:, None] & (index >= 0) & (
      index <= last[:, None])
  known = target.num_streams * jnp.minimum(length, state.level + 1)
  return State(
      x=x, level=jnp.where(active, drafts_last.level - 1, -1), frozen=frozen,
      sampled=Sampled(
          tokens=jnp.where(complete[:, None], kernel.mean, done.tokens),
          calls=done.calls + active, rows=done.rows + jnp.where(active, known, 0),
          tested=done.tested + tested,
          accepted=done.accepted + (tested & (index < accepted[:, None])),
          trials=done.trials + trials, missed=done.missed + missed))


def kernel_residual(
    batch: Batch, level: jax.Array, kernel: Kernel, draft_mean: jax.Array, draft_std: jax.Array,
    pending: jax.Array, eta: float, max_trials: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Draws the next state from the residual of one kernel; see `couple.residual`.

  Args:
    batch: the tokens `[N]`.
    level: `[N]` level of the kernel.
    kernel: the true kernel, `[N, C]`.
    draft_mean: `[N, C]` of the drafter's kernel.
    draft_std: `[N, C]` of the drafter's kernel.
    pending: `[N]` which tokens need one.
    eta: the one of the test.
    max_trials: see `couple`.
  """
  keys = jax.tree.map(lambda leaf: leaf[:, None], batch.keys)
  level = jnp.maximum(level, 0)[:, None]
  wide = lambda leaf: leaf[:, None]

  def proposals(trials):
    noise = noise_lib.normal(
        keys, noise_lib.PROPOSE, level, kernel.mean.shape[-1], trials[None])
    y = wide(kernel.mean) + wide(kernel.std) * noise
    log_ratio = (couple.log_density(y, wide(kernel.mean), wide(kernel.std)) -
                 couple.log_density(y, wide(draft_mean), wide(draft_std)))
    return y, log_ratio, noise_lib.log_uniform(keys, noise_lib.RESIDUAL, level, trials[None])

  return couple.residual(proposals, pending, eta, max_trials)
