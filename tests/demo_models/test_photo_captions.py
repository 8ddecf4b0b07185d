"""Captions of crops: deterministic, and true of what the crops show."""

import numpy as np
import pytest

pytest.importorskip('skimage')
pytest.importorskip('sklearn')

from experiments.demo_models import photo_captions, photos


@pytest.fixture(scope='module')
def loaded():
  return photos.load()


def test_the_crops_are_those_without_captions_or_their_opposite(loaded):
  plain, labels, _ = photos.crops(loaded, 0, 3, 'train', 24)
  result = photo_captions.captioned(loaded, 0, 3, 'train', 24)
  turned = [not np.array_equal(*pair) for pair in zip(result.images, plain)]
  assert 4 < sum(turned) < 16
  wanted = np.where(np.reshape(turned, (-1, 1, 1, 1)), photo_captions.opposite(plain), plain)
  np.testing.assert_array_equal(result.images, wanted)
  again = photo_captions.captioned(loaded, 0, 3, 'train', 24)
  assert again.captions.tolist() == result.captions.tolist()
  for caption, label, image in zip(result.captions.tolist(), labels, result.images):
    words = caption.replace(',', ' ,').split()
    assert set(words) <= {*photo_captions.WORDS, photo_captions.UNKNOWN}
    assert photos.NAMES[label] in words or photo_captions.UNKNOWN in words
    if said := set(words) & set(photo_captions.COLOURS):
      assert said == {photo_captions.colour(image)}


def test_examples_are_made_of_known_words():
  for prompt in photo_captions.EXAMPLES:
    assert set(prompt.replace(',', ' ,').split()) <= set(photo_captions.WORDS)


@pytest.mark.parametrize('colour, pixel', [
    ('black', (10, 10, 15)), ('white', (250, 245, 250)), ('grey', (120, 125, 120)),
    ('red', (200, 20, 10)), ('red', (200, 10, 40)), ('orange', (230, 120, 60)),
    ('brown', (110, 70, 40)), ('yellow', (220, 210, 30)), ('green', (30, 160, 60)),
    ('blue', (40, 60, 200)), ('purple', (150, 40, 180))])
def test_colours_have_their_names(colour, pixel):
  image = np.full((4, 4, 3), 0.2)
  image[1:] = np.array(pixel) / 127.5 - 1
  assert photo_captions.colour(image) == colour


def test_the_opposite_of_a_colour_is_as_light_and_turning_twice_changes_nothing():
  image = np.random.default_rng(0).uniform(-1, 1, (5, 6, 3))
  turned = photo_captions.opposite(image)
  np.testing.assert_allclose(turned.max(-1), image.max(-1))
  np.testing.assert_allclose(photo_captions.opposite(turned), image)
  assert photo_captions.colour(np.broadcast_to([1., -1, -1], (2, 2, 3))) == 'red'
  red = np.broadcast_to([1., -1, -1], (2, 2, 3))
  assert photo_captions.colour(photo_captions.opposite(red)) == 'blue'


def test_places_are_counted_as_the_crop_is_shown(loaded):
  result = photos.crops(loaded, 0, 0, 'train', 64)
  assert result.places.shape == (64, 2)
  assert result.places.min() >= 0 and result.places.max() <= 1 and result.places.std(0).min() > 0.2
  places = ((0, 0), (0.5, 0), (1, 0.5), (0.5, 0.5), (1, 1))
  assert [photo_captions.place_of(*place) for place in places] == [
      'top left', 'top', 'right', 'middle', 'bottom right']
