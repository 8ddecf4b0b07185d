"""Places of files and folders as people name them, checked before the work."""

import contextlib
import math
import os
import pathlib
import shutil
import stat
from typing import Any

# Bytes without which a disk is full.
_LEAST = 1 << 20
# Bytes of a file's name.
_LONGEST_NAME = 255


def find(name: str, place: str | os.PathLike) -> pathlib.Path:
  """The absolute path of a place, where there may be nothing; a leading `~` is a home folder.

  Args:
    name: of the argument, for the message.
    place: the place.

  Raises:
    ValueError: if there can be no such place: no path, nobody's home, too long a name.
  """
  if not isinstance(place, (str, os.PathLike)):
    raise ValueError(f'{name} is {place!r:.80}; it must be a path, a text or a pathlib.Path.')
  try:
    path = pathlib.Path(place).expanduser().absolute()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
      path.lstat()
    return path
  except (OSError, RuntimeError, ValueError) as error:
    reason = error.strerror if isinstance(error, OSError) else str(error).rstrip('.')
    raise ValueError(f'{name} is {shown(place)}, which cannot be a place ({reason}); give '
                     'another.') from error


def folder(name: str, place: str | os.PathLike) -> pathlib.Path:
  """The absolute path of a folder that can be written; nothing is made.

  Raises:
    ValueError: if no folder can be written there.
  """
  path = find(name, place)
  find(name, path.with_name(f'.{path.name}.unfinished') if path.name else path)
  there = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
  if not there.is_dir():
    raise ValueError(f'{name} is {shown(place)}, {_which(there, path)} no folder; give a folder.')
  _check_writable(name, place, path, there)
  return path


def file(name: str, place: str | os.PathLike) -> pathlib.Path:
  """The absolute path of a file that can be written; nothing is made.

  Raises:
    ValueError: if no file can be written there.
  """
  path = find(name, place)
  if path.exists() and not path.is_file():
    raise ValueError(f'{name} is {shown(place)}, which is no file; give a file.')
  if not path.parent.is_dir():
    raise ValueError(f'{name} is {shown(place)}; {path.parent} is not a folder that can be '
                     'written.')
  _check_writable(name, place, path, path.parent)
  return path


def inside(folder: pathlib.Path, name: Any, source: str | os.PathLike, *, deep: bool = False,
           links: bool = False) -> pathlib.Path:
  """The path in a folder of a file whose name was read: a regular file, or nothing yet.

  Every name that a file holds goes through here before anything is done with it.

  Args:
    folder: where the file must be.
    name: as it was read, of any type.
    source: what holds the name, for the message.
    deep: whether the name may have several parts with '/' between, all but the last of folders.
    links: whether the file may be a link to a regular one, as in the cache of a hub. For files
      that are only read.

  Raises:
    ValueError: if a part is no plain name, or what is there is no regular file in the folder.
  """
  parts = name.split('/') if deep and isinstance(name, str) else [name]
  if not all(map(is_plain, parts)):
    raise ValueError(f'{source} holds the name {shown(str(name))}, which is no plain name of a '
                     'file; move it away, or give another folder.')
  path = folder
  for number, part in enumerate(parts, 1):
    path /= part
    is_kind = stat.S_ISREG if number == len(parts) else stat.S_ISDIR
    try:
      mode = (path.stat if links and number == len(parts) else path.lstat)().st_mode
    except FileNotFoundError:
      continue
    if not is_kind(mode):
      raise ValueError(f'{source} holds the name {shown(name)}, and {path} is a link, a folder or '
                       'a device instead of a file; move it away, or give another folder.')
  return path


def is_plain(name: Any) -> bool:
  """Whether this is the name of a file in a folder, and of no other place."""
  return (isinstance(name, str) and name.isprintable() and name not in ('', '.', '..')
          and not set(name) & set('/\\') and pathlib.PurePath(name).name == name
          and len(name.encode()) <= _LONGEST_NAME)


def check_space(path: pathlib.Path, size: int) -> None:
  """Raises ValueError if `size` bytes do not fit on the disk of an existing folder."""
  free = _free(path)
  if free < size:
    raise ValueError(f'{path} is on a disk with {free / 1e6:.1f} MB left, and {size / 1e6:.1f} MB '
                     'are to be written; free some space and repeat the command.')


def shown(place: str | os.PathLike) -> str:
  """A place as messages show it."""
  text = str(place)
  return repr(text) if len(text) <= 120 else f'{text[:120]!r}...'


def _check_writable(name: str, place: str | os.PathLike, path: pathlib.Path,
                    there: pathlib.Path) -> None:
  """Raises ValueError unless files can be written into the folder `there`."""
  if not os.access(there, os.W_OK | os.X_OK):
    raise ValueError(f'{name} is {shown(place)}, {_which(there, path)} not to be written by you; '
                     'give another place.')
  if _free(there) < _LEAST:
    raise ValueError(f'{name} is {shown(place)}, {_which(there, path)} on a disk that is full; '
                     'free some space, or give another place.')


def _free(path: pathlib.Path) -> float:
  """Bytes that are left on the disk of a folder, as far as it tells."""
  usage = shutil.disk_usage(path)
  return usage.free if usage.total else math.inf


def _which(there: pathlib.Path, path: pathlib.Path) -> str:
  return 'which is' if there == path else f'but {there} is'
