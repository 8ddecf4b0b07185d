"""Several folders that take their places together, with the file that describes them.

Each is written into its `.NAME.unfinished`; see `folders`. When all are complete, a plan is
written. From then on they belong in place, and a process that is killed while it moves them leaves
the rest to the next one that reads or writes the folder.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cspd_jax.checkpoints import files, folders, paths, reading

_PLAN = '.unfinished.json'
_REMEDY = 'remove it, and convert the model again'


@contextlib.contextmanager
def replacing(folder: pathlib.Path, states: Mapping[str, Any], listed: folders.Listed, file: str,
              content: Callable[[], Any]) -> Iterator[dict[str, pathlib.Path]]:
  """Yields folders to write, which take their places inside of `folder` when the block ends.

  If the block raises, everything in `folder` is as it was.

  Args:
    folder: where the folders will be: absolute. There may be none, or older ones.
    states: what the content of each depends on, by name; see `folders.replacing`.
    listed: see `folders.replacing`.
    file: name of the file in `folder` that is written last, as JSON.
    content: returns what it holds; called when all folders are complete.

  Raises:
    ValueError: if one of the places holds anything else than what is listed, or another process is
      writing it; or what `content` raises.
  """
  recover(folder, listed, file)
  paths = _paths(folder, states)
  with contextlib.ExitStack() as stack:
    yield {name: stack.enter_context(folders.preparing(path, listed, state))
           for path, (name, state) in zip(paths, states.items())}
    for path in paths:  # Others may have written there meanwhile.
      folders.check(path, listed)
    plan = dict(folders=list(states), file=file, content=content())
    try:
      files.write_json(folder / _PLAN, plan)
      _finish(folder, paths, plan)
    except Exception:
      for path in paths:
        folders.move_back(path)
      for left in (_staged(folder, file), folder / _PLAN):
        left.unlink(missing_ok=True)
      raise


def recover(folder: pathlib.Path, listed: folders.Listed, file: str) -> None:
  """Moves the folders that belong in place, if a process was killed meanwhile.

  The folder may be a stranger's, and so may the plan: nothing outside of the folder is moved.

  Args:
    folder: as for `replacing`, and so are `listed` and `file`.
    listed: see `folder`.
    file: see `folder`.

  Raises:
    ValueError: if the process is still at work, they cannot be moved, or the plan is not one of
      `replacing`.
  """
  if not (folder / _PLAN).exists():
    return
  plan = _plan(folder, file)
  paths = _paths(folder, plan['folders'])
  try:
    with contextlib.ExitStack() as stack:
      for path in paths:
        stack.enter_context(folders.hold(path))
      if not (folder / _PLAN).exists():  # The process came to its end.
        return
      if all(folders.unfinished(path) for path in paths):
        _finish(folder, paths, plan)
      (folder / _PLAN).unlink(missing_ok=True)
      for path in paths:
        folders.clear(path, listed)
  except OSError as error:
    raise ValueError(
        f'{folder} holds networks that a stopped program was moving into place, and they cannot be '
        f'moved ({error}); make the folder writable, or repeat that program.') from error


def _finish(folder: pathlib.Path, paths: list[pathlib.Path], plan: Mapping[str, Any]) -> None:
  """Moves the folders, then the file, which ends the plan."""
  staged = _staged(folder, plan['file'])
  files.write_json(staged, plan['content'])  # Before anything moves: the disk may be full.
  for path in paths:
    folders.move(path)
  staged.replace(folder / plan['file'])
  with contextlib.suppress(OSError):  # A plan without unfinished folders is none.
    (folder / _PLAN).unlink(missing_ok=True)


def _staged(folder: pathlib.Path, file: str) -> pathlib.Path:
  return folder / f'.{file}.unfinished'


def _paths(folder: pathlib.Path, names: Iterable[str]) -> list[pathlib.Path]:
  """The folders of these names; raises ValueError for links, which lead elsewhere."""
  paths = [folder.resolve() / name for name in names]
  for path in paths:
    folders.check_links(path)
  return paths


def _plan(folder: pathlib.Path, file: str) -> dict[str, Any]:
  """Reads the plan of a folder; raises ValueError unless `replacing` may have written it."""
  path = paths.inside(folder, _PLAN, folder)
  plan = reading.json(path, _REMEDY)
  names = plan.get('folders')
  if (not isinstance(names, list) or not all(map(paths.is_plain, names)) or 'content' not in plan
      or plan.get('file') != file):
    raise ValueError(f'{path} is damaged; {_REMEDY}.')
  return plan
