"""Folders of runs: a run that is stopped at any moment resumes when its command is repeated.

A `Run` is a folder with the settings on which everything in it depends, and its finished pieces: a
file that exists is complete. A `Report` is a run whose files, and `report.json` with their names
and digests, are moved to a folder that may hold other files. It replaces the earlier report of the
same program with all its files; that of another program is refused. A file that no report wrote, or
that has changed since, is never touched.

The contents of a folder are untrusted: every name in it must be that of a file inside the folder
(`paths.inside`), and everything is checked before any file is moved or removed.
"""

import functools
import hashlib
import json
import os
import pathlib
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from cspd_jax.files import atomic, locks, npz, paths, reading
from cspd_jax.version import __version__

_SETTINGS = 'run.json'
_REPORT = 'report.json'
_UNFINISHED = 'unfinished_report'
_RUN = 'run'  # The entry of report.json with what determines its files.
_RESERVED = (_REPORT, _UNFINISHED, _SETTINGS)
# Results that are kept until the report is complete.
_NUMBERS, _ARRAYS = 'kept.json', 'kept_{}.npz'
_MOST_DIFFERENCES = 6  # That a message lists.
_REMEDY = 'move it away or use another folder'
_ELSEWHERE = 'use another folder, with --output or --workdir'

Arrays = Mapping[str, np.ndarray]
# `(inputs, compute) -> arrays`, as `Report.keep`.
Keep = Callable[[Sequence[Any], Callable[[], Arrays]], Arrays]


def nothing(inputs: Sequence[Any], compute: Callable[[], Arrays]) -> Arrays:
  """Keeps nothing."""
  return compute()


class Run:
  """The folder of a run, held against other processes; it is created if it does not exist.

  The settings are all that determines the results, as JSON; `name` is that of the argument for
  messages; `alone` is whether a new run requires an empty folder. Raises ValueError if it holds
  another run or other files, or another process holds it; `with Run(folder, settings): ...` also
  does at its end if the folder was removed.
  """

  def __init__(self, folder: str | os.PathLike, settings: Any, *, name: str = 'folder',
               alone: bool = True):
    self.folder = paths.folder(name, folder)
    self._hold = locks.hold(self.folder)
    if stored := stored_settings(self.folder):
      if differences := _differences(stored, settings):
        raise ValueError(f'{name} is {str(folder)!r}, which holds another run ({differences}); use '
                         'another folder.')
      return
    left = {path.name for path in atomic.leftovers(self.folder / '*')}
    if alone and (others := {*os.listdir(self.folder)} - left - {locks.FILE}):
      raise ValueError(f'{name} is {str(folder)!r}, which holds other files, such as '
                       f'{min(others)!r}; use an empty or a new folder.')
    atomic.write_json(self.folder / _SETTINGS, settings)

  def __enter__(self) -> 'Run':
    return self

  def __exit__(self, *error) -> None:
    self._hold.__exit__(*error)

  def read(self, name: str, like: Any) -> Any:
    """Reads arrays like the tree `like`; None without the file, ValueError if it holds others."""
    path = self.folder / name
    return atomic.tree_of(npz.arrays(path, atomic.REMAKE), like, path) if path.exists() else None

  def write(self, name: str, tree: Any) -> None:
    """Writes a tree of arrays, in any dtypes, as an .npz file."""
    atomic.write_arrays(self.folder / name, atomic.arrays_of(tree))


def stored_settings(folder: str | os.PathLike) -> dict[str, Any]:
  """Returns the settings of the run in a folder, empty without one; a damaged file is an error."""
  path = pathlib.Path(folder) / _SETTINGS
  return reading.json(path, 'use another folder') if path.exists() else {}


def _differences(stored: Mapping[str, Any], settings: Any) -> str:
  """Lists the first settings that two runs do not share, empty if they are the same."""
  old, new = (traverse_util.flatten_dict(tree, sep='.')
              for tree in (stored, json.loads(json.dumps(settings))))
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


