"""Conversion into model folders, which `cspd_jax.load` opens.

The networks of a model are converted into the same folder, together or one by one, in any order.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from checkpoints_conversion import convert, hub, read, rules
from checkpoints_conversion.rules.family import ConversionError, FileFamily, is_inside
from cspd_jax import families
from cspd_jax.families import model_file
from cspd_jax.files import store, weights

# `(done, total) ->`: called as groups of parameters are written.
Progress = Callable[[int, int], None]

# The kind of tokenizer files of words.
_WORDS = 'text'


class Part(NamedTuple):
  """A published file, and the network of a model that it is converted to.

  Attributes:
    family: a key of `rules.FAMILIES`.
    source: a file or a folder, or an id of the hub.
    role: the network's role in the model, such as 'draft'; None selects the first role of its kind.
    sampling: name of the official options that become the model's defaults; None selects those for
      pictures, or keeps the defaults of a model with the same target. Targets only.
    dtype: the dtype to store; None preserves the published one.
    arguments: other arguments of `convert.open_source`.
  """

  family: str
  source: str | os.PathLike
  role: str | None = None
  sampling: str | None = None
  dtype: Any = None
  arguments: Mapping[str, Any] = MappingProxyType({})


def convert_parts(
    parts: Sequence[Part], output: str | os.PathLike, *,
    progress: Callable[[str], contextlib.AbstractContextManager[Progress | None]] = (
        lambda name: contextlib.nullcontext()),
    note: Callable[[str], None] = lambda line: None, allow_nonfinite: bool = False,
) -> list[tuple[pathlib.Path, Any]]:
  """Converts published files to networks of a model, all of them or none.

  Every file is opened and compared with the others before anything is written, and nothing is moved
  into place before everything is written. After a kill the same call continues.

  Args:
    parts: the files to convert, in this order: networks of one model family with different roles.
      A network that belongs to no model family becomes a folder of its own.
    output: folder of the model, new or not: older networks of the same roles are replaced, and
      with another target the defaults of the old one: sampling options, prompts and decoders.
    progress: returns, for a file family, a context with the function to call as it is written.
    note: called with every assumption and the dropped defaults, before anything is written.
    allow_nonfinite: whether weights may be NaN or infinite.

  Returns:
    The folder and the config of every network.

  Raises:
    ValueError: for networks that do not fit, or other wrong input; `output` is unchanged then.
  """
  folder = pathlib.Path(output).expanduser().absolute()
  for part in parts:
    weights.checked_dtype(part.dtype)
  file_families = [rules.get(part.family) for part in parts]
  names = {family.model for family in file_families}
  if len(names) != 1 or (None in names and len(parts) > 1):
    raise ConversionError(f'parts are {", ".join(part.family for part in parts)}, which do not '
                          'form a model; convert them one by one, into folders of their own.')
  if (name := names.pop()) is None:
    part, = parts
    if part.role or part.sampling:
      raise ConversionError(f'{file_families[0].title} does not belong to a model of cspd_jax; '
                            'leave role and sampling out.')
    with progress(part.family) as report:
      return [(folder, convert.convert_file(
          part.family, hub.local(part.source), folder, dtype=part.dtype, progress=report, note=note,
          allow_nonfinite=allow_nonfinite, **part.arguments))]
  model = families.family.get(name)
  roles = [role_of(family, model, part.role) for family, part in zip(file_families, parts)]
  if len(set(roles)) < len(roles):
    raise ConversionError(f'parts have the roles {", ".join(roles)}; each must have its own.')
  others = _other_networks(folder, model.name, roles)
  families.check_place(folder, model.name, {role: role for role in roles}, resumes=True)
  opened = {role: convert.open_source(part.family, hub.local(part.source),
                                      allow_nonfinite=allow_nonfinite, **part.arguments)
            for role, part in zip(roles, parts)}
  is_same = _is_same_target(folder, opened)
  defaults: dict[str, Any] = {}
  for family, role, part in zip(file_families, roles, parts):
    if part.sampling is not None or not is_same:  # Else the user may have changed them.
      defaults |= defaults_of(family, opened[role].network.config, role, part.sampling)
      defaults |= opened[role].defaults
  networks = others | {role: source.network for role, source in opened.items()}
  if 'target' in networks:  # Raises an error for networks that do not belong together.
    # Tokenizer files of words are read, so that they are compared with the target.
    words = {role: source.network._replace(params=source.params())
             for role, source in opened.items() if source.network.kind == _WORDS}
    model.build(families.Parts(folder.name, networks | words, {}))
  has_words = any(network.kind == _WORDS for network in networks.values())
  for family, role in zip(file_families, roles):
    assumptions = list(opened[role].assumptions)
    if family.without_words and not has_words:
      assumptions.append(family.without_words(opened[role].network.config))
    for line in assumptions:
      note(f'{family.name}: {line}')
  new_target = is_same is False
  if new_target and (dropped := model_file.old_target_defaults(folder, defaults)):
    note('dropped defaults of the target that is replaced: ' + ', '.join(
        f'{name} {json.dumps(value)}' for name, value in dropped.items()))
  states = {role: opened[role].state_of(part.dtype) for role, part in zip(roles, parts)}
  with families.joining(folder, model.name, states, defaults, new_target=new_target) as new:
    for role, part in zip(roles, parts):
      source = opened.pop(role)
      if role in new:
        with progress(part.family) as report:
          source.write(new[role], dtype=part.dtype, progress=report,
                       allow_nonfinite=allow_nonfinite)
  return [(folder / role, networks[role].config) for role in roles]


def _is_same_target(folder: pathlib.Path, opened: Mapping[str, convert.Source]) -> bool | None:
  """Whether the target in a folder is the opened one; None unless there are both."""
  if 'target' not in opened or not (folder / model_file.FILE).exists():
    return None
  if (part := model_file.read(folder)['parts'].get('target')) is None:
    return None
  try:
    old = store.describe(folder / part)
  except store.CheckpointError:  # It was removed or is damaged.
    return False
  identity = lambda network: (network.config, *map(network.metadata.get, ('sha256', 'key')))
  return identity(old) == identity(opened['target'].network)


def find_model(family_name: str, source: str | os.PathLike, model: str | None = None,
               alone: bool = False, note: Callable[[str], None] = lambda line: None
               ) -> dict[str, pathlib.Path]:
  """Looks for the networks of a whole model, or for a tokenizer file of words in its folder.

  `source` is a published folder, or an id of the hub. With `alone`, only the network of the family
  is looked for. `note` is called before files are downloaded. Raises ValueError if the source does
  not exist, has no target or tokenizer file, or holds several models and `model` is None.

  Returns:
    Files or folders by file family, those that exist, the target last because it takes the longest.
    Empty if the source is not the folder of a whole model.
  """
  family = rules.get(family_name)
  layout = family.layout(model) or _text_layout(family)
  if alone:
    layout = {name: files for name, files in layout.items() if name == family_name}
  if not layout and model is None and hub.parse(source) is not None and any(
      family.layout(preset) for preset in family.presets):
    raise ValueError(f'model is None, and repositories of {family.name} hold several; give one of: '
                     f'{", ".join(family.presets)}.')
  path = hub.local(source, [name for names in layout.values() for name in names],
                   family.elsewhere, note)
  if not path.is_dir() or not layout:
    return {}
  existing = {name: [file for file in files if (path / file).exists()]
              for name, files in layout.items()}
  if not existing[family_name]:
    raise ValueError(f'source is {source}, a folder without {layout[family_name][0]}; specify '
                     'the file, or another model.')
  sources, target = {}, path / existing[family_name][0]
  for name, candidates in reversed(list(existing.items())):
    if candidates and candidates[0] != '.':
      sources[name] = path / candidates[0]
    elif candidates:  # In the files of the target, if they hold it.
      other = rules.get(name)
      if not other.inside or is_inside(other, read.read(
          target, prefer=family.prefer, shares=family.shares).tensors):
        sources[name] = target
  return sources


def _text_layout(family: FileFamily) -> dict[str, tuple[str, ...]]:
  """Returns where a published folder has a tokenizer file of words; empty for other families."""
  files = [file for other in rules.FAMILIES.values() for model in (None, *other.presets)
           for file in other.layout(model).get(family.name, ()) if family.kind == _WORDS]
  # The file may also be directly in the folder.
  names = [pathlib.PurePosixPath(file).name for file in files]
  return {family.name: tuple(dict.fromkeys(names + files))} if files else {}


def missing_parts(output: str | os.PathLike) -> list[tuple[list[str], str | None]]:
  """Lists the networks without which the model in a folder cannot turn prompts into images.

  Each with the file families that may hold it, and its published file, None without a fixed name.
  """
  folder = pathlib.Path(output).expanduser().absolute()
  description = model_file.read(folder)
  model, parts = families.family.get(description['family']), description['parts']
  if 'target' not in parts:
    return [([family.name for family in rules.FAMILIES.values()
              if family.model == model.name and family.kind in model.roles['target']], None)]
  target = store.describe(folder / parts['target'])
  target_family = rules.FAMILIES.get(target.metadata.get('family', ''))
  if target_family is None:  # Converted by an earlier version, or not converted.
    return []
  layout = target_family.layout(target.metadata.get('model'))
  names = dict.fromkeys([*layout, *target_family.others(target.config)])
  # A network in the same file as the target has no file of its own.
  file = lambda name: next((file for file in layout.get(name, ()) if file != '.'), None)
  return [([name], file(name)) for name in names
          if role_of(rules.get(name), model, None) not in parts]


def role_of(family: FileFamily, model: families.Family, role: str | None) -> str:
  """Returns the role of a network in its model family."""
  roles = [name for name, kinds in model.roles.items() if family.kind in kinds]
  if role is not None and role not in roles:
    raise ConversionError(f'role is {role!r}; {family.title} can be: {", ".join(roles)}.')
  return roles[0] if role is None else role


def defaults_of(family: FileFamily, config: Any, role: str, sampling: str | None,
              ) -> Mapping[str, Any]:
  """Returns the defaults that a network adds to its model."""
  presets = family.sampling(config) if role == 'target' else {}
  if sampling is None:
    return next(iter(presets.values()), {})
  if sampling not in presets:
    remedy = f'it can be: {", ".join(presets)}' if presets else 'leave it out'
    raise ConversionError(
        f'sampling is {sampling!r}, which this {family.name} file does not have; {remedy}.')
  return presets[sampling]


def _other_networks(folder: pathlib.Path, model: str, roles: Sequence[str]
                    ) -> dict[str, store.Loaded]:
  """Describes the networks of the model in a folder except those of some roles; loads its words."""
  store.recover(folder)
  if not (folder / model_file.FILE).exists():
    return {}
  description = None if model_file.is_network(folder) else model_file.read(folder)
  if description is None or description['family'] != model or (
      '.' in description['parts'].values()):
    raise ConversionError(f'output is {folder}, which holds a network of its own or a model of '
                          f'another family; choose another folder for a {model!r} model.')
  others = {name: store.describe(folder / part)
            for name, part in description['parts'].items() if name not in roles}
  return {name: store.load(folder / description['parts'][name]) if network.kind == _WORDS
          else network for name, network in others.items()}
