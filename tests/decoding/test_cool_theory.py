"""The theory of Cool-SD (arXiv 2601.09212), by enumeration and in closed form."""

import functools
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import accept, tree as trees
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.cool import cool, cool_linear, uniform
from cspd_jax.decoding.verifiers.rejection import AcceptanceRule, tree_rejection
from cspd_jax.testing.enumerate import enumerate_rounds
from cspd_jax.testing.tabular import tabular, tabular_drafter
from cspd_jax.testing.verdicts import enumerate_stage

pytestmark = pytest.mark.usefixtures('float64')

VOCAB = 3


def rule_of(build, max_depth):
  """The `AcceptanceRule` behind a verifier."""
  with mock.patch.object(
      sys.modules[cool.__module__], 'tree_rejection', lambda test_for,
      **kwargs: test_for(max_depth)):
    return build()


def factors(build, length):
  """`[L]` the factors `w_1 .. w_L`."""
  rule, ones = rule_of(build, length), jnp.ones((length, 1))
  return np.asarray(rule.mass(ones, ones, jnp.zeros(length, int), jnp.arange(1, length + 1)))


@pytest.mark.parametrize('length,exponential,linear', [
    (4, [2.144, 1.0647, 0.5287, 0.2626], [1.2727, 1.0909, 0.9091, 0.7273]),
    (5, [2.5954, 1.2889, 0.6400, 0.3178, 0.1578], [1.4, 1.2, 1.0, 0.8, 0.6]),
    (6, [3.0665, 1.5228, 0.7562, 0.3755, 0.1865, 0.0926],
     [1.5556, 1.3333, 1.1111, 0.8889, 0.6667, 0.4444]),
    (7, [3.5503, 1.763, 0.8755, 0.4348, 0.2159, 0.1072, 0.0532],
     [1.75, 1.5, 1.25, 1, 0.75, 0.5, 0.25]),
])
def test_schedules(length, exponential, linear):
  for delta in (1, 1.1):
    printed = factors(lambda delta=delta: cool(delta, clamp=False), length)
    np.testing.assert_allclose(printed, np.multiply(delta, exponential), atol=6e-5 * delta)
    np.testing.assert_allclose(printed.sum(), delta * length)  # Equation 16.
    np.testing.assert_allclose(
        factors(lambda delta=delta: cool_linear(delta, clamp=False), length),
        np.multiply(delta, linear), atol=6e-5 * delta)
    np.testing.assert_allclose(
        factors(lambda delta=delta: cool(delta), length), np.maximum(printed, 1))
  np.testing.assert_allclose(factors(lambda: cool(1.3, nu=0), length), 1.3)
  np.testing.assert_allclose(factors(lambda: uniform(1.3), length), 1.3)
  # A given length serves deeper drafts, which are then exact, and shallower ones.
  shorter = factors(lambda: cool(1.1, length=4), length)
  np.testing.assert_allclose(shorter[:4], factors(lambda: cool(1.1), 4))
  np.testing.assert_allclose(shorter[4:], 1)
  np.testing.assert_allclose(
      factors(lambda: cool(1.1, length=length), 3), factors(lambda: cool(1.1), length)[:3])


@functools.cache
def models(length):
  """Target and drafter with room for a whole round of `length` drafts."""
  return tuple(tabular(jax.random.key(seed), VOCAB, length + 2, spread=1.2, dtype=jnp.float64)
               for seed in (2, 3))


@functools.cache
def one_round(length, schedule):
  """What a round of a chain does, and its total variation to the target."""
  verifier = {'falling': lambda: cool(0.95, clamp=False), 'raised': lambda: cool(0.95),
              'uniform': lambda: uniform(1.4)}[schedule]()
  model, other = models(length)
  decoder = make_decoder(model.target, tabular_drafter(other, trees.chain(length)), verifier)
  result = enumerate_rounds(decoder, model, draft_params=other.params)
  np.testing.assert_allclose(result.distribution.sum(), 1, atol=1e-12)
  return result, 0.5 * np.abs(result.distribution - model.distribution(SamplingParams())).sum()


def conditionals(length):
  """`p`, `q` `[V, .., V]` per depth: distributions of draft `i` given the tokens before it.

  The first axis is the token of the prefill.
  """
  model, other = models(length)
  result, first = [], 1
  for depth in range(1, length + 1):
    count = VOCAB**depth
    rows = slice(first, first + count)
    result.append(tuple(table.probs(SamplingParams())[rows].reshape((VOCAB,) * (depth + 1))
                        for table in (model, other)))
    first += count
  return result, model.probs(SamplingParams())[0]


def theorem_two(length, omega):
  """Mean number of tokens and the bound of Theorem 2, Equations 7 to 9, summed directly."""
  probs, reach = conditionals(length)
  mean, bound = 1.0, 0.0
  for (p, q), factor in zip(probs, omega):
    f = np.minimum(1, factor * p / q)
    best = np.maximum(p - q * f, 0)
    mass = best.sum(axis=-1, keepdims=True)
    best = np.divide(best, mass, out=np.zeros_like(best), where=mass > 0)
    refused = ((1 - f) * q).sum(axis=-1, keepdims=True)
    bound += 0.5 * np.sum(reach[..., None] * np.abs(q * f - p + best * refused))
    reach = reach[..., None] * q * f
    mean += reach.sum()
  return mean, bound


@pytest.mark.slow
@pytest.mark.parametrize('length,schedule,omega', [
    (1, 'uniform', [1.4]),
    (3, 'falling', 0.95 * 3 * np.exp(-0.7 * np.arange(3)) / np.exp(-0.7 * np.arange(3)).sum())])
def test_theorem_two(length, schedule, omega):
  result, distance = one_round(length, schedule)
  mean, bound = theorem_two(length, omega)
  np.testing.assert_allclose(result.length - 1, mean, atol=1e-12)  # Without the prefill's token.
  np.testing.assert_allclose(result.tv_bound, bound, atol=1e-12)  # The certificate is the bound.
  assert 1e-3 < distance <= bound + 1e-12
  if length == 1:
    np.testing.assert_allclose(distance, bound, atol=1e-12)
  else:
    assert distance > 0.5 * bound


@pytest.mark.slow
def test_clamped_factors_give_the_same_round_with_more_tokens():
  # Factors 1.67, 0.83, 0.41: two are raised to 1.
  (printed, _), (raised, _) = one_round(3, 'falling'), one_round(3, 'raised')
  np.testing.assert_allclose(raised.distribution, printed.distribution, atol=1e-12)
  np.testing.assert_allclose(raised.tv_bound, printed.tv_bound, atol=1e-12)
  assert raised.length > printed.length + 0.02


def random_probs(*shape):
  return np.random.default_rng(0).dirichlet(np.full(5, 0.7), shape)


@pytest.mark.slow
def test_small_factors_are_lossless_only_with_the_best_residual():
  p, q = random_probs(2, 40)
  small = cool(0.6, nu=0, clamp=False)
  stage = enumerate_stage(small, p, q, 2)
  np.testing.assert_allclose(stage.distribution, p, atol=1e-12)
  np.testing.assert_allclose(stage.tv_bound, 0, atol=1e-12)
  # Equation 11 in place of Equation 10, as Algorithm 1 may be read.
  vanilla = tree_rejection(lambda max_depth: AcceptanceRule(
      mass=lambda p, q, token, depth: 0.6 * accept.take(p, token),
      residual=lambda p, q, token, depth: accept.residual(p, q)), exact=False)
  stage = enumerate_stage(vanilla, p, q)
  assert 0.5 * np.abs(stage.distribution - p).sum(1).mean() > 0.05
