"""Folders that are replaced as a whole: alone, or several together with a file that lists them.

A folder `NAME` is written as `.NAME.unfinished/new`. When it is complete, it is exchanged with the
older folder, in one step where the system supports that, and the older folder is removed. If the
process is killed, the next one that reads or writes the folder finishes or undoes the exchange.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cspd_jax.checkpoints import files, locks, paths, reading

# `folder -> names`: the files of a complete folder, relative to it; the last one is the list
# itself. Raises ValueError for a folder that must not be replaced.
Listed = Callable[[pathlib.Path], Iterable[str]]

# In `.NAME.unfinished`: the folder while it is written, when it is complete, and the older one.
_NEW, _COMPLETE, _OLD = 'new', 'complete', 'old'
_STATE = 'state.json'
# In a folder whose parts are being replaced together: which they are.
_PLAN = '.unfinished.json'
_PLAN_REMEDY = 'remove it, and convert the model again'


@contextlib.contextmanager
def replacing(path: pathlib.Path, listed: Listed, state: Any = None) -> Iterator[pathlib.Path]:
  """Yields a folder to write, which replaces `path` when the block ends.

  If the block raises, `path` stays unchanged.

  Args:
    path: where the folder will be: absolute, without links. It may be absent, an empty folder, or
      an older one that holds only listed files.
    listed: see `Listed`. No other file is ever removed.
    state: JSON value on which the content depends. What a killed or interrupted process wrote is
      reused by the next one with the same state, and removed by one with another state. None starts
      from nothing, and writes nothing that can be resumed.

  Raises:
    ValueError: if `path` is anything else, another process is writing it, or `state` is None and
      the work of a process that had one is there.
  """
  with _preparing(path, listed, state) as new:
    yield new
    if not path.exists() or not any(path.iterdir()):
      new.rename(path)
      return
    complete = new.rename(new.with_name(_COMPLETE))
    if not _exchange(complete, path):
      path.rename(new.with_name(_OLD))
      complete.rename(path)


def recover(path: pathlib.Path) -> None:
  """Restores the older folder if a process was killed between two renames.

  Raises:
    ValueError: if the process is still running.
  """
  if not path.exists() and (_workspace(path) / _OLD).exists():
    _check_links(path)
    with locks.exclusive(_workspace(path)):
      _restore(path)


def check(path: pathlib.Path, listed: Listed, resumes: bool = False) -> None:
  """Raises ValueError, naming a file, if `path` holds anything that must not be removed.

  Neither must what a stopped process left for one that resumes its work, unless `resumes`.
  """
  if not resumes and (left := _workspace(path) / _NEW).exists() and (
      _read_state(left.parent) is not None):
    raise ValueError(f'{left.parent} holds the work of a stopped command, such as a conversion, '
                     'which its repetition resumes; repeat it, remove this folder, or choose '
                     'another output.')
  if not path.exists():
    return
  if not path.is_dir():
    raise ValueError(f'path is {path}, which is a file; choose a folder.')
  if any(path.iterdir()) and (others := _unlisted(path, listed(path))):
    more = f' ({len(others)} files were not saved by cspd_jax)' if len(others) > 1 else ''
    raise ValueError(
        f'path is {path}, which holds {others[0]!r} and would be replaced with all its content'
        f'{more}; move such files away or choose another folder.')


@contextlib.contextmanager
def replacing_together(
    folder: pathlib.Path, states: Mapping[str, Any], listed: Listed, file: str,
    content: Callable[[], Any]) -> Iterator[dict[str, pathlib.Path]]:
  """Yields folders to write, which all replace those in `folder` when the block ends, or none.

  When all are complete, a plan is written. From then on a process that is killed while it moves
  them leaves the rest to `recover_together`. If the block raises, `folder` stays unchanged.

  Args:
    folder: parent of the folders: absolute. It may be absent.
    states: names of the folders, each with the JSON value on which its content depends; see
      `replacing`.
    listed: see `replacing`.
    file: name of the JSON file in `folder` that is written last.
    content: returns the content of that file; called when all folders are complete.

  Raises:
    ValueError: if one of the folders holds unlisted files, or another process is writing it; or
      any error of `content`.
  """
  recover_together(folder, listed, file)
  targets = _targets(folder, states)
  with contextlib.ExitStack() as stack:
    yield {name: stack.enter_context(_preparing(path, listed, state))
           for path, (name, state) in zip(targets, states.items())}
    for path in targets:  # Others may have written there meanwhile.
      check(path, listed, resumes=True)
    plan = dict(folders=list(states), file=file, content=content())
    try:
      files.write_json(folder / _PLAN, plan)
      _finish(folder, targets, plan)
    except Exception:
      for path in targets:
        _move_back(path)
      for left in (_staged(folder, file), folder / _PLAN):
        left.unlink(missing_ok=True)
      raise


def recover_together(folder: pathlib.Path, listed: Listed, file: str) -> None:
  """Finishes the plan of a process that was killed in `replacing_together`; see its arguments.

  The folder, and so the plan, may come from someone else: nothing outside of it is moved.

  Raises:
    ValueError: if the process is still running, the folders cannot be moved, or the plan was not
      written by `replacing_together`.
  """
  if not (folder / _PLAN).exists():
    return
  plan = _read_plan(folder, file)
  targets = _targets(folder, plan['folders'])
  try:
    with contextlib.ExitStack() as stack:
      for path in targets:
        stack.enter_context(locks.exclusive(_workspace(path)))
      if not (folder / _PLAN).exists():  # The process finished its plan.
        return
      if all((_workspace(path) / _STATE).exists() for path in targets):
        _finish(folder, targets, plan)
      (folder / _PLAN).unlink(missing_ok=True)
      for path in targets:
        _discard(path, listed)
  except OSError as error:
    raise ValueError(
        f'{folder} holds networks that a stopped program was moving into place, and they cannot be '
        f'moved ({error}); make the folder writable, or repeat that program.') from error


def _finish(folder: pathlib.Path, targets: list[pathlib.Path], plan: Mapping[str, Any]) -> None:
  """Moves the folders, then the file, which ends the plan."""
  staged = _staged(folder, plan['file'])
  files.write_json(staged, plan['content'])  # Before anything moves: the disk may be full.
  for path in targets:
    _move(path)
  staged.replace(folder / plan['file'])
  with contextlib.suppress(OSError):  # A plan without unfinished folders has no effect.
    (folder / _PLAN).unlink(missing_ok=True)


def _staged(folder: pathlib.Path, file: str) -> pathlib.Path:
  return folder / f'.{file}.unfinished'


def _targets(folder: pathlib.Path, names: Iterable[str]) -> list[pathlib.Path]:
  """Paths of the folders of these names; raises ValueError for links, which lead elsewhere."""
  targets = [folder.resolve() / name for name in names]
  for path in targets:
    _check_links(path)
  return targets


def _read_plan(folder: pathlib.Path, file: str) -> dict[str, Any]:
  """Reads the plan of a folder; raises ValueError unless it can be one of `replacing_together`."""
  path = paths.inside(folder, _PLAN, folder)
  plan = reading.json(path, _PLAN_REMEDY)
  names = plan.get('folders')
  if (not isinstance(names, list) or not all(map(paths.is_plain, names)) or 'content' not in plan
      or plan.get('file') != file):
    raise ValueError(f'{path} is damaged; {_PLAN_REMEDY}.')
  return plan


@contextlib.contextmanager
def _preparing(path: pathlib.Path, listed: Listed, state: Any) -> Iterator[pathlib.Path]:
  """Yields a folder to write, which the block itself moves to `path`, for instance by `_move`.

  Arguments and errors are those of `replacing`. The older folder is removed when the block ends.
  """
  recover(path)
  check(path, listed, resumes=state is not None)
  _check_links(path)
  workspace = _workspace(path)
  created = [parent for parent in path.parents if not parent.exists()]
  with locks.exclusive(workspace):
    try:
      yield _begin(workspace, listed, state)
    except BaseException as error:
      if state is None or isinstance(error, Exception):
        _restore(path)
        _clear(workspace, listed)
        with contextlib.suppress(OSError):  # Other processes may use the folders by now.
          for folder in (workspace, *created):
            folder.rmdir()
      raise
    _discard(path, listed)


def _begin(workspace: pathlib.Path, listed: Listed, state: Any) -> pathlib.Path:
  """Returns the folder to write, with what an earlier process wrote under the same state."""
  new, state = workspace / _NEW, json.loads(json.dumps(state))
  if state is None or not new.exists() or _read_state(workspace) != state:
    _clear(workspace, listed)
    if others := list(workspace.iterdir()):
      raise ValueError(f'{others[0]} was not written by cspd_jax; move it away.')
    files.write_json(workspace / _STATE, state)
    new.mkdir()
  return new


def _read_state(workspace: pathlib.Path) -> Any:
  try:
    return reading.json(workspace / _STATE, 'start again', kind=object)
  except ValueError:
    return None


def _move(path: pathlib.Path) -> None:
  """Moves the new folder to `path` unless that is done already; the older folder is retained.

  A process that is killed during the move can be followed by another one.
  """
  new, old = (_workspace(path) / name for name in (_NEW, _OLD))
  if new.exists():
    if path.exists():
      path.rename(old)
    new.rename(path)


def _move_back(path: pathlib.Path) -> None:
  """Undoes `_move`."""
  new = _workspace(path) / _NEW
  if path.exists() and not new.exists():
    path.rename(new)
  _restore(path)


def _restore(path: pathlib.Path) -> None:
  """Moves the older folder back if `path` is absent."""
  old = _workspace(path) / _OLD
  if not path.exists() and old.exists():
    old.rename(path)


def _exchange(first: pathlib.Path, second: pathlib.Path) -> bool:
  """Exchanges two folders in one step; returns False where the system cannot."""
  library: Any = ctypes.CDLL(None) if os.name == 'posix' else None
  names = [os.fsencode(first), os.fsencode(second)]
  if hasattr(library, 'renameat2'):  # Linux; -100 is the process's folder, 2 an exchange.
    return library.renameat2(-100, names[0], -100, names[1], 2) == 0
  if hasattr(library, 'renamex_np'):  # macOS.
    return library.renamex_np(*names, 2) == 0
  return False


def _workspace(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f'.{path.name}.unfinished')


def _check_links(path: pathlib.Path) -> None:
  """Raises ValueError if `path` or anything in its workspace is a link.

  The target of such a link would be overwritten, or removed with the files of a stopped process.
  """
  workspace = _workspace(path)
  if links := [entry for entry in (path, workspace, *workspace.rglob('*')) if entry.is_symlink()]:
    raise ValueError(f'{links[0]} is a link where {workspace.name} is to be written; remove it, or '
                     'choose another folder.')


def _unlisted(folder: pathlib.Path, names: Iterable[str]) -> list[str]:
  """Everything in a folder except the files of these names and the folders they are in.

  Links count as unlisted: their targets were not written here.
  """
  listed = {parent for name in names for parent in (folder / name, *(folder / name).parents)}
  return sorted(path.relative_to(folder).as_posix() for path in folder.rglob('*')
                if path not in listed or path.is_symlink())


def _discard(path: pathlib.Path, listed: Listed) -> None:
  """Removes the workspace of `path`, which is complete and held by the caller.

  What cannot be removed is left to the next process.
  """
  with contextlib.suppress(OSError):
    _clear(_workspace(path), listed)
    _workspace(path).rmdir()


def _clear(workspace: pathlib.Path, listed: Listed) -> None:
  """Removes the files that a stopped `replacing` leaves, the state last."""
  for folder in (workspace / _COMPLETE, workspace / _OLD):
    if folder.exists():
      check(folder, listed, resumes=True)
      _remove(folder, listed)
  if (workspace / _STATE).exists():
    if (workspace / _NEW).exists():
      shutil.rmtree(workspace / _NEW)
    (workspace / _STATE).unlink()
  for left in files.leftovers(workspace / _STATE):
    left.unlink()


def _remove(folder: pathlib.Path, listed: Listed) -> None:
  """Removes the listed files of a folder and the folder, which by then must be empty."""
  *names, last = listed(folder) if any(folder.iterdir()) else ['']
  for name in names:
    (folder / name).unlink(missing_ok=True)
  for inner in sorted((path for path in folder.rglob('*') if path.is_dir()), reverse=True):
    inner.rmdir()
  if last:
    (folder / last).unlink()
  folder.rmdir()
