"""`exact_path` with a draft model far from the target, and mutants: a test with a stated power.

The target's tokens are jointly normal, so each of them and each innovation, what a token adds to
its neighbour, has a distribution in closed form. A decoder passes if all nine empirical
distribution functions stay within `LIMIT` of these. By the inequality of Dvoretzky, Kiefer,
Wolfowitz and Massart, `P(distance > e) <= 2 exp(-2 n e^2)`,

- an exact decoder fails with probability at most `FALSE_ALARM`, for all nine together, and
- a decoder with a distribution function that is off by `FAR` anywhere passes with probability at
  most `exp(-2 n (FAR - LIMIT)^2) < 1e-30`, by Hoeffding's inequality at that point.

The mutants are off by more than that: 0.38 = 2 Phi(0.5) - 1 if every draft is accepted, whose mean
is one standard deviation off; 0.25 if the residual is that of the ratio upside down, and 0.08 if
it is a draw of the target (measured on 40000 images, on which the decoder itself is off by 0.007).
"""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from cspd_jax.continuous import coupling, decoders, schedule as schedule_lib
from cspd_jax.testing.proofs import analytic

NUM, SIZE, CORRELATION = 16000, 5, 0.9
FALSE_ALARM, FAR = 1e-6, 0.07
LIMIT = np.sqrt(np.log(2 * (2 * SIZE - 1) / FALSE_ALARM) / (2 * NUM))

LEVELS = schedule_lib.make(6)
CHAIN = analytic.gaussian_chain(SIZE, CORRELATION, schedule=LEVELS)
# Of which a bit less than half is accepted.
DRAFT = analytic.ChainParams(jnp.float32(0.5), jnp.array([1.0]))
ACCEPT_PROPOSAL = coupling.accept_proposal
MUTANTS = {
    'every draft accepted': (coupling, 'accept', lambda ratio, u, eta: ratio == ratio),
    'target draw for residual': (coupling, 'accept_proposal', lambda ratio, u, eta: ratio == ratio),
    'residual of the ratio upside down': (
        coupling, 'accept_proposal', lambda ratio, u, eta: ACCEPT_PROPOSAL(-ratio, u, eta)),
}


def distance(tokens):
  """The largest distance of nine empirical distribution functions to the normal one."""
  tokens = np.asarray(tokens, np.float64)[..., 0]
  innovations = (tokens[:, 1:] - CORRELATION * tokens[:, :-1]) / np.sqrt(1 - CORRELATION**2)
  values = np.sort(np.concatenate([tokens, innovations], axis=1), axis=0)
  steps = np.arange(len(values) + 1)[:, None] / len(values)
  return np.max(np.maximum(steps[1:] - special.ndtr(values), special.ndtr(values) - steps[:-1]))


def run(num=NUM, seed=1):
  """Images of the library's decoder, jitted, with two drafts per round and paths of 3 kernels."""
  decoder = jax.jit(decoders.exact_path(CHAIN.target, CHAIN.target, 2, LEVELS, split=2))
  return jax.tree.map(np.asarray, decoder(
      CHAIN.params, jnp.zeros(num, jnp.int32), jax.random.key(seed), draft_params=DRAFT))


def test_the_power_is_the_stated_one():
  assert np.exp(-2 * NUM * (FAR - LIMIT)**2) < 1e-30
  rng = np.random.default_rng(0)
  covariance = CORRELATION**np.abs(np.subtract.outer(np.arange(SIZE), np.arange(SIZE)))
  exact = rng.multivariate_normal(np.zeros(SIZE), covariance, NUM)[..., None]
  assert distance(exact) < LIMIT
  shift = 2 * special.ndtri(0.5 + FAR / 2)  # What moves a normal distribution function by `FAR`.
  exact[:, 3] += shift
  assert distance(exact) > LIMIT


@pytest.mark.slow
def test_the_distribution_is_that_of_the_target():
  generated = run()
  assert distance(generated.tokens) < LIMIT
  tests = generated.tests
  assert 0.4 < tests.accepted.sum() / tests.tested.sum() < 0.5  # Test and residual are both in use.
  assert tests.missed.sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize('name', MUTANTS)
def test_mutants_are_rejected(name):
  with mock.patch.object(*MUTANTS[name]):
    assert distance(run().tokens) > LIMIT
