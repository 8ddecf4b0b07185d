"""Keys of rows, and the race that draws are made of."""

import chex
import jax
import numpy as np
import pytest

from cspd_jax.core.random import exponential, image_keys, row_keys


def rows(count, seed=0):
  return row_keys(jax.random.key(seed), count)


def test_row_keys():
  alone, many = rows(1), rows(3)
  chex.assert_trees_all_equal(jax.tree.map(lambda x: x[:1], many), alone)
  with pytest.raises(ValueError, match=r'key has shape \(2,\)'):
    row_keys(jax.random.split(jax.random.key(0)), 3)
  raw = row_keys(jax.random.PRNGKey(0), 3)
  chex.assert_trees_all_equal(raw, many)


@pytest.mark.parametrize('implementation', ['rbg', 'unsafe_rbg'])
def test_keys_of_other_implementations(implementation):
  """The numbers of a row are its own: under `vmap`, `rbg` keys draw those of the first key."""
  key = jax.vmap(lambda seed: jax.random.key(seed, impl=implementation))(np.arange(4))
  together = row_keys(key, 4)
  for row in range(4):
    chex.assert_trees_all_equal(
        jax.tree.map(lambda x: x[row:row + 1], together), row_keys(key[row:row + 1], 1))
  chex.assert_trees_all_equal(together, jax.jit(lambda key: row_keys(key, 4))(key))
  words = np.concatenate([np.asarray(leaf) for leaf in (*together, *row_keys(key[0], 4))])
  assert len(np.unique(words, axis=0)) == len(words)


def test_seeds_do_not_depend_on_the_default_implementation():
  expected = row_keys(7, 2), row_keys(image_keys([(0, 0), (5, 1)]), 2)
  with jax.default_prng_impl('rbg'):
    chex.assert_trees_all_equal(
        (row_keys(7, 2), row_keys(image_keys([(0, 0), (5, 1)]), 2)), expected)


def test_race_has_no_ties_in_a_large_vocabulary():
  times = np.asarray(exponential(jax.random.key(0), (64, 65536)))
  assert np.isfinite(times).all() and (times > 0).all()
  fastest = np.sort(times, axis=1)[:, :3]
  assert (np.diff(fastest, axis=1) > 0).all()
  np.testing.assert_allclose(times.mean(), 1, atol=3e-3)
