"""Speculation with a draft model and the path test: distribution, counts, contracts."""

import dataclasses
import functools
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from cspd_jax.continuous import (
  coupling,
  decoders,
  head as head_lib,
  noise as noise_lib,
  path as path_lib,
  schedule as schedule_lib,
  visibility,
)
from cspd_jax.continuous.span import token_batch
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.testing.exactness import compare
from cspd_jax.testing.proofs import analytic

LEVELS = schedule_lib.make(6)
SIZE, NUM = 5, 20000
CHAIN = analytic.gaussian_chain(SIZE, 0.9, schedule=LEVELS, means=(0.0, 1.0))
# A draft model with a lower correlation of neighbours and a bias.
DRAFT = analytic.ChainParams(jnp.float32(0.8), jnp.array([0.1, 1.1]))
LABELS = jnp.zeros(NUM, jnp.int32)
WIDE = analytic.mixtures(jax.random.key(1), 1, 16)  # 100 levels.

# Levels that end early: the last kernel is so wide that two models agree on it.
with mock.patch.object(
    schedule_lib, '_respaced_steps', lambda num: np.linspace(200, 999, num).astype(np.int32)):
  COARSE = schedule_lib.make(6)


@functools.cache
def jitted(coarse=False, orders=noise_lib.random_orders, **options):
  schedule = COARSE if coarse else LEVELS
  model = analytic.gaussian_chain(SIZE, 0.9, schedule=schedule, means=(0.0, 1.0))
  decoder = decoders.exact_path(model.target, model.target, schedule=schedule, **options)
  return jax.jit(dataclasses.replace(decoder, orders=orders))


def run(decoder, draft=DRAFT, labels=LABELS, key=jax.random.key(1)):
  return jax.tree.map(
      np.asarray, decoder(CHAIN.params, labels, key, SamplingParams(), draft))


def few():
  """Few images, with drafts of which half are rejected: a wrong distribution still shows."""
  draft = analytic.ChainParams(jnp.float32(0.6), jnp.array([0.4, 1.4]))
  decoder = jitted.__wrapped__(coarse=True, draft_length=2, split=0, eta=1.0)
  return run(decoder, draft, LABELS[:3000])


@functools.cache
def truth():
  distance = np.abs(np.subtract.outer(np.arange(SIZE), np.arange(SIZE)))
  return np.random.default_rng(0).multivariate_normal(
      np.zeros(SIZE), 0.9**distance, 2 * NUM)[..., None]


def early_contexts(target, params, condition, tokens, rank_of_position, ranks, positions, missing):
  """All drafts are verified given the committed tokens only, as in the released code."""
  assert missing is None
  z = target.transform(params, condition, tokens, rank_of_position < ranks[:, :1])
  return head_lib.pick(z, positions)


# More of them, for the test of one draft, are in `test_exact_head`; with a draft model far from the
# target, and a stated power, in `test_path_power`.
MUTANTS = {
    'target draw for residual': (coupling, 'accept_proposal', lambda ratio, u, eta: ratio == ratio),
    'contexts without the drafts': (visibility, 'true_contexts', early_contexts),
    'drafts after a failure committed': (
        coupling, 'accepted_length', lambda passed: jnp.sum(passed, axis=1, dtype=jnp.int32)),
}


@functools.cache
def wide_truth():
  return np.asarray(jax.jit(decoders.mar(WIDE.target, last_noise=True))(
      WIDE.params, LABELS, jax.random.key(2)).tokens)


