"""Reads files that users supply or that may be damaged: correctly, or with one clear error.

No content is executed, no pipe is waited for, and no size in a header allocates memory before it
is compared with the file. Files are read up to the limits below, far above any useful size.
"""

import contextlib
import io
import json as json_lib
import math
import os
import pathlib
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from PIL import Image

from cspd_jax.core import progress
from cspd_jax.files import paths, pictures

# Bytes of a text or JSON file.
MOST_TEXT = 1 << 28
# Pixels of a picture.
MOST_PIXELS = 1 << 27
# Brackets within brackets of a JSON file: with more, Python cannot print its content.
_MOST_DEPTH = 64
# The integers that a JSON file may hold: those of 64 bits, signed or not.
_INTEGERS = -2**63, 2**64 - 1
# Limits of the arrays of a compressed file: bytes, or a multiple of the bytes of the file.
_MAX_UNPACKED, _MAX_RATIO = 1 << 28, 64
# Bytes of the list of an archive's members, of some hundred thousand.
_MAX_LIST = 1 << 24
# Formats that Pillow reads itself; for PostScript it would start another program.
_PICTURES = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')
# Endings of the names of their files.
PICTURE_NAMES = ('.bmp', '.gif', '.jfif', '.jpe', '.jpeg', '.jpg', '.pbm', '.pgm', '.png', '.pnm',
                 '.ppm', '.tif', '.tiff', '.webp')
# What messages call the types of JSON.
_JSON_TYPES: dict[type, str] = {dict: 'an object', list: 'a list', str: 'a text'}


def text(path: str | os.PathLike, remedy: str, name: str | None = None) -> str:
  """Reads a file of UTF-8 text.

  Args:
    path: the file.
    remedy: what the user can do if the file cannot be read, for the message.
    name: name of the argument that specifies the file; None for a file without an argument.

  Raises:
    ValueError: if it cannot be read, or is larger than `MOST_TEXT`.
  """
  with opening(path, 'text', remedy, name) as file:
    return _bytes(file).decode('utf-8')


def data(path: str | os.PathLike, remedy: str, name: str | None = None) -> bytes:
  """Reads the bytes of a file; arguments and errors as for `text`."""
  with opening(path, 'a file', remedy, name) as file:
    return _bytes(file)


def json(path: str | os.PathLike, remedy: str, name: str | None = None, kind: type = dict) -> Any:
  """Reads a JSON file whose numbers are finite, and whose integers have at most 64 bits.

  As `text`, and raises ValueError too if its content is not of the type `kind`.
  """
  with opening(path, 'JSON', remedy, name) as file:
    content = json_lib.loads(_bytes(file).decode('utf-8'), parse_constant=_finite,
                             parse_float=_finite, parse_int=_integer)
    _check_depth(content)
    if not isinstance(content, kind):
      raise ValueError(f'it holds a {type(content).__name__}, not a {kind.__name__}')
    return content


def entry(content: Mapping[str, Any], name: str, kind: type) -> Any:
  """Returns an entry of a JSON object; raises ValueError if it is missing or not of type `kind`."""
  if not isinstance(value := content.get(name), kind):
    raise ValueError(f'its {name} is {value!r:.80}, and must be {_JSON_TYPES[kind]}')
  return value


def picture(path: str | os.PathLike, remedy: str, needed: tuple[str, ...] = ()
            ) -> tuple[np.ndarray, dict[str, Any]]:
  """Reads a PNG file and verifies its checksums; arguments and errors as for `text`.

  Returns:
    Its pixels, uint8 `[H, W, 3]`, and its texts by name, with those of `needed`.
  """
  with opening(path, 'PNG', remedy) as file:
    with _opened(file, ('PNG',)) as image:
      image.verify()  # All checksums; the file has to be opened again after it.
    with _opened(file, ('PNG',)) as image:
      texts = {str(key): value for key, value in image.info.items()}
      if missing := [key for key in needed if key not in texts]:
        raise ValueError(f'it has no text {missing[0]!r}')
      return np.asarray(image.convert('RGB')), texts


def photograph(path: str | os.PathLike, remedy: str, name: str | None = None, *,
               convert: Callable[[Image.Image], Image.Image] = pictures.as_evaluated
               ) -> Image.Image:
  """Reads an image file of a common format as RGB, with a function of `pictures`.

  Arguments and errors as for `text`; more than `MOST_PIXELS` are refused as well.
  """
  with opening(path, 'an image', remedy, name) as file, _opened(file, _PICTURES) as image:
    return convert(image)


def size_of_photograph(path: str | os.PathLike, remedy: str) -> tuple[int, int]:
  """Reads the height and the width of a picture that evaluators read, and none of its pixels.

  Arguments and errors are those of `photograph`.
  """
  with opening(path, 'an image', remedy) as file, _opened(file, _PICTURES) as image:
    pictures.check_evaluated(image)
    return image.height, image.width