class Report:
  """A report that is being written.

    report = Report('runs/demo', ['speed.png'])
    charts.save_bars(report.path('speed.png'), ...)
    report.write(settings=dataclasses.asdict(config), rows=rows)
  """

  def __init__(self, folder: str | os.PathLike, names: Sequence[str] = (), *,
               program: str | None = None, run: Mapping[str, Any] | None = None,
               overwrite: bool = True, shared: bool = False):
    """Opens the folder; it is created if necessary.

    Args:
      folder: the folder of the report.
      names: plain names of the files of the report apart from report.json, as far as the caller can
        list them.
      program: the program that writes the report, which report.json stores.
      run: everything that determines the files. If the folder holds an unfinished report of the
        same run, its files are reused; see `has`. If that run is finished, `is_complete` is True
        and nothing is written. None starts a new report.
      overwrite: whether an earlier report of the program may be replaced, and, if `run` is not
        None, an unfinished report of another run.
      shared: whether several processes write files of this run, each different ones. The one for
        which `is_last` is True then calls `write`.

    Raises:
      ValueError: if the folder is not writable, one of the names is that of a file that no report
        wrote, there is a finished or unfinished report that must not be replaced, such as that of
        another program, or the folder holds other files than those of reports.
    """
    self.folder = paths.folder('workdir', folder)
    self._program, self._run = program, atomic.plain(run or {}, 'run')
    self._new = self.folder / _UNFINISHED
    self._asked = self.folder, names, program, self._run, overwrite
    self._hold: locks.Hold | None = None
    self.is_complete = _is_complete(*self._asked)
    if shared and not self.is_complete:
      self._hold = locks.share(self.folder, self._begin, self._has_begun)
    elif not self.is_complete:
      # Released when the report is written or this object is deleted.
      self._hold = locks.hold(self.folder)
      self._begin()

  def _has_begun(self) -> bool:
    """Whether another process has begun this report; raises ValueError for another run."""
    if self.is_complete or _is_complete(*self._asked):  # Another process has ended meanwhile.
      self.is_complete = True
      return True
    content = _checked(*self._asked)
    self._earlier = content.earlier
    if self.has(_SETTINGS) and not content.is_same:
      differences = _differences(stored_settings(self._new), self._run)
      raise ValueError(f'folder is {str(self.folder)!r}, where other processes write another run '
                       f'({differences}); {_ELSEWHERE}, or the options of that run.')
    return content.is_same and not content.moving

  def _begin(self) -> None:
    """Resumes the unfinished report of the same run, or starts a new one."""
    if _is_complete(*self._asked):  # Another process has ended meanwhile.
      self.is_complete = True
      return
    content = _checked(*self._asked)
    if content.moving:
      _move(self.folder, content)  # The last report was interrupted while its files were moved.
      self.is_complete = _is_complete(*self._asked)
      if self.is_complete:
        return
      content = _checked(*self._asked)
    self._earlier = content.earlier
    if content.is_same:
      return
    if self._new.exists():
      _clear(self._new)
    self._new.mkdir()
    atomic.write_json(self._new / _SETTINGS, self._run)

  def has(self, name: str) -> bool:
    """Whether an interrupted run has already written the file `name`."""
    return (self._new / name).exists()

  def is_last(self, names: Sequence[str]) -> bool:
    """Ends the sharing of a report, and returns whether this process is the one to complete it.

    It is if all files `names` exist and no other process shares the report, which is then its own.
    """
    self._hold = None
    try:
      self._hold = locks.hold(self.folder)
    except locks.HeldError:
      return False
    return all(self.has(name) for name in names)

  def keep(self, inputs: Sequence[Any], compute: Callable[[], Arrays]) -> Arrays:
    """Returns what `compute` returns, arrays by name, or has returned in an interrupted run.

    The inputs, texts and arrays, determine the result; `write` removes what is kept.
    """
    digest = hashlib.sha256()
    for array in map(np.asarray, inputs):
      digest.update(f'{array.dtype}{array.shape}'.encode() + array.tobytes())
    path = self.path(_ARRAYS.format(digest.hexdigest()))
    if path.exists():
      return npz.arrays(path, atomic.REMAKE)
    values = compute()
    atomic.write_arrays(path, values)
    return values

  def measured(self, kind: str, name: str, measure: Callable[[], Any]) -> Any:
    """Keeps numbers, and lists and dictionaries of them, by what is measured and of which name."""
    values = self._numbers.setdefault(kind, {})
    if name not in values:
      values[name] = atomic.plain(measure())
      atomic.write_json(self.path(_NUMBERS), self._numbers)
    return values[name]

  def names(self, kind: str) -> list[str]:
    """Returns the names of which a kind is measured."""
    return list(self._numbers.get(kind, {}))

  @functools.cached_property
  def _numbers(self) -> dict[str, Any]:
    path = self.path(_NUMBERS)
    return reading.json(path, f'remove {path}') if path.exists() else {}

  def path(self, name: str) -> pathlib.Path:
    """Returns where to write the file `name` of the report, which is moved at the end.

    Raises ValueError unless it is a plain name, of no other file there, and the folder exists.
    """
    _check_name(self.folder, name, self._earlier.get(name))
    self._check_there()
    return self._new / name

  def write(self, *, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]],
            **more: Any) -> None:
    """Writes report.json, moves all files to their final names and removes the earlier report.

    `settings` are the user's, `rows` the results, one mapping each; unknown values are None. Raises
    ValueError if a number is not finite or a value is not JSON-serialisable, by its name, or the
    folder was removed or now holds a file of another program.
    """
    program = {} if self._program is None else dict(program=self._program)
    run = {_RUN: self._run} if self._run else {}
    content = atomic.plain(
        dict(**program, **run, settings=settings, rows=rows, **more, **_machine()), 'report')
    self._check_there()
    for pattern in (_NUMBERS, _ARRAYS.format('*')):
      for path in self._new.glob(pattern):
        path.unlink()
    content['files'] = {name: _digest(path) for name, path in _files(self._new).items()
                        if name not in _RESERVED}
    atomic.write_json(self._new / _REPORT, content)
    _move(self.folder, _checked(self.folder, (), self._program, {}, True))
    self._hold = None

  def _check_there(self) -> None:
    """Raises ValueError if the folder was removed while the report was written."""
    if self._hold is not None:
      self._hold.check()
    if not self._new.is_dir():
      raise ValueError(f'{self._new} was removed while it was written; repeat the command.')


