"""Folders that are replaced as a whole: alone, or several together with a file that lists them.

A folder `NAME` is written as `.NAME.unfinished/new`. When it is complete, it becomes
`.NAME.unfinished/complete`, the older folder is moved next to it, and it is moved to its place;
then the older one is removed. Several folders are moved once the file that lists them is written as
`.FILE.unfinished`, and at last this becomes `FILE`. If the process is killed, the next one that
reads or writes the folder finishes or undoes the replacement.
"""

import contextlib
import json
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cspd_jax.files import atomic, locks, paths, reading

# `folder -> names`: the files of a complete folder, relative to it; the last one is the list
# itself. Raises ValueError for a folder that must not be replaced.
Listed = Callable[[pathlib.Path], Iterable[str]]

_SUFFIX = '.unfinished'


@contextlib.contextmanager
def replacing(path: pathlib.Path, listed: Listed, state: Any = None) -> Iterator[pathlib.Path]:
  """Yields a folder to write, which replaces `path` when the block ends, unless that raises.

  The path is absolute and without links: absent, an empty folder, or an older one that holds only
  files that `listed` lists; no other file is ever removed. What a killed process wrote is reused by
  the next one with the same `state`, a JSON value on which the content depends, and removed by one
  with another state. None starts from nothing, and writes nothing that can be resumed.

  Raises:
    ValueError: if `path` is anything else, another process is writing it, or `state` is None and
      the work of a process that had one is there.
  """
  with _Place(path, listed).prepared(state) as place:
    yield place.new
    place.new.rename(place.complete)
    place.move()


def recover(path: pathlib.Path) -> None:
  """Restores the older folder if a process was killed between two renames; refuses if it runs."""
  place = _Place(path, lambda folder: ())
  if not path.exists() and place.old.exists():
    place.check_links()
    with locks.exclusive(place.workspace):
      place.restore()


def discard(path: pathlib.Path, listed: Listed) -> None:
  """Removes what a killed `replacing` left, or finishes its renames; refuses if it runs."""
  place = _Place(path, listed)
  if place.workspace.exists():
    place.check_links()
    with locks.exclusive(place.workspace):
      place.restore()
      place.discard()


def check(path: pathlib.Path, listed: Listed, resumes: bool = False) -> None:
  """Raises ValueError, naming a file, if `path` holds anything that must not be removed.

  Neither must what a stopped process left for one that resumes its work, unless `resumes`.
  """
  place = _Place(path, listed)
  if not resumes and not place.is_moved() and place.state() is not None:
    raise ValueError(f'{place.workspace} holds the work of a stopped command, such as a '
                     'conversion, which its repetition resumes; repeat it, remove this folder, or '
                     'choose another output.')
  place.check(path)


def remove(folder: pathlib.Path, listed: Listed) -> None:
  """Removes the listed files of a folder and the folder, which by then must be empty."""
  *names, last = listed(folder) if any(folder.iterdir()) else ['']
  for name in names:
    (folder / name).unlink(missing_ok=True)
  for inner in sorted((path for path in folder.rglob('*') if path.is_dir()), reverse=True):
    inner.rmdir()
  if last:
    (folder / last).unlink()
  folder.rmdir()


@contextlib.contextmanager
def replacing_together(folder: pathlib.Path, states: Mapping[str, Any], listed: Listed, file: str,
                       content: Callable[[], Any]) -> Iterator[dict[str, pathlib.Path]]:
  """Yields folders to write, which all replace those in `folder` when the block ends, or none.

  If the block raises, `folder`, absolute but perhaps absent, stays unchanged. If the process is
  killed when the file is written and before all are moved, the rest is left to `recover_together`.
  `states` are those of `replacing` by name; `file` is the JSON file in `folder` that is written
  last, with what `content` returns when all folders are complete.
  """
  recover_together(folder, listed, file)
  places = {name: _Place(folder.resolve() / name, listed) for name in states}
  with contextlib.ExitStack() as stack:
    yield {name: stack.enter_context(place.prepared(states[name])).new
           for name, place in places.items()}
    for place in places.values():  # Others may have written there meanwhile.
      place.check(place.path)
    staged = folder / f'.{file}{_SUFFIX}'
    try:
      text = content()
      for place in places.values():
        place.new.rename(place.complete)
      atomic.write_json(staged, text)
      _finish(staged, folder / file, places.values())
    except Exception:
      for place in places.values():
        place.move_back()
      staged.unlink(missing_ok=True)
      raise


def recover_together(folder: pathlib.Path, listed: Listed, file: str) -> None:
  """Moves what a process killed in `replacing_together` left; raises ValueError if it runs."""
  staged = folder / f'.{file}{_SUFFIX}'
  if not staged.exists():
    return
  paths.inside(folder, staged.name, folder)
  places = [_Place(path.with_name(path.name[1:-len(_SUFFIX)]), listed)
            for path in sorted(folder.resolve().glob(f'.?*{_SUFFIX}')) if path.is_dir()]
  places = [place for place in places if place.marker.exists() and not place.new.exists()]
  try:
    with contextlib.ExitStack() as stack:
      for place in places:
        place.check_links()
        stack.enter_context(locks.exclusive(place.workspace))
      if staged.exists():  # Else the process has finished meanwhile.
        _finish(staged, folder / file, places)
      for place in places:
        place.discard()
  except OSError as error:
    raise ValueError(
        f'{folder} holds networks that a stopped program was moving into place, and they cannot be '
        f'moved ({error}); make the folder writable, or repeat that program.') from error


