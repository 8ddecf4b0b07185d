"""Files that are complete whenever they exist, and locks of the folders that they are in."""

import contextlib
import glob
import json
import os
import pathlib
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

try:
  import fcntl
except ImportError:  # Not a POSIX system: there are no locks.
  fcntl = None  # type: ignore[assignment]

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


class Hold:
  """A folder that other processes cannot hold, as long as this object lives.

  `with hold(folder): ...` keeps it for a block, and raises ValueError at its end if the folder was
  removed.
  """

  def __init__(self, folder: pathlib.Path, status: os.stat_result, handle: int | None):
    self._folder, self._status, self._handle = folder, status, handle

  def __del__(self):
    if self._handle is not None:
      os.close(self._handle)

  def __enter__(self) -> 'Hold':
    return self

  def __exit__(self, kind, *error) -> None:
    if kind is None:
      self.check()

  def check(self) -> None:
    """Raises ValueError if the folder is gone, or another one has its name."""
    try:
      is_there = os.path.samestat(self._folder.stat(), self._status)
    except OSError:
      is_there = False
    if not is_there:
      raise ValueError(f'{self._folder} was removed or replaced while it was written; repeat the '
                       'command.')


# What this process holds, by device and number of the folder: it may hold a folder twice.
_HELD: weakref.WeakValueDictionary[tuple[int, int], Hold] = weakref.WeakValueDictionary()


def hold(folder: pathlib.Path) -> Hold:
  """Makes a folder, if there is none, and holds it against other processes.

  Raises:
    ValueError: if another process holds it.
  """
  folder.mkdir(parents=True, exist_ok=True)
  status = folder.stat()
  key = status.st_dev, status.st_ino
  if (found := _HELD.get(key)) is None:
    found = _HELD[key] = Hold(folder, status, _lock(folder))
  return found


@contextlib.contextmanager
def exclusive(folder: pathlib.Path) -> Iterator[None]:
  """Makes a folder and holds it for a block, against this process, too.

  Raises:
    ValueError: if it is held.
  """
  while True:
    folder.mkdir(parents=True, exist_ok=True)
    handle = _lock(folder)
    # The folder may have been removed by its last holder, and be another one now.
    if handle is None or (
        folder.exists() and os.path.samestat(os.fstat(handle), folder.stat())):
      break
    os.close(handle)
  try:
    yield
  finally:
    if handle is not None:
      os.close(handle)


def _lock(folder: pathlib.Path) -> int | None:
  """A handle that holds a folder; None where there are no locks. Raises ValueError if it is held.
  """
  if fcntl is None:
    return None
  handle = os.open(folder, os.O_RDONLY)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle
  except OSError as error:
    os.close(handle)
    if isinstance(error, BlockingIOError):
      raise ValueError(f'{folder} is being written by another process; wait for its end, or give '
                       'another folder.') from error
    return None  # A file system without locks.
