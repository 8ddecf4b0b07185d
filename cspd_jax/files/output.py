"""Folders that programs fill, by one rule.

A folder that exists stays the folder it is: its mode, its owner, its mount, and what else is in it.
Work lies in `OUTPUT/.unfinished`, with `run.json`, the settings on which it depends, so that a
program that was stopped resumes when it is repeated. When all files are there, `moves.json` lists
them, and each is renamed into place. So a kill leaves what was there, what is new, or a list of
moves, which the next program that reads or writes the folder completes.

Only files that an earlier run wrote are replaced or removed. Any other in the way is named, and
stays. The contents of a folder are untrusted: every name must be one of a file inside.
"""

import contextlib
import filecmp
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from flax import traverse_util

from cspd_jax.files import atomic, locks, paths, reading

FOLDER = '.unfinished'
NAMES = RUN, _MOVES = 'run.json', 'moves.json'
_MOST_DIFFERENCES = 6  # That a message lists.
ELSEWHERE = 'use another folder, with --output or --workdir'

# Names of files in a folder that may be replaced, with their digests; '' is any content.
Earlier = Mapping[str, str]
_NOTHING: Earlier = MappingProxyType({})


@contextlib.contextmanager
def filling(folder: pathlib.Path, run: Mapping[str, Any], *, names: Iterable[str] = (),
            earlier: Earlier = _NOTHING, last: str | None = None) -> Iterator[pathlib.Path]:
  """Yields `OUTPUT/.unfinished`, whose files are moved to the folder when the block ends.

  Arguments are as for `check`. If the block raises, the folder is as it was; work of a run that
  is stopped from outside is kept for the next one, unless `run` is empty. Files that are there
  already with the same content stay. `last` is the file that is moved last.
  """
  run = json.loads(json.dumps(run))
  finish(folder)
  check(folder, run, names, earlier)
  created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
  work = folder / FOLDER
  with locks.exclusive(work):
    try:
      begin(folder, run, names, earlier)
      yield work
      commit(folder, earlier, last)
    except BaseException as error:
      if not (work / _MOVES).exists() and (not run or isinstance(error, Exception)):
        with contextlib.suppress(OSError):  # They are removed, or others use them by now.
          clear(work)
          remove(work)
        with contextlib.suppress(OSError):
          for parent in created:
            parent.rmdir()
      raise
    remove(work)


def check(folder: pathlib.Path, run: Mapping[str, Any] | None, names: Iterable[str] = (),
          earlier: Earlier = _NOTHING, overwrite: bool = False) -> bool:
  """Returns whether a folder holds unfinished work of this run; changes nothing.

  Args:
    folder: absolute; it need not exist.
    run: all that determines the files. Empty for work that is not resumed, None if it is not known.
    names: of files that will be written, as far as they are known.
    earlier: files of a run that this one replaces.
    overwrite: whether unfinished work of another run may be removed.

  Raises:
    ValueError: for unfinished work of another run, and a file in the way.
  """
  work, stored = folder / FOLDER, dict[str, Any]()
  if os.path.lexists(work):
    if work.is_symlink() or not work.is_dir():
      raise ValueError(f'folder is {str(folder)!r}, where {FOLDER} is not the folder of unfinished '
                       'work; move it away or use another folder.')
    pieces = _pieces(work)
    _files(work)
    if pieces and RUN not in pieces:
      raise ValueError(f'folder is {str(folder)!r}, where {FOLDER} does not hold work that can be '
                       'resumed; move it away or use another folder.')
    stored = settings(work)
    if run is not None and stored not in ({}, run) and pieces != {RUN} and not (overwrite and run):
      raise ValueError(
          f'folder is {str(folder)!r}, where another run was stopped'
          f'{f" ({differences(stored, run)})" if run else ""}; resume that one, {ELSEWHERE}, or '
          f'remove {FOLDER} in it.')
  for name in names:
    check_free(folder, name, earlier)
  return bool(run) and stored == run


def check_free(folder: pathlib.Path, name: str, earlier: Earlier) -> None:
  """Raises ValueError if there is a file, link or folder at a path, and no earlier run wrote it."""
  path = folder / name
  for part in pathlib.PurePath(name).parents[:-1]:
    if (folder / part).is_symlink() or (folder / part).exists() and not (folder / part).is_dir():
      raise ValueError(f'folder is {str(folder)!r}, where {part} is a link or a file, and a folder '
                       'is to be written; move it away or use another folder.')
  if os.path.lexists(path) and not is_own(path, earlier.get(name)):
    raise ValueError(f'folder is {str(folder)!r}, where {name} was not written by this program, or '
                     'changed since; move it away or use another folder.')


def begin(folder: pathlib.Path, run: Mapping[str, Any], names: Iterable[str] = (),
          earlier: Earlier = _NOTHING, overwrite: bool = False) -> None:
  """Resumes the unfinished work of the same run, or starts; the caller holds `.unfinished`."""
  work = folder / FOLDER
  if (work / _MOVES).exists():  # Of a process that was killed meanwhile.
    _move(folder)
  if not check(folder, run, names, earlier, overwrite):
    clear(work)
    atomic.write_json(work / RUN, run)


