"""Files that people give or that may be damaged: read as they are meant, or one clear error.

Nothing is executed, nothing waits for a pipe, and no size in a header allocates memory before it
fits the file.
"""

import contextlib
import io
import json as json_lib
import math
import os
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from cspd_jax.checkpoints import places

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
    ValueError: if it cannot be read.
  """
  with _reading(path, 'text', remedy, name) as file:
    return file.read_text(encoding='utf-8')


def json(path: str | os.PathLike, remedy: str, name: str | None = None, kind: type = dict) -> Any:
  """Reads a JSON file whose numbers are finite.

  Args:
    path: see `text`.
    remedy: see `text`.
    name: see `text`.
    kind: what it must hold.

  Raises:
    ValueError: if it cannot be read, or holds something else.
  """
  with _reading(path, 'JSON', remedy, name) as file:
    content = json_lib.loads(file.read_text(encoding='utf-8'), parse_constant=_finite,
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
    ValueError: if it cannot be read, or an array is missing.
  """
  with _reading(path, '.npz', remedy, name) as file, zipfile.ZipFile(file) as archive:
    found = {one.filename.removesuffix('.npy'): _array(archive.read(one))
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
    with Image.open(file, formats=['PNG']) as image:
      image.verify()  # All checksums; the file has to be opened again after it.
    with Image.open(file, formats=['PNG']) as image:
      if missing := [one for one in needed if one not in image.info]:
        raise ValueError(f'it has no text {missing[0]!r}')
      return np.asarray(image.convert('RGB')), dict(image.info)


@contextlib.contextmanager
def _reading(path: str | os.PathLike, form: str, remedy: str, name: str | None = None
             ) -> Iterator[pathlib.Path]:
  """Turns what goes wrong into one ValueError."""
  file = places.find(name or 'path', path)
  try:
    if not file.is_file():
      raise ValueError('it is no file' if os.path.lexists(file) else 'there is no such file')
    yield file
  except MemoryError:
    raise
  except Exception as error:  # Damaged files raise almost anything.
    subject = places.shown(path)[1:-1] if name is None else f'{name} is {places.shown(path)}, which'
    reason = (error.strerror if isinstance(error, OSError) and error.strerror
              else str(error) or type(error).__name__)
    raise ValueError(f'{subject} cannot be read as {form} ({reason:.300}); {remedy}.') from error


def _finite(number: str) -> float:
  value = float(number)
  if not math.isfinite(value):
    raise ValueError(f'it holds {number}, which is not finite')
  return value


def _array(data: bytes) -> np.ndarray:
  """The array of an .npy file."""
  stream = io.BytesIO(data)
  version = np.lib.format.read_magic(stream)
  if version not in _HEADERS:
    raise ValueError(f'it has an array of version {version}')
  shape, is_fortran, dtype = _HEADERS[version](stream)
  if dtype.hasobject:
    raise ValueError('it holds Python objects')
  size = len(data) - stream.tell()
  if math.prod(shape) * dtype.itemsize != size:
    raise ValueError(f'it has {size} bytes for {dtype} of shape {shape}')
  flat = np.frombuffer(data, dtype, offset=stream.tell())
  return flat.reshape(shape, order='F' if is_fortran else 'C')
