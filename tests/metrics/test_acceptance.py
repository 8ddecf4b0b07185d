"""Acceptance metrics of decodes that are small enough to count by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest

from cspd_jax.decoding.base import Decoded
from cspd_jax.metrics import acceptance


def decoded(sizes_per_image):
  """Returns a decode whose rounds after the prefill committed these numbers of tokens."""
  length = 1 + sum(sizes_per_image[0])
  histogram = np.zeros((len(sizes_per_image), 5), np.int32)
  for row, sizes in zip(histogram, sizes_per_image):
    np.add.at(row, sizes, 1)
  rounds = np.asarray([1 + len(sizes) for sizes in sizes_per_image], np.int32)
  zeros = np.zeros((len(sizes_per_image), length), np.int32)
  return Decoded(zeros, rounds, histogram, zeros, np.zeros(len(rounds), np.float32),
                 np.ones(len(rounds), bool), zeros.astype(np.float32))


class SummariseTest(absltest.TestCase):

  def test_counts(self):
    # 8 tokens: the prefill's, then 3 rounds and 5 rounds.
    got = acceptance.summarise(decoded([[4, 2, 1], [1, 1, 1, 1, 3]]))
    self.assertAlmostEqual(got.rounds_mean, 5.0)
    self.assertAlmostEqual(got.step_compression, (8 / 4 + 8 / 6) / 2)
    self.assertAlmostEqual(got.accepted_length_mean, 14 / 8)
    self.assertAlmostEqual(got.one_token_rounds, 5 / 8)
    self.assertTrue(all(isinstance(value, float) for value in got))

  @pytest.mark.slow
  def test_vanilla(self):
    self.assertEqual(
        acceptance.summarise(decoded([[1] * 6])), acceptance.Acceptance(7.0, 1.0, 1.0, 1.0))

  def test_takes_jax_arrays(self):
    one = decoded([[2, 3]])
    self.assertEqual(
        acceptance.summarise(jax.tree.map(jnp.asarray, one)), acceptance.summarise(one))

  def test_one_token_image_has_no_rounds_to_average(self):
    got = acceptance.summarise(decoded([[]]))
    self.assertEqual(got[:2], (1.0, 1.0))
    self.assertTrue(math.isnan(got.accepted_length_mean) and math.isnan(got.one_token_rounds))

  def test_refuses_shapes_that_do_not_fit(self):
    one = decoded([[2, 3]])
    for wrong in (one._replace(tokens=one.tokens[0]), one._replace(rounds=one.rounds[0]),
                  one._replace(accepted=one.accepted[0]),
                  jax.tree.map(lambda part: part[:0], one)):
      with self.assertRaisesRegex(ValueError, r'\[B, T\]'):
        acceptance.summarise(wrong)

  def test_refuses_a_histogram_that_does_not_add_up(self):
    one = decoded([[2, 3]])
    for wrong in (one._replace(rounds=one.rounds + 1),
                  one._replace(accepted=np.roll(one.accepted, 1, axis=1))):
      with self.assertRaisesRegex(ValueError, 'rounds - 1'):
        acceptance.summarise(wrong)


if __name__ == '__main__':
  absltest.main()