def check(folder: str | os.PathLike, names: Sequence[str] = (), *,
          program: str | None = None) -> None:
  """Raises the errors of `Report` early, for programs that write a report after hours of work."""
  _checked(paths.folder('workdir', folder), names, program, {}, True)


def _machine() -> dict[str, Any]:
  """Returns the device and the software versions that measurements depend on."""
  return dict(
      device=jax.devices()[0].device_kind, platform=platform.platform(), cores=os.cpu_count(),
      versions=dict(
          python=platform.python_version(), jax=jax.__version__, jaxlib=jax.lib.__version__,
          numpy=np.__version__, cspd_jax=__version__))


def stored_run(folder: str | os.PathLike, finished: bool = True) -> dict[str, Any]:
  """Returns settings of the run, or if `finished` the report, in a folder; empty without one."""
  place = paths.find('folder', folder)
  if settings := stored_settings(place) or stored_settings(place / _UNFINISHED):
    return settings
  return _finished_run(place) if finished else {}


def _finished_run(folder: pathlib.Path) -> dict[str, Any]:
  """Returns settings of the finished report in a folder; empty without one."""
  path = folder / _REPORT
  run = reading.json(path, _REMEDY).get(_RUN) if path.exists() else None
  return run if isinstance(run, dict) else {}


def _is_complete(folder: pathlib.Path, names: Sequence[str], program: str | None,
                 run: dict[str, Any], overwrite: bool) -> bool:
  """Whether a folder holds the finished report of a run with these files, all as they were."""
  is_there = (folder / _REPORT).exists() and not (folder / _UNFINISHED / _REPORT).exists()
  if overwrite or not run or not is_there or stored_run(folder) != run:
    return False
  listed = _listed(folder, program)
  return listed.keys() >= {*names} and all(
      name == _REPORT or _is_own(folder / name, digest) for name, digest in listed.items())


class _Content(NamedTuple):
  """The reports in a folder: files, with report.json, and their digests."""

  earlier: dict[str, str]  # Of its finished report.
  moving: dict[str, str]  # Of one that was interrupted while they were moved.
  is_same: bool  # Whether the unfinished report is of the run that is asked for.


