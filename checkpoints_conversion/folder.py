"""Conversion into model folders, which `cspd_jax.load` opens.

The networks of a model come into the same folder, together or one by one, in any order.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from checkpoints_conversion import convert, hub, read, rules
from checkpoints_conversion.rules.family import ConversionError, FileFamily
from cspd_jax import families
from cspd_jax.checkpoints import store
from cspd_jax.families import folder as folder_lib

# `done, total ->`: called as parts of a network are written.
Progress = Callable[[int, int], None]


class Part(NamedTuple):
  """A published file, and what it becomes.

  Attributes:
    family: see `convert.open_source`.
    source: see `convert.open_source`; or an id of the hub, see `hub.local`.
    role: what the network is to the model, such as 'draft'; None takes the first one that suits
      its kind.
    sampling: which official options become the model's defaults; None takes those for pictures.
      Targets only.
    dtype: the dtype to store; None keeps the published one.
    arguments: others of `convert.open_source`.
  """

  family: str
  source: str | os.PathLike
  role: str | None = None
  sampling: str | None = None
  dtype: Any = None
  arguments: Mapping[str, Any] = MappingProxyType({})


def convert_part(
    family_name: str,
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    role: str | None = None,
    sampling: str | None = None,
    dtype: Any = None,
    progress: Progress | None = None,
    allow_nonfinite: bool = False,
    **arguments: Any,
) -> tuple[pathlib.Path, Any]:
  """As `convert_parts`, for one of them; the arguments are those of `Part`."""
  part = Part(family_name, source, role, sampling, dtype, arguments)
  return convert_parts([part], output, allow_nonfinite=allow_nonfinite,
                       progress=lambda name: contextlib.nullcontext(progress))[0]


def convert_parts(
    parts: Sequence[Part],
    output: str | os.PathLike,
    *,
    progress: Callable[[str], contextlib.AbstractContextManager[Progress | None]] = (
        lambda name: contextlib.nullcontext()),
    allow_nonfinite: bool = False,
) -> list[tuple[pathlib.Path, Any]]:
  """Converts published files to parts of a model, all of them or none.

  Every file is opened and compared with the others before anything is written, and nothing comes
  to its place before everything is written. A process that was killed leaves its work to the next
  one with the same parts.

  Args:
    parts: what is converted, in this order: networks of one family of models and of different
      roles. A network that is no part of any family of models becomes a folder of its own.
    output: folder of the model. It is made, or the parts join the model that is there, in place
      of older parts of the same roles.
    progress: makes, for the family of each part, a context with what is called as it is written.
    allow_nonfinite: whether weights may be NaN or infinite.

  Returns:
    The folder and the config of every network.

  Raises:
    ValueError: (or a subclass) for anything that is wrong with the input, or if the networks do
      not belong together. `output` is as it was then.
  """
  folder = pathlib.Path(output).expanduser().absolute()
  kinds = [rules.get(part.family) for part in parts]
  names = {family.model for family in kinds}
  if len(names) != 1 or (None in names and len(parts) > 1):
    raise ConversionError(f'parts are {", ".join(part.family for part in parts)}, which make no '
                          'model together; convert them one by one, into folders of their own.')
  if (name := names.pop()) is None:
    with progress(parts[0].family) as show:
      return [_convert_alone(kinds[0], parts[0], folder, show, allow_nonfinite)]
  model = families.family.get(name)
  roles = [_role(family, model, part.role) for family, part in zip(kinds, parts)]
  if len(set(roles)) < len(roles):
    raise ConversionError(f'parts have the roles {", ".join(roles)}; each must have its own.')
  others = _parts(folder, model.name, roles)
  families.check_place(folder, model.name, {role: role for role in roles})
  opened, defaults = {}, {}
  for family, role, part in zip(kinds, roles, parts):
    opened[role] = convert.open_source(part.family, hub.local(part.source),
                                       allow_nonfinite=allow_nonfinite, **part.arguments)
    defaults |= _defaults(family, opened[role].network.config, role, part.sampling)
  networks = others | {role: source.network for role, source in opened.items()}
  if 'target' in networks:
    model.build(families.Parts(folder.name, networks, {}))  # Refuses what does not belong together.
  states = {role: opened[role].stored(part.dtype) for role, part in zip(roles, parts)}
  with families.joining(folder, model.name, states, defaults) as new:
    for role, part in zip(roles, parts):
      with progress(part.family) as show:
        opened.pop(role).write(new[role], dtype=part.dtype, progress=show,
                               allow_nonfinite=allow_nonfinite)
  return [(folder / role, networks[role].config) for role in roles]


class Whole(NamedTuple):
  """The networks of a model in a published folder.

  Attributes:
    found: files or folders by family of files, those that are there.
    missing: names that were looked for, by family of files.
  """

  found: dict[str, pathlib.Path]
  missing: dict[str, tuple[str, ...]]


def find_model(family_name: str, source: str | os.PathLike, model: str | None = None) -> Whole:
  """Looks for the networks of a whole model.

  Args:
    family_name: the family of the target's file.
    source: a folder as it is published, or an id of the hub; see `hub.local`.
    model: name of the published model.

  Returns:
    What was found, the target last, which takes the longest. Empty if the source is not the folder
    of a whole model.

  Raises:
    ReadError: if there is no such source, or it has no target.
  """
  layout = rules.get(family_name).layout(model)
  path = hub.local(source, [name for names in layout.values() for name in names])
  if not path.is_dir() or not layout:
    return Whole({}, {})
  found = {name: next((path / place for place in places if (path / place).exists()), None)
           for name, places in reversed(list(layout.items()))}
  missing = {name: layout[name] for name, place in found.items() if place is None}
  if family_name in missing:
    raise read.ReadError(f'source is {source}, a folder without {layout[family_name][0]}; give the '
                         'file, or another model.')
  return Whole({name: place for name, place in found.items() if place}, missing)


def _convert_alone(family: FileFamily, part: Part, folder: pathlib.Path, progress: Progress | None,
                   allow_nonfinite: bool) -> tuple[pathlib.Path, Any]:
  """Converts a network that is no part of any model."""
  if part.role or part.sampling:
    raise ConversionError(f'{family.what} is a part of no model that cspd_jax has; leave role '
                          'and sampling out.')
  return folder, convert.convert_file(
      part.family, hub.local(part.source), folder, dtype=part.dtype, progress=progress,
      allow_nonfinite=allow_nonfinite, **part.arguments)


def _role(family: FileFamily, model: families.Family, role: str | None) -> str:
  """Returns the role of a network in its family of models."""
  roles = [name for name, kinds in model.roles.items() if family.kind in kinds]
  if role is not None and role not in roles:
    raise ConversionError(f'role is {role!r}; {family.what} can be: {", ".join(roles)}.')
  return roles[0] if role is None else role


def _defaults(family: FileFamily, config: Any, role: str, sampling: str | None,
              ) -> Mapping[str, Any]:
  """Returns the defaults that a network brings to its model."""
  presets = family.sampling(config) if role == 'target' else {}
  if sampling is None:
    return next(iter(presets.values()), {})
  if sampling not in presets:
    known = f'it can be: {", ".join(presets)}' if presets else 'leave it out'
    raise ConversionError(
        f'sampling is {sampling!r}, which is not known of this {family.name} file; {known}.')
  return presets[sampling]


def _parts(folder: pathlib.Path, model: str, roles: Sequence[str]) -> dict[str, store.Loaded]:
  """Describes the networks of a model that stay, those of other roles, without parameters."""
  store.recover(folder)
  if not (folder / 'model.json').exists():
    return {}
  try:
    description = folder_lib.read(folder)
  except store.CheckpointError:
    raise
  except ValueError:  # A network that is not the target of any model.
    description = {'family': None}
  if description['family'] != model or '.' in description['parts'].values():
    raise ConversionError(
        f'output is {folder}, which holds a network of its own or a model of another family; give '
        f'another folder for a {model!r} model.')
  return {name: store.describe(folder / part)
          for name, part in description['parts'].items() if name not in roles}
