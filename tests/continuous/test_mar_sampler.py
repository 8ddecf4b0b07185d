"""MAR's sampler against a simple one and closed forms; the contracts of the decoder."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from cspd_jax.continuous import decoders, noise as noise_lib, schedule as schedule_lib
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.testing.exactness import compare
from cspd_jax.testing.proofs import analytic

LEVELS = schedule_lib.make(8)
# One component: a linear head, in which differences of rounding do not grow.
MODEL = analytic.mixtures(
    jax.random.key(1), 7, 3, schedule=LEVELS, guided=True, components=1)
CHAIN = analytic.gaussian_chain(16, 0.9, schedule=LEVELS, means=(0.0, 2.0))
# Two compilations differ by this much: the first kernel magnifies the rounding of eps.
TOLERANCE = 1e-3
LABELS = jnp.array([0, 1, 2])


def doubled_batch(model, labels, key, num_iter, scale, temperature):
  """The released sampler, step by step: two states per token, the second overwritten."""
  target, levels = model.target, model.schedule
  size, batch = target.num_tokens, len(labels)
  rows = row_keys(key, batch)
  order = noise_lib.random_orders(rows, size)
  tokens, visible = jnp.zeros((batch, size, 3)), jnp.zeros((batch, size), bool)
  masked_before = size
  for masked in schedule_lib.mask_lengths(size, num_iter):
    committed = order[:, size - masked_before:size - masked]
    weight = 1 + (scale - 1) * (size - max(masked, 1)) / size
    z = target.transform(model.params, labels, tokens, visible)
    for position in committed.T:
      keys = noise_lib.token_keys(rows, position)
      pair = z[:, jnp.arange(batch), position].reshape(2 * batch, -1)
      x = noise_lib.normal(keys, noise_lib.START, 0, 3)
      x = jnp.concatenate([x, x])
      for level in range(levels.num_levels - 1, -1, -1):
        x = jnp.concatenate([x[:batch], x[:batch]])
        step = jnp.full(2 * batch, levels.steps[level])
        eps, v = target.denoise(model.params, x, step, pair)
        guided = eps[batch:] + weight * (eps[:batch] - eps[batch:])
        mean, std = schedule_lib.posterior(
            levels, jnp.full(2 * batch, level), x, jnp.concatenate([guided, guided]), v)
        noise = noise_lib.normal(keys, noise_lib.STEP, level, 3)
        x = mean + (level > 0) * temperature * std * jnp.concatenate([noise, 100 * noise])
      tokens = tokens.at[jnp.arange(batch), position].set(x[:batch])
    visible = visible.at[jnp.arange(batch)[:, None], committed].set(True)
    masked_before = masked
  return tokens


class MarTest(chex.TestCase):

  @pytest.mark.slow
  def test_equals_the_doubled_batch(self):
    num_iter = 3
    decoder = jax.jit(decoders.mar(MODEL.target, num_iter, LEVELS))
    key = jax.random.key(5)
    generated = decoder(MODEL.params, LABELS, key, SamplingParams(2.5, 0.9))
    np.testing.assert_allclose(
        generated.tokens, doubled_batch(MODEL, LABELS, key, num_iter, 2.5, 0.9), atol=TOLERANCE)

  @pytest.mark.slow
  def test_constant_guidance(self):
    """In a single step the linear schedule is a constant, one token short of its scale."""
    linear, constant = (
        jax.jit(decoders.mar(MODEL.target, 1, LEVELS, guidance=guidance))
        for guidance in ('linear', 'constant'))
    tokens = [decoder(MODEL.params, LABELS, jax.random.key(5), SamplingParams(scale)).tokens
              for decoder, scale in ((linear, 2.75), (constant, 2.5), (constant, 2.75))]
    np.testing.assert_allclose(tokens[0], tokens[1], atol=TOLERANCE)
    self.assertGreater(np.abs(tokens[1] - tokens[2]).max(), 20 * TOLERANCE)

  def test_distribution_in_every_order(self):
    decoder = jax.jit(decoders.mar(CHAIN.target, schedule=LEVELS))
    labels = jnp.arange(20000) % 2
    tokens = np.asarray(decoder(CHAIN.params, labels, jax.random.key(0)).tokens)[..., 0]
    distance = np.abs(np.subtract.outer(np.arange(16), np.arange(16)))
    truth = np.random.default_rng(0).multivariate_normal(
        np.zeros(16), 0.9**distance, 20000) + 2 * np.asarray(labels)[:, None]
    for label in (0, 1):
      self.assertTrue(compare(tokens[label::2], truth[label::2]).passed)

  @parameterized.parameters(4, 16)
  @pytest.mark.slow
  def test_parallel_loses_correlation_as_predicted(self, tokens_per_step):
    decoder = jax.jit(dataclasses.replace(
        decoders.parallel(CHAIN.target, tokens_per_step, LEVELS, prefix_share=None),
        orders=noise_lib.raster_orders))
    tokens = decoder(CHAIN.params, jnp.zeros(6000, jnp.int32), jax.random.key(0)).tokens[..., 0]
    # Tokens of a step only share the last one before it, but for the first step.
    lag = np.arange(15) % tokens_per_step
    expected = np.where((np.arange(1, 16) < tokens_per_step), 0, np.where(
        (np.arange(1, 16) % tokens_per_step) == 0, 0.9, 0.9**(2 * (lag + 1) + 1)))
    measured = np.mean(np.asarray(tokens[:, 1:] * tokens[:, :-1]), axis=0)
    np.testing.assert_allclose(measured, expected, atol=0.06)

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

class OptionsTest(chex.TestCase):

  @parameterized.parameters(
      (CHAIN, SamplingParams(2.0),
       'guidance_scale is 2.0; it must be 1, because .* no null condition'),
      (MODEL, SamplingParams(np.inf), 'guidance_scale is inf; it must be finite'),
      (MODEL, SamplingParams(1.0, 1e39), 'temperature is 1e.39; it must be from 0 to'),
      (MODEL, SamplingParams(1.0, -1.0), 'temperature is -1.0'),
      (MODEL, SamplingParams('high'), "guidance_scale is 'high'; it must be a number"),
      (MODEL, SamplingParams(1.0, True), 'temperature is True; it must be a number'))
  def test_sampling(self, model, sampling, message):
    decoder = decoders.mar(model.target, schedule=LEVELS)
    with self.assertRaisesRegex(ValueError, message):
      decoder(model.params, jnp.array([0]), jax.random.key(0), sampling)

  def test_condition(self):
    with self.assertRaisesRegex(ValueError, r'class labels \[3\]; this model supports 0 to 2'):
      decoders.mar(MODEL.target).check(jnp.array([3]))
