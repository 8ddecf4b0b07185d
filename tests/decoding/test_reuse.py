"""Drafts that are reused while they are probable, and the distributions that are recorded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding import specification
from cspd_jax.decoding.drafters import jacobi
from cspd_jax.testing import enumerate as enumerate_lib
from cspd_jax.testing.tabular import tabular

pytestmark = pytest.mark.usefixtures('float64')

VOCAB = 4


def distributions(seed, zeros=0):
  """Two distributions `[V]` with different supports."""
  p, q = np.random.default_rng(seed).dirichlet(np.ones(VOCAB), 2)
  p[:zeros], q[VOCAB - zeros:] = 0, 0
  return p / p.sum(), q / q.sum()


def outcomes(p, q, threshold):
  """By old token: the distribution `[V, V]` of the new one, and what is recorded `[V]`."""
  table, records = np.zeros((VOCAB, VOCAB)), []
  for old in range(VOCAB):
    for index in range(VOCAB * VOCAB):
      rng = enumerate_lib.outcome([], jnp.asarray(index), jnp.float64)
      tokens, recorded = jacobi.reused(
          rng, jnp.array([old], jnp.int32), jnp.asarray(q)[None],
          jnp.stack([jnp.asarray(p)] * 2), threshold)
      # Two draws: at the position of the old token, and at one that has no token yet.
      table[old, int(tokens[0])] += float(rng.state.weight)
      records.append(np.asarray(recorded))
  first, second = records[0]
  np.testing.assert_array_equal(second, p)
  for record in records:  # It does not depend on the tokens.
    np.testing.assert_array_equal(record[0], first)
  return table, first


@pytest.mark.parametrize('threshold', [0.1, 0.5, 1.0])
@pytest.mark.parametrize('zeros', [0, 1])
def test_what_is_recorded_is_the_distribution(threshold, zeros):
  p, q = distributions(0, zeros)
  table, recorded = outcomes(p, q, threshold)
  np.testing.assert_allclose(table.sum(axis=1), 1)
  np.testing.assert_allclose(q @ table, recorded, atol=1e-15)
  kept = np.isclose(np.diag(table), 1)
  np.testing.assert_array_equal(kept[q > 0], (p >= threshold * q)[q > 0])


def test_thresholds_interpolate():
  """The record is the new distribution at 1, and the lower the threshold, the closer to the old."""
  p, q = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.3, 0.3, 0.3, 0.1])
  records = [outcomes(p, q, threshold)[1] for threshold in (1.0, 0.5, 1e-9)]
  np.testing.assert_allclose(records[0], p, atol=1e-15)
  np.testing.assert_allclose(records[2], q, atol=1e-15)
  old, new = (0.5 * np.abs(records[1] - other).sum() for other in (q, p))
  assert 0 < old < 0.5 * np.abs(p - q).sum() and 0 < new < 0.5 * np.abs(p - q).sum()


def test_equal_distributions_retain_every_token():
  _, q = distributions(3)
  table, recorded = outcomes(q, q, 1.0)
  np.testing.assert_allclose(table, np.eye(VOCAB), atol=1e-15)
  np.testing.assert_allclose(recorded, q, atol=1e-15)


def test_one_token_per_pass_has_nothing_to_reuse():
  model = tabular(jax.random.key(0), 3, 5)
  run = lambda spec: jax.jit(specification.build(spec, model.target))(
      model.params, jnp.zeros(8, jnp.int32), jax.random.key(1)).tokens
  np.testing.assert_array_equal(run('sjd_pp(window=1)'), run('sjd(window=1)'))
