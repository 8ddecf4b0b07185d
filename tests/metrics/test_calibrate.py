"""Calibration of a relaxation to a goal."""

import numpy as np
import pytest
from absl.testing import parameterized

from cspd_jax.decoding.verifiers.cool import uniform
from cspd_jax.metrics.calibrate import calibrate
from cspd_jax.testing.verdicts import enumerate_stage


def noisy(value, key):
  """Returns samples with a mean of about `value**2` and the same noise in every call."""
  return value**2 + np.random.default_rng(key).normal(size=100)


class CalibrateTest(parameterized.TestCase):

  @parameterized.parameters(1, -1)
  def test_curve(self, sign):
    measure = lambda value, key: sign * noisy(value, key)
    result = calibrate(measure, 0.0, 4.0, sign * 5.0, key=0, steps=20, tolerance=1e-3)
    noise = np.mean(noisy(0.0, 0))
    np.testing.assert_allclose(result.value, np.sqrt(5 - noise), rtol=1e-3)
    np.testing.assert_allclose(result.mean, sign * 5, rtol=1e-3)
    self.assertAlmostEqual(result.error, np.std(noisy(0.0, 0), ddof=1) / 10)

  def test_stops_when_it_is_close_enough(self):
    exact = calibrate(lambda value, key: [value], 0.0, 8.0, 6.1, key=0, steps=30, tolerance=0.0)
    close = calibrate(lambda value, key: [value], 0.0, 8.0, 6.1, key=0, steps=30, tolerance=0.02)
    self.assertEqual([value for value, _ in close.history], [0, 8, 4, 6])
    self.assertEqual((close.value, close.mean), (6, 6))
    self.assertLen(exact.history, 30)
    self.assertAlmostEqual(exact.value, 6.1, places=6)

  def test_best_of_what_was_measured(self):
    # A step function: no value meets the goal, and an end is the closest.
    result = calibrate(lambda value, key: [float(value > 3.3)], 0.0, 8.0, 0.9, key=0, steps=6)
    self.assertEqual((result.value, result.mean), (8, 1))
    self.assertTrue(np.isnan(result.error))

  @pytest.mark.slow
  def test_tv_bound_of_a_verifier(self):
    p, q = np.random.default_rng(0).dirichlet(np.ones(4), (2, 50))
    measure = lambda delta, key: enumerate_stage(uniform(delta), p, q).tv_bound
    result = calibrate(measure, 1.0, 2.0, 0.1, key=None, steps=4)
    self.assertLess(abs(result.mean - 0.1), 0.03)
    np.testing.assert_allclose(result.history[0], (1, 0), atol=1e-6)
    means = [mean for _, mean in sorted(result.history)]
    self.assertEqual(means, sorted(means))

  @parameterized.named_parameters(
      ('range', dict(low=3.0, high=3.0), 'low is 3.0 and high 3.0; low must be below'),
      ('steps', dict(steps=1), 'steps is 1; it must be at least 2'),
      ('tolerance', dict(tolerance=-1.0), 'tolerance is -1.0'),
      ('goal', dict(goal=20.0), 'goal is 20.0, but the measurement is .* at low = 1.0 and .*wider'),
      ('nan', dict(measure=lambda value, key: [np.nan]), r'measure returned \[nan\] at 1.0'),
      ('empty', dict(measure=lambda value, key: []), 'must return finite numbers'),
  )
  def test_refused(self, options, words):
    with self.assertRaisesRegex(ValueError, words):
      calibrate(**{**dict(measure=noisy, low=1.0, high=4.0, goal=5.0, key=0), **options})
