"""Crops of the photographs: deterministic, and split without overlap."""

import numpy as np
import pytest

pytest.importorskip('skimage')
pytest.importorskip('sklearn')
from PIL import Image  # pylint: disable=wrong-import-position

from experiments.demo_models import photos


@pytest.fixture(scope='module')
def loaded():
  return photos.load()


def _striped():
  """A photograph whose red channel tells the split: dark left of the border, bright from it."""
  pixels = np.zeros((200, 480, 3), np.uint8)
  pixels[:, int(photos.TRAIN_FRACTION * 480):] = 255
  return (Image.fromarray(pixels),)


def test_every_source_says_where_it_comes_from():
  for source in photos.SOURCES:
    assert all(source), source.name
    assert source.licence in ('public domain', 'CC0', 'CC BY 2.0'), source.name
  assert len(set(photos.NAMES)) == len(photos.NAMES)


def test_crops_have_the_promised_form(loaded):
  images, labels = photos.crops(loaded, 0, 0, 'train', 11)
  assert images.shape == (11, 64, 64, 3) and images.dtype == np.float32
  assert images.min() >= -1 and images.max() <= 1 and images.std() > 0.1
  assert labels.dtype == np.int32 and set(labels) == set(range(len(loaded)))


def test_same_arguments_give_the_same_crops_and_others_do_not(loaded):
  first = photos.crops(loaded, 1, 5, 'train', 4)[0]
  np.testing.assert_array_equal(first, photos.crops(loaded, 1, 5, 'train', 4)[0])
  for arguments in ((2, 5, 'train'), (1, 6, 'train'), (1, 5, 'held_out')):
    assert (photos.crops(loaded, *arguments, 4)[0] != first).any()


@pytest.mark.parametrize('split, value', [('train', -1), ('held_out', 1)])
def test_splits_do_not_overlap(split, value):
  images = photos.crops(_striped(), 0, 0, split, 64, size=16)[0]
  np.testing.assert_array_equal(images, value)
