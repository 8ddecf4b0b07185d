"""CSpD as published and released: what it does, biases included, and what it costs."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from cspd_jax.continuous import (
  cspd,
  decoders,
  noise as noise_lib,
  path,
  schedule as schedule_lib,
)
from cspd_jax.continuous.cspd import LastKernel, released, released_test
from cspd_jax.continuous.loop import make_decoder
from cspd_jax.continuous.path import path_test
from cspd_jax.continuous.span import TokenBatch
from cspd_jax.continuous.visibility import TRUE
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.testing.exactness import compare
from cspd_jax.testing.proofs import analytic

NUM = 20000
LEVELS = schedule_lib.make(6)
CHAIN = analytic.gaussian_chain(8, 0.9, schedule=LEVELS, means=(0.0, 1.0))
DRAFT = analytic.ChainParams(jnp.float32(0.8), jnp.array([0.1, 1.1]))
LABELS = jnp.zeros(NUM, jnp.int32)


@functools.cache
def mar():
  """Images of the target alone, for 50 rows."""
  return run(decoders.mar(CHAIN.target, schedule=LEVELS), num=50)


GUIDED = analytic.mixtures(
    jax.random.key(1), 4, 3, schedule=LEVELS, guided=True, components=1)


def generate_guided(decoder, draft=GUIDED.params):
  return jax.tree.map(np.asarray, quick(decoder)(
      GUIDED.params, jnp.arange(50) % 3, jax.random.key(1), SamplingParams(4.0), draft))


def quick(function):
  """Jitted for few rows, where most of the time is compilation."""
  return jax.jit(function, compiler_options={'xla_backend_optimization_level': 0})


def run(decoder, model=CHAIN, draft=DRAFT, num=NUM, seed=1):
  jitted = quick(decoder) if num <= 3000 else jax.jit(decoder)
  return jax.tree.map(np.asarray, jitted(
      model.params, LABELS[:num], jax.random.key(seed), draft_params=draft))


def one_token(model, sigma):
  """The test of the last kernel for the only token; without a bonus it is drafted and tested."""
  return make_decoder(
      model.target, model.schedule, path_test(split=0, eta=1.0, bonus=False, sigma=sigma), (1,),
      drafter=path.model(model.target), visibility=TRUE, width=1)


class PaperTest(chex.TestCase):
  """One token from a chain with learned variances, against the target's own sampler."""

  @parameterized.parameters(
      (True, 1.0, False), (False, 1.0, True), (True, 0.0, True))
  @pytest.mark.slow
  def test_sigma_biases_learned_variances(self, sigma, slope, same):
    model = analytic.variance_chain(slope=slope)
    reference = run(decoders.mar(model.target, schedule=model.schedule, last_noise=True),
                    model, seed=2).tokens
    draft = model.params._replace(mean=jnp.float32(0.2))
    if slope:
      draft = draft._replace(offset=jnp.float32(-0.3))
    generated = run(one_token(model, sigma), model, draft)
    self.assertBetween(generated.tests.accepted.mean(), 0.3, 0.99)
    self.assertEqual(compare(generated.tokens, reference).passed, same)

  @pytest.mark.slow
  def test_equal_fixed_variances_make_it_exact(self):
    """Sigma is 1: the very tokens of the exact verifier."""
    model = analytic.variance_chain(4, slope=0.0)
    draft = model.params._replace(mean=jnp.float32(0.3))
    paper = run(cspd.cspd_paper(model.target, model.target, 2, model.schedule), model, draft, 500)
    exact = run(decoders.exact_path(
        model.target, model.target, 2, model.schedule, split=0, eta=1.0), model, draft, 500)
    self.assertBetween(paper.tests.accepted.sum() / paper.tests.tested.sum(), 0.3, 0.95)
    # The first kernel multiplies rounding errors by more than 300.
    # It reports no bound, because it is not exact for all models.
    chex.assert_trees_all_close(paper._replace(tv_bound=exact.tv_bound), exact, atol=1e-3)


def rows_of(num):
  """Random state for `num` tokens, as a verifier reads it."""
  keys = noise_lib.token_keys(row_keys(jax.random.key(0), num), jnp.zeros((num,), jnp.int32))
  return TokenBatch(z=None, scale=None, temperature=None, keys=keys, active=None)


def last_kernel(num, mean, std, log_std=0.0):
  """The same last kernel for `num` tokens; `mean` and `std` have one entry per dimension."""
  wide = lambda leaf: jnp.broadcast_to(jnp.asarray(leaf, jnp.float32), (num, len(leaf)))
  return LastKernel(wide(mean), wide(std), jnp.full((num,), log_std))


