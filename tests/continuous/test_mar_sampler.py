"""MAR's sampler against a closed form; the contracts of the decoder."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import decoders, schedule as schedule_lib
from cspd_jax.testing.exactness import compare
from cspd_jax.testing.proofs import analytic

LEVELS = schedule_lib.make(8)
# One component: a linear head, in which differences of rounding do not grow.
MODEL = analytic.mixtures(
    jax.random.key(1), 7, 3, schedule=LEVELS, guided=True, components=1)
CHAIN = analytic.gaussian_chain(16, 0.9, schedule=LEVELS, means=(0.0, 2.0))
LABELS = jnp.array([0, 1, 2])


class MarTest(chex.TestCase):

  def test_distribution_in_every_order(self):
    decoder = jax.jit(decoders.mar(CHAIN.target, schedule=LEVELS))
    labels = jnp.arange(20000) % 2
    tokens = np.asarray(decoder(CHAIN.params, labels, jax.random.key(0)).tokens)[..., 0]
    distance = np.abs(np.subtract.outer(np.arange(16), np.arange(16)))
    truth = np.random.default_rng(0).multivariate_normal(
        np.zeros(16), 0.9**distance, 20000) + 2 * np.asarray(labels)[:, None]
    for label in (0, 1):
      self.assertTrue(compare(tokens[label::2], truth[label::2]).passed)

  def test_counts(self):
    generated = jax.jit(decoders.mar(MODEL.target, 3, LEVELS))(
        MODEL.params, LABELS, jax.random.key(0))
    masked = schedule_lib.mask_lengths(7, 3)
    np.testing.assert_array_equal(generated.rounds, 3)
    np.testing.assert_array_equal(generated.costs.target_passes, 3)
    np.testing.assert_array_equal(generated.costs.head_calls, np.full((3, 3), 8))
    np.testing.assert_array_equal(generated.costs.head_rows, 7 * 8 * 2)
    costs = generated.costs
    for leaf in (costs.draft_passes, costs.draft_head_calls, generated.tests.trials):
      np.testing.assert_array_equal(leaf, 0)
    in_order = np.take_along_axis(
        np.asarray(generated.round_of_token), np.asarray(generated.order), axis=1)
    expected = np.repeat(np.arange(3), -np.diff((7, *masked)))
    np.testing.assert_array_equal(in_order, np.tile(expected, (3, 1)))

  @pytest.mark.slow
  def test_last_noise(self):
    run = lambda last_noise: jax.jit(decoders.mar(
        MODEL.target, 1, LEVELS, last_noise=last_noise))(
            MODEL.params, LABELS, jax.random.key(0)).tokens
    gap = np.std(run(True) - run(False))
    std = np.exp(0.5 * LEVELS.max_log_variance[0])  # 0.0064
    self.assertBetween(gap, 0.7 * std, 1.3 * std)
