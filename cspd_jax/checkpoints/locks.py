"""Folders that belong to one process at a time; a lock ends with its process."""

import contextlib
import os
import pathlib
import weakref
from collections.abc import Iterator

try:
  import fcntl
except ImportError:  # Not a POSIX system: there are no locks.
  fcntl = None  # type: ignore[assignment]


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
