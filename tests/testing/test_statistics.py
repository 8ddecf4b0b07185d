"""The statistics against scipy and against known distributions."""

import numpy as np
import scipy.stats

from cspd_jax.testing import exactness


def test_the_test_matches_scipy():
  rng = np.random.default_rng(0)
  distribution = rng.dirichlet(10 * np.ones(20))
  counts = rng.multinomial(100_000, distribution)
  fit = exactness.fit(counts, distribution)
  want = scipy.stats.chisquare(counts, distribution * 100_000)
  np.testing.assert_allclose(fit.p_value, want.pvalue, rtol=1e-6)
  assert fit.samples == 100_000


def test_expected_distance():
  rng = np.random.default_rng(1)
  distribution = rng.dirichlet(np.ones(30))
  distances = [
      exactness.fit(rng.multinomial(20_000, distribution), distribution) for _ in range(50)]
  np.testing.assert_allclose(
      np.mean([fit.tv for fit in distances]), distances[0].tv_expected, rtol=0.1)


def test_p_values_are_uniform_under_the_distribution():
  rng = np.random.default_rng(2)
  distribution = rng.dirichlet(np.ones(12))
  p_values = [
      exactness.fit(rng.multinomial(5_000, distribution), distribution).p_value
      for _ in range(300)]
  assert scipy.stats.kstest(p_values, 'uniform').pvalue > 1e-4


def test_an_exact_sampler_passes_with_few_samples_in_each_of_many_cells():
  rng = np.random.default_rng(4)
  distribution = rng.dirichlet(30 * np.ones(100_000))
  p_values = [exactness.fit(rng.multinomial(2**19, distribution), distribution).p_value
              for _ in range(4)]
  assert min(p_values) > 1e-3


def test_a_percent_of_total_variation_is_seen():
  rng = np.random.default_rng(3)
  distribution = rng.dirichlet(np.ones(200))
  wrong = distribution.copy()
  order = np.argsort(distribution)
  wrong[order[-1]] -= 0.01
  wrong[order[:100]] += 0.01 / 100
  assert exactness.fit(rng.multinomial(2**19, wrong), distribution).p_value < 1e-6


def test_impossible_samples_refute():
  assert exactness.fit(np.array([999, 1]), np.array([1.0, 0.0])).p_value == 0
  assert exactness.fit(np.array([1000, 0]), np.array([1.0, 0.0])).p_value == 1
