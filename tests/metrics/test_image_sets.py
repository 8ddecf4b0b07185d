"""Images on disk that are evaluated: all that can be read, and what is left out is named."""

import numpy as np
import pytest
from PIL import Image

from cspd_jax.metrics import image_sets

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 6, 5, 3), np.uint8)
FORMATS = ('png', 'bmp', 'gif', 'PPM', 'tiff', 'tif', 'webp', 'jpg')


def _write(folder, names, pixels=PIXELS):
  folder.mkdir(exist_ok=True)
  for name, image in zip(names, pixels):
    Image.fromarray(image).save(folder / name)


def _opened(path):
  return image_sets.opened('reference', str(path))


def test_every_format_counts(tmp_path):
  """Six of ten files counted, and the score was named (ADM, 6)."""
  names = [f'{number}.{form}' for number, form in enumerate(FORMATS)]
  _write(tmp_path, names)
  (tmp_path / 'report.json').write_text('{}', encoding='utf-8')
  (tmp_path / '.hidden').mkdir()
  _write(tmp_path / '.hidden', ['copy.png'])
  (tmp_path / 'empty').mkdir()
  images = _opened(tmp_path)
  assert images.names == tuple(names) and images.num_images == 8
  assert images.size == (6, 5) and images.other is None
  assert images.left_out == ('.hidden', 'empty', 'report.json')
  result = np.concatenate([*images.batches(3)])
  exact = [FORMATS.index(form) for form in ('png', 'bmp', 'PPM', 'tiff', 'tif')]
  np.testing.assert_array_equal(result[exact], PIXELS[exact])


def test_images_in_folders_are_refused(tmp_path):
  _write(tmp_path, ['1.png'])
  (tmp_path / 'a').mkdir()
  _write(tmp_path / 'a' / 'b', ['2.bmp'])
  with pytest.raises(ValueError, match=r"holds 1 image, and others in folders, such as 'a.b.2.bmp"):
    _opened(tmp_path)
  with pytest.raises(ValueError, match='holds 0 images, and others in folders'):
    _opened(tmp_path / 'a')


def test_arrays_beside_the_first_are_named_or_refused(tmp_path):
  """Of np.savez(a, b) only a counted."""
  np.savez(tmp_path / 'two.npz', PIXELS, PIXELS)
  with pytest.raises(ValueError, match='holds images as arr_0 and as arr_1; store all of them in'):
    _opened(tmp_path / 'two.npz')
  np.savez(tmp_path / 'labels.npz', PIXELS, np.arange(8))  # As ADM stores classes.
  assert _opened(tmp_path / 'labels.npz').left_out == ('arr_1',)


def test_images_of_several_sizes(tmp_path):
  _write(tmp_path, ['a.png', 'b.png'])
  _write(tmp_path, ['c.png'], PIXELS[2:, :4])
  images = _opened(tmp_path)
  assert images.size == (6, 5) and images.other == ('c.png', (4, 5))
  result = np.concatenate([*images.batches(2, lambda image: image[:3, :3])])
  np.testing.assert_array_equal(result, PIXELS[:3, :3, :3])
