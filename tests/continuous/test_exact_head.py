"""Speculation in the diffusion head leaves the distribution as it is; broken versions do not."""

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
  head_drafter,
  schedule as schedule_lib,
  speculative_head,
)
from cspd_jax.continuous.span import token_batch
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.testing.exactness import compare
from cspd_jax.testing.proofs import analytic
from tests.marks import representative

LEVELS = schedule_lib.make(10)
MODEL = analytic.mixtures(
    jax.random.key(1), 3, 2, schedule=LEVELS, guided=True, components=2)
ONE = analytic.mixtures(jax.random.key(1), 1, 3, schedule=LEVELS)
WIDE = analytic.mixtures(jax.random.key(1), 1, 16)  # 100 levels.

NUM = 20000


def copies(model, num, seed):
  """`num` copies of the first token of class 0, each with its own noise."""
  target, ones = model.target, jnp.ones((num, 1))
  z = target.transform(model.params, jnp.array([0]),
                       jnp.zeros((1, target.num_tokens, target.token_dim)),
                       jnp.zeros((1, target.num_tokens), bool))
  return token_batch(
      row_keys(jax.random.key(seed), num), jnp.repeat(z[:, :, :1], num, axis=1),
      jnp.zeros((num, 1), jnp.int32), ones, 0.9, ones > 0)


def run(head, num=NUM, seed=1, model=ONE):
  batch = copies(model, num, seed)
  return jax.tree.map(np.asarray, jax.jit(head.sample)(model.params, batch))


@functools.cache
def reference():
  return run(head_lib.ancestral(ONE.target, LEVELS), seed=0).tokens


def speculative(length=4, rho=None):
  return speculative_head.speculative(ONE.target, LEVELS, length, rho)


MOVE, COMPARE, PROPOSE = coupling.move, coupling.compare, speculative_head.propose


def mean_of_the_kernel(x, compared, log_uniform):
  moved = MOVE(x, compared, log_uniform)
  return moved._replace(x=jnp.where(moved.kept[..., None], x, compared.mean))


def not_mirrored(x, compared, log_uniform):
  """The moved state has the noise of the draft."""
  moved = MOVE(x, compared, log_uniform)
  return moved._replace(x=jnp.where(
      moved.kept[..., None], x, compared.mean + compared.base * compared.coupled))


def always_kept(x, compared, log_uniform):
  return coupling.Moved(x, jnp.ones(log_uniform.shape, bool))


def one_deviation(x, old, new, noise):
  """The true deviation is taken for that of the draft."""
  return COMPARE(x, old._replace(std=new.std), new, noise)


def continued(passed):
  """Old drafts after a failure still count."""
  return jnp.max(jnp.where(passed, 1 + jnp.arange(passed.shape[1]), 0), axis=1)


def later_answers(schedule, rho, batch, noise, state):
  """A kernel is predicted from an answer at a state after it."""
  return PROPOSE(schedule, rho, batch, noise, state._replace(
      first=jnp.where(state.first < schedule.num_levels - 1, state.first + 1, state.first)))


DRAFT_KERNEL = head_drafter.draft_kernel
MUTANTS = {
    'mean for the moved state': (coupling, 'move', mean_of_the_kernel),
    'noise of the draft in the moved state': (coupling, 'move', not_mirrored),
    'no test': (coupling, 'move', always_kept),
    'deviations not compared': (coupling, 'compare', one_deviation),
    'round continued after a failure': (coupling, 'accepted_length', continued),
    'answers of later kernels': (speculative_head, 'propose', later_answers),
}