def wide(split, shift):
  """One token per image, drafted by a model whose means are off by `shift` in every number."""
  decoder = decoders.exact_path(WIDE.target, WIDE.target, 1, split=split, bonus=False)
  draft = WIDE.params._replace(means=WIDE.params.means + shift)
  decoder = jax.jit(decoder)
  # Not all at once: paths of 100 kernels and their proposals are large.
  parts = [decoder(WIDE.params, LABELS[:NUM // 8], jax.random.key(10 + i), draft_params=draft)
           for i in range(8)]
  return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


class DistributionTest(chex.TestCase):

  @parameterized.parameters(
      dict(draft_length=2, split=5, eta=1.0),
      dict(draft_length=3, split=1, orders=noise_lib.raster_orders),
      dict(coarse=True, draft_length=1, split=0, bonus=False),
      dict(draft_length=2, split=2, prefix_share=0.4, aligned=False))
  @pytest.mark.slow
  def test_same_distribution(self, **options):
    generated = run(jitted(**options))
    self.assertTrue(compare(generated.tokens, truth()).passed)
    # Both the test and the residual have their share in the distribution.
    self.assertBetween(generated.tests.accepted.sum() / generated.tests.tested.sum(), 0.2, 0.95)
    tests = generated.tests
    self.assertAlmostEqual(tests.trials.sum() / tests.tested.sum(), 1.0, delta=0.05)
    tokens = generated.tokens[..., 0]
    correlation = np.mean(tokens[:, 1:] * tokens[:, :-1])
    self.assertAlmostEqual(correlation, 0.9, delta=0.02)

  def test_distribution_of_few_samples(self):
    generated = few()
    self.assertTrue(compare(generated.tokens, truth()).passed)
    self.assertBetween(generated.tests.accepted.sum() / generated.tests.tested.sum(), 0.4, 0.6)

  @parameterized.parameters((99, 0.1), (20, 0.03), (0, 0.002))
  @pytest.mark.slow
  def test_100_levels_of_16_dimensions(self, split, shift):
    """`compare` takes the 99.9 % value for all 216 tests together, by Bonferroni."""
    generated = wide(split, shift)
    self.assertTrue(compare(generated.tokens, wide_truth(), projections=200).passed)
    self.assertBetween(generated.tests.accepted.mean(), 0.2, 0.8)
    tests = generated.tests
    self.assertAlmostEqual(tests.trials.mean() / tests.tested.mean(), 1.0, delta=0.1)

  @parameterized.parameters(*MUTANTS)
  @pytest.mark.slow
  def test_mutants_are_found(self, name):
    with mock.patch.object(*MUTANTS[name]):
      tokens = run(jax.jit(decoders.exact_path(
          CHAIN.target, CHAIN.target, 2, LEVELS, split=5, eta=1.0))).tokens
    self.assertFalse(compare(tokens, truth()).passed)

  @pytest.mark.slow
  def test_guidance_and_temperature(self):
    """Two streams, against the target's own sampler with last noise."""
    model = analytic.mixtures(
        jax.random.key(1), 2, 2, schedule=LEVELS, guided=True, components=2)
    draft = model.params._replace(means=model.params.means + 0.05)
    sampling = SamplingParams(1.8, 0.9)
    decoder = jax.jit(decoders.exact_path(
        model.target, model.target, 1, LEVELS, split=4, eta=0.8))
    tokens = decoder(model.params, LABELS, jax.random.key(1), sampling, draft).tokens
    reference = jax.jit(decoders.mar(model.target, schedule=LEVELS, last_noise=True))(
        model.params, LABELS, jax.random.key(2), sampling).tokens
    self.assertTrue(compare(np.asarray(tokens), np.asarray(reference)).passed)


class CountsTest(chex.TestCase):

  @pytest.mark.slow
  def test_equal_models(self):
    """All is accepted: whole rounds of drafts and a bonus."""
    generated = run(jitted(draft_length=2, split=3, eta=1.0), CHAIN.params, jnp.array([0, 1, 0]))
    in_order = np.take_along_axis(generated.tests.accepted, generated.order, axis=1)
    np.testing.assert_array_equal(in_order, [[1, 1, 0, 1, 0]] * 3)
    np.testing.assert_array_equal(generated.tests.tested, generated.tests.accepted)
    in_order = np.take_along_axis(generated.round_of_token, generated.order, axis=1)
    np.testing.assert_array_equal(in_order, [[0, 0, 0, 1, 1]] * 3)
    np.testing.assert_array_equal(generated.rounds, 2)
    np.testing.assert_array_equal(generated.costs.target_passes, 3 + 2)
    np.testing.assert_array_equal(generated.costs.draft_passes, 3)
    np.testing.assert_array_equal(generated.costs.draft_head_calls, 3 * 6)
    # Kernels 5 and 4 are shared, one call scores, the bonus needs kernels 3 to 0.
    np.testing.assert_array_equal(generated.costs.head_calls, [[2 + 1 + 4] * 2 + [0] * 3] * 3)
    np.testing.assert_array_equal(
        generated.costs.head_rows, (3 + 2) * 2 + (2 + 1) * 4 + 2 * coupling.TRIALS_PER_PASS * 4)
    np.testing.assert_array_equal(generated.tests.trials, 0)

  @pytest.mark.slow
  def test_score_of_own_path_is_its_density(self):
    z = CHAIN.target.transform(
        CHAIN.params, LABELS[:9], jnp.zeros((9, SIZE, 1)), jnp.zeros((9, SIZE), bool))
    positions = jnp.zeros((9, 1), jnp.int32)
    batch = token_batch(
        row_keys(jax.random.key(0), 9), head_lib.pick(z, positions), positions,
        jnp.ones((9, 1)), 1.0, jnp.ones((9, 1), bool))
    head = head_lib.Head(CHAIN.target, LEVELS, CHAIN.params)
    x = path_lib.start_path(head, batch, 2).x
    drawn = path_lib.draw_path(head, batch, x, 2, noise_lib.DRAFT)
    chex.assert_shape(drawn.states, (9, 3, 1))
    again = path_lib.score_path(head, batch, x, drawn.states)
    np.testing.assert_allclose(drawn.log_density, again, atol=1e-4)


class ContractsTest(chex.TestCase):

  @pytest.mark.slow
  def test_images_depend_neither_on_the_batch_nor_on_the_draft_length(self):
    keys, labels = jax.random.split(jax.random.key(0), 64), jnp.arange(64) % 2
    one, four = (jitted(draft_length=length, split=3, bonus=False) for length in (1, 4))
    whole = run(four, labels=labels, key=keys)
    chex.assert_trees_all_equal(whole, run(four, labels=labels, key=keys))
    # A batch of one row rounds differently.
    alone = run(four, labels=labels[1:2], key=keys[1:2])
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[1:2], whole), alone, atol=1e-3)
    other = run(one, labels=labels, key=keys)
    # Bit for bit: all this model does is elementwise, and 64 rows fill the processor's vectors.
    np.testing.assert_array_equal(whole.tokens, other.tokens)
    self.assertLess(whole.rounds.mean(), 3.5)
    np.testing.assert_array_equal(other.rounds, SIZE)
