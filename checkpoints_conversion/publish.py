"""Model folders as published files, which official programs and transformers read.

All networks of a model are written into one folder. Before they are moved into place, every file is
read and converted again, and each parameter must be the stored one, bit for bit. What the files
cannot hold is refused, or named if the network can do without it.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from checkpoints_conversion import convert, folder as folder_of_models, pieces as pieces_lib, rules
from checkpoints_conversion.rules import base, family as family_lib
from checkpoints_conversion.rules.family import ConversionError, FileFamily
from cspd_jax import families
from cspd_jax.families import folder as folder_lib, model_file
from cspd_jax.files import output as output_lib, paths, store, weights
from cspd_jax.text import bpe
from cspd_jax.version import __version__

# What a conversion stores with a network about the source, and what follows from its sizes.
_OF_CONVERSIONS = ('source', 'key', 'sha256', 'family', 'model', 'converter', 'image_size',
                   convert.LEFT_OUT)


def publish_model(
    to: str, source: str | os.PathLike, output: str | os.PathLike, *, role: str | None = None,
    dtype: Any = None, allow_nonfinite: bool = False,
    note: Callable[[str], None] = lambda line: None,
    progress: Callable[
        [str], contextlib.AbstractContextManager[folder_of_models.Progress | None]] = (
            lambda name: contextlib.nullcontext())) -> list[tuple[pathlib.Path, str]]:
  """Writes the published files of a model; after a kill the same call continues.

  Args:
    to: a key of `rules.FAMILIES`. Files of a target are written with those of the model's other
      networks, any other network alone.
    source: a model folder, the folder of one network, or the name of a shipped model.
    output: a folder without files of the same names; other files in it stay.
    role: the role of the only network to write, such as 'draft'.
    dtype: the dtype of the files; None preserves the stored one.
    allow_nonfinite: whether weights may be NaN or infinite.
    note: called with a line for everything that the files cannot hold, before they are written.
    progress: returns, for a file family, a context with the function to call as it is written.

  Returns:
    The path of every network, and what it is.

  Raises:
    ValueError: if files of the family cannot hold the network, or for other wrong input, also a
      file in the way; `output` is as it was then.
  """
  family = rules.get(to, 'to')
  weights.checked_dtype(dtype)
  place = paths.folder('output', output).resolve()
  output_lib.finish(place)
  parts, description = _parts(family, source)
  model = None if family.model is None else families.family.get(family.model)
  if model is None and role is not None:
    raise ConversionError(f'role is {role!r}, and {family.title} does not belong to a model of '
                          'cspd_jax; leave it out.')
  main = to if model is None else folder_of_models.role_of(family, model, role)
  if main not in parts:
    raise ConversionError(f'source is {paths.shown(source)}, a model without a {main}, which files '
                          f'of {to} hold; it has: {", ".join(parts)}.')
  network = store.opened(parts[main])
  if family.written.complete is not None and 'target' in parts:
    network = family.written.complete(network, store.opened(parts['target']))
  reasons: dict[str, str] = {}
  others: list[pieces_lib.Piece] = []
  if model is not None and family.kind in model.roles['target']:
    others = _others(family, network, parts, model, reasons)
  try:
    first = pieces_lib.made(main, family, network, _path(family, family, network),
                   {piece.role: piece.network for piece in others})
  except ConversionError as error:
    first_reason = str(error)
    if isinstance(error, family_lib.MissingPart) and error.role in reasons:
      first_reason = reasons.pop(error.role) + _instead(family, network, parts, model)
    more = ''.join(f'\n  {name}: {reason}' for name, reason in reasons.items())
    raise ConversionError(f'{first_reason}{more}') from error
  for piece in others:
    if piece.family.name in family.written.inside:
      first = first._replace(tensors=[*first.tensors, *_inside(family, piece)])
  pieces = [first] if role is not None else [first, *others]
  for line in _lost(pieces):
    note(line)
  if role is None and main != 'target':
    for line in _not_in_place(family, network):
      note(line)
  if model is not None and role is None and main == 'target':
    for line in _left_out(pieces, parts, description['defaults'], model, reasons):
      note(line)
  taken = [name for piece in pieces for name in pieces_lib.names(piece, place)
           if os.path.lexists(place / name)]
  if not taken or not all(pieces_lib.is_there(piece, place, dtype) for piece in pieces):
    run = dict(
        version=__version__, to=to, main=main, role=role, allow_nonfinite=allow_nonfinite,
        dtype=None if dtype is None else str(np.dtype(dtype)),
        networks={name: weights.digests(path, [store.FILE])[store.FILE]
                  for name, path in parts.items()
                  if name in (main, 'target', *(piece.role for piece in others))})
    with output_lib.filling(place, run, names=taken) as new:
      for piece in pieces:
        with progress(piece.family.name) as report:
          pieces_lib.write(piece, new, dtype, allow_nonfinite, report or (lambda done, total: None))
      for piece in pieces:
        pieces_lib.compare(piece, new, dtype)
  return [(place / piece.path, piece.family.title) for piece in pieces]


def _instead(family: FileFamily, network: store.Loaded, parts: Mapping[str, pathlib.Path],
             model: families.Family | None) -> str:
  """Returns which other files can hold a target with its other networks, as the end of a message.
  """
  names = []
  for other in rules.FAMILIES.values():
    if model is not None and other.model == model.name and other.kind == family.kind:
      try:
        others = _others(other, network, parts, model, {})
        pieces_lib.made('target', other, network, _path(other, other, network),
               {piece.role: piece.network for piece in others})
        names.append(f'--to={other.name}')
      except ConversionError:
        continue
  return f' {" or ".join(names)} can hold this model.' if names else ''


def _not_in_place(family: FileFamily, network: store.Loaded) -> Iterator[str]:
  """Yields a line for each other network that published folders of a network have."""
  for name in family.layout(_preset(family, network)):
    if name != family.name:
      yield (f'left out {rules.get(name).title}, which published folders have, too: --to={name} '
             'writes it alone')


def _parts(family: FileFamily, source: str | os.PathLike
           ) -> tuple[dict[str, pathlib.Path], Mapping[str, Any]]:
  """Returns the folders of networks by role and the content of model.json; ConversionError if the
  source is no model that files of the family can hold a network of."""
  if str(source) not in folder_lib.shipped():
    path = paths.find('source', source)
    if not (path / model_file.FILE).is_file():
      raise ConversionError(
          f'source is {paths.shown(source)}, which has no {model_file.FILE}; with --to it must be '
          f'a model folder or one of the shipped models: {", ".join(folder_lib.shipped())}.')
  path = folder_lib.find(source)
  if model_file.is_network(path):
    kind = store.describe(path).kind
    if kind != family.kind:
      raise ConversionError(
          f'source is {paths.shown(source)}, the folder of one {kind!r} network; files of '
          f'{family.name} hold a {family.kind!r} network, so specify the folder of the whole '
          'model, or another --to.')
    roles = {} if family.model is None else families.family.get(family.model).roles
    # Under every role that it can have.
    names = [role for role, kinds in roles.items() if kind in kinds] or [family.name]
    return dict.fromkeys(names, path), {'defaults': {}}
  description = model_file.read(path)
  if description['family'] != family.model:
    names = [other.name for other in rules.FAMILIES.values()
             if other.model == description['family']]
    raise ConversionError(
        f'to is {family.name!r}, and source is {paths.shown(source)}, a {description["family"]!r} '
        f'model, which has no files of this family; choose one of: {", ".join(names)}.')
  return {role: path / part for role, part in description['parts'].items()}, description


def _others(family: FileFamily, target: store.Loaded, parts: Mapping[str, pathlib.Path],
            model: families.Family, reasons: dict[str, str]) -> list[pieces_lib.Piece]:
  """Returns the other networks of the files of a target; adds reasons for those left out, by role.
  """
  pieces: list[pieces_lib.Piece] = []
  for name in dict.fromkeys([*family.layout(_preset(family, target)),
                             *family.others(target.config)]):
    other = rules.get(name)
    role = folder_of_models.role_of(other, model, None)
    if name == family.name or role not in parts or parts[role] == parts.get('target'):
      continue
    network = store.opened(parts[role])
    path = _path(other, family, target)
    if path in {_path(family, family, target), *(piece.path for piece in pieces)}:
      path = pathlib.PurePosixPath(name)  # A folder holds the weights of one network.
    try:
      pieces.append(pieces_lib.made(role, other, network, path, {}))
    except ConversionError as error:
      reason = ' '.join(str(error).split())
      reasons[role] = f'{reason[:pieces_lib.MOST]}{"..." if len(reason) > pieces_lib.MOST else ""}'
  return pieces


def _preset(family: FileFamily, network: store.Loaded) -> str | None:
  """Returns the name of a published model with the sizes of a network, or None."""
  names = [name for name, config in family.presets.items() if config == network.config]
  named = network.metadata.get('model')
  return named if named in names else next(iter(names), None)


def _path(family: FileFamily, owner: FileFamily, target: store.Loaded) -> pathlib.PurePosixPath:
  """Returns where published folders of a target have a network."""
  candidates = [place for place in owner.layout(_preset(owner, target)).get(family.name, ())
                if '..' not in pathlib.PurePosixPath(place).parts and '*' not in place]
  # Alone, a file has the name that it has in published folders.
  names = [name for other in rules.FAMILIES.values()
           for name in map(_name, other.layout(None).get(family.name, ())) if name]
  if family is owner and '.' in candidates:
    place = '.'
  elif candidates:
    place = candidates[0]
  elif family is owner and names:
    place = names[0]
  elif family.kind == 'text':
    place = bpe.file_name(family.name.removesuffix('_text')).split()[-1]
  else:
    suffix = family.written.suffix
    place = f'{family.name}{suffix}' if suffix or family is not owner else '.'
  path = pathlib.PurePosixPath(place)
  # The name of a safetensors file follows from its size.
  return path.parent if path.suffix == '.safetensors' else path


def _name(place: str) -> str | None:
  """Returns the name of a file of PyTorch or of a text in a folder; None for other paths."""
  path = pathlib.PurePosixPath(place)
  return path.name if path.suffix in (*pieces_lib.TORCH, *pieces_lib.WORDS) else None


def _inside(family: FileFamily, piece: pieces_lib.Piece) -> list[pieces_lib.Stored]:
  """Returns the tensors of another network that are among those of the target."""
  prefix, kept = family.written.inside[piece.family.name]
  own = base.renamed([tensor.rule for tensor in piece.tensors], lambda name: prefix + name)
  return [pieces_lib.Stored(rule, piece.network.params) for rule in own
          if all(map(kept, (name.removeprefix(prefix) for name in rule.sources)))]


def _lost(pieces: Sequence[pieces_lib.Piece]) -> Iterator[str]:
  """Yields a line for everything that files do not say of the networks in them."""
  for piece in pieces:
    config, name = piece.network.config, piece.family.name
    if {'height', 'image_size'} & piece.family.options.keys() and hasattr(config, 'height'):
      yield (f'{name}: weights do not hold the grid of the images, {config.height}x{config.width} '
             'tokens; programs take it as an option')
    for option, value in sorted(pieces_lib.needed_options(piece)):
      yield (f'{name}: the files do not hold {option}, which is {value}; convert them back with '
             f'--{option}={int(value)}')
    if (absent := piece.network.metadata.get(convert.LEFT_OUT)) is not None:
      yield (f'{name}: the files that the model was converted from also had {absent}, which these '
             'do not have')
    for tensor in piece.tensors:
      if (excess := pieces_lib.excess(tensor)) > 0:
        yield (f'{name}: {", ".join(tensor.rule.sources)} has {excess} numbers that the model does '
               'not have; they are zeros')
    yield from (f'{name}: {line}' for line in piece.family.written.lines(config))


def _left_out(pieces: Sequence[pieces_lib.Piece], parts: Mapping[str, pathlib.Path],
              defaults: Mapping[str, Any], model: families.Family, reasons: Mapping[str, str]
              ) -> Iterator[str]:
  """Yields a line for each network, default and text of a model that no file has."""
  first, written = pieces[0], {parts[piece.role] for piece in pieces}
  for role, path in parts.items():
    if path in written:
      continue
    kind = store.describe(path).kind
    names = [family.name for family in rules.FAMILIES.values()
             if family.model == model.name and family.kind == kind
             and folder_of_models.role_of(family, model, None) == role]
    if role in reasons:
      yield f'left out {role}: {reasons[role]}'
    elif kind == first.family.kind:
      yield f'left out {role}: --role={role} writes it into a folder of its own'
    elif names:
      yield f'left out {role}: --to={" or --to=".join(names)} writes it alone'
    else:
      yield f'left out {role}: published files hold no such network'
  if defaults:
    yield f'left out the defaults of the model: {", ".join(defaults)}'
  if texts := [name for name in first.network.metadata if name not in _OF_CONVERSIONS]:
    yield f'left out what the model knows of the {first.role}: {", ".join(texts)}'


