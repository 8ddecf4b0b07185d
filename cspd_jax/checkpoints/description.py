"""The description of a network, `model.json`: it is checked before anything else is read."""

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax.checkpoints import files, kinds, paths, reading, weights
from cspd_jax.checkpoints.kinds import KINDS, Kind

FILE = 'model.json'
FORMAT = 1
REMEDY = 'copy or convert the model again'


class CheckpointError(ValueError):
  """A checkpoint that cannot be saved or loaded; the message lists all that is wrong."""


class Description(NamedTuple):
  """Attributes: as `Loaded` has them; where groups of parameters are; digests of files, if any."""

  kind: str
  config: Any
  metadata: dict[str, Any]
  groups: list[str]
  digests: dict[str, str]


def verify(folder: pathlib.Path, known: Mapping[str, str]) -> None:
  """Compares the files with their digests."""
  found = weights.digests(folder, known)
  if wrong := [name for name in known if found[name] != known[name]]:
    raise damaged(folder, f'{", ".join(wrong)}: other bytes than were saved')


def read(folder: pathlib.Path) -> Description:
  """Reads `model.json`, and compares the sizes of the files with it."""
  with refused():
    description = reading.json(folder / FILE, REMEDY)
  try:
    version, kind = description['format'], kinds.current(str(description['kind']))
    fields, metadata = dict(description['config']), dict(description['metadata'])
    groups = list(description.get('groups', ['arrays']))
    sizes_on_file = {name: int(size) for name, size in description['files'].items()}
    digests = dict(description.get('blake2b', {}))
    _check_names(folder, list(sizes_on_file), links=True)
    if other := [name for name in groups if not re.fullmatch(r'arrays(/\d{4,9})?', str(name))]:
      raise ValueError(f'{str(other[0])!r:.80} is no folder of arrays')
    if unlisted := sorted(digests.keys() - sizes_on_file.keys()):
      raise ValueError(f'{unlisted[0]!r} is not among its files')
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise damaged(folder / FILE, f'{type(error).__name__}: {error}') from error
  if version != FORMAT:
    raise CheckpointError(
        f'{folder} has format {version!r}; this version of cspd_jax reads format {FORMAT}.')
  sizes = weights.file_sizes(folder)
  if wrong := [f'{name} has {sizes[name]} bytes instead of {size}' if name in sizes
               else f'{name} is missing' for name, size in sizes_on_file.items()
               if sizes.get(name) != size]:
    raise damaged(folder, '; '.join(wrong))
  config_class = kind_of(kind, f'{folder}: ').config
  known = {field.name for field in dataclasses.fields(config_class)}
  if unknown := sorted(set(fields) - known):
    raise CheckpointError(
        f'{folder}: its config has fields that {config_class.__name__} does not: '
        f'{", ".join(unknown)} (known: {", ".join(sorted(known))}).')
  try:
    return Description(kind, config_class(**fields), metadata, groups, digests)
  except (TypeError, ValueError) as error:
    raise CheckpointError(f'{folder}: its config is not valid: {error}') from error


def listed(folder: pathlib.Path) -> list[str]:
  """Files that `save` and `annotate` wrote into a folder; raises CheckpointError if none did."""
  try:
    description = reading.json(folder / FILE, 'it is none that save wrote')
    if not isinstance(description['kind'], str):
      raise ValueError('it names no kind')
    names = list(description['files'])
    _check_names(folder, names)
  except (ValueError, KeyError, TypeError) as error:
    raise CheckpointError(
        f'path is {folder}, which exists and is not a checkpoint; give another folder or remove it '
        f'({type(error).__name__}: {error}).') from error
  left = [path.name for path in files.leftovers(folder / FILE)]
  return [*names, *left, FILE]


def _check_names(folder: pathlib.Path, names: Sequence[Any], links: bool = False) -> None:
  """Raises ValueError unless these are names of files of the arrays in a folder."""
  for name in names:
    paths.inside(folder, name, folder / FILE, deep=True, links=links)
    if not name.startswith('arrays/'):
      raise ValueError(f'{folder / "model.json"} holds the name {paths.shown(name)}, which is not '
                       'in arrays')


def kind_of(kind: str, where: str = '') -> Kind:
  """The kind of this name; raises CheckpointError if no family registered it."""
  if kind not in KINDS:
    raise CheckpointError(
        f'{where}kind is {kind!r}; it must be one of: {", ".join(sorted(KINDS))}.')
  return KINDS[kind]


@contextlib.contextmanager
def refused(where: str = '') -> Iterator[None]:
  """Turns the ValueErrors of `folders` and `weights` into CheckpointErrors."""
  try:
    yield
  except CheckpointError:
    raise
  except ValueError as error:
    raise CheckpointError(f'{where}{error}') from error


def damaged(path: pathlib.Path, reason: str) -> CheckpointError:
  """The error for a file that cannot be read."""
  return CheckpointError(
      f'{path} is damaged or incomplete ({reason[:1000]}); {REMEDY}.')
