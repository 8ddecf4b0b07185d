"""One network as published files: whether they can hold it, written, and compared with it."""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from checkpoints_conversion import convert, folder, pytorch, read
from checkpoints_conversion.rules import base, family as family_lib
from checkpoints_conversion.rules.family import ConversionError, FileFamily
from cspd_jax.files import atomic, paths, store, weights

# Endings of files of PyTorch and of texts. Other paths are folders of safetensors files.
TORCH, WORDS = ('.pt', '.pth', '.ckpt'), ('.json', '.tiktoken')
# Transformers requires it in the header of safetensors files.
_METADATA = {'format': 'pt'}
# Options that say the grid of the images.
_OF_GRID = {'height', 'width', 'image_size', 'num_tokens'}
# Letters of a reason in a line.
MOST = 300

Leaves = Mapping[str, weights.Leaf]


class Stored(NamedTuple):
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


class Piece(NamedTuple):
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
  tensors: Sequence[Stored]

  @property
  def is_folder(self) -> bool:
    """Whether it becomes safetensors files in a folder."""
    return self.path.suffix not in (*TORCH, *WORDS)

  @property
  def folder(self) -> pathlib.PurePosixPath:
    """The folder of its files."""
    return self.path if self.is_folder else self.path.parent


def made(role: str, family: FileFamily, network: store.Loaded, path: pathlib.PurePosixPath,
           others: Mapping[str, store.Loaded]) -> Piece:
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
        raise ConversionError(f'{role} is not {family.title}: {str(error)[:MOST]}') from error
      tensors = [Stored(rule, network.params) for rule in expanded]
      files = candidate.written.files(network.config, others)
      _check_config(role, candidate, network.config, files)
      for tensor in tensors:
        if len(family.written.forms) > 1 or excess(tensor):
          _check_exact(role, candidate, tensor)
      return Piece(role, candidate, network, path, files, tensors)
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


def needed_options(piece: Piece) -> Iterator[tuple[str, Any]]:
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


def excess(tensor: Stored) -> int:
  """Returns how many numbers published tensors have more than the parameters."""
  shapes = {path: jax.ShapeDtypeStruct(tensor.leaves[path].shape, np.float32)
            for path in tensor.rule.destinations}
  published = jax.eval_shape(tensor.rule.publish, shapes)
  return (sum(math.prod(array.shape) for array in published.values())
          - sum(math.prod(leaf.shape) for leaf in shapes.values()))


def _check_exact(role: str, family: FileFamily, tensor: Stored) -> None:
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


def _published(tensor: Stored, stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  try:
    return tensor.rule.publish(stored)
  except ValueError as error:
    raise ConversionError(f'{", ".join(tensor.rule.sources)[:MOST]}: {error}') from error


def _tensors(tensors: Iterable[Stored], dtype: Any, allow_nonfinite: bool
             ) -> Iterator[tuple[str, np.ndarray]]:
  """Yields published tensors by name, one rule after the other, in a dtype unless it is None."""
  for tensor in tensors:
    yield from weights.cast(_published(tensor, tensor.read()), dtype,
                            allow_nonfinite=allow_nonfinite).items()


def write(piece: Piece, new: pathlib.Path, dtype: Any, allow_nonfinite: bool,
           report: folder.Progress) -> None:
  """Writes the files of a network into a folder."""
  (new / piece.folder).mkdir(parents=True, exist_ok=True)
  if piece.is_folder:
    read_group = lambda group: dict(_tensors(group, None, allow_nonfinite=True))
    groups = [functools.partial(read_group, group) for group in weights.grouped(
        piece.tensors, lambda tensor: tensor.nbytes)]
    weights.write(new / piece.path, _expected(piece.tensors), groups, dtype=dtype,
                  allow_nonfinite=allow_nonfinite, progress=report, metadata=_METADATA)
  elif piece.path.suffix in WORDS:
    atomic.write(new / piece.path, piece.network.params['file'].read().tobytes())
  elif not (new / piece.path).exists():  # Else a stopped process has written it.
    paths.check_space(new, sum(tensor.nbytes for tensor in piece.tensors))
    pytorch.save(new / piece.path, _with_constants(piece, dtype, allow_nonfinite, report),
                 piece.family.written.keys)
  for name, content in piece.files.items():
    atomic.write(new / piece.folder / name, _bytes(content))


def _expected(tensors: Iterable[Stored]) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of published tensors by name."""
  shapes: dict[str, jax.ShapeDtypeStruct] = {}
  for tensor in tensors:
    shapes |= jax.eval_shape(tensor.rule.publish, {
        path: jax.ShapeDtypeStruct(tensor.leaves[path].shape, np.float32)
        for path in tensor.rule.destinations})
  return shapes


def _with_constants(piece: Piece, dtype: Any, allow_nonfinite: bool,
                    report: folder.Progress) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the tensors of a PyTorch file, and reports how many rules are done."""
  for number, tensor in enumerate(piece.tensors, 1):
    yield from _tensors([tensor], dtype, allow_nonfinite)
    report(number, len(piece.tensors))
  for name, shape in piece.family.written.constants.items():
    yield name, np.zeros(shape, np.float32)


def names(piece: Piece, place: pathlib.Path) -> Iterator[str]:
  """Yields the files of a network, with those in a folder that have names of parameters."""
  yield from ((piece.folder / name).as_posix() for name in piece.files)
  if not piece.is_folder:
    yield piece.path.as_posix()
  elif (place / piece.path).is_dir():
    yield from ((piece.path / name).as_posix() for name in weights.file_sizes(place / piece.path))


def is_there(piece: Piece, place: pathlib.Path, dtype: Any) -> bool:
  """Whether a folder has the files of a network already, as `write` writes them."""
  try:
    compare(piece, place, dtype)
    return all((place / piece.folder / name).read_bytes() == _bytes(content)
               for name, content in piece.files.items())
  except (ValueError, OSError):
    return False


def _bytes(content: Any) -> bytes:
  """Returns a file next to the weights."""
  return content if isinstance(content, bytes) else atomic.encoded(content)


def compare(piece: Piece, new: pathlib.Path, dtype: Any) -> None:
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
