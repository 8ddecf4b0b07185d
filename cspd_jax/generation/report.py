"""Reports: a folder with `report.json` and the files that it names.

Files are collected in a folder inside of it and moved into place at the end, so that a program
that is stopped leaves the earlier report as it was, and may go on where it was. A new report takes
the place of the earlier one with all its files. A file that no report wrote, or that was changed
since, is never touched.
"""

import hashlib
import math
import os
import pathlib
import platform
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from cspd_jax.checkpoints import files, locks, places, reading
from cspd_jax.version import __version__

_REPORT = 'report.json'
_UNFINISHED = 'unfinished_report'
_RUN = 'run.json'


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
      names: files that it will have beside report.json, as far as they are known.
      run: what the files depend on. If the folder holds an unfinished report of the same run,
        its files stay; see `has`. None begins anew.
      overwrite: whether an earlier report may be replaced.

    Raises:
      ValueError: if files cannot be written there, one of the names is that of a file that no
        report wrote, or there is a report that is not to be replaced.
    """
    self.folder = places.folder('workdir', folder)
    # Until the report is written, or nobody knows of it any more.
    self._hold: locks.Hold | None = locks.hold(self.folder)
    self._new = self.folder / _UNFINISHED
    if (self._new / _REPORT).exists():
      self._move()  # The last report was stopped while its files were moved.
    self._earlier = _read(self.folder)
    if self._earlier and not overwrite:
      raise ValueError(f'workdir is {str(folder)!r}, which holds a report already; give another '
                       'folder, or overwrite.')
    for name in (_REPORT, *names):
      self._check(name)
    self._begin(run, overwrite)

  def _begin(self, run: Mapping[str, Any] | None, overwrite: bool) -> None:
    """Makes the folder of what is not finished, or keeps that of the same run."""
    path = self._new / _RUN
    if run is not None and path.exists() and reading.json(
        path, 'remove the folder that it is in, or overwrite' ) == plain(run):
      return
    if self._new.exists():
      if not overwrite:
        raise ValueError(f'workdir is {str(self.folder)!r}, where another run was stopped; go on '
                         'with that one, give another folder, or overwrite.')
      shutil.rmtree(self._new)
    self._new.mkdir()
    if run is not None:
      files.write_json(path, plain(run))

  def has(self, name: str) -> bool:
    """Whether the file `name` was written already, before this run of the program was stopped."""
    return (self._new / name).exists()

  def path(self, name: str) -> pathlib.Path:
    """Where to write the file `name` of the report; it is moved into the folder at the end.

    Raises:
      ValueError: if the folder holds a file of this name that no report wrote.
    """
    self._check(name)
    path = self._new / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path

  def write(self, *, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]],
            **more: Any) -> None:
    """Writes report.json, moves all files into place and removes those of the earlier report.

    Args:
      settings: what was asked for.
      rows: what was found, a mapping each; what is not known is None.
      **more: further entries.

    Raises:
      ValueError: if a number is not finite, naming it, or a value is not what JSON can hold.
    """
    content = plain(dict(settings=settings, rows=rows, **more, **machine()))
    content['files'] = {
        path.relative_to(self._new).as_posix(): _digest(path)
        for path in sorted(self._new.rglob('*')) if path.is_file() and path.name != _RUN}
    files.write_json(self._new / _REPORT, content)
    self._move()
    self._hold = None

  def _check(self, name: str) -> None:
    """Raises ValueError if the file `name` would replace what no report wrote."""
    path = self.folder / name
    if not path.resolve().is_relative_to(self.folder.resolve()) or path == self._new:
      raise ValueError(f'name is {name!r}; it must be a file in the folder of the report.')
    if path.exists() and name != _REPORT and not _is_own(path, self._earlier.get(name)):
      raise ValueError(f'workdir is {str(self.folder)!r}, where {name} was not written by a '
                       'report, or changed since; move it away or give another folder.')
    if name == _REPORT and path.exists() and not self._earlier:
      raise ValueError(f'workdir is {str(self.folder)!r}, where report.json is that of another '
                       'program; move it away or give another folder.')

  def _move(self) -> None:
    """Moves what is finished into place; if it is stopped, the next report goes on with it."""
    earlier = _read(self.folder)
    new = _files(self._new)
    # report.json comes last: until then both lists of files are there to go on with.
    for name in new:
      if (self._new / name).exists():
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self._new / name).replace(self.folder / name)
    for name, digest in earlier.items():
      if name not in new and name != _REPORT and _is_own(self.folder / name, digest):
        (self.folder / name).unlink()
    (self._new / _REPORT).replace(self.folder / _REPORT)
    shutil.rmtree(self._new)


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


def _read(folder: pathlib.Path) -> dict[str, str]:
  """The files of the report in a folder, with their digests; empty if there is none."""
  try:
    return {_REPORT: '', **_files(folder)}
  except ValueError:
    return {}


def _files(folder: pathlib.Path) -> dict[str, str]:
  """The files that report.json lists, with their digests; raises ValueError if it lists none."""
  found = reading.json(folder / _REPORT, 'move it away').get('files')
  if not isinstance(found, dict):
    raise ValueError(f'{folder / _REPORT} lists no files; move it away.')
  return {name: str(digest) for name, digest in found.items()}


def _is_own(path: pathlib.Path, digest: str | None) -> bool:
  """Whether a file is the one that a report wrote."""
  return path.is_file() and digest is not None and _digest(path) == digest


def _digest(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
