"""Folders of runs: a run that is stopped at any moment resumes when its command is repeated.

A `Run` is a folder with the settings on which everything in it depends, and its finished pieces: a
file that exists is complete. A `Report` fills a folder by the rule of `output` with its files and
`report.json`, which has their names and digests. It replaces the earlier report of the same program
with all its files; another program's is refused. A file that no report wrote, or that has
changed since, is never touched.
"""

import functools
import hashlib
import os
import pathlib
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from cspd_jax.core import fields
from cspd_jax.files import atomic, locks, npz, output, paths, reading
from cspd_jax.version import __version__

_REPORT = 'report.json'
_RUN = 'run'  # The entry of report.json with what determines its files.
_RESERVED = (_REPORT, output.FOLDER, *output.NAMES)
# Results that are kept until the report is complete.
_NUMBERS, _ARRAYS = 'kept.json', 'kept_{}.npz'
_REMEDY = 'move it away or use another folder'

Arrays = Mapping[str, np.ndarray]
# `(inputs, compute) -> arrays`, as `Report.keep`.
Keep = Callable[[Sequence[Any], Callable[[], Arrays]], Arrays]


def nothing(inputs: Sequence[Any], compute: Callable[[], Arrays]) -> Arrays:
  """Keeps nothing."""
  return compute()


