"""Decoders of flow heads: speculation in the head keeps the distribution, whose kernels are known.

The velocity is linear in the state and in `z`, so a token is Gaussian with a mean and a covariance
that follow from the kernels' coefficients.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import (
  base,
  head as head_lib,
  head_drafter,
  noise as noise_lib,
  schedule as schedule_lib,
  speculative_head,
)
from cspd_jax.continuous.span import TokenBatch
from tests.marks import representative

NUM = 40_000
_A = np.array([[-0.9, 0.3], [0.1, -0.6]])
_SCALE = 2.0
# Two streams of `z`.
_Z = np.array([[0.8, -0.4], [0.2, 0.1]])


def _denoise(params, x, time, z):
  del params
  velocity = x @ jnp.asarray(_A.T, jnp.float32) * (1 - time[:, None]) + z
  return velocity, jnp.zeros_like(velocity)


def _target(schedule):
  return base.Target(
      transform=None, denoise=_denoise, num_tokens=1, token_dim=2, num_streams=2,
      make_schedule=lambda levels: schedule, num_levels=schedule.num_levels)


def _batch(temperature=1.0):
  keys = noise_lib.TokenKeys(
      jax.random.bits(jax.random.key(7), (NUM, 2), jnp.uint32), jnp.zeros(NUM, jnp.int32))
  z = jnp.broadcast_to(jnp.asarray(_Z, jnp.float32)[:, None], (2, NUM, 2))
  return TokenBatch(z, jnp.full(NUM, _SCALE), jnp.full(NUM, temperature), keys, jnp.ones(NUM, bool))


def _moments(schedule, last_noise, temperature=1.0):
  """Mean and covariance of a token, from the published formula of a kernel."""
  mean, covariance = np.zeros(2), np.eye(2)
  guided = _Z[1] + _SCALE * (_Z[0] - _Z[1])
  for level in range(schedule.num_levels - 1, -1, -1):
    time = schedule.steps[level]
    gain = (schedule.x0_to_mean + schedule.x_to_mean)[level] * np.eye(2)
    pull = (schedule.x0_to_mean * (1 - schedule.steps))[level]
    gain = gain + pull * (1 - time) * _A
    mean = gain @ mean + pull * guided
    covariance = gain @ covariance @ gain.T
    if level or last_noise:
      covariance += temperature**2 * np.exp(schedule.max_log_variance[level]) * np.eye(2)
  return mean, covariance


def _check(tokens, mean, covariance):
  """Compares moments of samples, within four standard errors."""
  error = np.sqrt(np.diag(covariance) / NUM)
  np.testing.assert_array_less(np.abs(tokens.mean(0) - mean), 4 * error)
  width = np.sqrt((np.outer(*[np.diag(covariance)] * 2) + covariance**2) / NUM)
  np.testing.assert_array_less(np.abs(np.cov(tokens.T) - covariance), 4 * width)


SCHEDULES = {'1': schedule_lib.flow(8, last_step=0.04), '1.1': schedule_lib.flow(8, shift=1.5)}


@pytest.mark.parametrize('last_noise', [False, True])
@pytest.mark.parametrize('name', SCHEDULES)
def test_the_sampler_has_the_moments_of_the_kernels(name, last_noise):
  schedule = SCHEDULES[name]
  sampler = head_lib.ancestral(_target(schedule), schedule, last_noise)
  tokens = jax.jit(lambda: sampler.sample((), _batch(0.9)).tokens)()
  _check(np.asarray(tokens, np.float64), *_moments(schedule, last_noise, 0.9))


@pytest.mark.parametrize('name', representative(SCHEDULES, '1.1'))
def test_speculation_keeps_the_distribution(name):
  schedule = SCHEDULES[name]
  sampler = speculative_head.speculative(_target(schedule), schedule, kernels_per_call=4)
  sampled = jax.jit(lambda: sampler.sample((), _batch()))()
  _check(np.asarray(sampled.tokens, np.float64), *_moments(schedule, last_noise=False))
  assert sampled.calls.mean() < 8 and not sampled.missed.any()


@pytest.mark.slow
def test_a_last_kernel_without_noise_is_deterministic():
  schedule = schedule_lib.flow(8, last_step=0.04, last_deviation=0)
  run = lambda last_noise: jax.jit(lambda: head_lib.ancestral(
      _target(schedule), schedule, last_noise).sample((), _batch()).tokens)()
  np.testing.assert_array_equal(run(True), run(False))
  sampled = jax.jit(lambda: speculative_head.speculative(
      _target(schedule), schedule, 4).sample((), _batch()).tokens)()
  assert np.isfinite(sampled).all()


def test_a_stored_blend_is_interpolated_between_times():
  schedule = schedule_lib.flow(4)
  rho = np.array([0.1, 0.2, 0.6, 0.9])
  metadata = head_drafter.describe_rho(schedule, rho, rho)
  np.testing.assert_allclose(head_drafter.stored_rho(schedule, metadata, True), rho, atol=1e-4)
  finer = head_drafter.stored_rho(schedule_lib.flow(8), metadata, False)
  assert np.all(np.diff(finer[1:]) > 0), 'more noise, a blend nearer to the last token'
  default = head_drafter.default_rho(schedule_lib.flow(20))
  assert default[-1] == 1 and default[0] < 0.3 and np.all(np.diff(default) >= 0)


@pytest.mark.slow
@pytest.mark.parametrize('deviation', [0.02, 0.04 * np.sqrt(2)])
def test_the_noise_of_the_last_kernel_moves_a_token_by_its_own_size(deviation):
  """The distance to the published sampler that docs/families/nextstep.md states."""
  schedule = schedule_lib.flow(8, last_step=0.04, last_deviation=deviation)
  run = lambda last_noise: jax.jit(lambda: head_lib.ancestral(
      _target(schedule), schedule, last_noise).sample((), _batch()).tokens)()
  moved = np.asarray(run(True) - run(False), np.float64)  # The same noise: a coupling.
  np.testing.assert_allclose(np.sqrt((moved**2).sum(-1).mean()), deviation * np.sqrt(2), rtol=0.02)
