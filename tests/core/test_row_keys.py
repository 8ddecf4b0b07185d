"""Keys of rows, and the race that draws are made of."""

import chex
import jax
import numpy as np
import pytest

from cspd_jax.core.random import exponential, row_keys


def rows(count, seed=0):
  return row_keys(jax.random.key(seed), count)


def test_row_keys():
  alone, many = rows(1), rows(3)
  chex.assert_trees_all_equal(jax.tree.map(lambda x: x[:1], many), alone)
  with pytest.raises(ValueError, match=r'key has shape \(2,\)'):
    row_keys(jax.random.split(jax.random.key(0)), 3)
  raw = row_keys(jax.random.PRNGKey(0), 3)
  chex.assert_trees_all_equal(raw, many)


def test_race_has_no_ties_in_a_large_vocabulary():
  times = np.asarray(exponential(jax.random.key(0), (64, 65536)))
  assert np.isfinite(times).all() and (times > 0).all()
  fastest = np.sort(times, axis=1)[:, :3]
  assert (np.diff(fastest, axis=1) > 0).all()
  np.testing.assert_allclose(times.mean(), 1, atol=3e-3)
