"""Files that are complete whenever they are there."""

import contextlib
import glob
import json
import os
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

# What to do about a damaged file that a run keeps for itself.
REMAKE = 'remove it, and the run makes it anew'


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[BinaryIO]:
  """Yields a stream to write a file with, which is beside its place until the block ends.

  It replaces an older one; if the block raises, that one stays. What processes left beside it that
  were killed while they wrote it is removed.
  """
  path = pathlib.Path(path)
  for left in leftovers(path):
    left.unlink(missing_ok=True)
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  try:
    with naming(path):
      with _created(temporary) as stream:
        yield stream
      temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
  """Gives errors of the system the path: a disk that is full or read-only does not say where."""
  try:
    yield
  except OSError as error:
    error.filename = error.filename or str(path)
    raise


def _created(path: pathlib.Path) -> BinaryIO:
  """A new file; what has its name already, perhaps a link of a stranger, is not written through."""
  try:
    return path.open('xb')
  except FileExistsError:
    path.unlink()
    return path.open('xb')


def write(path: str | os.PathLike, data: bytes) -> None:
  """Writes a file beside its place and renames it; see `writing`."""
  with writing(path) as stream:
    stream.write(data)


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes arrays by name as an .npz file; it is the same for the same arrays, to the byte."""
  with writing(path) as stream, zipfile.ZipFile(stream, 'w') as archive:
    for name, array in arrays.items():
      with archive.open(f'{name}.npy', 'w', force_zip64=True) as part:
        np.lib.format.write_array(part, np.asarray(array), allow_pickle=False)


def leftovers(path: pathlib.Path) -> list[pathlib.Path]:
  """What `write` left beside a file, or beside any file for the name '*', in killed processes."""
  name = path.name if path.name == '*' else glob.escape(path.name)
  return [other for other in path.parent.glob(f'.{name}.*')
          if (number := other.suffix[1:]).isdecimal() and not _runs(int(number))]


def _runs(process: int) -> bool:
  """Whether there is a process of this number."""
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  except (OSError, OverflowError):  # Another user's.
    return True
  return True


def write_json(path: str | os.PathLike, content: Any) -> None:
  """Writes `content` as indented JSON.

  Raises:
    ValueError: if a number is not finite, which JSON has no word for.
    TypeError: if `content` holds what JSON cannot.
  """
  write(path, (json.dumps(content, indent=2, allow_nan=False) + '\n').encode())


def plain(value: Any) -> Any:
  """A number or an array as JSON holds it, which reads as it was given: 0.9, not its float32."""
  value = np.asarray(value)
  narrow = value.dtype in (np.float16, np.float32)
  return (value.astype(str).astype(float) if narrow else value).tolist()