def commit(folder: pathlib.Path, earlier: Earlier = _NOTHING, last: str | None = None) -> None:
  """Moves the files in `.unfinished`, `last` at the end; the caller holds it.

  Files of `earlier` that have no new version are removed, unless they have changed. Raises
  ValueError, and moves nothing, if any other file is in the way.
  """
  work, moved = folder / FOLDER, []
  files = sorted(_files(work), key=lambda name: (name == last, name))
  for name in files:
    path = folder / name
    if name in earlier or path.is_symlink() or not path.is_file() or not filecmp.cmp(
        work / name, path, shallow=False):
      check_free(folder, name, earlier)
      moved.append(name)
  replaced, gone = ({name: earlier[name] for name in sorted(names)} for names in (
      earlier.keys() & {*files}, earlier.keys() - {*files}))
  atomic.write_json(work / _MOVES, dict(files=moved, replaced=replaced, gone=gone))
  _move(folder)


def finish(folder: pathlib.Path) -> None:
  """Completes the moves of a process that was killed in them; waits for one that makes them.

  Raises ValueError if they cannot be made.
  """
  work = folder / FOLDER
  if work.is_symlink() or not work.is_dir() or not (is_moving := (work / _MOVES).exists()) and (
      _pieces(work)):
    return
  try:
    # Moves take no time. This process may hold it for a report that it could not write.
    held = locks.hold(work, waits=is_moving)
    if (work / _MOVES).exists():  # Else another process has finished meanwhile.
      _move(folder)
    if not _pieces(work):
      clear(work)
      remove(work)
    del held
  except locks.HeldError:
    if is_moving:
      raise
  except OSError as error:
    if is_moving:
      raise ValueError(f'{folder} holds files that a stopped program was moving into place, and '
                       f'they cannot be moved ({error}); make the folder writable, or repeat that '
                       'program.') from error


def _move(folder: pathlib.Path) -> None:
  """Makes the moves that are listed and left; a killed process may have made some."""
  work = folder / FOLDER
  path = paths.inside(work, _MOVES, folder)
  moves = reading.json(path, f'remove {work}')
  names, replaced, gone = (reading.entry(moves, name, kind) for name, kind in (
      ('files', list), ('replaced', dict), ('gone', dict)))
  for name in [*names, *gone]:
    if not isinstance(name, str) or not all(map(paths.is_plain, name.split('/'))):
      raise ValueError(f'{path} holds the name {paths.shown(str(name))}, which is no file of the '
                       f'folder; remove {work}.')
  there = {*_files(work)}
  left = [name for name in names if name in there]
  for name in left:
    check_free(folder, name, replaced)
  for name in left:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (work / name).replace(folder / name)
  for name, digest in gone.items():
    is_linked = any((folder / part).is_symlink() for part in pathlib.PurePath(name).parents[:-1])
    if not is_linked and is_own(folder / name, digest):
      (folder / name).unlink()
  clear(work)


def clear(work: pathlib.Path) -> None:
  """Removes what is in the folder of unfinished work."""
  if (work / RUN).exists():  # What a kill leaves of it cannot be resumed.
    with contextlib.suppress(OSError):  # The disk may be full.
      atomic.write_json(work / RUN, {})
  # The list of moves goes last: whoever finds it makes those that are left.
  for path in sorted(work.iterdir(), key=lambda path: ('', *NAMES).index(
      path.name if path.name in NAMES else '')):
    if path.is_dir() and not path.is_symlink():
      shutil.rmtree(path)
    elif path.name != locks.FILE:
      path.unlink()


def remove(work: pathlib.Path) -> None:
  """Removes the folder of unfinished work, which is cleared."""
  with contextlib.suppress(OSError):  # Another process uses it by now.
    (work / locks.FILE).unlink(missing_ok=True)
    work.rmdir()


def settings(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the settings of the run in a folder, empty without one; a damaged file is an error."""
  path = paths.inside(folder, RUN, folder)
  return reading.json(path, 'use another folder') if path.exists() else {}


def differences(stored: Mapping[str, Any], run: Mapping[str, Any]) -> str:
  """Lists the first settings that two runs do not share, empty if they are the same."""
  old, new = (traverse_util.flatten_dict(json.loads(json.dumps(tree)), sep='.')
              for tree in (stored, run))
  changes = [(name, old.get(name), new.get(name)) for name in {**old, **new}
             if old.get(name) != new.get(name)]
  lines = [f'other {name.replace("_", " ")}' if any(map(_is_digest, values)) else
           '{} was {:.80}, now {:.80}'.format(name, *map(repr, values))
           for name, *values in changes]
  more = len(lines) - _MOST_DIFFERENCES
  return '; '.join(lines[:_MOST_DIFFERENCES]) + (f'; {more} more' if more > 0 else '')


def _is_digest(value: Any) -> bool:
  """Whether a setting stands for contents, such as parameters, and tells a reader nothing."""
  return isinstance(value, str) and re.fullmatch('[0-9a-f]{16,}', value) is not None


def is_own(path: pathlib.Path, digest: str | None) -> bool:
  """Whether this is a file with a digest, or with any content if that is ''; None is of none."""
  return (digest is not None and path.is_file() and not path.is_symlink()
          and digest in ('', digest_of(path)))


def digest_of(path: pathlib.Path) -> str:
  """Returns the SHA-256 of a file in hexadecimal."""
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _pieces(work: pathlib.Path) -> set[str]:
  """Returns the names in the folder of unfinished work, without locks and temporary files."""
  return {name for name in os.listdir(work) if name != locks.FILE and not atomic.is_left(name)}


def _files(work: pathlib.Path) -> list[str]:
  """Returns the paths of files of unfinished work in its folder; ValueError for links and devices.
  """
  found = [path for name in sorted(_pieces(work) - {*NAMES})
            for path in (work / name, *(work / name).rglob('*')) if not atomic.is_left(path.name)]
  for path in found:
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
      raise ValueError(f'{path} is a link or a device instead of a file; remove it.')
  return [path.relative_to(work).as_posix() for path in found if path.is_file()]
