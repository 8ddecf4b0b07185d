"""Paths that users specify and file names that files hold, checked before the work begins."""

import contextlib
import math
import os
import pathlib
import shutil
import stat
from typing import Any

from cspd_jax.core import fields
from cspd_jax.files import locks

# Bytes below which a disk counts as full, and of the longest file name.
_MIN_FREE, _MAX_NAME = 1 << 20, 255


def find(name: str, value: str | os.PathLike) -> pathlib.Path:
  """Returns an absolute path, which need not exist; a leading `~` is a home folder.

  What cannot be a path raises ValueError: another type, an unknown user, too long a name.
  """
  fields.require(isinstance(value, str | os.PathLike), name, value,
                 'a path, a string or a pathlib.Path')
  try:
    path = pathlib.Path(value).expanduser().absolute()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
      path.lstat()
    return path
  except (OSError, RuntimeError, ValueError) as error:
    reason = error.strerror if isinstance(error, OSError) else str(error).rstrip('.')
    raise ValueError(f'{name} is {shown(value)}, which cannot be a path ({reason}); choose '
                     'another.') from error


def folder(name: str, value: str | os.PathLike) -> pathlib.Path:
  """Returns the path of a folder that can be written, or raises ValueError; creates nothing."""
  path = find(name, value)
  find(name, path.with_name(f'.{path.name}.unfinished') if path.name else path)
  existing = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
  if not existing.is_dir():
    raise ValueError(f'{name} is {shown(value)}, {_which(existing, path)} not a folder; choose a '
                     'folder.')
  _check_writable(name, value, path, existing)
  return path


def file(name: str, value: str | os.PathLike) -> pathlib.Path:
  """Returns the path of a file that can be written, or raises ValueError; creates nothing."""
  path = find(name, value)
  if path.exists() and not path.is_file():
    raise ValueError(f'{name} is {shown(value)}, which is not a file; choose a file.')
  if not path.parent.is_dir():
    raise ValueError(f'{name} is {shown(value)}; {path.parent} is not a folder that can be '
                     'written.')
  _check_writable(name, value, path, path.parent)
  return path


def inside(folder: pathlib.Path, name: Any, source: str | os.PathLike, *, links: bool = False
           ) -> pathlib.Path:
  """Returns the path of a regular file or of nothing yet in a folder, by a name that a file holds.

  Every name that a file holds, of any type, is checked here before it is used. With `links` the
  file may be a link to a regular one, as in the cache of a hub; for files that are only read.
  Raises ValueError, naming `source`, the file that holds the name, if it is not a plain name, or
  exists and is not a regular file in the folder.
  """
  if not is_plain(name):
    raise ValueError(f'{source} holds the name {shown(str(name))}, which is not a plain file name; '
                     'move it away, or choose another folder.')
  path = folder / name
  try:
    mode = (path.stat if links else path.lstat)().st_mode
  except OSError:  # It does not exist, or its folder cannot be entered.
    return path
  if not stat.S_ISREG(mode):
    raise ValueError(f'{source} holds the name {shown(name)}, and {path} is a link, a folder or '
                     'a device instead of a file; move it away, or choose another folder.')
  return path


def is_plain(name: Any) -> bool:
  """Returns whether this is the name of a file in a folder, and not a path that leads elsewhere."""
  return (isinstance(name, str) and name.isprintable() and name not in ('', '.', '..')
          and not set(name) & set('/\\') and pathlib.PurePath(name).name == name
          and len(name.encode()) <= _MAX_NAME)


def check_space(path: pathlib.Path, size: int) -> None:
  """Raises ValueError if `size` bytes do not fit on the disk of an existing folder."""
  free = _free(path)
  if free < size:
    raise ValueError(f'{path} is on a disk with {free / 1e6:.1f} MB left, and {size / 1e6:.1f} MB '
                     'are to be written; free some space and repeat the command.')


def shown(value: str | os.PathLike) -> str:
  """Returns a path as messages show it."""
  text = str(value)
  return repr(text) if len(text) <= 120 else f'{text[:120]!r}...'


def _check_writable(name: str, value: str | os.PathLike, path: pathlib.Path,
                    existing: pathlib.Path) -> None:
  """Raises ValueError unless files can be written into the folder `existing`."""
  locks.check_system()
  if not os.access(existing, os.W_OK | os.X_OK):
    raise ValueError(f'{name} is {shown(value)}, {_which(existing, path)} not writable for you; '
                     'choose another path.')
  if (free := _free(existing)) < _MIN_FREE:
    raise ValueError(f'{name} is {shown(value)}, {_which(existing, path)} on a disk with '
                     f'{free / 1e6:.1f} MB left, and at least {_MIN_FREE / 1e6:.1f} MB are needed; '
                     'free some space, or choose another path.')


def _free(path: pathlib.Path) -> float:
  """Returns the free bytes on the disk of a folder, infinity if the system does not report them."""
  usage = shutil.disk_usage(path)
  return usage.free if usage.total else math.inf


def _which(existing: pathlib.Path, path: pathlib.Path) -> str:
  return 'which is' if existing == path else f'but {existing} is'
