"""Reads .npz files of users as `reading` does: no size in a header allocates memory unchecked."""

import contextlib
import io
import math
import os
import warnings
import zipfile
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np

from cspd_jax.files import reading

# Bytes that are enough for the header of an array.
_MAX_HEADER = 1 << 14
# Readers of headers of .npy files, by version; version 3 is for structured arrays.
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0}


class Header(NamedTuple):
  """Shape, dtype without Python objects, and order of an array; `by_columns` is Fortran's."""

  shape: tuple[int, ...]
  dtype: np.dtype
  by_columns: bool


def arrays(path: str | os.PathLike, remedy: str, needed: tuple[str, ...] = (),
           only: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
  """Reads the arrays of an .npz file as read-only arrays, and verifies their checksums.

  As `reading.text`; it also raises ValueError without one of the arrays `needed`, or if the arrays
  are much larger than the file. It reads `only` these arrays, as far as the file has them, or all.
  """
  with _archive(path, remedy) as (archive, size):
    members = _members(archive)
    if missing := [array for array in needed if array not in members]:
      raise ValueError(f'it has no array {missing[0]!r}')
    chosen = {array: member for array, member in members.items() if only is None or array in only}
    reading.check_total('members', sum(member.file_size for member in chosen.values()), size)
    result = {}
    for array, member in chosen.items():
      with archive.open(member) as stream:
        (shape, dtype, by_columns), start = _header(stream, member)
      flat = np.frombuffer(archive.read(member), dtype, offset=start)
      result[array] = flat.reshape(shape, order='F' if by_columns else 'C')
    return result


def headers(path: str | os.PathLike, remedy: str, name: str | None = None) -> dict[str, Header]:
  """Reads shapes and dtypes of the arrays of an .npz file; arguments as for `reading.text`."""
  with _archive(path, remedy, name) as (archive, _):
    result = {}
    for array, member in _members(archive).items():
      with archive.open(member) as stream:
        result[array], _ = _header(stream, member)
    return result


def batches(path: str | os.PathLike, remedy: str, array: str, size: int) -> Iterator[np.ndarray]:
  """Yields rows of an array `[N, ...]`, `size` at a time in memory; errors as for `arrays`."""
  with _archive(path, remedy) as (archive, file_size):
    member = _members(archive)[array]
    reading.check_total('members', member.file_size, file_size)
    with archive.open(member) as stream:
      header, start = _header(stream, member)
    if header.by_columns or not header.shape:
      raise ValueError(f'{array} is not stored row by row')
    with archive.open(member) as stream:
      stream.read(start)
      row = math.prod(header.shape[1:]) * header.dtype.itemsize
      for first in range(0, header.shape[0], size):
        count = min(size, header.shape[0] - first)
        content = stream.read(count * row)
        if len(content) < count * row:
          raise ValueError(f'{array} ends early')
        yield np.frombuffer(content, header.dtype).reshape(count, *header.shape[1:])


@contextlib.contextmanager
def _archive(path: str | os.PathLike, remedy: str, name: str | None = None
             ) -> Iterator[tuple[zipfile.ZipFile, int]]:
  """Opens an .npz file; yields it with its size in bytes."""
  with reading.opening(path, '.npz', remedy, name) as file, reading.open_zip(file) as archive:
    yield archive, file.stat().st_size


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
  """Returns the members of an archive by the names of their arrays."""
  result: dict[str, zipfile.ZipInfo] = {}
  for member in archive.infolist():
    array = member.filename.removesuffix('.npy')
    if array in result:
      raise ValueError(f'it has two arrays {array!r}')
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
      raise ValueError(f'{member.filename!r} is compressed in a way that NumPy does not use')
    result[array] = member
  return result


def _header(stream: IO[bytes], member: zipfile.ZipInfo) -> tuple[Header, int]:
  """Reads the header of an .npy file and its size, if the array has the size of the rest."""
  start = io.BytesIO(stream.read(_MAX_HEADER))
  version = np.lib.format.read_magic(start)
  if version not in _HEADERS:
    raise ValueError(f'it has an array of version {version}')
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', UserWarning)  # A file that Python 2 wrote.
    try:
      shape, by_columns, dtype = _HEADERS[version](start)
    except MemoryError as error:  # What Python raises for nested brackets.
      raise ValueError('it has an array with a damaged header') from error
  if dtype.hasobject:
    raise ValueError('it holds Python objects')
  size = member.file_size - start.tell()
  if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
    raise ValueError(f'it has {size} bytes for {dtype} of shape {shape}')
  return Header(shape, dtype, by_columns), start.tell()
