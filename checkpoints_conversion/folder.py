"""Conversion into model folders, which `cspd_jax.load` opens.

The networks of a model are converted one by one into the same folder, in any order.
"""

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from checkpoints_conversion import convert, hub, read, rules
from checkpoints_conversion.rules.family import ConversionError, FileFamily
from cspd_jax import families
from cspd_jax.checkpoints import store
from cspd_jax.families import folder as folder_lib


def convert_part(
    family_name: str,
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    role: str | None = None,
    sampling: str | None = None,
    dtype: Any = None,
    progress: Callable[[int, int], None] | None = None,
    allow_nonfinite: bool = False,
    **arguments: Any,
) -> tuple[pathlib.Path, Any]:
  """Converts a published file to a part of a model.

  Args:
    family_name: see `convert.open_source`.
    source: see `convert.open_source`; or an id of the hub, see `hub.local`.
    output: folder of the model. It is made, or the part joins the model that is there, in place of
      an older part of the same role. A network that is no part of any family of models becomes a
      folder of its own.
    role: what the network is to the model, such as 'draft'; None takes the first one that suits
      its kind.
    sampling: which official options become the model's defaults; None takes those for pictures.
      Targets only.
    dtype: the dtype to store; None keeps the published one.
    progress: called as `progress(done, total)`.
    allow_nonfinite: whether weights may be NaN or infinite.
    **arguments: those of `convert.open_source`.

  Returns:
    The folder of the network, and its config.

  Raises:
    ValueError: (or a subclass) for anything that is wrong with the input, or if the network does
      not belong to the others of the model. Nothing has been written then.
  """
  family, folder = rules.get(family_name), pathlib.Path(output).expanduser().absolute()
  source = hub.local(source)
  if family.model is None:
    if role or sampling:
      raise ConversionError(f'{family.what} is a part of no model that cspd_jax has; leave role '
                            'and sampling out.')
    return folder, convert.convert_file(
        family_name, source, folder, dtype=dtype, progress=progress,
        allow_nonfinite=allow_nonfinite, **arguments)
  model = families.family.get(family.model)
  role = _role(family, model, role)
  others = _parts(folder, model.name, role)
  made = convert.open_source(family_name, source, allow_nonfinite=allow_nonfinite, **arguments)
  config = made.network.config
  defaults = _defaults(family, config, role, sampling)
  parts = {**others, role: made.network}
  if 'target' in parts:
    model.build(families.Parts(folder.name, parts, {}))  # Refuses what does not belong together.
  made.save(folder / role, dtype=dtype, progress=progress, allow_nonfinite=allow_nonfinite)
  families.save(folder, model.name, {role: role}, defaults)
  return folder / role, config


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


def _parts(folder: pathlib.Path, model: str, role: str) -> dict[str, store.Loaded]:
  """Describes the networks that a model has beside the one that is to come, without parameters."""
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
          for name, part in description['parts'].items() if name != role}
