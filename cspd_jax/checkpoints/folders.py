"""Folders that are complete whenever they are there.

A folder is written inside of `.NAME.unfinished` beside its place. When it is complete, it and the
older folder of that name change places, in one step where the system can, and the older one is
removed. What a process leaves that is killed is put right by the next one.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cspd_jax.checkpoints import files, locks, reading

# `folder -> names`: the files that a folder has when it is complete, relative to it; the last one
# is the one that tells. Raises ValueError for a folder that must not be replaced.
Listed = Callable[[pathlib.Path], Iterable[str]]

_STATE = 'state.json'
_NEW, _COMPLETE, _OLD = 'new', 'complete', 'old'


@contextlib.contextmanager
def replacing(path: pathlib.Path, listed: Listed, state: Any = None) -> Iterator[pathlib.Path]:
  """Yields a folder to write, which takes the place of `path` when the block ends.

  If the block raises, `path` is as it was.

  Args:
    path: where the folder will be: absolute, without links. There may be nothing, an empty
      folder, or an older one with no other files than those listed.
    listed: see `Listed`. No other file is ever removed.
    state: what the content depends on, as JSON can hold it. A process that was killed or
      interrupted leaves what it wrote to the next one with the same state. None begins anew.

  Raises:
    ValueError: if `path` is anything else, or another process is writing it.
  """
  recover(path)
  check(path, listed)
  work, made = _work(path), [parent for parent in path.parents if not parent.exists()]
  with locks.exclusive(work):
    try:
      new = _begin(work, listed, state)
      yield new
      new.rename(work / _COMPLETE)
      _take_place(work / _COMPLETE, path, work / _OLD)
    except BaseException as error:
      if state is None or isinstance(error, Exception):
        _put_back(path)
        _clear(work, listed)
        with contextlib.suppress(OSError):  # Others may have come to need the folders.
          for folder in (work, *made):
            folder.rmdir()
      raise
    with contextlib.suppress(OSError):  # The new folder is in place; the next one clears up.
      _clear(work, listed)
      work.rmdir()


def recover(path: pathlib.Path) -> None:
  """Puts back the older folder, if a process was killed between two renames.

  Raises:
    ValueError: if the process is still at work.
  """
  if not path.exists() and (_work(path) / _OLD).exists():
    with locks.exclusive(_work(path)):
      _put_back(path)


def check(path: pathlib.Path, listed: Listed) -> None:
  """Raises ValueError if `path` holds what must not be removed, naming a file."""
  if not path.exists():
    return
  if not path.is_dir():
    raise ValueError(f'path is {path}, which is a file; give a folder.')
  if any(path.iterdir()) and (others := _strangers(path, listed(path))):
    raise ValueError(
        f'path is {path}, which holds {others[0]!r} and would be replaced with everything in it'
        f'{f" ({len(others)} files are of others)" if len(others) > 1 else ""}; move such files '
        'away or give another folder.')


def _work(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f'.{path.name}.unfinished')


def _put_back(path: pathlib.Path) -> None:
  old = _work(path) / _OLD
  if not path.exists() and old.exists():
    old.rename(path)


def _strangers(folder: pathlib.Path, names: Iterable[str]) -> list[str]:
  """Everything in a folder beside the files of these names and the folders they are in.

  Links count: what they lead to was not written here.
  """
  known = {parent for name in names for parent in (folder / name, *(folder / name).parents)}
  return sorted(path.relative_to(folder).as_posix() for path in folder.rglob('*')
                if path not in known or path.is_symlink())


def _begin(work: pathlib.Path, listed: Listed, state: Any) -> pathlib.Path:
  """Returns the folder to write, with what was written under the same state."""
  new, state = work / _NEW, json.loads(json.dumps(state))
  if state is None or not new.exists() or _state(work) != state:
    _clear(work, listed)
    if others := list(work.iterdir()):
      raise ValueError(f'{others[0]} is not known here; move it away.')
    files.write_json(work / _STATE, state)
    new.mkdir()
  return new


def _state(work: pathlib.Path) -> Any:
  try:
    return reading.json(work / _STATE, 'begin anew', kind=object)
  except ValueError:
    return None


def _clear(work: pathlib.Path, listed: Listed) -> None:
  """Removes what `replacing` leaves when it is stopped, the state last."""
  for folder in (work / _COMPLETE, work / _OLD):
    if folder.exists():
      check(folder, listed)
      _remove(folder, listed)
  if (work / _STATE).exists():
    if (work / _NEW).exists():
      shutil.rmtree(work / _NEW)
    (work / _STATE).unlink()
  for left in files.leftovers(work / _STATE):
    left.unlink()


def _remove(folder: pathlib.Path, listed: Listed) -> None:
  """Removes a folder's files and the folder, which by then must be empty."""
  *names, last = listed(folder) if any(folder.iterdir()) else ['']
  for name in names:
    (folder / name).unlink(missing_ok=True)
  for inner in sorted((path for path in folder.rglob('*') if path.is_dir()), reverse=True):
    inner.rmdir()
  if last:
    (folder / last).unlink()
  folder.rmdir()


def _take_place(complete: pathlib.Path, path: pathlib.Path, old: pathlib.Path) -> None:
  """Moves a folder to `path`, and what was there to `complete` or to `old`."""
  if path.exists() and not _exchange(complete, path):
    path.rename(old)
  if not path.exists():
    complete.rename(path)


def _exchange(first: pathlib.Path, second: pathlib.Path) -> bool:
  """Exchanges two folders in one step; returns False where the system cannot."""
  library: Any = ctypes.CDLL(None) if os.name == 'posix' else None
  names = [os.fsencode(first), os.fsencode(second)]
  if hasattr(library, 'renameat2'):  # Linux; -100 is the folder of the process, 2 an exchange.
    return library.renameat2(-100, names[0], -100, names[1], 2) == 0
  if hasattr(library, 'renamex_np'):  # macOS.
    return library.renamex_np(*names, 2) == 0
  return False
