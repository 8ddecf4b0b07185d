"""Predictions of the kernels of parted chains, on heads for which they are exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import head_drafter, schedule as schedule_lib
from cspd_jax.continuous.chains import prediction
from cspd_jax.continuous.coupling import Gaussian
from cspd_jax.continuous.head import Kernel

SCHEDULES = {'diffusion': schedule_lib.make(9), 'flow': schedule_lib.flow(9),
             'flow with a last step': schedule_lib.flow(9, shift=0.5, last_step=0.1,
                                                        last_deviation=0.05)}
NUM, LEVELS, SIZE = 3, 9, 4
TEMPERATURE = jnp.array([1.0, 0.8, 1.2])
OLD = jnp.array([True, False, True])


def normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def head(schedule, x, bias):
  """The kernels `[N, K]` of states `x` if tokens have variance 1, and `bias` is added to `eps`."""
  level = jnp.broadcast_to(jnp.arange(LEVELS - 1, -1, -1), x.shape[:2])
  at = lambda table: jnp.asarray(table, jnp.float32)[level][..., None]
  if np.isnan(schedule.alpha_bar[0]):
    time = at(schedule.steps)
    eps = (2 * time - 1) / (time**2 + (1 - time)**2) * x
  else:
    eps = jnp.sqrt(1 - at(schedule.alpha_bar)) * x
  eps = eps + bias
  mean, std = schedule_lib.posterior(schedule, level, x, eps, jnp.zeros_like(x))
  return Kernel(mean, TEMPERATURE[:, None, None] * std, eps, jnp.zeros_like(x))


def gaussian(kernel):
  return Gaussian(kernel.mean, kernel.std)


def started(schedule, x, bias=0.0):
  rho = head_drafter.default_rho(schedule)
  return rho, prediction.start(
      schedule, rho, TEMPERATURE, x[:, 0], x, gaussian(head(schedule, x, bias)), OLD)


def assert_close(predicted, expected):
  for a, b in zip(predicted, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', SCHEDULES)
def test_answers_at_old_states_predict_those_at_new_ones(name):
  """Exactly for a head of tokens of variance 1, whatever is added to its noise."""
  schedule, old, new = SCHEDULES[name], normal(0, NUM, LEVELS, SIZE), normal(1, NUM, LEVELS, SIZE)
  bias = normal(2, NUM, LEVELS, SIZE)
  _, predicted = started(schedule, old, bias)
  actual, expected = prediction.kernel(predicted, new), gaussian(head(schedule, new, bias))
  pick = lambda kernel: jax.tree.map(lambda leaf: leaf[OLD], kernel)
  assert_close(pick(actual), pick(expected))


@pytest.mark.parametrize('name', SCHEDULES)
def test_without_an_old_chain_the_last_answer_is_extrapolated(name):
  schedule, x = SCHEDULES[name], normal(0, NUM, LEVELS, SIZE)
  rho, predicted = started(schedule, x)
  level = jnp.arange(LEVELS - 1, -1, -1)
  frozen = jax.tree.map(lambda leaf: leaf[:, None], head_drafter.frozen_start(x[:, 0]))
  mean, std = head_drafter.draft_kernel(schedule, rho, frozen, x, level)
  actual = prediction.kernel(predicted, x)
  std = jnp.broadcast_to(std, actual.std.shape)
  assert_close([leaf[1] for leaf in actual], [mean[1], TEMPERATURE[1] * std[1]])


def learned(schedule, bias, index):
  """The predictions before and after a call at kernels 1 to `index` of chains with a `bias`."""
  old, new = normal(0, NUM, LEVELS, SIZE), normal(1, NUM, LEVELS, SIZE)
  rho, before = started(schedule, old)
  true = head(schedule, new, bias)
  called = (jnp.arange(LEVELS) >= 1) & (jnp.arange(LEVELS) <= index[:, None])
  pick = lambda leaf: leaf[jnp.arange(NUM), jnp.minimum(index, LEVELS - 1)]
  last = prediction.Last(
      index, pick(new), pick(prediction.kernel(before, new).mean), jax.tree.map(pick, true))
  after = prediction.learn(
      schedule, rho, TEMPERATURE, before, OLD, called, new, gaussian(true), last)
  return before, after


@pytest.mark.parametrize('name', SCHEDULES)
def test_an_error_of_the_noise_is_carried_to_later_kernels(name):
  schedule, index, bias = SCHEDULES[name], jnp.array([3, 5, 6]), normal(2, NUM, 1, SIZE)
  before, after = learned(schedule, bias, index)
  x = normal(3, NUM, LEVELS, SIZE)
  expected = gaussian(head(schedule, x, bias))
  actual, earlier = prediction.kernel(after, x), prediction.kernel(before, x)
  for row in (0, 2):
    pick = lambda kernel, first, row=row: jax.tree.map(lambda leaf: leaf[row, first:], kernel)
    assert_close(pick(actual, 1), pick(expected, 1))
    assert np.abs(earlier.mean[row, 2:] - expected.mean[row, 2:]).max() > 0.01
    np.testing.assert_array_equal(after.offset[row, 0], before.offset[row, 0])


@pytest.mark.parametrize('name', SCHEDULES)
def test_predictions_depend_on_earlier_kernels_only(name):
  """Another answer at the last kernel of a call changes that kernel and later ones."""
  schedule, index = SCHEDULES[name], jnp.array([3, 5, LEVELS])
  last = jnp.arange(LEVELS)[:, None] == index[:, None, None]
  learn = lambda bias: learned(schedule, bias, index)[1]
  first, second = learn(0.0), learn(jnp.where(last, 0.5, 0.0))
  changed = np.any(np.asarray(first.offset) != second.offset, axis=-1)
  np.testing.assert_array_equal(changed, np.arange(LEVELS) >= np.asarray(index)[:, None])