class Run:
  """The folder of a run, held against other processes; it is created if it does not exist.

  The settings are all that determines the results, as JSON; `name` is the argument's name for
  messages; `alone` is whether a new run requires an empty folder. Raises ValueError if it holds
  another run or other files, or another process holds it; `with Run(folder, settings): ...` also
  does at its end if the folder was removed.
  """

  def __init__(self, folder: str | os.PathLike, settings: Any, *, name: str = 'folder',
               alone: bool = True):
    self.folder = paths.folder(name, folder)
    self._hold = locks.hold(self.folder)
    if stored := output.settings(self.folder):
      if differences := output.differences(stored, settings):
        raise ValueError(f'{name} is {str(folder)!r}, which holds another run ({differences}); use '
                         'another folder.')
      return
    others = [other for other in os.listdir(self.folder)
              if other != locks.FILE and not atomic.is_left(other)]
    if alone and others:
      raise ValueError(f'{name} is {str(folder)!r}, which holds other files, such as '
                       f'{min(others)!r}; use an empty or a new folder.')
    atomic.write_json(self.folder / output.RUN, settings)

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
        another program, or the folder holds files that belong to no report.
    """
    self.folder = paths.folder('workdir', folder)
    self._program, self._run = program, atomic.plain(run or {}, 'run')
    self._names, self._overwrite = names, overwrite
    self._new = self.folder / output.FOLDER
    self._hold: locks.Hold | None = None
    output.finish(self.folder)
    self.is_complete = self._is_complete()
    if self.is_complete:
      return
    self._check()
    hold = locks.hold(self._new, waits=shared)
    if shared and not hold.is_locked:
      raise ValueError(f'{self.folder} is on a disk without locks, where processes cannot share '
                       'it; choose another folder, or use a single process.')
    self.is_complete = self._is_complete()
    if self.is_complete:  # Another process has ended meanwhile.
      output.remove(self._new)
      return
    output.begin(self.folder, self._run, names, self._check(), overwrite)
    # Released when the report is written or this object is deleted.
    self._hold = None if shared else hold

  def _check(self) -> dict[str, str]:
    """Returns the files of an earlier report; raises ValueError unless this one can begin."""
    self._earlier = _listed(self.folder, self._program)
    output.check(self.folder, None)
    if not self._overwrite and self._earlier:
      finished = _finished_run(self.folder)
      reason = output.differences(finished, self._run) or 'files of it have changed since'
      raise ValueError(
          f'folder is {str(self.folder)!r}, which holds a report already'
          f'{f" ({reason})" if finished and self._run else ""}; {output.ELSEWHERE}, or pass '
          'overwrite.')
    output.check(self.folder, self._run, self._names, self._earlier, self._overwrite)
    return self._earlier

  def _is_complete(self) -> bool:
    """Whether the folder holds the finished report of this run with all files as they were."""
    if self._overwrite or not self._run or _finished_run(self.folder) != self._run:
      return False
    listed = _listed(self.folder, self._program)
    return listed.keys() >= {*self._names} and all(
        output.is_own(self.folder / name, digest) for name, digest in listed.items())

  def has(self, name: str) -> bool:
    """Whether an interrupted run has already written the file `name`."""
    return (self._new / name).exists()

  def is_last(self, names: Sequence[str]) -> bool:
    """Returns whether this process of several is to complete the report, which is then its own.

    It is if all files `names` exist, and no other process completes it.
    """
    if not all(self.has(name) for name in names):
      return False
    try:
      self._hold = locks.hold(self._new)
    except locks.HeldError:
      return False
    if all(self.has(name) for name in names):
      return True
    output.remove(self._new)  # Another process has completed it meanwhile.
    self._hold = None
    return False

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
    """Keeps numbers, and lists and dictionaries of them, by kind of measurement and name."""
    values = self._numbers.setdefault(kind, {})
    if name not in values:
      values[name] = atomic.plain(measure())
      atomic.write_json(self.path(_NUMBERS), self._numbers)
    return values[name]

  def names(self, kind: str) -> list[str]:
    """Returns the names with a measurement of a kind."""
    return list(self._numbers.get(kind, {}))

  @functools.cached_property
  def _numbers(self) -> dict[str, Any]:
    path = self.path(_NUMBERS)
    return reading.json(path, f'remove {path}') if path.exists() else {}

  def path(self, name: str) -> pathlib.Path:
    """Returns where to write the file `name` of the report, which is moved at the end.

    Raises ValueError unless it is a plain name, of no other file there, and the folder exists.
    """
    fields.require(paths.is_plain(name) and name not in _RESERVED, 'name', name,
                   'a file in the folder of the report')
    output.check_free(self.folder, name, self._earlier)
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
        dict(**program, **run, settings=settings, rows=rows, **more, **machine()), 'report')
    self._check_there()
    for pattern in (_NUMBERS, _ARRAYS.format('*')):
      for path in self._new.glob(pattern):
        path.unlink()
    content['files'] = {path.name: output.digest_of(path) for path in sorted(self._new.iterdir())
                        if path.name not in _RESERVED and not atomic.is_left(path.name)}
    atomic.write_json(self._new / _REPORT, content)
    output.commit(self.folder, _listed(self.folder, self._program), last=_REPORT)
    output.remove(self._new)
    self._hold = None

  def _check_there(self) -> None:
    """Raises ValueError if the unfinished work was removed while the report was written."""
    if self._hold is not None:
      self._hold.check()
    if not self.has(output.RUN):
      raise ValueError(f'{self._new} was removed while it was written; repeat the command.')


def check(folder: str | os.PathLike, names: Sequence[str] = (), *,
          program: str | None = None) -> None:
  """Raises the errors of `Report` early, for programs that write a report after hours of work."""
  place = paths.folder('workdir', folder)
  output.finish(place)
  output.check(place, {}, names, _listed(place, program))


def machine() -> dict[str, Any]:
  """Returns the device and the software versions that measurements depend on."""
  return dict(
      device=jax.devices()[0].device_kind, platform=platform.platform(), cores=os.cpu_count(),
      versions=dict(
          python=platform.python_version(), jax=jax.__version__, jaxlib=jax.lib.__version__,
          numpy=np.__version__, cspd_jax=__version__))


def stored_run(folder: str | os.PathLike, finished: bool = True) -> dict[str, Any]:
  """Returns settings of the run, or if `finished` the report, in a folder; empty without one."""
  place = paths.find('folder', folder)
  if settings := output.settings(place) or output.settings(place / output.FOLDER):
    return settings
  return _finished_run(place) if finished else {}


def _finished_run(folder: pathlib.Path) -> dict[str, Any]:
  """Returns settings of the finished report in a folder; empty without one."""
  path = folder / _REPORT
  run = reading.json(path, _REMEDY).get(_RUN) if path.exists() else None
  return run if isinstance(run, dict) else {}


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
                     f'replaced: {output.ELSEWHERE}.')
  return {_REPORT: '', **{name: str(digest) or '-' for name, digest in report['files'].items()}}
