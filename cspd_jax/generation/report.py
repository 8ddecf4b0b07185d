"""Reports: a folder with `report.json` and the files that it names.

Files are collected in a folder inside of it and moved into place at the end, so that a program
that is stopped leaves the earlier report as it was, and may go on where it was. A new report takes
the place of the earlier one with all its files. A file that no report wrote, or that was changed
since, is never touched.

A folder may be a stranger's: every name in it is one of a file of the folder (`paths.inside`), and
nothing is moved or removed before all of it was checked.
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

from cspd_jax.checkpoints import files, paths, reading
from cspd_jax.version import __version__

_REPORT = 'report.json'
_UNFINISHED = 'unfinished_report'
_RUN = 'run.json'
_RESERVED = (_REPORT, _UNFINISHED, _RUN)


class Report:
  """A report that is being written.

    report = Report('runs/demo', ['speed.png'])
    bars.save_bars(report.path('speed.png'), ...)
    report.write(settings=dataclasses.asdict(config), rows=rows)
  """

  def __init__(self, folder: str | os.PathLike, names: Sequence[str] = (), *,
               run: Mapping[str, Any] | None = None, overwrite: bool = True):
    """Opens the folder; it is made if necessary.

    Args:
      folder: where the report will be.
      names: plain names of the files that it will have with report.json, as far as they are known.
      run: what the files depend on. If the folder holds an unfinished report of the same run,
        its files stay; see `has`. None begins anew.
      overwrite: whether an earlier report may be replaced, and an unfinished one of another run
        if `run` is given.

    Raises:
      ValueError: if files cannot be written there, one of the names is that of a file that no
        report wrote, there is a report or an unfinished one that is not to be replaced, or the
        folder holds what no report leaves.
    """
    self.folder = paths.folder('workdir', folder)
    # Until the report is written, or nobody knows of it any more.
    self._hold: files.Hold | None = files.hold(self.folder)
    self._new = self.folder / _UNFINISHED
    run = None if run is None else plain(run)
    found = _check(self.folder, names, run, overwrite)
    self._earlier = found.moving or found.earlier
    if found.moving:
      _move(self.folder, found)  # The last report was stopped while its files were moved.
      if not overwrite:
        raise _holds_a_report(self.folder)
    elif found.is_same:
      return
    elif self._new.exists():
      _clear(self._new)
    self._new.mkdir()
    files.write_json(self._new / _RUN, run)

  def has(self, name: str) -> bool:
    """Whether the file `name` was written already, before this run of the program was stopped."""
    return (self._new / name).exists()

  def path(self, name: str) -> pathlib.Path:
    """Where to write the file `name` of the report; it is moved into the folder at the end.

    Raises:
      ValueError: if it is no plain name, the folder holds a file of this name that no report
        wrote, or the folder was removed.
    """
    _check_name(self.folder, name, self._earlier)
    self._check_there()
    return self._new / name

  def write(self, *, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]],
            **more: Any) -> None:
    """Writes report.json, moves all files into place and removes those of the earlier report.

    Args:
      settings: what was asked for.
      rows: what was found, a mapping each; what is not known is None.
      **more: further entries.

    Raises:
      ValueError: if a number is not finite, naming it, a value is not what JSON can hold, or the
        folder was removed or has a file of another program by now.
    """
    content = plain(dict(settings=settings, rows=rows, **more, **machine()))
    self._check_there()
    for left in files.leftovers(self._new / '*'):
      left.unlink()
    content['files'] = {name: _digest(path) for name, path in _content(self._new).items()
                        if name not in _RESERVED}
    files.write_json(self._new / _REPORT, content)
    _move(self.folder, _found(self.folder, None))
    self._hold = None

  def _check_there(self) -> None:
    """Raises ValueError if the folder was removed while the report was made."""
    if self._hold is not None:
      self._hold.check()
    if not self._new.is_dir():
      raise ValueError(f'{self._new} was removed while it was written; repeat the command.')


def check(folder: str | os.PathLike, names: Sequence[str] = ()) -> None:
  """Raises what `Report` would raise, for programs that write theirs after hours of work."""
  _check(paths.folder('workdir', folder), names, None, True)


def machine() -> dict[str, Any]:
  """The device and the versions that figures depend on."""
  return dict(
      device=jax.devices()[0].device_kind, platform=platform.platform(), cores=os.cpu_count(),
      versions=dict(
          python=platform.python_version(), jax=jax.__version__, jaxlib=jax.lib.__version__,
          numpy=np.__version__, cspd_jax=__version__))


def plain(content: Any, name: str = 'report') -> Any:
  """Makes `content` what JSON can hold: NumPy numbers and arrays become numbers and lists.

  Raises:
    ValueError: if a number is not finite or a value is not what JSON can hold, naming it.
  """
  if isinstance(content, (np.ndarray, np.generic)):
    content = files.plain(content)
  if isinstance(content, Mapping):
    return {str(key): plain(value, f'{name}.{key}') for key, value in content.items()}
  if isinstance(content, (list, tuple)):
    return [plain(value, f'{name}[{i}]') for i, value in enumerate(content)]
  if isinstance(content, float) and not math.isfinite(content):
    raise ValueError(f'{name} is {content}; it must be finite, or None if it is not known.')
  if content is None or isinstance(content, (bool, int, float, str)):
    return content
  raise ValueError(f'{name} is a {type(content).__name__}; it must be what JSON can hold.')


class _Found(NamedTuple):
  """What a folder holds.

  Attributes:
    earlier: files of its report with their digests, report.json among them; empty without one.
    moving: files, likewise, of a complete report that was stopped while they were moved into place.
    is_stopped: whether there are finished files of a run that was stopped.
    is_same: whether the unfinished report is of the run that is asked for.
  """

  earlier: dict[str, str]
  moving: dict[str, str]
  is_stopped: bool
  is_same: bool


def _found(folder: pathlib.Path, run: Any) -> _Found:
  """What a folder holds; raises ValueError if that is nothing that reports leave."""
  new = folder / _UNFINISHED
  earlier = _listed(folder)
  if not os.path.lexists(new):
    return _Found(earlier, {}, False, False)
  if new.is_symlink() or not new.is_dir():
    raise ValueError(f'workdir is {str(folder)!r}, where {_UNFINISHED} is no folder of a report; '
                     'move it away or give another folder.')
  content, moving = _content(new), _listed(new)
  finished = content.keys() - {_RUN, *(left.name for left in files.leftovers(new / '*'))}
  if finished and _RUN not in content and not moving:
    raise ValueError(f'workdir is {str(folder)!r}, where {_UNFINISHED} holds files of no report '
                     'that can go on; move it away or give another folder.')
  for name, digest in moving.items():
    if name in content and name != _REPORT:
      _check_name(folder, name, earlier, digest)
  of_run = _RUN in content and reading.json(
      new / _RUN, 'remove the folder that it is in', kind=object)
  is_stopped = bool(of_run and finished and not moving)
  return _Found(earlier, moving, is_stopped, run is not None and of_run == run)


def _check(folder: pathlib.Path, names: Sequence[str], run: Any, overwrite: bool) -> _Found:
  """What a folder holds; raises ValueError unless a report can begin there."""
  found = _found(folder, run)
  if not overwrite and (found.earlier or found.moving and not found.is_same):
    raise _holds_a_report(folder)
  if found.is_stopped and not found.is_same and not (overwrite and run is not None):
    raise ValueError(
        f'workdir is {str(folder)!r}, where another run was stopped; go on with that one, give '
        f'another folder, or {"overwrite" if run is not None else f"remove {_UNFINISHED} in it"}.')
  for name in (_REPORT, *names):
    _check_name(folder, name, found.earlier, found.moving.get(name))
  return found


def _holds_a_report(folder: pathlib.Path) -> ValueError:
  return ValueError(f'workdir is {str(folder)!r}, which holds a report already; give another '
                    'folder, or overwrite.')


def _check_name(folder: pathlib.Path, name: str, earlier: Mapping[str, str],
                moving: str | None = None) -> None:
  """Raises ValueError if the file `name` would replace what no report wrote.

  Args:
    folder: of the report.
    name: of the file.
    earlier: digests of the files of the report that is there.
    moving: digest of the file that may be in place already; None if there is none.
  """
  if not paths.is_plain(name) or name != _REPORT and name in _RESERVED:
    raise ValueError(f'name is {name!r}; it must be a file in the folder of the report.')
  path = folder / name
  if name == _REPORT and os.path.lexists(path) and not earlier:
    raise ValueError(f'workdir is {str(folder)!r}, where report.json is that of another '
                     'program; move it away or give another folder.')
  if name != _REPORT and os.path.lexists(path) and not (
      _is_own(path, earlier.get(name)) or _is_own(path, moving)):
    raise ValueError(f'workdir is {str(folder)!r}, where {name} was not written by a '
                     'report, or changed since; move it away or give another folder.')


def _move(folder: pathlib.Path, found: _Found) -> None:
  """Moves what is finished into place; if it is stopped, the next report goes on with it."""
  new = folder / _UNFINISHED
  # report.json comes last: until then both lists of files are there to go on with.
  for name in found.moving:
    if name != _REPORT and (new / name).exists():
      (new / name).replace(folder / name)
  for name, digest in found.earlier.items():
    if name not in found.moving and _is_own(folder / name, digest):
      (folder / name).unlink()
  (new / _REPORT).replace(folder / _REPORT)
  _clear(new)


def _clear(new: pathlib.Path) -> None:
  """Removes the folder of an unfinished report, its settings last."""
  content = _content(new)
  for name in sorted(content, key=lambda name: name == _RUN):
    content[name].unlink()
  new.rmdir()


def _content(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """The files of a folder by name; raises ValueError if it holds anything else."""
  return {name: paths.inside(folder, name, folder) for name in sorted(os.listdir(folder))}


def _listed(folder: pathlib.Path) -> dict[str, str]:
  """The files of the report in a folder, with their digests; empty if there is none.

  Raises:
    ValueError: if its report.json is no list of files in the folder.
  """
  path = paths.inside(folder, _REPORT, folder)
  if not path.exists():
    return {}
  remedy = 'move it away or give another folder'
  found = reading.json(path, remedy).get('files')
  if not isinstance(found, dict):
    raise ValueError(f'workdir is {str(folder)!r}, where report.json is that of another program; '
                     f'{remedy}.')
  for name in found:
    paths.inside(path.parent, name, path)
    if name in _RESERVED:
      raise ValueError(f'{path} lists {name!r} as a file of the report; {remedy}.')
  return {_REPORT: '', **{name: str(digest) for name, digest in found.items()}}


def _is_own(path: pathlib.Path, digest: str | None) -> bool:
  """Whether a file is the one that a report wrote."""
  return (digest is not None and path.is_file() and not path.is_symlink()
          and _digest(path) == digest)


def _digest(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
