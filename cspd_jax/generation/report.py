"""Reports: a folder with `report.json` and the files that it lists.

Files are collected in a subfolder and moved to their final names at the end, so that an interrupted
run leaves the earlier report unchanged and can be resumed. A new report replaces the earlier one
of the same program with all its files; that of another program is refused. A file that no report
wrote, or that has changed since, is never touched.

The contents of a folder are untrusted: every name in it must be that of a file inside the folder
(`paths.inside`), and everything is checked before any file is moved or removed.
"""

import hashlib
import math
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.checkpoints import files, locks, paths, reading
from cspd_jax.version import __version__

_REPORT = 'report.json'
_UNFINISHED = 'unfinished_report'
_RUN = 'run.json'
_RESERVED = (_REPORT, _UNFINISHED, _RUN)
_REMEDY = 'move it away or use another folder'


class Program(NamedTuple):
  """A program that writes reports, and replaces its own earlier ones only.

  Attributes:
    name: its name, which report.json stores.
    marks: names of entries and settings that only its reports have all of. Reports of earlier
      versions, which store no name, are recognised by them.
  """

  name: str
  marks: tuple[str, ...]


class Report:
  """A report that is being written.

    report = Report('runs/demo', ['speed.png'])
    bars.save_bars(report.path('speed.png'), ...)
    report.write(settings=dataclasses.asdict(config), rows=rows)
  """

  def __init__(self, folder: str | os.PathLike, names: Sequence[str] = (), *,
               program: Program | None = None, run: Mapping[str, Any] | None = None,
               overwrite: bool = True, shared: bool = False):
    """Opens the folder; it is created if necessary.

    Args:
      folder: the folder of the report.
      names: plain names of the files of the report apart from report.json, as far as the caller can
        list them.
      program: the program that writes the report; None for one whose reports name no program.
      run: everything that determines the files. If the folder holds an unfinished report of the
        same run, its files are reused; see `has`. None starts a new report.
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
    self._program = program
    self._new = self.folder / _UNFINISHED
    run = None if run is None else plain(run)
    if not shared:
      # Released when the report is written or this object is deleted.
      self._hold: locks.Hold | None = locks.hold(self.folder)
      self._begin(names, run, overwrite)
      return
    self._hold = locks.share(self.folder, lambda: self._begin(names, run, overwrite),
                             lambda: self._has_begun(names, run, overwrite))

  def _has_begun(self, names: Sequence[str], run: Any, overwrite: bool) -> bool:
    """Whether another process has begun this report; raises ValueError for another run."""
    content = _check(self.folder, names, self._program, run, overwrite)
    self._earlier = content.earlier
    if self.has(_RUN) and not content.is_same:
      raise ValueError(f'folder is {str(self.folder)!r}, where other processes write another run; '
                       'use another folder, or the options of that run.')
    return content.is_same and not content.moving

  def _begin(self, names: Sequence[str], run: Any, overwrite: bool) -> None:
    """Resumes the unfinished report of the same run, or starts a new one."""
    content = _check(self.folder, names, self._program, run, overwrite)
    self._earlier = content.moving or content.earlier
    if content.moving:
      _move(self.folder, content)  # The last report was interrupted while its files were moved.
      if not overwrite:
        raise _holds_a_report(self.folder)
    elif content.is_same:
      return
    elif self._new.exists():
      _clear(self._new)
    self._new.mkdir()
    files.write_json(self._new / _RUN, run)

  def has(self, name: str) -> bool:
    """Whether an interrupted run has already written the file `name`."""
    return (self._new / name).exists()

  def is_last(self, names: Sequence[str]) -> bool:
    """Whether all files `names` of a shared report exist and no other process shares it any more.

    Afterwards this process shares it no more either, but holds it alone if True.
    """
    self._hold = None
    try:
      self._hold = locks.hold(self.folder)
    except locks.HeldError:
      return False
    return all(self.has(name) for name in names)

  def path(self, name: str) -> pathlib.Path:
    """Returns where to write the file `name` of the report, which is moved at the end.

    Raises:
      ValueError: if it is not a plain name, the folder holds a file of this name that no report
        wrote, or the folder was removed.
    """
    _check_name(self.folder, name, self._earlier)
    self._check_there()
    return self._new / name

  def write(self, *, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]],
            **more: Any) -> None:
    """Writes report.json, moves all files to their final names and removes the earlier report.

    Args:
      settings: the user's settings.
      rows: the results, one mapping each; unknown values are None.
      **more: further entries.

    Raises:
      ValueError: if a number is not finite or a value is not JSON-serialisable, by its name, or
        the folder was removed or now holds a file of another program.
    """
    program = {} if self._program is None else dict(program=self._program.name)
    content = plain(dict(**program, settings=settings, rows=rows, **more, **machine()))
    self._check_there()
    for left in files.leftovers(self._new / '*'):
      left.unlink()
    content['files'] = {name: _digest(path) for name, path in _files(self._new).items()
                        if name not in _RESERVED}
    files.write_json(self._new / _REPORT, content)
    _move(self.folder, _scan(self.folder, None))
    self._hold = None

  def _check_there(self) -> None:
    """Raises ValueError if the folder was removed while the report was written."""
    if self._hold is not None:
      self._hold.check()
    if not self._new.is_dir():
      raise ValueError(f'{self._new} was removed while it was written; repeat the command.')


def check(folder: str | os.PathLike, names: Sequence[str] = (), *,
          program: Program | None = None) -> None:
  """Raises the errors of `Report` early, for programs that write a report after hours of work."""
  _check(paths.folder('workdir', folder), names, program, None, True)


def unfinished_run(folder: str | os.PathLike) -> pathlib.Path:
  """Returns the file with the settings of the interrupted run of a folder, if it exists."""
  return paths.folder('workdir', folder) / _UNFINISHED / _RUN


def machine() -> dict[str, Any]:
  """Returns the device and the software versions that measurements depend on."""
  return dict(
      device=jax.devices()[0].device_kind, platform=platform.platform(), cores=os.cpu_count(),
      versions=dict(
          python=platform.python_version(), jax=jax.__version__, jaxlib=jax.lib.__version__,
          numpy=np.__version__, cspd_jax=__version__))


def plain(content: Any, name: str = 'report') -> Any:
  """Converts NumPy numbers and arrays in `content` to numbers and lists, as JSON requires.

  Raises:
    ValueError: if a number is not finite or a value is not JSON-serialisable, by its name.
  """
  if isinstance(content, (np.ndarray, np.generic)):
    content = files.plain(content)
  if isinstance(content, Mapping):
    return {str(key): plain(value, f'{name}.{key}') for key, value in content.items()}
  if isinstance(content, (list, tuple)):
    return [plain(value, f'{name}[{i}]') for i, value in enumerate(content)]
  if isinstance(content, float) and not math.isfinite(content):
    raise ValueError(f'{name} is {content}; it must be finite, or None if it is unknown.')
  if content is None or isinstance(content, (bool, int, float, str)):
    return content
  raise ValueError(f'{name} is a {type(content).__name__}; it must be JSON-serialisable.')


class _Content(NamedTuple):
  """The reports in a folder.

  Attributes:
    earlier: files of its report with their digests, including report.json; empty without one.
    moving: the same of a complete report that was interrupted while its files were moved.
    reports: the content of both reports, as far as they exist.
    is_stopped: whether there are finished files of an interrupted run.
    is_same: whether the unfinished report is of the run that is requested.
  """

  earlier: dict[str, str]
  moving: dict[str, str]
  reports: list[dict[str, Any]]
  is_stopped: bool
  is_same: bool


def _scan(folder: pathlib.Path, run: Any) -> _Content:
  """Returns the reports in a folder; raises ValueError for unexpected files."""
  new = folder / _UNFINISHED
  report = _report(folder)
  earlier = _listed(folder, report)
  if not os.path.lexists(new):
    return _Content(earlier, {}, [report] if report else [], False, False)
  if new.is_symlink() or not new.is_dir():
    raise ValueError(f'folder is {str(folder)!r}, where {_UNFINISHED} is not the folder of a '
                     'report; move it away or use another folder.')
  names, new_report = _files(new), _report(new)
  moving = _listed(new, new_report)
  finished = names.keys() - {_RUN, *(left.name for left in files.leftovers(new / '*'))}
  if finished and _RUN not in names and not moving:
    raise ValueError(f'folder is {str(folder)!r}, where {_UNFINISHED} does not hold a report that '
                     'can be resumed; move it away or use another folder.')
  for name, digest in moving.items():
    if name in names and name != _REPORT:
      _check_name(folder, name, earlier, digest)
  stored_run = _RUN in names and reading.json(
      new / _RUN, 'remove the folder that it is in', kind=object)
  is_stopped = bool(stored_run and finished and not moving)
  return _Content(earlier, moving, [one for one in (report, new_report) if one], is_stopped,
                  run is not None and stored_run == run)


def _check(folder: pathlib.Path, names: Sequence[str], program: Program | None, run: Any,
           overwrite: bool) -> _Content:
  """Returns the reports in a folder; raises ValueError unless a new one can begin there."""
  content = _scan(folder, run)
  for report in content.reports:
    _check_own(folder, report, program)
  if not overwrite and (content.earlier or content.moving and not content.is_same):
    raise _holds_a_report(folder)
  if content.is_stopped and not content.is_same and not (overwrite and run is not None):
    raise ValueError(
        f'folder is {str(folder)!r}, where another run was stopped; resume that one, use '
        f'another folder, or {"overwrite" if run is not None else f"remove {_UNFINISHED} in it"}.')
  for name in (_REPORT, *names):
    _check_name(folder, name, content.earlier, content.moving.get(name))
  return content


def _check_own(folder: pathlib.Path, report: Mapping[str, Any], program: Program | None) -> None:
  """Raises ValueError if a report may be that of another program."""
  name = report.get('program')
  settings = report.get('settings')
  entries = {*report, *(settings if isinstance(settings, dict) else ())}
  if name is not None:
    is_own = program is not None and name == program.name
  elif program is not None:
    is_own = entries.issuperset(program.marks)
  else:  # Programs that name none write to a workdir; those that do, to an output.
    is_own = 'output' not in entries
  if is_own:
    return
  whose = (f'of {name!r:.80}' if name is not None else
           'of an earlier version, perhaps of another program')
  raise ValueError(f'folder is {str(folder)!r}, which holds a report {whose}; it is not replaced: '
                   'use another folder, with --output or --workdir.')


def _holds_a_report(folder: pathlib.Path) -> ValueError:
  return ValueError(f'folder is {str(folder)!r}, which holds a report already; use another '
                    'folder, or pass overwrite.')


def _check_name(folder: pathlib.Path, name: str, earlier: Mapping[str, str],
                moving: str | None = None) -> None:
  """Raises ValueError if the file `name` would replace a file that no report wrote.

  Args:
    folder: of the report.
    name: of the file.
    earlier: digests of the files of the earlier report.
    moving: digest of the file if it may have been moved already, else None.
  """
  if not paths.is_plain(name) or name != _REPORT and name in _RESERVED:
    raise ValueError(f'name is {name!r}; it must be a file in the folder of the report.')
  path = folder / name
  if name == _REPORT and os.path.lexists(path) and not earlier:
    raise ValueError(f'folder is {str(folder)!r}, where report.json is that of another '
                     'program; move it away or use another folder.')
  if name != _REPORT and os.path.lexists(path) and not (
      _is_own(path, earlier.get(name)) or _is_own(path, moving)):
    raise ValueError(f'folder is {str(folder)!r}, where {name} was not written by a '
                     'report, or changed since; move it away or use another folder.')


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
  names = _files(new)
  for name in sorted(names, key=lambda name: name == _RUN):
    names[name].unlink()
  new.rmdir()


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the files of a folder by name; raises ValueError if it holds anything else."""
  return {name: paths.inside(folder, name, folder) for name in sorted(os.listdir(folder))}


