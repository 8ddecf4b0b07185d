"""Tokens per pass inside things and on plain ground, on drawn images with known rounds."""

import types

import numpy as np
import pytest

from cspd_jax.metrics import base, scenes

WIDE = 4


def _image(noise=0.0):
  """A scene of 4 x 4 tokens of 4 x 4 pixels: a dark square on blue, at tokens (1..2, 1..2)."""
  image = np.tile(np.array([75., 130, 215]), (16, 16, 1))
  image[4:12, 4:12] = 30
  rng = np.random.default_rng(0)
  return np.clip(image + noise * rng.normal(size=image.shape), 0, 255).astype(np.uint8)


THING = np.zeros((WIDE, WIDE), bool)
THING[1:3, 1:3] = True


@pytest.mark.parametrize('noise', [0, 8])
def test_ground_has_the_colour_of_the_border(noise):
  image = _image(noise)
  np.testing.assert_array_equal(scenes.is_ground(image[None], (WIDE, WIDE))[0], ~THING)
  image[12, 12:16] = 255  # The edge of another thing.
  expected = ~THING
  expected[3, 3] = False
  np.testing.assert_array_equal(scenes.is_ground(image[None], (WIDE, WIDE))[0], expected)


def _sample(rounds):
  rounds = np.asarray(rounds).reshape(-1, WIDE * WIDE)
  images = np.repeat(_image()[None] / 127.5 - 1, len(rounds), axis=0)
  return base.Sample(types.SimpleNamespace(round_of_token=rounds, tokens=rounds), None, None,
                     _cache=dict(images=images))


MODEL = types.SimpleNamespace(grid=(WIDE, WIDE), handover=None)


def test_passes_are_divided_among_the_tokens_of_their_round():
  # The first and the last row are committed in one pass each. In the rows between, each token of
  # the thing takes a pass of its own, and the two tokens of ground share another.
  rounds = [[0, 0, 0, 0], [1, 2, 3, 1], [4, 5, 6, 4], [7, 7, 7, 7]]
  np.testing.assert_allclose(scenes.shares_of_passes(np.reshape(rounds, (1, -1)))[0], [
      .25, .25, .25, .25, .5, 1, 1, .5, .5, 1, 1, .5, .25, .25, .25, .25])
  one = _sample([rounds])
  assert scenes.INSIDE(one, MODEL).mean == 1
  assert scenes.ON_GROUND(one, MODEL).mean == 12 / 4
  assert scenes.GROUND_SHARE(one, MODEL).mean == 12 / 16


def test_images_count_by_their_passes():
  every, all_at_once = np.arange(16), np.zeros(16, int)
  two = _sample([every, all_at_once])
  value = scenes.ON_GROUND(two, MODEL)
  assert value.mean == pytest.approx(24 / (12 + 12 / 16)) and value.standard_error > 0
