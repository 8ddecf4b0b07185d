"""Locks against other processes, also on other machines that write to the same disk.

The system releases a lock when its process ends, killed or not. A folder is locked itself; on NFS,
which locks only what is open for writing, the file `FILE` in it is. On a file system without locks
a process counts as alone.
"""

import contextlib
import errno
import os
import pathlib
import sys
import time
import weakref
from collections.abc import Iterator

try:
  import fcntl
except ImportError:  # Windows.
  fcntl = None  # type: ignore[assignment]

FILE = '.lock'  # In a folder on NFS; it stays when the lock is released.
# How often a process asks for a folder that another one holds, and the seconds in between.
_ATTEMPTS, _PAUSE = 50, 0.2


class HeldError(ValueError):
  """Another process holds the folder."""


def check_system() -> None:
  """Raises ValueError on a system where files cannot be locked."""
  if fcntl is None:
    raise ValueError(f'the system is {sys.platform}, where files cannot be locked while they are '
                     'written; use Linux or macOS, or WSL on Windows.')


def lock_file(handle: int, path: pathlib.Path) -> bool:
  """Locks a file that is open for writing; returns whether it is still at its path."""
  with contextlib.suppress(OSError):
    _lock(handle, wait=True)
  return _is_at(os.fstat(handle), path)


def remove_unlocked(path: pathlib.Path) -> None:
  """Removes a file of this user unless a process holds it with `lock_file`."""
  with contextlib.suppress(OSError):
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
      _lock(handle)
      if _is_at(os.fstat(handle), path):  # Its last holder may have renamed it meanwhile.
        path.unlink()  # Before the lock is released: its next holder finds that it has no name.
    finally:
      os.close(handle)


class Hold:
  """A folder that other processes cannot hold, as long as this object exists.

  As a context it holds the folder for a block, and raises ValueError if that was removed.
  """

  def __init__(self, folder: pathlib.Path, handle: int | None):
    self._folder, self._status = folder, folder.stat()
    self.key, self.is_locked = _key(self._status), handle is not None
    if handle is not None:
      weakref.finalize(self, os.close, handle)

  def __enter__(self) -> 'Hold':
    return self

  def __exit__(self, kind, *error) -> None:
    if kind is None:
      self.check()

  def check(self) -> None:
    """Raises ValueError if the folder was removed, or another one has its name."""
    if not _is_at(self._status, self._folder):
      raise ValueError(f'{self._folder} was removed or replaced while it was written; repeat the '
                       'command.')


# The folders that this process holds, by device and inode: it may hold a folder twice.
_HELD: weakref.WeakValueDictionary[tuple[int, int], Hold] = weakref.WeakValueDictionary()


def hold(folder: pathlib.Path, waits: bool = False) -> Hold:
  """Creates a folder if necessary, and holds it; raises HeldError if another process does.

  With `waits` that is an error only after some seconds.
  """
  for _ in range(_ATTEMPTS * waits):
    with contextlib.suppress(HeldError):
      return hold(folder)
    time.sleep(_PAUSE)
  with contextlib.suppress(FileNotFoundError):
    if (held := _HELD.get(_key(folder.stat()))) is not None:
      return held
  held = Hold(folder, _acquired(folder))
  _HELD[held.key] = held
  return held


@contextlib.contextmanager
def exclusive(folder: pathlib.Path) -> Iterator[None]:
  """Creates and holds a folder for a block, against threads too; raises ValueError if held."""
  handle = _acquired(folder)
  try:
    yield
  finally:
    if handle is not None:
      os.close(handle)


def _acquired(folder: pathlib.Path) -> int | None:
  """Creates a folder and returns a handle that holds it, None without locks; raises HeldError."""
  check_system()
  path, flags = folder, os.O_RDONLY
  while True:
    folder.mkdir(parents=True, exist_ok=True)
    try:
      handle = os.open(path, flags)
    except FileNotFoundError:  # Its last holder has removed the folder meanwhile.
      continue
    try:
      _lock(handle)
    except OSError as error:
      os.close(handle)
      if isinstance(error, BlockingIOError | PermissionError):
        raise HeldError(f'{folder} is being written by another process; wait for its end, or '
                        'choose another folder.') from error
      if error.errno != errno.EBADF or path != folder:
        return None
      path, flags = folder / FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # NFS.
      continue
    if _is_at(os.fstat(handle), path):
      return handle
    os.close(handle)


def _lock(handle: int, wait: bool = False) -> None:
  """Locks an open file.

  Raises BlockingIOError or PermissionError if another process has locked it, EBADF on NFS if it is
  not open for writing, other errors of the system on a disk without locks.
  """
  fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _key(status: os.stat_result) -> tuple[int, int]:
  return status.st_dev, status.st_ino


def _is_at(status: os.stat_result, path: pathlib.Path) -> bool:
  """Whether this is still the file or folder at a path."""
  try:
    return os.path.samestat(status, path.stat())
  except OSError:
    return False
