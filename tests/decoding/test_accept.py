"""The accept / residual kernel in closed form, float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding import accept


def random_distribution(rng, size, cut):
  distribution = rng.gamma(0.7, size=size)
  distribution[rng.permutation(size)[:cut]] = 0
  return distribution / distribution.sum()


@pytest.mark.parametrize('size,cut', [(2, 0), (3, 0), (3, 1), (6, 2)])
def test_one_candidate(size, cut):
  rng = np.random.default_rng(size)
  with jax.enable_x64(True):
    for _ in range(20):
      p, q = random_distribution(rng, size, cut), random_distribution(rng, size, cut)
      kept = np.minimum(p, q)
      residual = np.asarray(accept.residual(jnp.asarray(p), jnp.asarray(q)))
      distribution = kept + (1 - kept.sum()) * residual
      np.testing.assert_allclose(distribution, p, atol=1e-12)


def multi_candidate_distribution(p, q, candidates):
  """The distribution of the token that comes out, by recursion over the draws."""
  if candidates == 0 or not q.any():
    return np.asarray(p)
  distribution = np.zeros(len(p))
  for token in np.flatnonzero(q):
    kept = min(1.0, p[token] / q[token])
    rest = multi_candidate_distribution(
        np.asarray(accept.residual(jnp.asarray(p), jnp.asarray(q))),
        np.asarray(accept.without(jnp.asarray(q), jnp.asarray(token))), candidates - 1)
    distribution += q[token] * (kept * np.eye(len(p))[token] + (1 - kept) * rest)
  return distribution


@pytest.mark.parametrize('size,cut,candidates', [(3, 0, 2), (3, 0, 3), (3, 1, 3), (4, 1, 4)])
def test_candidates_without_replacement(size, cut, candidates):
  rng = np.random.default_rng(size)
  with jax.enable_x64(True):
    for _ in range(3):
      p, q = random_distribution(rng, size, cut), random_distribution(rng, size, cut)
      np.testing.assert_allclose(multi_candidate_distribution(p, q, candidates), p, atol=1e-12)


def test_no_residual_mass():
  p = jnp.asarray([0.25, 0.75, 0.0])
  np.testing.assert_array_equal(accept.residual(p, p), p)
  np.testing.assert_array_equal(accept.residual(p, jnp.asarray([0.3, 0.8, 0.1])), p)


def test_disjoint_supports():
  p, q = jnp.asarray([0.5, 0.5, 0., 0.]), jnp.asarray([0., 0., 0.5, 0.5])
  np.testing.assert_array_equal(accept.residual(p, q), p)


def test_nothing_left_to_draw():
  one = jnp.asarray([0., 1., 0.])
  np.testing.assert_array_equal(accept.without(one, jnp.asarray(1)), [0, 0, 0])
  distribution = accept.without(jnp.asarray([.5, .25, .25]), jnp.asarray(0))
  np.testing.assert_allclose(distribution, [0, .5, .5])
