"""Files that people give or that may be damaged: read as they are meant, or one clear error.

Nothing is executed, nothing waits for a pipe, and no size in a header allocates memory before it
fits the file. Files are read up to the limits below, which are far above what is of use.
"""

import contextlib
import io
import json as json_lib
import math
import os
import pathlib
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from cspd_jax.checkpoints import paths

# Bytes of a file of text or JSON.
MOST_TEXT = 1 << 28
# Pixels of a picture.
MOST_PIXELS = 1 << 27
# Bytes that the arrays of a compressed file may have: so many, or so many times those of the file.
_MOST_UNPACKED, _MOST_RATIO = 1 << 28, 64
# Bytes that hold the header of an array.
_LONGEST_ARRAY_HEADER = 1 << 14
# What Pillow reads by itself; it would give PostScript to another program.
_PICTURES = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')
# Readers of headers of .npy files, by version; a version 3 is for names of fields.
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0}


def text(path: str | os.PathLike, remedy: str, name: str | None = None) -> str:
  """Reads a file of UTF-8 text.

  Args:
    path: the file.
    remedy: what to do if it cannot be read, for the message.
    name: of the argument that gives the file; None if it is known by its path.

  Raises:
    ValueError: if it cannot be read, or is larger than `MOST_TEXT`.
  """
  with _reading(path, 'text', remedy, name) as file:
    return _bytes(file).decode('utf-8')


def data(path: str | os.PathLike, remedy: str, name: str | None = None) -> bytes:
  """Reads the bytes of a file; arguments and errors as for `text`."""
  with _reading(path, 'a file', remedy, name) as file:
    return _bytes(file)


def json(path: str | os.PathLike, remedy: str, name: str | None = None, kind: type = dict) -> Any:
  """Reads a JSON file whose numbers are finite.

  Args:
    path: see `text`.
    remedy: see `text`.
    name: see `text`.
    kind: what it must hold.

  Raises:
    ValueError: if it cannot be read, holds something else, or is larger than `MOST_TEXT`.
  """
  with _reading(path, 'JSON', remedy, name) as file:
    content = json_lib.loads(_bytes(file).decode('utf-8'), parse_constant=_finite,
                             parse_float=_finite)
    if not isinstance(content, kind):
      raise ValueError(f'it holds a {type(content).__name__}, not a {kind.__name__}')
    return content


