"""Files that are complete whenever they exist, and locks of the folders that they are in."""

import contextlib
import glob
import json
import os
import pathlib
import time
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

try:
  import fcntl
except ImportError:  # Not a POSIX system, so no locks.
  fcntl = None  # type: ignore[assignment]

# The remedy in messages about a damaged file that a run can create again.
REMAKE = 'remove it, and the run creates it again'
# How often a process asks for a folder that others share, and the seconds in between.
_ATTEMPTS, _PAUSE = 50, 0.2


class HeldError(ValueError):
  """Another process holds the folder."""


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[BinaryIO]:
  """Yields a stream to a temporary file, which is renamed to `path` when the block ends.

  It replaces an older file; if the block raises, that one stays. Temporary files that killed
  processes left are removed.
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
  """Adds the path to errors of the system, which omit it if a disk is full or read-only."""
  try:
    yield
  except OSError as error:
    error.filename = error.filename or str(path)
    raise


def _created(path: pathlib.Path) -> BinaryIO:
  """Opens a new file; an existing one, which may be a link, is removed and not written through."""
  try:
    return path.open('xb')
  except FileExistsError:
    path.unlink()
    return path.open('xb')


def write(path: str | os.PathLike, data: bytes) -> None:
  """Writes a file completely or not at all; see `writing`."""
  with writing(path) as stream:
    stream.write(data)


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes arrays by name as an .npz file, whose bytes depend on the arrays alone."""
  with writing(path) as stream, zipfile.ZipFile(stream, 'w') as archive:
    for name, array in arrays.items():
      with archive.open(f'{name}.npy', 'w', force_zip64=True) as part:
        np.lib.format.write_array(part, np.asarray(array), allow_pickle=False)


def leftovers(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the temporary files of killed processes for a file, or for all if its name is '*'."""
  name = path.name if path.name == '*' else glob.escape(path.name)
  return [other for other in path.parent.glob(f'.{name}.*')
          if (number := other.suffix[1:]).isdecimal() and not _runs(int(number))]


def _runs(process: int) -> bool:
  """Returns whether a process of this number exists and has not ended."""
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  except (OSError, OverflowError):  # It belongs to another user.
    return True
  try:  # A process that was killed exists until its parent asks for its exit code.
    state = pathlib.Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0]
  except (OSError, IndexError):  # Not on Linux, or it has ended meanwhile.
    return True
  return state not in 'ZX'


def write_json(path: str | os.PathLike, content: Any) -> None:
  """Writes `content` as indented JSON.

  Raises:
    ValueError: if a number is not finite, which JSON cannot represent.
    TypeError: if `content` holds anything else that JSON cannot represent.
  """
  write(path, (json.dumps(content, indent=2, allow_nan=False) + '\n').encode())


def plain(value: Any) -> Any:
  """Returns a number or an array as plain Python numbers for JSON, such as 0.9 for its float32."""
  value = np.asarray(value)
  is_narrow = value.dtype in (np.float16, np.float32)
  return (value.astype(str).astype(float) if is_narrow else value).tolist()


class Hold:
  """A folder that other processes cannot hold, as long as this object exists.

  `with hold(folder): ...` holds it for a block, and raises ValueError at its end if the folder was
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
    """Raises ValueError if the folder was removed, or another one has its name."""
    try:
      exists = os.path.samestat(self._folder.stat(), self._status)
    except OSError:
      exists = False
    if not exists:
      raise ValueError(f'{self._folder} was removed or replaced while it was written; repeat the '
                       'command.')


# The folders that this process holds, by device and inode: it may hold a folder twice.
_HELD: weakref.WeakValueDictionary[tuple[int, int], Hold] = weakref.WeakValueDictionary()


def hold(folder: pathlib.Path) -> Hold:
  """Creates a folder if it does not exist, and holds it against other processes.

  Raises:
    ValueError: if another process holds it.
  """
  folder.mkdir(parents=True, exist_ok=True)
  status = folder.stat()
  key = status.st_dev, status.st_ino
  if (held := _HELD.get(key)) is None:
    held = _HELD[key] = Hold(folder, status, _lock(folder))
  return held


def share(folder: pathlib.Path, prepare: Callable[[], None], is_ready: Callable[[], bool]
          ) -> Hold:
  """Holds a folder together with other processes that share it, against all that do not.

  Args:
    folder: the folder; it is created if it does not exist.
    prepare: called before the folder is shared, by one process at a time. The first process of
      several must leave what the others need.
    is_ready: whether it is there; the process that prepared the folder may have been killed.

  Raises:
    ValueError: if a process that does not share it holds it for longer than a few seconds.
  """
  folder.mkdir(parents=True, exist_ok=True)
  for attempt in range(_ATTEMPTS):
    try:
      with exclusive(folder):
        prepare()
    except HeldError:
      pass
    try:
      shared = Hold(folder, folder.stat(), _lock(folder, shared=True))
      if is_ready():
        return shared
      del shared
    except HeldError:
      if attempt == _ATTEMPTS - 1:
        raise
    time.sleep(_PAUSE)
  raise HeldError(f'{folder} is not ready to be written; repeat the command.')


@contextlib.contextmanager
def exclusive(folder: pathlib.Path) -> Iterator[None]:
  """Creates a folder and holds it for a block, also against other threads of this process.

  Raises:
    ValueError: if it is held already.
  """
  while True:
    folder.mkdir(parents=True, exist_ok=True)
    handle = _lock(folder)
    # Its last holder may have removed the folder, so that another one has the name now.
    if handle is None or (
        folder.exists() and os.path.samestat(os.fstat(handle), folder.stat())):
      break
    os.close(handle)
  try:
    yield
  finally:
    if handle is not None:
      os.close(handle)


def _lock(folder: pathlib.Path, shared: bool = False) -> int | None:
  """Returns a handle that holds a folder, None without locks; raises HeldError if it is held."""
  if fcntl is None:
    return None
  handle = os.open(folder, os.O_RDONLY)
  try:
    fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    return handle
  except OSError as error:
    os.close(handle)
    if isinstance(error, BlockingIOError):
      raise HeldError(f'{folder} is being written by another process; wait for its end, or '
                      'choose another folder.') from error
    return None  # A file system without locks.
