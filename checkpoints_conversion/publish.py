"""Model folders as published files, which official programs and transformers read.

All networks of a model are written into one folder. Before they are moved into place, every file is
read and converted again, and each parameter must be the stored one, bit for bit. What the files
cannot hold is refused, or named if the network can do without it.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from checkpoints_conversion import convert, folder as folder_of_models, pytorch, read, rules
from checkpoints_conversion.rules import base, family as family_lib
from checkpoints_conversion.rules.family import ConversionError, FileFamily
from cspd_jax import families
from cspd_jax.families import folder as folder_lib, model_file
from cspd_jax.files import atomic, output as output_lib, paths, store, weights
from cspd_jax.text import bpe
from cspd_jax.version import __version__

# Endings of files of PyTorch and of texts. Other paths are folders of safetensors files.
_TORCH, _WORDS = ('.pt', '.pth', '.ckpt'), ('.json', '.tiktoken')
# Transformers requires it in the header of safetensors files.
_METADATA = {'format': 'pt'}
# What a conversion stores with a network about the source, and what follows from its sizes.
_OF_CONVERSIONS = ('source', 'key', 'sha256', 'family', 'model', 'converter', 'image_size',
                   convert.LEFT_OUT)
# Options that say the grid of the images.
_OF_GRID = {'height', 'width', 'image_size', 'num_tokens'}
# Letters of a reason in a line.
_MOST = 300

Leaves = Mapping[str, weights.Leaf]


class _Stored(NamedTuple):
  """Published tensors that are computed from stored parameters: a rule, and parameters by path."""

  rule: base.Rule
  leaves: Leaves

  @property
  def nbytes(self) -> int:
    """Bytes of the parameters."""
    return sum(math.prod(self.leaves[path].shape) * np.dtype(self.leaves[path].dtype).itemsize
               for path in self.rule.destinations)

  def read(self) -> dict[str, np.ndarray]:
    """Returns the parameters by path."""
    return {path: self.leaves[path].read() for path in self.rule.destinations}


class _Piece(NamedTuple):
  """A network that is written.

  Attributes:
    role: its role in the model.
    family: the family of its files, in the format that is written.
    network: the network; its parameters are `weights.Leaf` by path.
    path: its file or folder, relative to the folder that is written.
    files: files next to the weights by name: JSON values, or bytes.
    tensors: the rules of its tensors.
  """

  role: str
  family: FileFamily
  network: store.Loaded
  path: pathlib.PurePosixPath
  files: Mapping[str, Any]
  tensors: Sequence[_Stored]

  @property
  def is_folder(self) -> bool:
    """Whether it becomes safetensors files in a folder."""
    return self.path.suffix not in (*_TORCH, *_WORDS)

  @property
  def folder(self) -> pathlib.PurePosixPath:
    """The folder of its files."""
    return self.path if self.is_folder else self.path.parent


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
  others: list[_Piece] = []
  if model is not None and family.kind in model.roles['target']:
    others = _others(family, network, parts, model, reasons)
  try:
    first = _piece(main, family, network, _path(family, family, network),
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
  taken = [name for piece in pieces for name in _names(piece, place)
           if os.path.lexists(place / name)]
  if not taken or not all(_is_there(piece, place, dtype) for piece in pieces):
    run = dict(
        version=__version__, to=to, main=main, role=role, allow_nonfinite=allow_nonfinite,
        dtype=None if dtype is None else str(np.dtype(dtype)),
        networks={name: weights.digests(path, [store.FILE])[store.FILE]
                  for name, path in parts.items()
                  if name in (main, 'target', *(piece.role for piece in others))})
    with output_lib.filling(place, run, names=taken) as new:
      for piece in pieces:
        with progress(piece.family.name) as report:
          _write(piece, new, dtype, allow_nonfinite, report or (lambda done, total: None))
      for piece in pieces:
        _compare(piece, new, dtype)
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
        _piece('target', other, network, _path(other, other, network),
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
            model: families.Family, reasons: dict[str, str]) -> list[_Piece]:
  """Returns the other networks of the files of a target; adds reasons for those left out, by role.
  """
  pieces: list[_Piece] = []
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
      pieces.append(_piece(role, other, network, path, {}))
    except ConversionError as error:
      reason = ' '.join(str(error).split())
      reasons[role] = f'{reason[:_MOST]}{"..." if len(reason) > _MOST else ""}'
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
  return path.name if path.suffix in (*_TORCH, *_WORDS) else None


def _piece(role: str, family: FileFamily, network: store.Loaded, path: pathlib.PurePosixPath,
           others: Mapping[str, store.Loaded]) -> _Piece:
  """Returns what is written for a network, in the first format of the family that can hold it.

  Raises ConversionError, with the reason of the last format, if there is none.
  """
  if network.kind != family.kind:
    raise ConversionError(f'{role} is a {network.kind!r} network; files of {family.name} hold a '
                          f'{family.kind!r} network.')
  last: ConversionError | None = None
  for form in family.written.forms:
    candidate = family._replace(**form)
    try:
      try:
        expanded, _ = convert.rules_of(candidate, network.config)
      except ValueError as error:
        raise ConversionError(f'{role} is not {family.title}: {str(error)[:_MOST]}') from error
      tensors = [_Stored(rule, network.params) for rule in expanded]
      files = candidate.written.files(network.config, others)
      _check_config(role, candidate, network.config, files)
      for tensor in tensors:
        if len(family.written.forms) > 1 or _excess(tensor):
          _check_exact(role, candidate, tensor)
      return _Piece(role, candidate, network, path, files, tensors)
    except ConversionError as error:
      last = error
  assert last is not None
  raise last


def _check_config(role: str, family: FileFamily, config: Any, files: Mapping[str, Any]) -> None:
  """Raises ConversionError unless files of the family mean a network with this config."""
  try:
    meant = _meant(family, config, files, _options(family, config))
  except ConversionError as error:
    raise ConversionError(f'{role} cannot be written as {family.title}: {error}') from error
  if wrong := [f'{field.name} is {getattr(config, field.name)!r}, where such files mean '
               f'{getattr(meant, field.name)!r}' for field in dataclasses.fields(config)
               if getattr(config, field.name) != getattr(meant, field.name)]:
    raise ConversionError(f'{role} cannot be written as {family.title}: {"; ".join(wrong)}.')


def _options(family: FileFamily, config: Any) -> dict[str, Any]:
  """Returns the options of `cspd-convert` that a network was or could be converted with."""
  options = {name: getattr(config, name) for name in family.options if hasattr(config, name)}
  if 'image_size' in family.options:
    options['image_size'] = 16 * math.isqrt(config.num_tokens)
  return options


def _meant(family: FileFamily, config: Any, files: Mapping[str, Any], options: Mapping[str, Any]
           ) -> Any:
  """Returns the config that the files of a network mean, if they are converted with options."""
  contents = json.loads(json.dumps(
      {name: content for name, content in files.items() if isinstance(content, dict)}))
  shapes = convert.published_shapes(family, config)
  if family.written.means is not None:
    return family.written.means(config, shapes, contents, dict(options))
  return family_lib.infer(family, shapes, options, family.settings(contents))


def _needed_options(piece: _Piece) -> Iterator[tuple[str, Any]]:
  """Yields options, with their values, without which the files mean another network, or none.

  Those of the grid of the images, of which there is a line of its own, are left out.
  """
  config = piece.network.config
  options = _options(piece.family, config)
  for name in options.keys() - _OF_GRID:
    others = {other: value for other, value in options.items() if other != name}
    try:
      meant = _meant(piece.family, config, piece.files, others)
    except ValueError:
      meant = None
    if meant != config:
      yield name, options[name]


def _excess(tensor: _Stored) -> int:
  """Returns how many numbers published tensors have more than the parameters."""
  shapes = {path: jax.ShapeDtypeStruct(tensor.leaves[path].shape, np.float32)
            for path in tensor.rule.destinations}
  published = jax.eval_shape(tensor.rule.publish, shapes)
  return (sum(math.prod(array.shape) for array in published.values())
          - sum(math.prod(leaf.shape) for leaf in shapes.values()))


def _check_exact(role: str, family: FileFamily, tensor: _Stored) -> None:
  """Raises ConversionError unless the published tensors give the parameters, bit for bit."""
  stored = tensor.read()
  back = tensor.rule.transform.forward(*_published(tensor, stored).values())
  for path, array in zip(tensor.rule.destinations, back, strict=True):
    if not _are_equal(array, stored[path]):
      _refuse_inexact(role, family, path, tensor.rule.sources)


def _refuse_inexact(role: str, family: FileFamily, path: str, sources: Iterable[str]) -> NoReturn:
  raise ConversionError(
      f'{role} has {path}, which {", ".join(sources)} of {family.title} cannot hold: converted '
      'back, it would be other numbers; use the files that it was converted from, or another --to.')


def _are_equal(first: np.ndarray, second: np.ndarray) -> bool:
  """Whether arrays have the same shape, dtype and bits."""
  bits = lambda array: np.ascontiguousarray(array).reshape(-1).view(np.uint8)
  return (first.shape == second.shape and first.dtype == second.dtype
          and np.array_equal(bits(first), bits(second)))


def _published(tensor: _Stored, stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  try:
    return tensor.rule.publish(stored)
  except ValueError as error:
    raise ConversionError(f'{", ".join(tensor.rule.sources)[:_MOST]}: {error}') from error


def _inside(family: FileFamily, piece: _Piece) -> list[_Stored]:
  """Returns the tensors of another network that are among those of the target."""
  prefix, kept = family.written.inside[piece.family.name]
  own = base.renamed([tensor.rule for tensor in piece.tensors], lambda name: prefix + name)
  return [_Stored(rule, piece.network.params) for rule in own
          if all(map(kept, (name.removeprefix(prefix) for name in rule.sources)))]


def _lost(pieces: Sequence[_Piece]) -> Iterator[str]:
  """Yields a line for everything that files do not say of the networks in them."""
  for piece in pieces:
    config, name = piece.network.config, piece.family.name
    if {'height', 'image_size'} & piece.family.options.keys() and hasattr(config, 'height'):
      yield (f'{name}: weights do not hold the grid of the images, {config.height}x{config.width} '
             'tokens; programs take it as an option')
    for option, value in sorted(_needed_options(piece)):
      yield (f'{name}: the files do not hold {option}, which is {value}; convert them back with '
             f'--{option}={int(value)}')
    if (absent := piece.network.metadata.get(convert.LEFT_OUT)) is not None:
      yield (f'{name}: the files that the model was converted from also had {absent}, which these '
             'do not have')
    for tensor in piece.tensors:
      if (excess := _excess(tensor)) > 0:
        yield (f'{name}: {", ".join(tensor.rule.sources)} has {excess} numbers that the model does '
               'not have; they are zeros')
    yield from (f'{name}: {line}' for line in piece.family.written.lines(config))


def _left_out(pieces: Sequence[_Piece], parts: Mapping[str, pathlib.Path],
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


def _tensors(tensors: Iterable[_Stored], dtype: Any, allow_nonfinite: bool
             ) -> Iterator[tuple[str, np.ndarray]]:
  """Yields published tensors by name, one rule after the other, in a dtype unless it is None."""
  for tensor in tensors:
    yield from weights.cast(_published(tensor, tensor.read()), dtype,
                            allow_nonfinite=allow_nonfinite).items()


def _write(piece: _Piece, new: pathlib.Path, dtype: Any, allow_nonfinite: bool,
           report: folder_of_models.Progress) -> None:
  """Writes the files of a network into a folder."""
  (new / piece.folder).mkdir(parents=True, exist_ok=True)
  if piece.is_folder:
    read_group = lambda group: dict(_tensors(group, None, allow_nonfinite=True))
    groups = [functools.partial(read_group, group) for group in weights.grouped(
        piece.tensors, lambda tensor: tensor.nbytes)]
    weights.write(new / piece.path, _expected(piece.tensors), groups, dtype=dtype,
                  allow_nonfinite=allow_nonfinite, progress=report, metadata=_METADATA)
  elif piece.path.suffix in _WORDS:
    atomic.write(new / piece.path, piece.network.params['file'].read().tobytes())
  elif not (new / piece.path).exists():  # Else a stopped process has written it.
    paths.check_space(new, sum(tensor.nbytes for tensor in piece.tensors))
    pytorch.save(new / piece.path, _with_constants(piece, dtype, allow_nonfinite, report),
                 piece.family.written.keys)
  for name, content in piece.files.items():
    atomic.write(new / piece.folder / name, _bytes(content))


def _expected(tensors: Iterable[_Stored]) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of published tensors by name."""
  shapes: dict[str, jax.ShapeDtypeStruct] = {}
  for tensor in tensors:
    shapes |= jax.eval_shape(tensor.rule.publish, {
        path: jax.ShapeDtypeStruct(tensor.leaves[path].shape, np.float32)
        for path in tensor.rule.destinations})
  return shapes


