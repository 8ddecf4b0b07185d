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
