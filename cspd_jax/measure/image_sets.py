"""Sets of images on disk: folders, and arrays as ADM's evaluator reads them."""

import math
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cspd_jax.checkpoints import paths, reading

_SUFFIXES = ('.jpeg', '.jpg', '.png', '.webp')
_ARRAY = 'arr_0'
_REMEDY = 'replace or remove it'
_FORM = 'give a folder of images or an .npz file'


class ImageSet(NamedTuple):
  """Images of one size.

  Attributes:
    path: a folder of images, or an .npz file with an array `arr_0`.
    names: names of the images of a folder; empty for an array.
    shape: `(N, H, W, 3)`.
  """

  path: pathlib.Path
  names: tuple[str, ...]
  shape: tuple[int, ...]

  def batches(self, size: int) -> Iterator[np.ndarray]:
    """Yields the images in batches `[size, H, W, 3]` uint8; the last one may be smaller.

    Raises:
      ValueError: if an image is damaged or has another size than the first.
    """
    if self.names:
      for i in range(0, len(self.names), size):
        yield np.stack([_read(self.path / name, self.shape[1:3])
                        for name in self.names[i:i + size]])
      return
    yield from reading.batches(self.path, _REMEDY, _ARRAY, size)


def opened(argument: str, path: str) -> ImageSet:
  """Opens a set of images.

  Args:
    argument: its name, for messages.
    path: a folder, or an .npz file.

  Raises:
    ValueError: if there are no images at the path.
  """
  place = paths.find(argument, path)
  if place.is_dir():
    names = tuple(sorted(
        file.name for file in place.iterdir() if file.suffix.lower() in _SUFFIXES))
    if not names:
      raise ValueError(f'{argument} is {path!r}, a folder without images; the names of images end '
                       f'in one of {", ".join(_SUFFIXES)}.')
    return ImageSet(place, names, (len(names), *_read(place / names[0]).shape))
  arrays = stored(argument, path)
  if _ARRAY not in arrays:
    raise ValueError(f'{argument} is {path!r}, which holds no array arr_0 of images.')
  shape, dtype, by_columns = arrays[_ARRAY]
  if dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or by_columns or not math.prod(shape):
    raise ValueError(f'{argument} is {path!r}, which holds {dtype}{list(shape)} as arr_0; it must '
                     'be uint8 [N, H, W, 3].')
  return ImageSet(place, (), shape)


def stored(argument: str, path: str) -> dict[str, reading.Header]:
  """Returns the shapes and dtypes of the arrays of an .npz file by name; empty for a folder.

  Raises:
    ValueError: if the path is neither.
  """
  return {} if paths.find(argument, path).is_dir() else reading.headers(path, _FORM, argument)


def _read(path: pathlib.Path, size: tuple[int, ...] | None = None) -> np.ndarray:
  """Reads an image `[H, W, 3]`."""
  pixels = np.asarray(reading.photograph(path, _REMEDY).convert('RGB'))
  if size is not None and pixels.shape[:2] != size:
    raise ValueError(f'{path} has {pixels.shape[0]}x{pixels.shape[1]} pixels and the first image '
                     f'{size[0]}x{size[1]}; all must have one size.')
  return pixels