def arrays(path: str | os.PathLike, remedy: str, name: str | None = None,
           needed: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
  """Reads the arrays of an .npz file, whose checksums must hold; none of them can be written to.

  Args:
    path: see `text`.
    remedy: see `text`.
    name: see `text`.
    needed: arrays that must be there; none means that any will do.

  Raises:
    ValueError: if it cannot be read, an array is missing, or the arrays are much larger than the
      file.
  """
  with _reading(path, '.npz', remedy, name) as file, zipfile.ZipFile(file) as archive:
    _check_sizes(archive.infolist(), file.stat().st_size)
    found = {one.filename.removesuffix('.npy'): _array(archive, one)
             for one in archive.infolist()}
    if missing := [one for one in needed if one not in found]:
      raise ValueError(f'it has no array {missing[0]!r}')
    return found


def picture(path: str | os.PathLike, remedy: str, needed: tuple[str, ...] = ()
            ) -> tuple[np.ndarray, dict[str, Any]]:
  """Reads a PNG file, whose checksums must hold.

  Args:
    path: see `text`.
    remedy: see `text`.
    needed: texts that must be in it.

  Returns:
    Its pixels, uint8 `[H, W, 3]`, and the texts in it by name.

  Raises:
    ValueError: if it cannot be read, or a text is missing.
  """
  with _reading(path, 'PNG', remedy) as file:
    with _opened(file, ('PNG',)) as image:
      image.verify()  # All checksums; the file has to be opened again after it.
    with _opened(file, ('PNG',)) as image:
      if missing := [one for one in needed if one not in image.info]:
        raise ValueError(f'it has no text {missing[0]!r}')
      return np.asarray(image.convert('RGB')), dict(image.info)


def photograph(path: str | os.PathLike, remedy: str, name: str | None = None) -> Image.Image:
  """Reads an image file of a common format as RGB.

  Args:
    path: see `text`.
    remedy: see `text`.
    name: see `text`.

  Raises:
    ValueError: if it cannot be read, or has more than `MOST_PIXELS`.
  """
  with _reading(path, 'an image', remedy, name) as file, _opened(file, _PICTURES) as image:
    return image.convert('RGB')


@contextlib.contextmanager
def _opened(file: pathlib.Path, formats: Sequence[str]) -> Iterator[Image.Image]:
  """A picture whose pixels are not read yet."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', Image.DecompressionBombWarning)  # The limit here is another.
    with Image.open(file, formats=formats) as image:
      if math.prod(image.size) > MOST_PIXELS:
        raise ValueError(f'it has {image.width}x{image.height} pixels, more than {MOST_PIXELS}')
      yield image


@contextlib.contextmanager
def _reading(path: str | os.PathLike, form: str, remedy: str, name: str | None = None
             ) -> Iterator[pathlib.Path]:
  """Turns what goes wrong into one ValueError."""
  file = paths.find(name or 'path', path)
  try:
    if not file.is_file():
      raise ValueError('it is no file' if os.path.lexists(file) else 'there is no such file')
    yield file
  except MemoryError:
    raise
  except Exception as error:  # Damaged files raise almost anything.
    subject = paths.shown(path)[1:-1] if name is None else f'{name} is {paths.shown(path)}, which'
    reason = (error.strerror if isinstance(error, OSError) and error.strerror
              else str(error) or type(error).__name__)
    raise ValueError(f'{subject} cannot be read as {form} ({reason:.300}); {remedy}.') from error


def _finite(number: str) -> float:
  value = float(number)
  if not math.isfinite(value):
    raise ValueError(f'it holds {number}, which is not finite')
  return value


def _bytes(file: pathlib.Path) -> bytes:
  """The bytes of a file, as many as the system tells, up to a limit."""
  with file.open('rb') as stream:
    size = os.fstat(stream.fileno()).st_size
    if size > MOST_TEXT:
      raise ValueError(f'it has {size} bytes, more than {MOST_TEXT}')
    content = stream.read(size + 1)
  if len(content) != size:
    raise ValueError(f'it has other than {size} bytes while it is read')
  return content


def _check_sizes(members: Sequence[zipfile.ZipInfo], size: int) -> None:
  """Raises ValueError if the members of an archive of `size` bytes are far too large for it."""
  for one in members:
    if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
      raise ValueError(f'{one.filename!r} is compressed in a way that NumPy does not use')
  total, most = sum(one.file_size for one in members), max(_MOST_UNPACKED, _MOST_RATIO * size)
  if total > most:
    raise ValueError(f'its arrays have {total} bytes and the file {size}; at most {most} are '
                     'unpacked')


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
  """The array of an .npy file in an archive, unpacked where its header says as much."""
  with archive.open(member) as stream:
    start = io.BytesIO(stream.read(_LONGEST_ARRAY_HEADER))
  version = np.lib.format.read_magic(start)
  if version not in _HEADERS:
    raise ValueError(f'it has an array of version {version}')
  shape, is_fortran, dtype = _HEADERS[version](start)
  if dtype.hasobject:
    raise ValueError('it holds Python objects')
  size = member.file_size - start.tell()
  if math.prod(shape) * dtype.itemsize != size:
    raise ValueError(f'it has {size} bytes for {dtype} of shape {shape}')
  flat = np.frombuffer(archive.read(member), dtype, offset=start.tell())
  return flat.reshape(shape, order='F' if is_fortran else 'C')
