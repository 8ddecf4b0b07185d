"""Paired differences compared with NumPy on arrays, and on images of a shipped model."""

import math

import numpy as np
import pytest

from cspd_jax.metrics import paired


def test_standard_errors_are_those_of_numpy():
  rng = np.random.default_rng(0)
  baseline = rng.normal(size=50)
  values = baseline + .1 * rng.normal(size=50) + .3
  measured = paired.difference(values, baseline)
  gaps = values - baseline
  assert measured.mean == pytest.approx(gaps.mean())
  assert measured.paired_error == pytest.approx(gaps.std(ddof=1) / 50**.5)
  assert measured.unpaired_error == pytest.approx(
      ((values.var(ddof=1) + baseline.var(ddof=1)) / 50)**.5)
  assert measured.paired_error < measured.unpaired_error / 5


def test_images_of_a_caption_are_not_independent():
  rng = np.random.default_rng(2)
  values, baseline = rng.normal(size=(2, 12))
  captions = [f'a {i}' for i in range(12)]
  assert paired.difference(values, baseline, captions[::-1]) == pytest.approx(
      paired.difference(values, baseline))
  # Copies of every image add nothing.
  three = lambda array: np.tile(array, 3)
  copied = paired.difference(three(values), three(baseline), 3 * captions)
  assert copied == pytest.approx(paired.difference(values, baseline))
  assert paired.difference(three(values), three(baseline)).paired_error < .7 * copied.paired_error
  # Captions may have different numbers of images, which all count the same.
  uneven = paired.difference(np.array([1., 3, 8]), np.zeros(3), ['a', 'a', 'b'])
  assert uneven.mean == 4 and uneven.paired_error == pytest.approx(
      np.std([4 - 8, 8 - 4], ddof=1) / (1.5 * 2**.5))


def test_one_image_has_no_error():
  measured = paired.difference(np.array([3.]), np.array([1.]))
  assert measured.mean == 2 and math.isnan(measured.paired_error)


def test_excluded_tokens_leave_nothing_to_compare():
  measured = paired.difference(np.array([1., np.inf]), np.array([1., np.inf]))
  assert paired.entries({'nll': measured}) == dict.fromkeys(
      ('nll_change', 'nll_change_error', 'nll_change_error_unpaired'))


class _Images:
  """A sample with its pixels."""

  def __init__(self, pixels):
    self.pixels = pixels

  def images(self, model):
    del model
    return self.pixels

  def once(self, name, compute):
    del name
    return compute()


def test_statistics_of_pixels():
  columns = np.where(np.arange(4) % 2, 1., -1.)
  stripes = np.broadcast_to(columns[None, None, :, None], (1, 4, 4, 3))
  measure = lambda name: paired.STATISTICS[name].measure(_Images(stripes), None)
  np.testing.assert_allclose(measure('brightness'), [127.5])
  np.testing.assert_allclose(measure('contrast'), [127.5])
  np.testing.assert_allclose(measure('detail'), [127.5])  # 255 across columns, 0 across rows.
