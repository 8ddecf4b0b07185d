"""Neighbour tables."""

from unittest import mock

import numpy as np
from absl.testing import parameterized

from cspd_jax.decoding.verifiers import lantern
from cspd_jax.decoding.verifiers.lantern import neighbour_table

CODEBOOK = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


def by_sorting(codebook, k):
  """The same from all distances at once."""
  codebook = codebook.astype(np.float64)
  distance = np.linalg.norm(codebook[:, None] - codebook, axis=-1)
  np.fill_diagonal(distance, np.inf)
  return np.argsort(distance, axis=1, kind='stable')[:, :k]


class TableTest(parameterized.TestCase):

  @parameterized.parameters(1, 7, 49)
  def test_nearest_first_without_itself(self, k):
    table = neighbour_table(CODEBOOK, k)
    self.assertEqual(table.dtype, np.int32)
    np.testing.assert_array_equal(table, by_sorting(CODEBOOK, k))

  def test_chunks_make_no_difference(self):
    with mock.patch.object(lantern, '_CHUNK', 350):
      np.testing.assert_array_equal(neighbour_table(CODEBOOK, 7), by_sorting(CODEBOOK, 7))

  def test_directions(self):
    unit = CODEBOOK / np.linalg.norm(CODEBOOK, axis=1, keepdims=True)
    np.testing.assert_array_equal(
        neighbour_table(CODEBOOK, 7, normalize=True), by_sorting(unit, 7))
    np.testing.assert_array_equal(
        neighbour_table(CODEBOOK, 7, 'cosine'), neighbour_table(CODEBOOK, 7, normalize=True))

  def test_random_control(self):
    table = neighbour_table(CODEBOOK, 49, 'random', seed=1)
    for row in range(50):
      self.assertCountEqual(table[row], np.delete(np.arange(50), row))
    np.testing.assert_array_equal(table, neighbour_table(CODEBOOK, 49, 'random', seed=1))
    self.assertTrue(np.any(table != neighbour_table(CODEBOOK, 49, 'random', seed=2)))

  @parameterized.named_parameters(
      ('k', dict(k=50), 'k is 50; a codebook of 50 rows has 1 to 49'),
      ('no_k', dict(k=0), 'k is 0'),
      ('distance', dict(k=3, distance='l1'), "distance is 'l1'.*l2, cosine, random"),
      ('shape', dict(codebook=CODEBOOK[0], k=3), r'shape \(4,\)'),
      ('finite', dict(codebook=CODEBOOK * np.inf, k=3), 'finite matrix'),
      ('zero', dict(codebook=CODEBOOK * (np.arange(50) != 5)[:, None], k=3, distance='cosine'),
       r'rows \[5\] are zero'),
  )
  def test_refused(self, options, words):
    with self.assertRaisesRegex(ValueError, words):
      neighbour_table(**{'codebook': CODEBOOK, **options})