class ReleasedTestTest(chex.TestCase):
  """The test and the residual of the released code, for two last kernels."""

  @parameterized.parameters(
      ('off', 1.0, -0.693), ('paper', 1.35, -0.393), ('inverted', 1 / 1.35, -0.993),
      ('paper', 20.0, 0.0), ('inverted', 0.05, 0.0))
  @pytest.mark.slow
  def test_acceptance(self, sigma, factor, expected):
    """`factor` is the one of the test: with the paper's Sigma, `prod(s_q) / prod(s_p)`."""
    num = 20000
    ratio = 1 / factor if sigma == 'inverted' else factor
    s_q, s_p = np.array([0.5, 1.5]), np.array([1.0, 1.2])
    m_q, m_p = np.array([20.0, 6.0]), np.array([0.0, 0.0])
    draft = last_kernel(num, m_q, s_q, np.log(ratio if sigma != 'off' else 3.0) + 0.7)
    target = last_kernel(num, m_p, s_p, 0.7)
    test = released_test(42.0, sigma)
    _, accepted, *_ = jax.jit(test)(rows_of(num), draft, target, jnp.ones((num,), bool))
    distance = np.sum(np.square((m_q - m_p) / s_p))
    expected_rate = min(1, factor * np.prod(s_q / s_p) * np.exp(-distance / (2 * 42**2)))
    error = np.sqrt(expected_rate * (1 - expected_rate) / num)
    self.assertLessEqual(abs(float(accepted.mean()) - expected_rate), 4 * error)

  @parameterized.parameters(('off', 1.0), ('paper', 1.6), ('inverted', 1 / 1.6))
  def test_residual_is_not_softened(self, sigma, factor):
    """Replaced tokens have the density `max(0, p - q / factor)` of the untempered Gaussians."""
    num = 8000
    draft = last_kernel(num, [0.8], [0.4], np.log(1.6))
    target = last_kernel(num, [0.0], [1.0])
    test = released_test(42.0, sigma)
    tokens, accepted, *_ = jax.jit(test)(rows_of(num), draft, target, jnp.ones((num,), bool))
    grid = np.linspace(-5, 5, 20001)
    gauss = lambda mean, std: np.exp(-0.5 * np.square((grid - mean) / std)) / std
    density = np.maximum(0, gauss(0, 1) - gauss(0.8, 0.4) / factor)
    reference = np.random.default_rng(0).choice(grid, 20000, p=density / density.sum())
    replaced = np.asarray(tokens)[~np.asarray(accepted)]
    self.assertGreater(len(replaced), 0.3 * num)
    self.assertTrue(compare(replaced, reference[:, None]).passed)


