"""The file `model.json`, which describes a model on disk.

It holds the family, the folder of every network by its role ('target', 'tokenizer', those of
drafters) and the model's default sampling options and decoders. Whatever else a user writes into
it, such as notes in `metadata`, is kept.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from cspd_jax.core import progress
from cspd_jax.families import family as family_lib
from cspd_jax.files import atomic, paths, reading, store, weights
from cspd_jax.files.store import CheckpointError

_FORMAT = 1
FILE = 'model.json'
# The defaults that stay when the target is replaced.
_OF_ANY_TARGET = ('dtype',)
_ENTRIES = {'family': str, 'parts': dict, 'defaults': dict}


def save(folder: str | os.PathLike, family: str, parts: Mapping[str, str],
         defaults: Mapping[str, Any] | None = None) -> None:
  """Creates a model from saved networks, or adds them to the model in a folder.

  Args:
    folder: of the model.
    family: name of its family.
    parts: folders of networks by role, relative to `folder` or absolute; they are added to
      those of the model.
    defaults: see `Model.defaults`; they are added to the model's. If the target is in
      another folder than before, they replace the old target's.

  Raises:
    CheckpointError: if the folder is a network's, or has a model of another family.
    ValueError: for an unknown family, role or default, or a default decoder in an unsupported form.
  """
  folder = paths.folder('folder', folder)
  description = _joined(folder, family, parts, defaults or {})
  folder.mkdir(parents=True, exist_ok=True)
  atomic.write_json(folder / FILE, description)


@contextlib.contextmanager
def joining(folder: str | os.PathLike, family: str, states: Mapping[str, Any],
            defaults: Mapping[str, Any], *, new_target: bool = False
            ) -> Iterator[dict[str, pathlib.Path]]:
  """Yields folders to write networks into, which join a model when the block ends: all or none.

  If the block raises, the model's folder is unchanged, and if the process is killed, the folder
  has the old model or the new one. Arguments and errors as for `save`, and:

  Args:
    states: everything that determines each network, by role; one that is there already with its
      state is not yielded.
    new_target: whether the target replaces another one, whose defaults do not apply any more; see
      `old_target_defaults`.
  """
  folder = paths.folder('folder', folder).resolve()
  describe = lambda: _joined(folder, family, {role: role for role in states}, defaults, new_target)
  describe()
  with store.joining(folder, states, FILE, describe) as new:
    yield new


def check_place(folder: str | os.PathLike, family: str, parts: Mapping[str, str],
                resumes: bool = False) -> None:
  """Checks in advance that a model and its networks can be saved in a folder.

  Arguments and errors are as for `save`; `parts` are in the folder, and none may be a link, since
  saving would replace the network that it points to. `resumes` is as for `store.check_place`.
  """
  folder = paths.folder('folder', folder)
  _joined(folder, family, parts, {})
  store.check_place(folder, parts.values(), resumes)


def old_target_defaults(folder: pathlib.Path, defaults: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the defaults of the model in a folder that a new target with `defaults` does not keep.

  These are sampling options, prompts, decoders and measurements: all that belongs to the old one.
  """
  return {name: value for name, value in read(folder)['defaults'].items()
          if name not in _OF_ANY_TARGET and (name not in defaults or defaults[name] != value)}


def _joined(folder: pathlib.Path, family: str, parts: Mapping[str, str],
            defaults: Mapping[str, Any], new_target: bool = False) -> dict[str, Any]:
  """Returns the description of a model with parts and defaults added."""
  registered = family_lib.get(family)
  family = registered.name
  registered.check_parts(parts)
  description: dict[str, Any] = dict(family=family, parts={}, defaults={})
  store.recover(folder)
  others: dict[str, Any] = {}
  if (folder / FILE).exists():
    content = _content(folder)
    if 'kind' in content:
      raise CheckpointError(f'folder is {folder}, which is the folder of a network; use another '
                            'folder for the model and name this one among its parts.')
    description |= read(folder)
    if description['family'] != family:
      raise CheckpointError(f'{folder} holds a {description["family"]!r} model; use another folder '
                            f'for a {family!r} one.')
    # What a user wrote into the file, such as notes.
    others = {name: value for name, value in content.items()
              if name not in ('format', *description)}
  old = description['parts'].get('target')
  if old is not None and (new_target or folder / parts.get('target', old) != folder / old):
    description['defaults'] = {name: value for name, value in description['defaults'].items()
                               if name in _OF_ANY_TARGET}
  description['parts'] = {**description['parts'], **parts}
  description['defaults'] = {**description['defaults'], **defaults}
  registered.check_defaults(description['defaults'])
  return {'format': _FORMAT, **description, **others}


def read(folder: pathlib.Path) -> dict[str, Any]:
  """Reads `model.json`, or describes the folder of a target as a model; raises CheckpointError."""
  description = _content(folder)
  if 'kind' in description:  # The folder of a network.
    try:
      owner = family_lib.target_family(reading.entry(description, 'kind', str)).name
    except ValueError as error:
      raise CheckpointError(f'{folder / FILE}: {error}') from error
    return dict(family=owner, parts={'target': '.'}, defaults={})
  try:
    version = description['format']
    result: dict[str, Any] = {
        name: reading.entry(description, name, kind) for name, kind in _ENTRIES.items()}
    wrong = [role for role, part in result['parts'].items()
             if not isinstance(part, str) or not part
             or not progress.unicode(part).isprintable()]  # It may have bytes that are no UTF-8.
  except (KeyError, TypeError, ValueError) as error:
    raise CheckpointError(f'{folder / FILE} cannot be read ({type(error).__name__}: {error}); copy '
                          'or convert the model again.') from error
  if version != _FORMAT:
    raise CheckpointError(f'{folder} has format {version!r:.80}; this version of cspd_jax reads '
                          f'format {_FORMAT}.')
  if wrong:
    raise CheckpointError(
        f'{folder / FILE}: the part {wrong[0]!r:.80} must be named by its folder.')
  try:
    family_lib.get(result['family']).check_defaults(result['defaults'])
    weights.checked_dtype(result['defaults'].get('dtype'))
  except ValueError as error:
    raise CheckpointError(f'{folder / FILE}: {error}') from error
  return result


def is_network(folder: pathlib.Path) -> bool:
  """Returns whether a `model.json` describes one network; raises CheckpointError as `read` does."""
  return 'kind' in _content(folder)


def _content(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the content of the `model.json` of a model or network; raises CheckpointError."""
  try:
    return reading.json(folder / FILE, 'copy or convert the model again')
  except ValueError as error:
    raise CheckpointError(str(error)) from error

