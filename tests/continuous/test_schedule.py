"""Schedules: published values, mathematical properties, errors."""

import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import schedule as schedule_lib

LEVELS = schedule_lib.make(100)
FULL = schedule_lib.make(1000)

# The 100 steps of 1000 that the official code uses.
RESPACED = """
0 10 20 30 40 50 61 71 81 91 101 111 121 131 141 151 161 172 182 192 202 212 222 232 242 252 262 272
283 293 303 313 323 333 343 353 363 373 383 394 404 414 424 434 444 454 464 474 484 494 505 515 525
535 545 555 565 575 585 595 605 616 626 636 646 656 666 676 686 696 706 716 727 737 747 757 767 777
787 797 807 817 827 838 848 858 868 878 888 898 908 918 928 938 949 959 969 979 989 999"""

# Level, alpha_bar, beta, smallest and largest deviation, factor from an error of eps to the mean.
TABLE = [
    (0, 0.999959, 4.128e-5, 0.00624, 0.00643, 0.0064),
    (1, 0.999279, 6.80e-4, 0.00624, 0.02607, 0.0253),
    (2, 0.998114, 1.17e-3, 0.02111, 0.03414, None),
    (5, 0.991725, 2.63e-3, 0.04239, 0.05124, None),
    (10, 0.971054, 5.13e-3, 0.06515, 0.07164, 0.0302),
    (20, 0.895865, 1.03e-2, 0.09688, 0.10154, None),
    (50, 0.484495, 3.42e-2, 0.18176, 0.18486, 0.0484),
    (90, 0.019978, 0.187, 0.43137, 0.43238, 0.209),
    (98, 2.43e-4, 0.750, 0.86567, 0.86599, 1.50),
    (99, 2.43e-9, 0.99999, 0.99987, 0.99999, 316.2),
]


def test_the_respaced_steps_are_the_official_ones():
  assert LEVELS.steps.tolist() == [int(step) for step in RESPACED.split()]
  assert FULL.steps.tolist() == list(range(1000))
  assert schedule_lib.make(2).steps.tolist() == [0, 999]


@pytest.mark.parametrize('level, alpha_bar, beta, least, greatest, gain', TABLE)
def test_coefficients_have_the_published_values(level, alpha_bar, beta, least, greatest, gain):
  close = lambda value, printed: abs(value - printed) <= 0.006 * printed
  assert close(LEVELS.alpha_bar[level], alpha_bar)
  assert close(np.exp(LEVELS.max_log_variance[level]), beta)
  assert abs(np.exp(0.5 * LEVELS.min_log_variance[level]) - least) < 1e-5
  assert abs(np.exp(0.5 * LEVELS.max_log_variance[level]) - greatest) < 1e-5
  assert gain is None or close((LEVELS.x0_to_mean * LEVELS.eps_to_x0)[level], gain)


def test_level_0_returns_the_predicted_token():
  assert LEVELS.x0_to_mean[0] == 1 and LEVELS.x_to_mean[0] == 0
  x, eps = jnp.array([0.3, -2.0]), jnp.array([1.0, 0.5])
  mean, std = schedule_lib.posterior(LEVELS, 0, x, eps, jnp.ones(2))
  np.testing.assert_array_equal(mean, schedule_lib.predict_x0(LEVELS, 0, x, eps))
  np.testing.assert_allclose(std, 0.006425, atol=1e-6)


def test_kernels_with_the_true_token_preserve_the_noise_process():
  # If level i has the distribution N(sqrt(a_i) x0, 1 - a_i), so has level i - 1 after one kernel.
  for schedule in (LEVELS, FULL, schedule_lib.make(7)):
    alpha_bar, signal = schedule.alpha_bar, np.sqrt(schedule.alpha_bar)
    mean = schedule.x0_to_mean + schedule.x_to_mean * signal
    variance = schedule.x_to_mean**2 * (1 - alpha_bar)
    variance[1:] += np.exp(schedule.min_log_variance[1:])
    np.testing.assert_allclose(mean[1:], signal[:-1], rtol=1e-9)
    np.testing.assert_allclose(variance[1:], 1 - alpha_bar[:-1], rtol=1e-9)


def test_levels_have_the_noise_of_the_full_process():
  np.testing.assert_allclose(LEVELS.alpha_bar, FULL.alpha_bar[LEVELS.steps], rtol=1e-9)


# How many tokens each step commits.
SIZES = {
    8: [5, 15, 24, 31, 39, 45, 48, 49],
    16: [2, 3, 7, 8, 11, 13, 15, 16, 19, 20, 22, 23, 23, 25, 24, 25],
    32: [1, 1, 1, 2, 3, 4, 3, 5, 5, 6, 6, 7, 7, 8, 8, 8, 10, 9, 10, 10, 11, 11, 11, 12, 11, 12, 12,
         13, 12, 12, 13, 12],
    256: [1] * 256,
}


