"""The race against its distribution, and what noise depends on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.random import row_keys
from cspd_jax.decoding import row_random
from cspd_jax.testing import exactness
from tests.marks import representative


def rows(count, seed=0):
  return row_keys(jax.random.key(seed), count)


@pytest.mark.parametrize('vocab_size', representative([3, 50], 50))
def test_draw_follows_the_weights(vocab_size):
  weights = np.random.default_rng(0).gamma(0.5, size=vocab_size) * (np.arange(vocab_size) != 1)
  draw = jax.vmap(lambda state: row_random.RowRandom(state).draw(jnp.asarray([weights]))[0])
  tokens = np.asarray(jax.jit(draw)(rows(200_000)))
  fit = exactness.fit(np.bincount(tokens, minlength=vocab_size), weights / weights.sum())
  assert fit.p_value > 1e-6


def test_draw_distinct_is_sequential_sampling():
  weights = np.array([0.5, 0.3, 0.2, 0.0])
  draw = jax.vmap(
      lambda state: row_random.RowRandom(state).draw_distinct(jnp.asarray([weights]), 2)[0])
  tokens = np.asarray(jax.jit(draw)(rows(100_000)))
  distribution = np.outer(weights / (1 - weights), weights) * (1 - np.eye(4))
  counts = np.bincount(tokens @ [4, 1], minlength=16)
  assert exactness.fit(counts, distribution.ravel()).p_value > 1e-6


def test_missing_candidates_are_marked():
  rng = row_random.RowRandom(jax.tree.map(lambda x: x[0], rows(1)))
  weights = jnp.asarray([[0., 1., 0.], [0., 0., 0.], [1., 1., 1.]])
  tokens = np.asarray(rng.draw_distinct(weights, 5))
  np.testing.assert_array_equal(tokens[0], [1, -1, -1, -1, -1])
  np.testing.assert_array_equal(tokens[1], [-1] * 5)
  assert sorted(tokens[2, :3]) == [0, 1, 2] and list(tokens[2, 3:]) == [-1, -1]


@pytest.mark.parametrize('draw', [
    lambda rng, weights, greedy: rng.draw_distinct(weights, 3, greedy),
    lambda rng, weights, greedy: rng.best_at(jnp.arange(2), weights, 3, greedy)])
def test_greedy_draws_are_the_largest_weights(draw):
  state = jax.tree.map(lambda x: x[0], rows(1))
  weights = jnp.asarray([[.1, .3, .2, .3, .1], [0., .5, 0., .5, 0.]])
  run = jax.jit(lambda greedy: draw(row_random.RowRandom(state), weights, greedy))
  np.testing.assert_array_equal(run(True), [[1, 3, 2], [1, 3, -1]])
  np.testing.assert_array_equal(run(False), draw(row_random.RowRandom(state), weights, False))
  assert np.any(run(False) != run(True))


def test_accept_at_the_ends():
  rng = row_random.RowRandom(jax.tree.map(lambda x: x[0], rows(1)))
  p, q = jnp.asarray([0., 1., .5, 0.]), jnp.asarray([.5, .5, .5, 0.])
  np.testing.assert_array_equal(rng.accept(p, q), [False, True, True, False])


def test_position_noise_is_keyed_by_position_alone():
  state = jax.tree.map(lambda x: x[0], rows(1))
  weights = jax.random.uniform(jax.random.key(1), (6, 40))
  rng = row_random.RowRandom(state)
  first = rng.draw_at(jnp.arange(6), weights)
  rng.draw(weights)  # Advances the stream, not the noise.
  np.testing.assert_array_equal(rng.draw_at(jnp.arange(6)[::-1], weights[::-1]), first[::-1])
  best = rng.best_at(jnp.arange(6), weights, 3)
  np.testing.assert_array_equal(best[:, 0], first)
  assert all(len(set(row)) == 3 for row in np.asarray(best))


def test_counted_keys_are_independent():
  # Neighbouring positions, uses and steps: two draws are independent.
  weights = jnp.asarray([[0.1, 0.2, 0.3, 0.4]] * 2)

  def draws(state):
    first = row_random.RowRandom(state)
    second = row_random.RowRandom(first.state)
    at = first.draw_at(jnp.asarray([5, 6]), weights)
    return jnp.stack([at[0], at[1], *first.draw(weights), first.draw(weights)[0],
                      second.draw(weights)[0]])

  tokens = np.asarray(jax.jit(jax.vmap(draws))(rows(100_000)))
  distribution = np.outer(weights[0], weights[0]).ravel()
  for i in range(tokens.shape[1]):
    for j in range(i):
      counts = np.bincount(4 * tokens[:, i] + tokens[:, j], minlength=16)
      assert exactness.fit(counts, distribution / distribution.sum()).p_value > 1e-7, (i, j)
