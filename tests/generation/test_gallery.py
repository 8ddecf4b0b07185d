"""Images into a folder: the images of `generate`, whatever the batches are."""

import numpy as np
from PIL import Image

import cspd_jax
from cspd_jax.generation.gallery import Gallery
from tests.families import tiny


def test_options_per_image(tmp_path):
  model = cspd_jax.load(str(tiny.saved(tmp_path / 'beach')))
  options = dict(seed=4, decoder='sjd(window=4)', guidance_scale=[1.0, 2.0, 3.0],
                 temperature=[1.0, 0.5, 0.0])
  gallery = Gallery(model, ['sea', 'sky', 'sea'], tmp_path / 'out', batch_size=2, **options)
  assert gallery.headline == '3 images with sjd(window=4); model beach'
  steps = []
  gallery.generate({}, lambda *step: steps.append(step))
  assert steps == [(0, 3), (1, 3), (3, 3)]
  found = []
  for name in gallery.names:
    with Image.open(tmp_path / 'out' / name) as image:
      found.append(np.asarray(image))
  np.testing.assert_array_equal(
      found, model.generate(['sea', 'sky', 'sea'], batch_size=2, **options).images)
