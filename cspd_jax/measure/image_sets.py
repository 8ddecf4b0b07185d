"""Sets of images on disk: folders, and arrays as ADM's evaluator reads them."""

import pathlib
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cspd_jax.checkpoints import paths, reading

_SUFFIXES = ('.jpeg', '.jpg', '.png', '.webp')
_ARRAY = 'arr_0.npy'
_REMEDY = 'replace or remove it'


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
    with zipfile.ZipFile(self.path) as archive, archive.open(_ARRAY) as file:
      _header(self.path, file)
      for i in range(0, self.shape[0], size):
        shape = (min(size, self.shape[0] - i), *self.shape[1:])
        content = file.read(int(np.prod(shape)))
        if len(content) < np.prod(shape):
          raise ValueError(f'{self.path} is damaged: arr_0 ends early.')
        yield np.frombuffer(content, np.uint8).reshape(shape)


def opened(argument: str, path: str) -> ImageSet:
  """Opens a set of images.

  Args:
    argument: its name, for messages.
    path: a folder, or an .npz file.

  Raises:
    ValueError: if there are no images at the path.
  """
  place = pathlib.Path(path)
  if place.is_dir():
    names = tuple(sorted(
        file.name for file in place.iterdir() if file.suffix.lower() in _SUFFIXES))
    if not names:
      raise ValueError(f'{argument} is {path!r}, a folder without images; the names of images end '
                       f'in one of {", ".join(_SUFFIXES)}.')
    return ImageSet(place, names, (len(names), *_read(place / names[0]).shape))
  file = paths.find(argument, path)
  with _archive(argument, file) as archive:
    if _ARRAY not in archive.namelist():
      raise ValueError(f'{argument} is {path!r}, which holds no array arr_0 of images.')
    with archive.open(_ARRAY) as content:
      return ImageSet(file, (), _header(file, content))


def arrays(argument: str, path: str) -> tuple[str, ...]:
  """Returns the names of the arrays of an .npz file; empty for a folder.

  Raises:
    ValueError: if the path is neither.
  """
  if pathlib.Path(path).is_dir():
    return ()
  with _archive(argument, paths.find(argument, path)) as archive:
    return tuple(name.removesuffix('.npy') for name in archive.namelist())


def _archive(argument: str, path: pathlib.Path) -> zipfile.ZipFile:
  try:
    return zipfile.ZipFile(path)
  except (OSError, zipfile.BadZipFile) as error:
    raise ValueError(f'{argument} is {str(path)!r}, which must be a folder of images or an .npz '
                     f'file: {error}') from error


def _header(path: pathlib.Path, file) -> tuple[int, ...]:
  """Reads the header of a NumPy array and returns its shape."""
  form = np.lib.format
  try:
    version = form.read_magic(file)
    read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    shape, by_columns, dtype = read(file)
  except ValueError as error:
    raise ValueError(f'{path} is damaged: {error}') from error
  if dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or by_columns or not np.prod(shape):
    raise ValueError(f'{path} holds {dtype}{list(shape)} as arr_0; it must be uint8 [N, H, W, 3].')
  return shape


def _read(path: pathlib.Path, size: tuple[int, ...] | None = None) -> np.ndarray:
  """Reads an image `[H, W, 3]`."""
  pixels = np.asarray(reading.photograph(path, _REMEDY).convert('RGB'))
  if size is not None and pixels.shape[:2] != size:
    raise ValueError(f'{path} has {pixels.shape[0]}x{pixels.shape[1]} pixels and the first image '
                     f'{size[0]}x{size[1]}; all must have one size.')
  return pixels
