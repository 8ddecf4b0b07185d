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
  with preparing(path, listed, state) as new:
    yield new
    complete = new.rename(new.with_name(_COMPLETE))
    _take_place(complete, path, new.with_name(_OLD))


@contextlib.contextmanager
def preparing(path: pathlib.Path, listed: Listed, state: Any = None) -> Iterator[pathlib.Path]:
  """Yields a folder to write, which the block moves to `path` itself: by `move`, for instance.

  Arguments and errors are those of `replacing`. What the block leaves in place of `path` stays;
  the older folder is removed.
  """
  recover(path)
  check(path, listed)
  check_links(path)
  work, made = _work(path), [parent for parent in path.parents if not parent.exists()]
  with locks.exclusive(work):
    try:
      yield _begin(work, listed, state)
    except BaseException as error:
      if state is None or isinstance(error, Exception):
        _put_back(path)
        _clear(work, listed)
        with contextlib.suppress(OSError):  # Others may have come to need the folders.
          for folder in (work, *made):
            folder.rmdir()
      raise
    clear(path, listed)


def clear(path: pathlib.Path, listed: Listed) -> None:
  """Removes what was written and what was replaced beside `path`, which is complete.

  The caller holds it. What cannot be removed is left to the next one.
  """
  with contextlib.suppress(OSError):
    _clear(_work(path), listed)
    _work(path).rmdir()


def hold(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
  """Holds a folder that a stopped process was writing, for a block.

  Raises:
    ValueError: if another process is writing it.
  """
  return locks.exclusive(_work(path))


def unfinished(path: pathlib.Path) -> bool:
  """Whether a process left what it wrote for `path`, in place or not."""
  return (_work(path) / _STATE).exists()


def move(path: pathlib.Path) -> None:
  """Moves what was written to `path`, unless it is there already; the older folder is kept.

  A process that was killed at any moment of it can be followed by another one.
  """
  new, old = (_work(path) / name for name in (_NEW, _OLD))
  if new.exists():
    if path.exists():
      path.rename(old)
    new.rename(path)


def move_back(path: pathlib.Path) -> None:
  """Undoes `move`."""
  new = _work(path) / _NEW
  if path.exists() and not new.exists():
    path.rename(new)
  _put_back(path)


def recover(path: pathlib.Path) -> None:
  """Puts back the older folder, if a process was killed between two renames.

  Raises:
    ValueError: if the process is still at work.
  """
  if not path.exists() and (_work(path) / _OLD).exists():
    check_links(path)
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


def check_links(path: pathlib.Path) -> None:
  """Raises ValueError if `path`, or anything where it is written, is a link of a stranger.

  What they lead to would be written, or removed with what a stopped process left.
  """
  work = _work(path)
  if links := [found for found in (path, work, *work.rglob('*')) if found.is_symlink()]:
    raise ValueError(f'{links[0]} is a link where {work.name} is to be written; remove it, or give '
                     'another folder.')


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