def _finish(staged: pathlib.Path, file: pathlib.Path, places: Iterable['_Place']) -> None:
  for place in places:
    place.move()
  staged.replace(file)


class _Place:
  """A folder that is replaced, and its workspace next to it.

  In the workspace are the folder while it is written (`new`), the same when it is complete, the
  older folder (`old`), once it is replaced, and the file with the state (`marker`).
  """

  def __init__(self, path: pathlib.Path, listed: Listed):
    self.path, self.listed = path, listed
    self.workspace = path.with_name(f'.{path.name}{_SUFFIX}')
    self.new, self.complete, self.old, self.marker = (
        self.workspace / name for name in ('new', 'complete', 'old', 'state.json'))

  @contextlib.contextmanager
  def prepared(self, state: Any) -> Iterator['_Place']:
    """Yields this with a folder `new`, which the block moves; removes the older one at the end."""
    recover(self.path)
    check(self.path, self.listed, resumes=state is not None)
    self.check_links()
    created = [parent for parent in self.path.parents if not parent.exists()]
    with locks.exclusive(self.workspace):
      try:
        self._begin(json.loads(json.dumps(state)))
        yield self
      except BaseException as error:
        if state is None or isinstance(error, Exception):
          self.restore()
          self._clear()
          with contextlib.suppress(OSError):  # Other processes may use the folders by now.
            self._remove()
            for folder in created:
              folder.rmdir()
        raise
      self.discard()

  def _begin(self, state: Any) -> None:
    """Creates `new` unless an earlier process wrote there under the same state."""
    if self.complete.exists():
      self.complete.rename(self.new)
    if state is None or not self.new.exists() or self.state() != state:
      self._clear()
      if others := [path for path in self.workspace.iterdir() if path.name != locks.FILE]:
        raise ValueError(f'{others[0]} was not written by cspd_jax; move it away.')
      atomic.write_json(self.marker, state)
      self.new.mkdir()

  def state(self) -> Any:
    """Returns the state of the process that wrote `new`, None if it is not known."""
    with contextlib.suppress(ValueError):
      return reading.json(self.marker, 'start again', kind=object)

  def is_moved(self) -> bool:
    """Whether nothing is left that a process has written."""
    return not self.new.exists() and not self.complete.exists()

  def move(self) -> None:
    """Moves the complete folder to its place unless it is there; the older one is retained."""
    if self.complete.exists():
      if self.path.exists():
        self.path.rename(self.old)
      self.complete.rename(self.path)

  def move_back(self) -> None:
    """Undoes `move`."""
    if self.path.exists() and self.is_moved():
      self.path.rename(self.complete)
    self.restore()

  def restore(self) -> None:
    """Moves the older folder back if nothing is in its place."""
    if not self.path.exists() and self.old.exists():
      self.old.rename(self.path)

  def check_links(self) -> None:
    """Raises ValueError for links, whose targets would be overwritten or removed."""
    places = (self.path, self.workspace, *self.workspace.rglob('*'))
    if links := [path for path in places if path.is_symlink()]:
      raise ValueError(f'{links[0]} is a link where {self.workspace.name} is to be written; remove '
                       'it, or choose another folder.')

  def check(self, folder: pathlib.Path) -> None:
    """Raises ValueError unless a folder is absent, empty, or holds only listed files, no links."""
    if not folder.exists():
      return
    if not folder.is_dir():
      raise ValueError(f'path is {folder}, which is a file; choose a folder.')
    if not any(folder.iterdir()):
      return
    own = {part for name in self.listed(folder)
           for part in (folder / name, *(folder / name).parents)}
    others = sorted(path.relative_to(folder).as_posix() for path in folder.rglob('*')
                    if path not in own or path.is_symlink())
    if others:
      more = f' ({len(others)} files were not saved by cspd_jax)' if len(others) > 1 else ''
      raise ValueError(f'path is {folder}, which holds {others[0]!r} and would be replaced with '
                       f'all its content{more}; move such files away or choose another folder.')

  def discard(self) -> None:
    """Removes the workspace after `move`; what cannot be removed is left to the next process."""
    with contextlib.suppress(OSError):
      self._clear()
      self._remove()

  def _remove(self) -> None:
    (self.workspace / locks.FILE).unlink(missing_ok=True)
    self.workspace.rmdir()

  def _clear(self) -> None:
    """Removes the files that a stopped process leaves, the state last."""
    if self.old.exists():
      self.check(self.old)
      remove(self.old, self.listed)
    if self.marker.exists():
      for written in (self.new, self.complete):
        if written.exists():
          shutil.rmtree(written)
      self.marker.unlink()
    for left in atomic.leftovers(self.marker):
      left.unlink()
