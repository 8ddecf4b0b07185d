"""Sets of images on disk: folders, and arrays as ADM's evaluator reads them."""

import itertools
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cspd_jax.files import npz, paths, reading

_ARRAY = 'arr_0'
_REMEDY = 'replace or remove it'
_FORM = 'give a folder of images or an .npz file'


class ImageSet(NamedTuple):
  """Images on disk: a folder of images, or an .npz file with an array `arr_0`.

  Attributes:
    path: of the folder or file.
    names: names of the images of a folder; empty for an array.
    num_images: number of images.
    size: height and width of the first image.
    other: the name and the size of an image of another size; None if all have one size.
    left_out: names of the other files of the folder, or of the other arrays of the file.
  """

  path: pathlib.Path
  names: tuple[str, ...]
  num_images: int
  size: tuple[int, int]
  other: tuple[str, tuple[int, int]] | None = None
  left_out: tuple[str, ...] = ()

  def batches(self, size: int, prepare: Callable[[np.ndarray], np.ndarray] = lambda image: image
              ) -> Iterator[np.ndarray]:
    """Yields the images in batches `[size, H, W, 3]` uint8; the last one may be smaller.

    `prepare` is a function of each image, which gives all of them one shape; damaged ones raise
    ValueError.
    """
    if not self.names:
      yield from npz.batches(self.path, _REMEDY, _ARRAY, size)
      return
    for i in range(0, len(self.names), size):
      yield np.stack([prepare(np.asarray(reading.photograph(self.path / name, _REMEDY)))
                      for name in self.names[i:i + size]])


  def largest(self, count: int) -> int:
    """Returns the largest number of the first `count` images; errors as for `batches`."""
    return max(int(image.max()) for image in itertools.islice(self.batches(1), count))


def opened(argument: str, path: str) -> ImageSet:
  """Opens a set of images, a folder or an .npz file.

  It raises ValueError if there are no images at the path, or others in folders of the folder, or in
  another array.
  """
  place = paths.find(argument, path)
  if place.is_dir():
    return _of_folder(argument, path, place)
  arrays = stored(argument, path)
  if _ARRAY not in arrays:
    raise ValueError(f'{argument} is {path!r}, which holds no array arr_0 of images.')
  shape, dtype, by_columns = arrays[_ARRAY]
  if dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or by_columns or not math.prod(shape):
    raise ValueError(f'{argument} is {path!r}, which holds {dtype}{list(shape)} as arr_0; it must '
                     'be uint8 [N, H, W, 3].')
  others = tuple(name for name in arrays if name != _ARRAY)
  if images := [name for name in others if len(arrays[name].shape) == len(shape)]:
    raise ValueError(f'{argument} is {path!r}, which holds images as {_ARRAY} and as {images[0]}; '
                     f'store all of them in one array {_ARRAY}.')
  return ImageSet(place, (), shape[0], (shape[1], shape[2]), left_out=others)


def _of_folder(argument: str, path: str, place: pathlib.Path) -> ImageSet:
  files = sorted(place.iterdir())
  names = [file.name for file in files if _is_image(file.name)]
  others = [file for file in files if not _is_image(file.name)]
  for folder in others:
    if not folder.name.startswith('.') and (inner := _first_image(folder)) is not None:
      raise ValueError(f'{argument} is {path!r}, which holds {len(names)} '
                       f'image{"s"[:len(names) != 1]}, and others in folders, such as '
                       f'{str(inner.relative_to(place))!r}; give a folder whose images are not in '
                       'folders.')
  if not names:
    raise ValueError(f'{argument} is {path!r}, a folder without images; the names of images end '
                     f'in one of {", ".join(reading.PICTURE_NAMES)}.')
  sizes = [reading.size_of_photograph(place / name, _REMEDY) for name in names]
  other = next((one for one in zip(names, sizes) if one[1] != sizes[0]), None)
  return ImageSet(place, tuple(names), len(names), sizes[0], other,
                  tuple(file.name for file in others))


def _is_image(name: str) -> bool:
  return pathlib.PurePath(name).suffix.lower() in reading.PICTURE_NAMES


def _first_image(folder: pathlib.Path) -> pathlib.Path | None:
  """An image anywhere in a folder, or None; None if it is a file."""
  return next((pathlib.Path(inner, name) for inner, _, names in os.walk(folder)
               for name in sorted(names) if _is_image(name)), None)


def stored(argument: str, path: str) -> dict[str, npz.Header]:
  """Returns shapes and dtypes of the arrays of an .npz file by name, none of a folder's."""
  return {} if paths.find(argument, path).is_dir() else npz.headers(path, _FORM, argument)