class BlockTest(chex.TestCase):

  @parameterized.parameters(
      (0.0, 32, 1, 255, 8, (32, 32, 31)), (0.05, 32, 13, 243, 8, (20, 32, 31)),
      (0.05, 8, 13, 243, 31, (4, 8, 7)), (0.05, 4, 13, 243, 61, (4, 4, 3)),
      (0.15, 32, 39, 217, 7, (26, 32, 31)))
  def test_published_schedule_of_passes(self, prefix_share, length, first, drafts, passes, sizes):
    (_, stop), *verified = schedule_lib.blocks(256, length, prefix_share)
    self.assertEqual(stop, first)
    self.assertEqual(sum(b - a for a, b in verified), drafts)
    self.assertLen(verified, passes)
    widths = [b - a for a, b in verified]
    self.assertEqual((widths[0], widths[1], widths[-1]), sizes)

  @parameterized.parameters(cspd.cspd_released, cspd.cspd_relaxed)
  @pytest.mark.slow
  def test_equal_models(self, build):
    """The same model drafts: all accepted, so the images are those of the draft model."""
    generated = run(build(CHAIN.target, CHAIN.target, 3, LEVELS, prefix_share=0.0, kappa=1e4,
                          **({'sigma': 'off'} if build is cspd.cspd_released else {})),
                    draft=CHAIN.params, num=50)
    accepted = generated.tests.accepted.sum() / generated.tests.tested.sum()
    self.assertGreater(accepted, 0.999)
    np.testing.assert_allclose(generated.tokens, mar().tokens, atol=2e-3)
    in_order = np.take_along_axis(generated.tests.tested, generated.order, axis=1)
    np.testing.assert_array_equal(in_order, [[0] + [1] * 7] * 50)
    # Blocks 1-3, 4-6 and 7; the first token is the target's.
    in_order = np.take_along_axis(generated.round_of_token, generated.order, axis=1)
    np.testing.assert_array_equal(in_order, [[0, 1, 1, 1, 2, 2, 2, 3]] * 50)
    np.testing.assert_array_equal(generated.costs.target_passes, 4)
    np.testing.assert_array_equal(generated.costs.draft_passes, 7)

  @pytest.mark.slow
  def test_equal_models_pass_the_released_test(self):
    """With Sigma as released: where contexts are equal, every draft is accepted."""
    verifier = released(cspd.DEFAULT_KAPPA, 'inverted')
    generated = run(cspd.block_decoder(CHAIN.target, path.model(CHAIN.target), verifier, 1,
                                       LEVELS, 0.0, None), draft=CHAIN.params, num=200)
    self.assertEqual(generated.tests.tested.sum(), 200 * 7)
    self.assertEqual(generated.tests.accepted.sum(), generated.tests.tested.sum())
    self.assertEqual(generated.tests.trials.sum(), 0)

  @pytest.mark.slow
  def test_relaxed_blocks_are_guided_as_parallel_decoding(self):
    """Without tolerance they are its tokens, whatever was drafted."""
    draft = GUIDED.params._replace(means=GUIDED.params.means + 0.05)
    relaxed = generate_guided(cspd.cspd_relaxed(
        GUIDED.target, GUIDED.target, 3, LEVELS, prefix_share=0.0, kappa=1e-6), draft)
    self.assertEqual(relaxed.tests.accepted.sum(), 0)
    baseline = decoders.parallel(GUIDED.target, 3, LEVELS, prefix_share=0.0)
    np.testing.assert_allclose(relaxed.tokens, generate_guided(baseline).tokens, atol=1e-4)

  @pytest.mark.slow
  def test_relaxed_drafts_have_the_guidance_of_the_block(self):
    """The same model, which reads no other token: all drafts are accepted."""
    blind = GUIDED.target._replace(transform=lambda params, condition, tokens, visible:
                                   GUIDED.target.transform(params, condition, 0 * tokens, visible))
    generated = generate_guided(cspd.cspd_relaxed(
        blind, blind, 3, LEVELS, prefix_share=0.0, kappa=1.0))
    self.assertEqual(generated.tests.tested.sum(), 50 * 3)
    self.assertEqual(generated.tests.accepted.sum(), generated.tests.tested.sum())

  def test_bound_on_the_distance(self):
    kappa = 42.0
    build = lambda kappa: cspd.cspd_relaxed(
        CHAIN.target, CHAIN.target, 7, LEVELS, prefix_share=0.0, kappa=kappa)
    generated, own = (run(build(k), num=2000) for k in (kappa, 1e-6))
    # One block: both see the same first token, so `own` holds the target's own tokens.
    distance = np.square(generated.tokens - own.tokens).sum(axis=-1)
    np.testing.assert_allclose(generated.errors.squared, distance, atol=1e-4)
    variance = np.exp(LEVELS.max_log_variance[0])
    self.assertLessEqual(generated.errors.bound.max(), 2 / np.e * kappa**2 * variance * 1.001)
    self.assertLessEqual(np.max(distance.mean(axis=0) - generated.errors.bound.mean(axis=0)), 0)
    self.assertGreater(distance.mean(), 0.1 * generated.errors.bound.mean())
    self.assertBetween(generated.tests.accepted.sum() / generated.tests.tested.sum(), 0.1, 0.9)

  @pytest.mark.slow
  def test_zero_trap(self):
    """A draft equal to the target but for Sigma: rejections that no proposal ends."""
    num = 2000
    target = last_kernel(num, [1.0, 1.0], [1.0, 1.0])
    draft = target._replace(log_std=target.log_std + 0.1)
    tokens, accepted, trials, missed, _ = jax.jit(released_test(42.0, 'inverted'))(
        rows_of(num), draft, target, jnp.ones((num,), bool))
    rejected = 1 - np.exp(-0.1)
    self.assertAlmostEqual(float(1 - accepted.mean()), rejected, delta=0.026)  # Four errors.
    self.assertAlmostEqual(float((tokens == 0).all(axis=1).mean()), rejected, delta=0.026)
    self.assertEqual(int(trials.max()), 100)
    np.testing.assert_array_equal(missed, (tokens == 0).all(axis=1))
