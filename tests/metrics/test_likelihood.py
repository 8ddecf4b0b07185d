"""Likelihoods compared with enumerated distributions and with a plain forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

import cspd_jax
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.metrics import likelihood
from cspd_jax.testing import tabular


class LikelihoodTest(parameterized.TestCase):

  def measure(self, model, sampling, label=0):
    """Returns `(sequences, distribution, Likelihood)` for all sequences of a tabular model."""
    sequences = model.sequences()
    labels = jnp.full((len(sequences),), label, jnp.int32)
    got = jax.jit(lambda tokens: likelihood.likelihood(
        model.target, model.params, labels, tokens, sampling))(jnp.asarray(sequences, jnp.int32))
    return sequences, model.distribution(sampling, label), jax.tree.map(np.asarray, got)

  @parameterized.parameters(1, 4)
  @pytest.mark.slow
  def test_equals_the_distribution_of_other_sequences(self, length):
    self._check_distribution(length)

  def test_equals_the_distribution_of_sequences(self):
    self._check_distribution(2)

  def _check_distribution(self, length):
    model = tabular.tabular(jax.random.key(0), length=length, guided=True, num_classes=2)
    _, distribution, got = self.measure(model, SamplingParams(guidance_scale=2.0, temperature=0.8),
                                        label=1)
    np.testing.assert_allclose(got.nll, -np.log(distribution) / length, rtol=1e-4)

  def test_mean_is_the_entropy_rate(self):
    model = tabular.tabular(jax.random.key(1), length=4)
    _, distribution, got = self.measure(model, SamplingParams())
    rate = -np.sum(distribution * np.log(distribution)) / 4
    self.assertAlmostEqual(distribution @ got.nll, rate, places=5)
    self.assertAlmostEqual(distribution @ got.entropy, rate, places=5)
    # Subtracting the entropy reduces the noise, which is its purpose.
    spread = lambda x: distribution @ x**2 - (distribution @ x)**2
    self.assertLess(spread(got.nll - got.entropy), spread(got.nll))

  @parameterized.parameters(0.5, 2.0)
  def test_shows_a_bias(self, temperature):
    model = tabular.tabular(jax.random.key(2), length=4)
    _, _, got = self.measure(model, SamplingParams())
    biased = model.distribution(SamplingParams(temperature=temperature))
    excess = biased @ (got.nll - got.entropy)
    self.assertGreater(excess * (1 if temperature > 1 else -1), 0.1)

  def test_forced_tokens_cost_nothing(self):
    model = tabular.tabular(jax.random.key(3), length=3, forced={1: 2})
    sequences, distribution, got = self.measure(model, SamplingParams())
    allowed = sequences[:, 1] == 2
    np.testing.assert_allclose(got.nll[allowed], -np.log(distribution[allowed]) / 3, rtol=1e-4)
    self.assertTrue(np.all(np.isinf(got.nll[~allowed])))

  @parameterized.parameters(
      (SamplingParams(guidance_scale=3.0), 'guidance_scale is 3.0; it must be 1'),
      (SamplingParams(temperature=0.0, top_k=None), 'temperature is 0.0; it must be above 0'))
  def test_options_without_effect(self, sampling, message):
    """An error, or NaN in the rows whose traced options are invalid."""
    model = tabular.tabular(jax.random.key(3), length=3)
    tokens, labels = jnp.zeros((2, 3), jnp.int32), jnp.zeros(2, jnp.int32)
    for function in (likelihood.log_probs, likelihood.distributions):
      run = lambda sampling, function=function: function(
          model.target, model.params, labels, tokens, sampling)
      with self.assertRaisesRegex(ValueError, message):
        run(sampling)
      mixed = jax.tree.map(lambda bad, good: jnp.stack([bad, good]), sampling, sampling._replace(
          guidance_scale=1.0, temperature=1.0))
      got = np.asarray(jax.jit(run)(mixed)).reshape(2, -1)
      self.assertTrue(np.isnan(got[0]).all() and np.isfinite(got[1]).all())


class UnigramTest(absltest.TestCase):

  def test_by_hand(self):
    a, b = np.array([[0, 0, 1, 2]]), np.array([[0, 1], [1, 1]])
    self.assertAlmostEqual(likelihood.unigram_distance(a, b, 5), 0.5)
    self.assertEqual(likelihood.unigram_distance(a, a, 5), 0)


@pytest.mark.slow
def test_distances_are_those_of_the_distributions(llamagens):
  whole = cspd_jax.load(llamagens / 'alone', dtype='float32')
  small = cspd_jax.load(llamagens / 'alone', dtype='float32', quantize='int8')
  target, sampling = whole.target(guided=True), whole.sampling(guidance_scale=2.0, top_k=5)
  condition, tokens = whole.condition([0, 1]), jnp.tile(jnp.arange(16), (2, 1)) % 4
  result = likelihood.distance(target, whole.params, small.params, condition, tokens, sampling)
  own, other = (np.asarray(likelihood.distributions(target, params, condition, tokens, sampling))
                for params in (whole.params, small.params))
  apart = 0.5 * np.abs(own - other).sum(axis=-1)
  np.testing.assert_allclose(result.total_variation, apart.mean(axis=1), rtol=1e-5)
  np.testing.assert_allclose(result.largest, apart.max(axis=1), rtol=1e-5)
  assert result.total_variation.min() > 0 and result.largest.max() < 0.3
  # A cut may leave tokens that the other target excludes: their relative entropy is infinite.
  uncut = whole.sampling(guidance_scale=2.0)
  own, other = (np.asarray(likelihood.distributions(target, params, condition, tokens, uncut),
                           np.float64) for params in (whole.params, small.params))
  result = likelihood.distance(target, whole.params, small.params, condition, tokens, uncut)
  np.testing.assert_allclose(
      result.relative_entropy, (own * np.log(own / other)).sum(axis=-1).mean(axis=1), atol=1e-6)
  assert result.relative_entropy.min() > 1e-5
  same = likelihood.distance(target, whole.params, whole.params, condition, tokens, sampling)
  np.testing.assert_array_equal(same.nll, same.other_nll)
  assert not np.any(same.largest) and not np.any(same.relative_entropy)