class DistributionTest(chex.TestCase):

  def test_same_distribution(self):
    self.assertTrue(compare(run(speculative()).tokens, reference()).passed)

  @parameterized.parameters(False, True)
  @pytest.mark.slow
  def test_100_levels_of_16_dimensions(self, bad):
    """Also with a drafter whose variances and blend are wrong.

    `compare` takes the 99.9 % value for all 216 tests together, by Bonferroni.
    """
    def wrong(schedule, rho, frozen, x, level):
      return DRAFT_KERNEL(schedule, rho, frozen._replace(v=frozen.v + 2), x, level)

    rho = np.random.default_rng(0).uniform(-0.5, 1.5, 100) if bad else None
    with mock.patch.object(head_drafter, 'draft_kernel', wrong if bad else DRAFT_KERNEL):
      # Fewer drafts where most of them fail.
      sampled = run(speculative_head.speculative(WIDE.target, WIDE.schedule, 2 if bad else 8, rho),
                    model=WIDE)
    ancestral = run(head_lib.ancestral(WIDE.target, WIDE.schedule), seed=0, model=WIDE)
    self.assertTrue(compare(sampled.tokens, ancestral.tokens, projections=200).passed)
    accepted = sampled.accepted.sum() / sampled.tested.sum()
    self.assertBetween(accepted, 0.6, 0.9 if bad else 0.99)

  @parameterized.parameters(*MUTANTS)
  @pytest.mark.slow
  def test_mutants_are_found(self, name):
    with mock.patch.object(*MUTANTS[name]):
      sampled = run(speculative(10))
    self.assertFalse(compare(sampled.tokens, reference()).passed)

  @pytest.mark.slow
  def test_whole_images(self):
    """Several tokens per step, guidance, temperature: joint distribution of all tokens."""
    labels, sampling = jnp.zeros(NUM, jnp.int32), SamplingParams(2.0, 0.9)
    both = (decoders.mar(MODEL.target, 2, LEVELS),
            decoders.exact_head(MODEL.target, 4, 2, LEVELS))
    images = [
        np.asarray(jax.jit(decoder)(
            MODEL.params, labels, jax.random.key(seed), sampling).tokens)
        for seed, decoder in enumerate(both)]
    self.assertTrue(compare(*images).passed)


class SpeedTest(chex.TestCase):

  @parameterized.parameters((4, 26.5), (8, 14.7), (16, 9.2), (32, 7.1))
  @pytest.mark.slow
  def test_rounds_at_100_levels(self, length, rounds):
    sampled = run(speculative_head.speculative(WIDE.target, WIDE.schedule, length), 400, model=WIDE)
    self.assertAlmostEqual(sampled.calls.mean(), rounds, delta=0.04 * rounds)
    self.assertTrue(((sampled.calls >= 100 / length) & (sampled.calls <= 100)).all())
    self.assertTrue((sampled.rows >= 100).all())
    self.assertTrue((sampled.rows <= sampled.calls * length).all())
    # Every kernel but the last is tested exactly once per token, whatever the rounds.
    np.testing.assert_array_equal(sampled.tested[:, 0], 0)
    np.testing.assert_array_equal(sampled.tested[:, 1:], 1)

  def test_fitted_blend(self):
    trajectories = jax.jit(head_drafter.record, static_argnums=0)(
        decoders.mar(WIDE.target), WIDE.params, jnp.zeros(300, jnp.int32), jax.random.key(0))
    rho = head_drafter.fit_rho(WIDE.schedule, trajectories)
    default = head_drafter.default_rho(WIDE.schedule)
    levels = [5, 10, 20, 30, 50, 70]
    np.testing.assert_allclose(rho[levels], default[levels], atol=0.1)
    np.testing.assert_allclose(default[[2, 10, 90]], [0.08, 0.52, 1.0], atol=0.03)


@pytest.mark.parametrize('num_iter', representative([8, 3, 1], 3))
def test_recorded_chains_end_in_tokens_of_the_decoder(num_iter):
  """Several tokens per step do not see each other, and share the step's guidance scale."""
  schedule = schedule_lib.make(4)
  model = analytic.mixtures(
      jax.random.key(0), 8, 3, schedule=schedule, guided=True, components=1)
  decoder = decoders.mar(model.target, num_iter, schedule)
  arguments = (model.params, jnp.arange(32) % 3, jax.random.key(1),
               SamplingParams(guidance_scale=3.0))
  chains, decoded = jax.jit(
      lambda *args: (head_drafter.record(decoder, *args), decoder(*args)))(*arguments)
  level = jnp.zeros(32, jnp.int32)
  last = schedule_lib.mean(schedule, level, chains.x[0], schedule_lib.predict_x0(
      schedule, level, chains.x[0], chains.eps[0]))
  distance = np.abs(np.asarray(last)[:, None] - np.asarray(decoded.tokens)).max(axis=-1)
  np.testing.assert_array_less(distance.min(axis=1), 2e-3)
