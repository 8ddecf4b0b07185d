"""Acceptance metrics of decodes that are small enough to count by hand."""

import numpy as np
import pytest

from cspd_jax.decoding.base import Decoded
from cspd_jax.metrics import acceptance, base


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


def values(sizes_per_image):
  """Returns the means of the metrics by name."""
  sample = base.Sample(decoded(sizes_per_image), None, None)
  return {metric.name: metric(sample, None).mean for metric in acceptance.DISCRETE
          if metric.group == 'work'}


def test_counts():
  # 8 tokens: the prefill's, then 3 rounds and 5 rounds.
  assert values([[4, 2, 1], [1, 1, 1, 1, 3]]) == pytest.approx(dict(
      rounds=5.0, step_compression=(8 / 4 + 8 / 6) / 2, tokens_per_pass=16 / 10,
      accepted_length=14 / 8, one_token_rounds=5 / 8))
  assert values([[1] * 6]) == dict(
      rounds=7.0, step_compression=1.0, tokens_per_pass=1.0, accepted_length=1.0,
      one_token_rounds=1.0)


def test_by_depth():
  """Chains of three drafts; the depth of an image's last token does not count."""
  sizes = [[4, 2, 1], [1, 1, 1, 1, 3], [3, 4]]
  rounds = np.array([np.repeat(range(len(one) + 1), [1, *one]) for one in sizes])
  accepted, tested = acceptance.by_depth(decoded(sizes)._replace(round_of_token=rounds), 3)
  # Of 4, all three; of 2, one of two; of 1 with one token left, none. Then four times one, and 3
  # to the end: two. At last 3: two of three, and 4 to the end: three.
  np.testing.assert_array_equal(tested, [2 + 5 + 2, 2 + 1 + 2, 1 + 0 + 2])
  np.testing.assert_array_equal(accepted, [2 + 1 + 2, 1 + 1 + 2, 1 + 0 + 1])


def test_one_token_image_has_no_rounds_to_average():
  assert values([[]]) == pytest.approx(dict(
      rounds=1.0, step_compression=1.0, tokens_per_pass=1.0, accepted_length=np.nan,
      one_token_rounds=np.nan), nan_ok=True)
