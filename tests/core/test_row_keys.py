"""Keys of rows, and the race that draws are made of."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core import random
from cspd_jax.core.random import exponential, image_keys, row_keys, seed_key


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
  result = lambda: (row_keys(seed_key(7), 2), row_keys(image_keys([(0, 0), (5, 1)]), 2))
  expected = result()
  with jax.default_prng_impl('rbg'):
    chex.assert_trees_all_equal(result(), expected)


def test_seeds_do_not_depend_on_the_offset_of_jax():
  """JAX_RANDOM_SEED_OFFSET changed every picture, and no file recorded it."""
  result = lambda: [jax.random.key_data(keys).tolist()
                    for keys in (seed_key(7), image_keys([(7, 0), (5, 1)]))]
  expected = result()
  assert expected[0] == jax.random.key_data(jax.random.key(7)).tolist()
  try:
    jax.config.update('jax_random_seed_offset', 3)
    assert result() == expected
  finally:
    jax.config.update('jax_random_seed_offset', 0)


@pytest.mark.parametrize('number', [
    7, 2**32 + 7, -1, 7.0, True, np.int64(2**32 + 7), np.uint32(7), np.float32(7), np.arange(2),
    jnp.int32(7), jnp.uint32(7)], ids=repr)
def test_numbers_are_no_keys(number):
  """Neither outside `jit` nor inside, where 7 and 2^32 + 7 are one number."""
  message = r'key is .*; it must be a random key, or one per row; pass jax.random.key\(seed\)'
  with pytest.raises(ValueError, match=message):
    row_keys(number, 2)
  if type(number) is not int or number < 2**31:  # JAX itself refuses these.
    with pytest.raises(ValueError, match=message):
      jax.jit(lambda key: row_keys(key, 2))(number)


@pytest.mark.parametrize('seed', [
    2**32, 2**32 + 7, -1, 7.0, np.int64(2**32 + 7), np.float32(7), 2**70, 'seven', None])
def test_seeds_keep_all_their_bits(seed):
  message = r'seed is .*; it must be a whole number from 0 to 4294967295'
  for make in (seed_key, lambda seed: image_keys([(seed, 0)]), lambda seed: seed_key(True)):
    with pytest.raises(ValueError, match=message):
      make(seed)
  words = {jax.random.key_data(seed_key(kind(seed))).tobytes()
           for kind in (int, np.int64, np.uint32) for seed in (0, 7, 2**32 - 1)}
  assert len(words) == 3


def test_race_has_no_ties_in_a_large_vocabulary():
  times = np.asarray(exponential(jax.random.key(0), (64, 65536)))
  assert np.isfinite(times).all() and (times > 0).all()
  fastest = np.sort(times, axis=1)[:, :3]
  assert (np.diff(fastest, axis=1) > 0).all()
  np.testing.assert_allclose(times.mean(), 1, atol=3e-3)


@pytest.mark.parametrize('is_partitionable', [True, False])
@pytest.mark.parametrize('shape', [(), (1,), (5,), (3, 7, 11)])
def test_words_are_those_of_jax(shape, is_partitionable):
  keys = jax.random.split(jax.random.key(5), 4)
  with jax.threefry_partitionable(is_partitionable):
    words = jax.vmap(lambda key: jax.random.bits(key, shape))(keys)
    np.testing.assert_array_equal(jax.vmap(lambda key: random._bits(key, shape))(keys), words)
    np.testing.assert_array_equal(jax.jit(lambda: random._bits(keys[1], shape))(), words[1])