@pytest.mark.parametrize('num_iter', SIZES)
def test_mask_lengths_are_the_official_ones(num_iter):
  lengths = schedule_lib.mask_lengths(256, num_iter)
  assert (-np.diff([256, *lengths])).tolist() == SIZES[num_iter]


def test_every_step_commits_a_token():
  for num_tokens in (1, 2, 64, 81):
    for num_iter in range(1, num_tokens + 1):
      lengths = schedule_lib.mask_lengths(num_tokens, num_iter)
      assert lengths[-1] == 0 and len(lengths) == num_iter
      assert (np.diff([num_tokens, *lengths]) < 0).all()


def test_linear_guidance_grows_to_just_below_its_scale():
  scales = schedule_lib.guidance_scale(3.0, 'linear', 256, jnp.array([255, 128, 1, 0]))
  np.testing.assert_allclose(scales, [1 + 2 / 256, 2.0, 1 + 2 * 255 / 256, 1 + 2 * 255 / 256])
  assert scales.dtype == jnp.float32
  np.testing.assert_array_equal(
      schedule_lib.guidance_scale(3.0, 'constant', 256, jnp.array([255, 0])), [3.0, 3.0])


@pytest.mark.parametrize('options', [{'last_step': 0.04}, {}, {'shift': 3.2},
                                     {'shift': 3.2, 'last_step': 0.1}])
def test_kernels_of_a_flow_are_those_of_the_published_formula(options):
  schedule = schedule_lib.flow(20, **options)
  last_step, shift = options.get('last_step'), options.get('shift', 1.0)
  rng = np.random.default_rng(0)
  x, velocity, noise = rng.standard_normal((3, 5))
  grid = np.linspace(0, 1 - (1 / 20 if last_step is None else last_step), 20)
  times = grid / (shift - (shift - 1) * grid)
  for level in range(20):
    t = times[19 - level]
    assert abs(schedule.steps[level] - t) < 1e-12
    mean, std = schedule_lib.posterior(schedule, level, x, velocity, np.zeros(5))
    length = times[20 - level] - t if level else 1 - t if last_step is None else last_step
    score = (t * velocity - x) / ((1 - t)**2 + t * (1 - t))
    change = velocity + (1 - t) * score
    if level == 0 and last_step is not None:
      change = velocity
    np.testing.assert_allclose(mean, x + change * length, atol=1e-5)
    np.testing.assert_allclose(std * noise, np.sqrt(2 * (1 - t) * length) * noise, atol=1e-5)


def test_a_flow_ends_at_the_variance_of_the_tokens():
  # Tokens N(0, 1): the velocity of a state at time t is x (2 t - 1) / (t^2 + (1 - t)^2).
  for options in ({}, {'shift': 2.0}, {'last_step': 1e-3, 'last_deviation': 0}):
    schedule = schedule_lib.flow(1000, **options)
    variance = 1.0
    for level in range(999, -1, -1):
      t = schedule.steps[level]
      velocity = (2 * t - 1) / (t**2 + (1 - t)**2)
      x0 = 1 - schedule.eps_to_x0[level] * velocity
      gain = schedule.x0_to_mean[level] * x0 + schedule.x_to_mean[level]
      variance = gain**2 * variance + np.exp(schedule.max_log_variance[level])
    assert abs(variance - 1) < 0.01


def test_the_last_deviation_of_a_flow():
  published = schedule_lib.flow(50, last_step=0.04)
  np.testing.assert_allclose(np.exp(published.min_log_variance[0] / 2), 0.04 * np.sqrt(2))
  for deviation in (0, 0.02):
    schedule = schedule_lib.flow(50, last_step=0.04, last_deviation=deviation)
    _, std = schedule_lib.posterior(schedule, 0, jnp.ones(3), jnp.ones(3), jnp.zeros(3))
    np.testing.assert_allclose(std, deviation, rtol=1e-6)
    np.testing.assert_array_equal(schedule.min_log_variance[1:], published.min_log_variance[1:])


def test_the_noise_of_a_flow_in_steps_of_the_cosine_process():
  np.testing.assert_array_equal(schedule_lib.noise_steps(LEVELS), LEVELS.steps)
  schedule = schedule_lib.flow(50)
  steps, t = schedule_lib.noise_steps(schedule), schedule.steps
  share = t**2 / (t**2 + (1 - t)**2)
  np.testing.assert_allclose(
      np.cos((steps / 1000 + 0.008) / 1.008 * np.pi / 2)**2, share, atol=1e-12)
  assert steps[-1] == 1000 and np.all(np.diff(steps) > 0)
