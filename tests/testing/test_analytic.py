"""The analytic models are what they say they are, and so are the tests of samples."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.testing.exactness import compare, energy_test, ks_statistic
from cspd_jax.testing.proofs import analytic


class AnalyticTest(chex.TestCase):

  def test_pack(self):
    key = jax.random.key(0)
    mixture = analytic.Mixture(*(jax.random.normal(key, (2, 5, *shape))
                                 for shape in ((3,), (3, 4), (3,))))
    z = analytic.pack(mixture)
    chex.assert_shape(z, (2, 5, 3 * 6))
    chex.assert_trees_all_equal(analytic.unpack(z, 4), mixture)

  @pytest.mark.slow
  def test_eps_is_the_expected_noise(self):
    """By brute force: tokens whose noisy state lies near x, and the noise in them."""
    levels = schedule_lib.make(6)
    mixture = analytic.Mixture(jnp.log(jnp.array([0.3, 0.7])), jnp.array([[-1.0], [1.0]]),
                               jnp.array([0.2, 0.4]))
    rng = np.random.default_rng(0)
    which = rng.random(2000000) < 0.7
    token = np.where(which, 1 + 0.4 * rng.standard_normal(len(which)),
                     -1 + 0.2 * rng.standard_normal(len(which)))
    noise = rng.standard_normal(len(which))
    level = 3
    x = np.sqrt(levels.alpha_bar[level]) * token + np.sqrt(1 - levels.alpha_bar[level]) * noise
    denoise = analytic.exact_denoise(levels, 1)
    for at in (-0.8, 0.1, 1.0):
      near = np.abs(x - at) < 0.02
      z = analytic.pack(mixture)[None]
      step = jnp.array([levels.steps[level]])
      eps, v = denoise(None, jnp.array([[at]]), step, z)
      self.assertAlmostEqual(float(eps[0, 0]), noise[near].mean(), delta=0.03)
      variance = (levels.x0_to_mean[level]**2 * token[near].var() +
                  np.exp(levels.min_log_variance[level]))
      log_variance = schedule_lib.log_variance(levels, jnp.array([level]), v)
      self.assertAlmostEqual(float(log_variance[0, 0]), np.log(variance), delta=0.05)

  @pytest.mark.slow
  def test_conditional_distributions_of_the_chain(self):
    chain = analytic.gaussian_chain(5, 0.7, means=(0.5,))
    distance = np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    covariance = 0.7**distance
    tokens = np.random.default_rng(0).standard_normal((1, 5, 1))
    for shown in ([], [2], [0, 4], [0, 1, 3]):
      visible = np.isin(np.arange(5), shown)
      z = chain.target.transform(
          chain.params, jnp.array([0]), jnp.asarray(tokens, jnp.float32), visible[None])
      mixture = analytic.unpack(z[0, 0], 1)
      gain = covariance[:, shown] @ np.linalg.inv(covariance[np.ix_(shown, shown)])
      mean = 0.5 + gain @ (tokens[0, shown, 0] - 0.5)
      variance = 1 - np.sum(gain * covariance[:, shown], axis=1)
      np.testing.assert_allclose(mixture.means[~visible, 0, 0], mean[~visible], atol=1e-5)
      np.testing.assert_allclose(
          mixture.stds[~visible, 0], np.sqrt(variance[~visible]), atol=1e-5)


class SamplesTest(chex.TestCase):

  def test_statistic(self):
    self.assertEqual(ks_statistic(np.arange(10), np.arange(10)), 0)
    self.assertEqual(ks_statistic(np.arange(10), np.arange(5, 15)), 0.5)

  def test_compare(self):
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 20000, 2, 2))
    report = compare(first, second)
    self.assertTrue(report.passed)
    self.assertAlmostEqual(report.mean, 0.87 * np.sqrt(2 / 20000), delta=0.003)
    # Equal marginals, other dependence.
    second[:, 1] = 0.95 * second[:, 1] + np.sqrt(1 - 0.95**2) * second[:, 0]
    self.assertFalse(compare(first, second).passed)


@pytest.mark.slow
def test_power_and_false_alarms_of_the_energy_test():
  """At 300 samples of 8 numbers: a shift by 0.2 deviations is detected in over 90 %."""
  rng = np.random.default_rng(0)
  draw = lambda shift: rng.standard_normal((300, 8)) + shift
  detected = [energy_test(draw(0.2), draw(0), permutations=99) <= 0.05 for _ in range(30)]
  alarms = [energy_test(draw(0), draw(0), permutations=99) <= 0.05 for _ in range(60)]
  assert np.mean(detected) > 0.9 and np.mean(alarms) < 0.17
  with pytest.raises(ValueError, match='all but the first axis must agree'):
    energy_test(draw(0), draw(0)[:, :3])