def _with_constants(piece: _Piece, dtype: Any, allow_nonfinite: bool,
                    report: folder_of_models.Progress) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the tensors of a PyTorch file, and reports how many rules are done."""
  for number, tensor in enumerate(piece.tensors, 1):
    yield from _tensors([tensor], dtype, allow_nonfinite)
    report(number, len(piece.tensors))
  for name, shape in piece.family.written.constants.items():
    yield name, np.zeros(shape, np.float32)


def _names(piece: _Piece, place: pathlib.Path) -> Iterator[str]:
  """Yields the files of a network, with those in a folder that have names of parameters."""
  yield from ((piece.folder / name).as_posix() for name in piece.files)
  if not piece.is_folder:
    yield piece.path.as_posix()
  elif (place / piece.path).is_dir():
    yield from ((piece.path / name).as_posix() for name in weights.file_sizes(place / piece.path))


def _is_there(piece: _Piece, place: pathlib.Path, dtype: Any) -> bool:
  """Whether a folder has the files of a network already, as `_write` writes them."""
  try:
    _compare(piece, place, dtype)
    return all((place / piece.folder / name).read_bytes() == _bytes(content)
               for name, content in piece.files.items())
  except (ValueError, OSError):
    return False


def _bytes(content: Any) -> bytes:
  """Returns a file next to the weights."""
  return content if isinstance(content, bytes) else atomic.encoded(content)


def _compare(piece: _Piece, new: pathlib.Path, dtype: Any) -> None:
  """Converts the files of a network, and raises ConversionError if a parameter is another one."""
  keys, leaves = piece.family.written.keys, piece.network.params
  content = read.read(new / piece.path, key=keys[0] if keys and not piece.is_folder else None)
  sources = {path: tensor.rule.sources for tensor in piece.tensors
             for path in tensor.rule.destinations}
  for group in convert.groups(piece.family, piece.network.config, content.tensors,
                              allow_nonfinite=True):
    for path, array in weights.named(group()).items():
      stored = weights.cast({path: leaves[path].read()}, dtype, allow_nonfinite=True)[path]
      if not _are_equal(array, stored):
        _refuse_inexact(piece.role, piece.family, path, sources[path])