# What a file begins with that has the name of another one, and what it is.
_PLACEHOLDERS = {
    b'version https://git-lfs.github.com/spec/': (
        'is a pointer of Git LFS to the file, not the file; run `git lfs pull` in its repository, '
        'or download the file itself'),
    b'/annex/objects/': (
        'is a pointer of git-annex to the file, not the file; run `git annex get` in its '
        'repository'),
    b'\0\5\x16\7': (
        'holds what macOS notes about another file (AppleDouble), not its content; remove it, and '
        'use the file without `._` before its name'),
    b'<!doctype html': 'is a page of a web site, not the file; download it again, after a login',
    b'<html': 'is a page of a web site, not the file; download it again, after a login',
}


def placeholder(path: pathlib.Path) -> str | None:
  """Returns what is wrong and the remedy if a file stands for another one that is not there.

  Downloads and version control write such files under the name of the real one.
  """
  with path.open('rb') as stream:
    start = stream.read(64).lstrip().lower()
  return next((text for magic, text in _PLACEHOLDERS.items() if start.startswith(magic)), None)


@contextlib.contextmanager
def _opened(file: pathlib.Path, formats: tuple[str, ...]) -> Iterator[Image.Image]:
  """Opens a picture without reading its pixels."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', Image.DecompressionBombWarning)  # Its limit is not ours.
    with Image.open(file, formats=formats) as image:
      if math.prod(image.size) > MOST_PIXELS:
        raise ValueError(f'it has {image.width}x{image.height} pixels, more than {MOST_PIXELS}')
      yield image


@contextlib.contextmanager
def opening(path: str | os.PathLike, form: str, remedy: str, name: str | None = None
            ) -> Iterator[pathlib.Path]:
  """Yields the path of an existing file, and turns all errors of the block into one ValueError.

  `form` is what the file should be, for the message; the other arguments are those of `text`.
  """
  file, other = paths.find(name or 'path', path), None
  subject = paths.shown(path)[1:-1] if name is None else f'{name} is {paths.shown(path)}, which'
  try:
    if not file.is_file():
      raise ValueError('it is not a file' if os.path.lexists(file) else 'there is no such file')
    other = placeholder(file)
    if other is not None:
      raise ValueError(other)
    yield file
  except MemoryError:
    raise
  except Exception as error:  # Damaged files raise almost anything.
    if other is not None:
      raise ValueError(f'{subject} {other}.') from None
    reason = (error.strerror if isinstance(error, OSError) and error.strerror
              else str(error) or type(error).__name__)
    raise ValueError(f'{subject} cannot be read as {form} '
                     f'({progress.visible(reason)[:300]}); {remedy}.') from error


def _check_depth(content: Any) -> None:
  """Raises ValueError for JSON with very many brackets within brackets."""
  level = [content]
  for _ in range(_MOST_DEPTH):
    level = [child for parent in level if isinstance(parent, (dict, list))
             for child in (parent.values() if isinstance(parent, dict) else parent)]
  if level:
    raise ValueError(f'it has more than {_MOST_DEPTH} brackets within each other')


def _integer(number: str) -> int:
  value = int(number)
  if not _INTEGERS[0] <= value <= _INTEGERS[1]:
    raise ValueError(f'it holds {number:.20}..., which needs more than 64 bits')
  return value


def _finite(number: str) -> float:
  value = float(number)
  if not math.isfinite(value):
    raise ValueError(f'it holds {number}, which is not finite')
  return value


def _bytes(file: pathlib.Path) -> bytes:
  """Returns the bytes of a file, as many as the system reports, up to a limit."""
  with file.open('rb') as stream:
    size = os.fstat(stream.fileno()).st_size
    if size > MOST_TEXT:
      raise ValueError(f'it has {size} bytes, more than {MOST_TEXT}')
    content = stream.read(size + 1)
  if len(content) != size:
    raise ValueError(f'its size changes from {size} bytes while it is read')
  return content


def check_total(parts: str, total: int, size: int) -> None:
  """Raises ValueError if `parts` of a file of `size` bytes need far too many in memory, `total`."""
  limit = max(_MAX_UNPACKED, _MAX_RATIO * size)
  if total > limit:
    raise ValueError(f'its {parts} have {total} bytes and the file {size}; at most {limit} are '
                     'unpacked')


class _ListedBriefly(io.BufferedReader):
  """A zip file whose list of members is not read if it is long; members become larger objects."""

  limit: int | None = _MAX_LIST

  def read(self, size: int | None = -1, /) -> bytes:
    if size is None or size < 0:
      size = os.fstat(self.fileno()).st_size - self.tell()
    if self.limit is not None and size > self.limit:
      raise ValueError(f'the list of its members has {size} bytes, more than {self.limit}')
    return super().read(size)


@contextlib.contextmanager
def open_zip(path: pathlib.Path) -> Iterator[zipfile.ZipFile]:
  """Opens a zip file, if the list of its members has a usual length."""
  with _ListedBriefly(io.FileIO(path)) as stream, zipfile.ZipFile(stream) as archive:
    stream.limit = None  # Of the members themselves, `check_total` knows the sizes.
    yield archive
