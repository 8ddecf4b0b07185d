"""Test and residual preserve the target's distribution; the noise depends on its keys only."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from cspd_jax.continuous import coupling, noise as noise_lib
from cspd_jax.core.random import row_keys
from cspd_jax.testing.exactness import compare

NUM = 30000


def keys_of(num):
  return noise_lib.token_keys(row_keys(jax.random.key(3), num), jnp.zeros((num,), jnp.int32))


def accept_or_replace(eta, gap, log_ratio_of_std, num=NUM):
  """Draft from one Gaussian, test against another, replace; `[num, 2]` and statistics."""
  keys = keys_of(num)
  q = jnp.full((num, 2), gap), jnp.exp(jnp.full((num, 2), log_ratio_of_std))
  p = jnp.zeros((num, 2)), jnp.ones((num, 2))
  log_ratio = lambda x, shape: (
      coupling.log_density(x, *(leaf.reshape(shape) for leaf in p)) -
      coupling.log_density(x, *(leaf.reshape(shape) for leaf in q)))
  draft = q[0] + q[1] * noise_lib.normal(keys, noise_lib.DRAFT, 0, 2)
  passed = coupling.accept(log_ratio(draft, draft.shape),
                           noise_lib.log_uniform(keys, noise_lib.ACCEPT, 0), eta)
  wide = jax.tree.map(lambda leaf: leaf[:, None], keys)

  def propose(trials):
    y = noise_lib.normal(wide, noise_lib.PROPOSE, 0, 2, trials[None])
    return (y, log_ratio(y, (num, 1, 2)),
            noise_lib.log_uniform(wide, noise_lib.RESIDUAL, 0, trials[None]))

  drawn, trials, _ = coupling.residual(propose, ~passed, eta, coupling.DEFAULT_TRIALS)
  return jnp.where(passed[:, None], draft, drawn), passed, trials


class CouplingTest(chex.TestCase):

  @parameterized.parameters((1.0, 0.7, 0.0), (0.5, 0.1, -0.1))
  def test_distribution_acceptance_and_number_of_proposals(self, eta, gap, log_std):
    out, passed, trials = jax.jit(accept_or_replace, static_argnums=(0, 1, 2))(eta, gap, log_std)
    target = np.random.default_rng(0).standard_normal((NUM, 2))
    self.assertTrue(compare(np.asarray(out), target).passed)
    # One proposal per test on average, whatever the distributions.
    self.assertAlmostEqual(float(trials.mean()), 1.0, delta=0.06)
    if log_std == 0:  # The overlap of two Gaussians, 2 Phi(-D / 2).
      overlap = 2 * jax.scipy.stats.norm.cdf(-gap * np.sqrt(2) / 2)
      self.assertAlmostEqual(float(passed.mean()), float(overlap), delta=0.012)

  def test_fallback_is_a_draw_of_the_target(self):
    # Equal distributions: no proposal is ever accepted. The released code would emit zeros.
    keys = jax.tree.map(lambda leaf: leaf[:, None], keys_of(1000))
    propose = lambda trials: (
        noise_lib.normal(keys, noise_lib.PROPOSE, 0, 2, trials[None]),
        jnp.zeros((1000, len(trials))), jnp.full((1000, len(trials)), -1.0))
    pending = jnp.arange(1000) > 0
    # Not a multiple of the proposals per pass.
    drawn, trials, missed = jax.jit(lambda: coupling.residual(propose, pending, 1.0, 101))()
    np.testing.assert_array_equal(missed, pending)
    np.testing.assert_array_equal(trials[1:], 101)
    np.testing.assert_array_equal(drawn[1:], propose(jnp.array([100]))[0][1:, 0])
    self.assertEqual(int(trials[0]), 0)
    np.testing.assert_array_equal(drawn[0], 0)
    self.assertTrue(
        compare(np.asarray(drawn[1:]), np.random.default_rng(0).standard_normal((999, 2))).passed)


class RandomTest(chex.TestCase):

  def test_every_use_has_its_own_noise(self):
    rows = row_keys(jax.random.key(0), 4)
    keys = noise_lib.token_keys(rows, jnp.tile(jnp.arange(5), (4, 1)))
    draws = [noise_lib.normal(keys, purpose, level, 3, trial)
             for purpose in (noise_lib.START, noise_lib.STEP, noise_lib.PROPOSE)
             for level in (0, 1, 999) for trial in (0, 1, 1023)]
    values = np.stack(draws).ravel()
    self.assertLen(np.unique(values), len(values))

  def test_noise_of_a_token_is_its_own(self):
    rows = row_keys(jax.random.key(0), 4)
    positions = jnp.tile(jnp.arange(5), (4, 1))
    whole = noise_lib.normal(noise_lib.token_keys(rows, positions), noise_lib.STEP, 7, 3)
    some = jax.tree.map(lambda leaf: leaf[2:], rows)
    part = noise_lib.normal(
        noise_lib.token_keys(some, positions[2:, 3:]), noise_lib.STEP, 7, 3)
    np.testing.assert_array_equal(whole[2:, 3:], part)

  @pytest.mark.slow
  def test_orders(self):
    rows = row_keys(jax.random.key(0), 3000)
    order = np.asarray(noise_lib.random_orders(rows, 4))
    np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(4), (3000, 1)))
    counts = np.unique(order, axis=0, return_counts=True)[1]
    self.assertLen(counts, 24)
    self.assertLess(np.abs(counts / 125 - 1).max(), 0.4)
    np.testing.assert_array_equal(noise_lib.raster_orders(rows, 3)[7], [0, 1, 2])
