"""Saving and loading networks: one folder per network.

A folder holds `model.json` (the kind of network, the sizes in its config, the
format version, free metadata and a list of the other files with their digests)
and `arrays/` (the parameters, written by Orbax). Parameters are saved as host
arrays, so that a checkpoint does not remember the devices it was made on.
`families.folder` joins networks into a model.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from cspd_jax import sharding as sharding_lib
from cspd_jax.checkpoints import files, folders, int8, kinds, layouts, places, reading, weights
from cspd_jax.checkpoints.kinds import KINDS, Kind

Params = Any

_FORMAT = 1
_REMEDY = 'copy or convert the model again'
ASSETS = pathlib.Path(__file__).parents[1] / 'assets'


class CheckpointError(ValueError):
  """A checkpoint that cannot be saved or loaded; the message lists all that is wrong."""


class Loaded(NamedTuple):
  """A loaded model.

  Attributes:
    kind: a key of `kinds.KINDS`.
    config: an instance of the kind's config.
    params: the parameters.
    metadata: what was given to `save` as `extra`.
  """

  kind: str
  config: Any
  params: Params
  metadata: dict[str, Any]


def shipped() -> list[str]:
  """Names of the networks that come with the package, such as 'demo/target'."""
  return sorted(found.parent.relative_to(ASSETS).as_posix()
                for found in ASSETS.glob('*/*/model.json'))


def save(
    path: str | os.PathLike,
    kind: str,
    config: Any,
    params: Params,
    *,
    dtype: Any = None,
    extra: Mapping[str, Any] | None = None,
    allow_nonfinite: bool = False,
) -> None:
  """Saves a model; an older checkpoint at the same place is replaced.

  The folder appears complete or not at all: it is written beside its place, and
  what a process leaves that is killed is removed by the next save.

  Args:
    path: the folder to write.
    kind: a key of `kinds.KINDS`.
    config: the model's sizes.
    params: its parameters.
    dtype: the dtype to store floating-point parameters in; None keeps theirs.
    extra: anything that JSON can hold, returned by `load` as metadata.
    allow_nonfinite: whether parameters may be NaN or infinite.

  Raises:
    CheckpointError: if the parameters do not belong to the config, they are not
      finite, `path` is something else than an older checkpoint or an empty
      folder, it holds files that `save` did not write, or another process is
      writing it.
  """
  kind = kinds.current(kind)
  _check_config(kind, config)
  _check_shapes(f'params for a {kind!r} model', kinds.expected(KINDS[kind], config), params)
  save_groups(path, kind, config, weights.divided(params), dtype=dtype, extra=extra,
              allow_nonfinite=allow_nonfinite)


def save_groups(
    path: str | os.PathLike,
    kind: str,
    config: Any,
    groups: Sequence[weights.Group],
    *,
    state: Any = None,
    dtype: Any = None,
    extra: Mapping[str, Any] | None = None,
    allow_nonfinite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
  """As `save`, for parameters that are made one group after the other.

  Args:
    path: see `save`.
    kind: see `save`.
    config: see `save`.
    groups: each returns a part of the parameters' tree; together they must be all.
    state: what the parameters depend on, as JSON can hold it: groups that a process wrote before
      it was killed are kept by the next one with the same state. None begins anew.
    dtype: see `save`.
    extra: see `save`.
    allow_nonfinite: see `save`.
    progress: called as `progress(done, total)` with numbers of groups.

  Raises:
    CheckpointError: see `save`.
  """
  kind = kinds.current(kind)
  _check_config(kind, config)
  try:
    json.dumps(extra)
  except TypeError as error:
    raise CheckpointError(f'extra must hold only what JSON can: {error}.') from error
  with _refused(), folders.replacing(
      places.folder('path', path).resolve(), _listed, state) as new:
    names = weights.write(new, groups, dtype=dtype, allow_nonfinite=allow_nonfinite,
                          progress=progress)
    sizes = weights.file_sizes(new)
    files.write_json(new / 'model.json', {
        'format': _FORMAT, 'kind': kind, 'config': dataclasses.asdict(config),
        'metadata': dict(extra or {}), 'groups': names, 'files': sizes,
        'blake2b': weights.digests(new, sizes)})


def check_place(path: str | os.PathLike) -> None:
  """Raises CheckpointError if `save` would not write a network there, before there is one."""
  with _refused():
    folders.check(places.folder('path', path).resolve(), _listed)


def annotate(path_or_name: str | os.PathLike, extra: Mapping[str, Any]) -> None:
  """Adds to the metadata of a checkpoint; the parameters stay as they are.

  Args:
    path_or_name: a folder written by `save`, or the name of a shipped model.
    extra: entries that JSON can hold; they replace entries of the same name.

  Raises:
    CheckpointError: if there is no such checkpoint, or it is damaged.
  """
  folder = _find(path_or_name)
  _read_description(folder)
  description = reading.json(folder / 'model.json', _REMEDY)
  description['metadata'] |= extra
  files.write_json(folder / 'model.json', description)


def load(path_or_name: str | os.PathLike, *, dtype: Any = None, quantize: str | None = None,
         sharding: Any = None, verify: bool = True, allow_nonfinite: bool = False) -> Loaded:
  """Loads a model.

  Args:
    path_or_name: a folder written by `save`, or the name of a shipped model.
    dtype: the dtype of the floating-point parameters; None keeps the stored one.
    quantize: 'int8' turns the matrices of the layers into `int8.Int8`; None leaves them.
    sharding: where the parameters go: a device, a `jax.sharding.Sharding`, a tree of those like
      the parameters, or a mesh of `sharding.make_mesh`, over which they are divided as their kind
      says. None means the default device.
    verify: whether to read every file twice and compare its digest with the one
      that `save` stored.
    allow_nonfinite: whether parameters may be NaN or infinite.

  Returns:
    The model.

  Raises:
    CheckpointError: if there is no such checkpoint, or it is damaged, its
      parameters do not belong to its config, or they are not finite.
    ValueError: if they cannot be divided over the mesh, or have no matrices of 8 bits.
  """
  folder = _find(path_or_name)
  kind, config, metadata, groups, digests = _read_description(folder)
  expected = kinds.expected(KINDS[kind], config)
  inputs = int8.check(quantize, kind, KINDS[kind].matrices)
  if isinstance(sharding, jax.sharding.Mesh):
    sharding = sharding_lib.split(expected, KINDS[kind].split, sharding)
  if verify:
    _verify(folder, digests)
  with _readable(folder):
    described = weights.stored(folder, groups)
    _check_shapes(f'{folder}, a {kind!r} model', expected, weights.joined(described.values()))
  devices = {} if sharding is None else weights.named(jax.tree.broadcast(sharding, expected))

  def finish(name, leaf):
    count, place = inputs(name), devices.get(name)
    leaf = leaf if count else weights.cast(leaf, dtype)
    if not allow_nonfinite:
      with _refused(f'{folder}: '):
        weights.check_finite({name: leaf})
    if count:
      return int8.put(int8.quantized(leaf, count), count, place)
    return jax.device_put(leaf, layouts.place(name, leaf, place, KINDS[kind].orders))

  return Loaded(kind, config, _finished(folder, described, finish), metadata)


def _finished(folder: pathlib.Path, described: Mapping[str, Params],
              finish: Callable[[str, Any], jax.Array]) -> Params:
  """`finish(name, host array)` of all parameters; the host has those of one group at a time."""
  parts = []
  for group, shapes in described.items():
    with _readable(folder):
      leaves: dict[str, Any] = weights.read(folder, group, shapes)
    for name in leaves:
      leaves[name] = finish(name, leaves[name])
    parts.append(jax.tree.unflatten(jax.tree.structure(shapes), leaves.values()))
  return weights.joined(parts)


def describe(path_or_name: str | os.PathLike) -> Loaded:
  """Describes a network without reading its parameters.

  Args:
    path_or_name: a folder written by `save`, or the name of a shipped network.

  Returns:
    As `load`, with the shapes and dtypes that the config asks for as parameters.

  Raises:
    CheckpointError: if there is no such checkpoint, or its description is damaged.
  """
  found = _read_description(_find(path_or_name))
  return Loaded(found.kind, found.config, kinds.expected(KINDS[found.kind], found.config),
                found.metadata)


def sketch(kind: str, config: Any) -> Loaded:
  """Describes a network of given sizes, as `describe` does.

  Raises:
    CheckpointError: if there is no such kind.
  """
  kind = kinds.current(kind)
  return Loaded(kind, config, kinds.expected(_kind(kind), config), {})


def _kind(kind: str, where: str = '') -> Kind:
  if kind not in KINDS:
    raise CheckpointError(
        f'{where}kind is {kind!r}; it must be one of: {", ".join(sorted(KINDS))}.')
  return KINDS[kind]


@contextlib.contextmanager
def _refused(where: str = '') -> Iterator[None]:
  """Turns the ValueErrors of `folders` and `weights` into CheckpointErrors."""
  try:
    yield
  except CheckpointError:
    raise
  except ValueError as error:
    raise CheckpointError(f'{where}{error}') from error


def _listed(folder: pathlib.Path) -> list[str]:
  """Files that `save` and `annotate` wrote into a folder; raises CheckpointError if none did."""
  try:
    description = reading.json(folder / 'model.json', 'it is none that save wrote')
    if not isinstance(description['kind'], str):
      raise ValueError('it names no kind')
    names = [name for name in description['files']
             if (parts := pathlib.PurePosixPath(name).parts)[0] == 'arrays' and '..' not in parts]
  except (ValueError, KeyError, IndexError, TypeError) as error:
    raise CheckpointError(
        f'path is {folder}, which exists and is not a checkpoint; give another folder or remove it '
        f'({type(error).__name__}: {error}).') from error
  left = [path.name for path in files.leftovers(folder / 'model.json')]
  return [*names, *left, 'model.json']


def _find(path_or_name: str | os.PathLike) -> pathlib.Path:
  """The folder of a checkpoint; a shipped name wins over a folder of that name."""
  names = ', '.join(shipped()) or 'none'
  if str(path_or_name) in shipped():
    return ASSETS / str(path_or_name)
  with _refused():
    folder = places.find('path_or_name', path_or_name)
    folders.recover(folder)
  if not folder.exists():
    raise CheckpointError(
        f'path_or_name is {str(path_or_name)!r}: there is no such folder, and no model of that '
        f'name comes with the package (shipped: {names}).')
  if not (folder / 'model.json').is_file():
    raise CheckpointError(
        f'path_or_name is {str(path_or_name)!r}, which is not a checkpoint folder: it has no '
        'model.json. Published .pt and .safetensors files are converted with '
        f'`cspd-convert`; shipped models: {names}.')
  return folder


def _check_config(kind: str, config: Any) -> None:
  known = _kind(kind)
  if not isinstance(config, known.config):
    raise CheckpointError(
        f'config is a {type(config).__name__}; a {kind!r} model takes a {known.config.__name__}.')


class _Description(NamedTuple):
  """Attributes: as `Loaded` has them; where groups of parameters are; digests of files, if any."""

  kind: str
  config: Any
  metadata: dict[str, Any]
  groups: list[str]
  digests: dict[str, str]


def _verify(folder: pathlib.Path, known: Mapping[str, str]) -> None:
  """Compares the files with their digests."""
  found = weights.digests(folder, known)
  if wrong := [name for name in known if found[name] != known[name]]:
    raise _damaged(folder, f'{", ".join(wrong)}: other bytes than were saved')


def _read_description(folder: pathlib.Path) -> _Description:
  """Reads `model.json`, and compares the sizes of the files with it."""
  with _refused():
    description = reading.json(folder / 'model.json', _REMEDY)
  try:
    version, kind = description['format'], kinds.current(str(description['kind']))
    fields, metadata = dict(description['config']), dict(description['metadata'])
    groups = list(description.get('groups', ['arrays']))
    sizes_on_file = {name: int(size) for name, size in description['files'].items()}
    digests = dict(description.get('blake2b', {}))
    if unlisted := sorted(digests.keys() - sizes_on_file.keys()):
      raise ValueError(f'{unlisted[0]!r} is not among its files')
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise _damaged(folder / 'model.json', f'{type(error).__name__}: {error}') from error
  if version != _FORMAT:
    raise CheckpointError(
        f'{folder} has format {version!r}; this version of cspd_jax reads format {_FORMAT}.')
  sizes = weights.file_sizes(folder)
  if wrong := [f'{name} has {sizes[name]} bytes instead of {size}' if name in sizes
               else f'{name} is missing' for name, size in sizes_on_file.items()
               if sizes.get(name) != size]:
    raise _damaged(folder, '; '.join(wrong))
  config_class = _kind(kind, f'{folder}: ').config
  known = {field.name for field in dataclasses.fields(config_class)}
  if unknown := sorted(set(fields) - known):
    raise CheckpointError(
        f'{folder}: its config has fields that {config_class.__name__} does not: '
        f'{", ".join(unknown)} (known: {", ".join(sorted(known))}).')
  try:
    return _Description(kind, config_class(**fields), metadata, groups, digests)
  except (TypeError, ValueError) as error:
    raise CheckpointError(f'{folder}: its config is not valid: {error}') from error


@contextlib.contextmanager
def _readable(folder: pathlib.Path) -> Iterator[None]:
  """Turns the many errors that Orbax raises for files that it cannot read into CheckpointErrors."""
  try:
    yield
  except CheckpointError:
    raise
  except Exception as error:
    raise _damaged(folder, str(error) or type(error).__name__) from error


def _damaged(path: pathlib.Path, reason: str) -> CheckpointError:
  return CheckpointError(
      f'{path} is damaged or incomplete ({reason[:1000]}); {_REMEDY}.')


def _check_shapes(what: str, expected: Params, found: Params) -> None:
  """Raises one CheckpointError with every difference between the shapes of two trees."""
  if problems := weights.differences(expected, found):
    raise CheckpointError(f'{what}: parameters do not belong to the config:\n  ' +
                          '\n  '.join(problems))
