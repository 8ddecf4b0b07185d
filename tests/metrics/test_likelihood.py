"""Likelihoods compared with enumerated distributions and with a plain forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

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