def _checked(folder: pathlib.Path, names: Sequence[str], program: str | None,
             run: dict[str, Any], overwrite: bool) -> _Content:
  """Returns the reports in a folder; raises ValueError unless a new one can begin there."""
  new, earlier = folder / _UNFINISHED, _listed(folder, program)
  moving, stored, pieces = dict[str, str](), dict[str, Any](), set[str]()
  if os.path.lexists(new):
    if new.is_symlink() or not new.is_dir():
      raise ValueError(f'folder is {str(folder)!r}, where {_UNFINISHED} is not the folder of a '
                       f'report; {_REMEDY}.')
    pieces, moving, stored = {*_files(new)}, _listed(new, program), stored_settings(new)
    if not moving and pieces and _SETTINGS not in pieces:
      raise ValueError(f'folder is {str(folder)!r}, where {_UNFINISHED} does not hold a report '
                       f'that can be resumed; {_REMEDY}.')
  is_same = bool(run) and stored == run
  if not overwrite and (earlier or moving and not is_same):
    finished = _finished_run(folder)
    reason = _differences(finished, run) or 'files of it have changed since'
    raise ValueError(f'folder is {str(folder)!r}, which holds a report already'
                     f'{f" ({reason})" if finished and run else ""}; {_ELSEWHERE}, or pass '
                     'overwrite.')
  if stored and pieces != {_SETTINGS} and not moving and not is_same and not (overwrite and run):
    raise ValueError(
        f'folder is {str(folder)!r}, where another run was stopped'
        f'{f" ({_differences(stored, run)})" if run else ""}; resume that one, {_ELSEWHERE}, or '
        f'{"pass overwrite" if run else f"remove {_UNFINISHED} in it"}.')
  for name in [*names, *(pieces & moving.keys() - {_REPORT})]:
    _check_name(folder, name, earlier.get(name), moving.get(name))
  return _Content(earlier, moving, is_same)


def _check_name(folder: pathlib.Path, name: str, *digests: str | None) -> None:
  """Raises ValueError if a file would replace one without the digests, that no report wrote."""
  if not paths.is_plain(name) or name in _RESERVED:
    raise ValueError(f'name is {name!r}; it must be a file in the folder of the report.')
  path = folder / name
  if os.path.lexists(path) and not any(_is_own(path, digest) for digest in digests):
    raise ValueError(f'folder is {str(folder)!r}, where {name} was not written by a '
                     f'report, or changed since; {_REMEDY}.')


def _move(folder: pathlib.Path, content: _Content) -> None:
  """Moves finished files to their final names; after an interruption the next report resumes."""
  new = folder / _UNFINISHED
  # report.json comes last: until then both lists of files exist, so that this can be resumed.
  for name in content.moving:
    if name != _REPORT and (new / name).exists():
      (new / name).replace(folder / name)
  for name, digest in content.earlier.items():
    if name not in content.moving and _is_own(folder / name, digest):
      (folder / name).unlink()
  (new / _REPORT).replace(folder / _REPORT)
  _clear(new)


def _clear(new: pathlib.Path) -> None:
  """Removes the folder of an unfinished report, its settings last."""
  for left in atomic.leftovers(new / '*'):
    left.unlink()
  names = _files(new)
  for name in sorted(names, key=lambda name: name == _SETTINGS):
    names[name].unlink()
  new.rmdir()


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the files of a folder by name, without temporary ones; all else raises ValueError."""
  names = {*os.listdir(folder)} - {left.name for left in atomic.leftovers(folder / '*')}
  return {name: paths.inside(folder, name, folder) for name in sorted(names)}


def _listed(folder: pathlib.Path, program: str | None) -> dict[str, str]:
  """Returns the files of the report in a folder with their digests; empty without a report."""
  path = paths.inside(folder, _REPORT, folder)
  if not path.exists():
    return {}
  report = reading.json(path, _REMEDY)
  if not isinstance(report.get('files'), dict):
    raise ValueError(f'folder is {str(folder)!r}, where report.json is that of another program; '
                     f'{_REMEDY}.')
  for name in report['files']:
    paths.inside(folder, name, path)
    if name in _RESERVED:
      raise ValueError(f'{path} lists {name!r} as a file of the report; {_REMEDY}.')
  if (name := report.get('program')) != program:
    whose = 'another program' if name is None else f'{name!r:.80}'
    raise ValueError(f'folder is {str(folder)!r}, which holds a report of {whose}; it is not '
                     f'replaced: {_ELSEWHERE}.')
  return {_REPORT: '', **{name: str(digest) for name, digest in report['files'].items()}}


def _is_own(path: pathlib.Path, digest: str | None) -> bool:
  """Whether a file is the one that a report wrote, by its digest."""
  return (digest is not None and path.is_file() and not path.is_symlink()
          and _digest(path) == digest)


def _digest(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