def _report(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the content of the report.json in a folder; empty without one.

  Raises:
    ValueError: if it cannot be read, or no report wrote it.
  """
  path = paths.inside(folder, _REPORT, folder)
  if not path.exists():
    return {}
  report = reading.json(path, _REMEDY)
  if not isinstance(report.get('files'), dict):
    raise ValueError(f'folder is {str(folder)!r}, where report.json is that of another program; '
                     f'{_REMEDY}.')
  return report


def _listed(folder: pathlib.Path, report: Mapping[str, Any]) -> dict[str, str]:
  """Returns the files that a report in a folder lists, with their digests; empty without a report.

  Raises:
    ValueError: if it does not list files of the folder.
  """
  if not report:
    return {}
  digests = report['files']
  for name in digests:
    paths.inside(folder, name, folder / _REPORT)
    if name in _RESERVED:
      raise ValueError(f'{folder / _REPORT} lists {name!r} as a file of the report; {_REMEDY}.')
  return {_REPORT: '', **{name: str(digest) for name, digest in digests.items()}}


def _is_own(path: pathlib.Path, digest: str | None) -> bool:
  """Whether a file is the one that a report wrote, by its digest."""
  return (digest is not None and path.is_file() and not path.is_symlink()
          and _digest(path) == digest)


def _digest(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
