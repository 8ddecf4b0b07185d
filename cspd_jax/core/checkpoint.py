"""Saving and loading networks: one folder per network.

A folder holds `model.json` (the kind of network, the sizes in its config, the
format version, free metadata and a list of the other files) and `arrays/` (the
parameters, written by Orbax). Parameters are saved as host arrays, so that a
checkpoint does not remember the devices it was made on. `families.folder` joins
networks into a model.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from cspd_jax import sharding as sharding_lib
from cspd_jax.core import files, folders

Params = Any

_FORMAT = 1
ASSETS = pathlib.Path(__file__).parents[1] / 'assets'


class CheckpointError(ValueError):
  """A checkpoint that cannot be saved or loaded; the message lists all that is wrong."""


class Kind(NamedTuple):
  """A kind of network.

  Attributes:
    config: the dataclass with its sizes.
    init: `(config, key) -> params`, from which the expected shapes are taken.
    split: what of the parameters can be divided over devices; see `sharding.split`.
  """

  config: type[Any]
  init: Callable[[Any, jax.Array], Params]
  split: Mapping[str, int] = MappingProxyType({})


# What `kind` may be; families add theirs with `register`.
KINDS: dict[str, Kind] = {}


def register(name: str, kind: Kind) -> None:
  """Makes a kind of network known.

  Raises:
    ValueError: if another kind has this name.
  """
  if KINDS.setdefault(name, kind) != kind:
    raise ValueError(f'kind is {name!r}, which is registered with {KINDS[name].config.__name__}; '
                     'choose another name.')


class Loaded(NamedTuple):
  """A loaded model.

  Attributes:
    kind: a key of `KINDS`.
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
) -> None:
  """Saves a model; an older checkpoint at the same place is replaced.

  The folder appears complete or not at all: it is written beside its place, and
  what a process leaves that is killed is removed by the next save.

  Args:
    path: the folder to write.
    kind: a key of `KINDS`.
    config: the model's sizes.
    params: its parameters.
    dtype: the dtype to store floating-point parameters in; None keeps theirs.
    extra: anything that JSON can hold, returned by `load` as metadata.

  Raises:
    CheckpointError: if the parameters do not belong to the config, `path` is
      something else than an older checkpoint or an empty folder, it holds files
      that `save` did not write, or another process is writing it.
  """
  path = pathlib.Path(path).expanduser().resolve()
  known = _kind(kind)
  if not isinstance(config, known.config):
    raise CheckpointError(
        f'config is a {type(config).__name__}; a {kind!r} model takes a {known.config.__name__}.')
  _check_shapes(f'params for a {kind!r} model', _expected(known, config), _shapes(params))
  try:
    json.dumps(extra)
  except TypeError as error:
    raise CheckpointError(f'extra must hold only what JSON can: {error}.') from error

  with _refused(), folders.replacing(path, _listed) as new:
    ocp.save_checkpointables(new / 'arrays', {'params': _cast(jax.device_get(params), dtype)})
    # Only object stores need this marker, and it names a folder of the machine that saved.
    (new / 'arrays' / 'commit_success.txt').unlink(missing_ok=True)
    description = {
        'format': _FORMAT, 'kind': kind, 'config': dataclasses.asdict(config),
        'metadata': dict(extra or {}), 'files': _file_sizes(new)}
    files.write_json(new / 'model.json', description)


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
  description = json.loads((folder / 'model.json').read_text())
  description['metadata'] |= extra
  files.write_json(folder / 'model.json', description)


def load(path_or_name: str | os.PathLike, *, dtype: Any = None, sharding: Any = None) -> Loaded:
  """Loads a model.

  Args:
    path_or_name: a folder written by `save`, or the name of a shipped model.
    dtype: the dtype of the floating-point parameters; None keeps the stored one.
    sharding: where the parameters go: a device, a `jax.sharding.Sharding`, a tree of those like
      the parameters, or a mesh of `sharding.make_mesh`, over which they are divided as their kind
      says. None means the default device.

  Returns:
    The model.

  Raises:
    CheckpointError: if there is no such checkpoint, or it is damaged, or its
      parameters do not belong to its config.
    ValueError: if they cannot be divided over the mesh.
  """
  folder = _find(path_or_name)
  kind, config, metadata = _read_description(folder)
  expected = _expected(KINDS[kind], config)
  if isinstance(sharding, jax.sharding.Mesh):
    sharding = sharding_lib.split(expected, KINDS[kind].split, sharding)
  try:
    stored = ocp.checkpointables_metadata(folder / 'arrays').metadata['params']
    if stored is None:
      raise ValueError('no parameters can be read')
    _check_shapes(f'{folder}, a {kind!r} model', expected, _shapes(stored))
    # Asking for host arrays makes Orbax ignore the devices of the machine that saved. These
    # only carry shape and dtype: they are views of one number.
    host = jax.tree.map(
        lambda leaf, found: np.broadcast_to(np.zeros((), found.dtype), leaf.shape),
        expected, stored)
    params = ocp.load_checkpointables(folder / 'arrays', {'params': host})['params']
  except CheckpointError:
    raise
  except Exception as error:  # Orbax raises many types for files that it cannot read.
    raise _damaged(folder, str(error) or type(error).__name__) from error
  return Loaded(kind, config, jax.device_put(_cast(params, dtype), sharding), metadata)


def describe(path_or_name: str | os.PathLike) -> Loaded:
  """Describes a network without reading its parameters.

  Args:
    path_or_name: a folder written by `save`, or the name of a shipped network.

  Returns:
    As `load`, with the shapes and dtypes that the config asks for as parameters.

  Raises:
    CheckpointError: if there is no such checkpoint, or its description is damaged.
  """
  kind, config, metadata = _read_description(_find(path_or_name))
  return Loaded(kind, config, _expected(KINDS[kind], config), metadata)


def _kind(kind: str) -> Kind:
  if kind not in KINDS:
    raise CheckpointError(f'kind is {kind!r}; it must be one of: {", ".join(sorted(KINDS))}.')
  return KINDS[kind]


@contextlib.contextmanager
def _refused() -> Iterator[None]:
  """Turns the ValueErrors of `folders` into CheckpointErrors."""
  try:
    yield
  except CheckpointError:
    raise
  except ValueError as error:
    raise CheckpointError(str(error)) from error


def _listed(folder: pathlib.Path) -> list[str]:
  """Files that `save` and `annotate` wrote into a folder; raises CheckpointError if none did."""
  try:
    description = json.loads((folder / 'model.json').read_text())
    if not isinstance(description['kind'], str):
      raise ValueError('it names no kind')
    names = [name for name in description['files']
             if (parts := pathlib.PurePosixPath(name).parts)[0] == 'arrays' and '..' not in parts]
  except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
    raise CheckpointError(
        f'path is {folder}, which exists and is not a checkpoint; give another folder or remove it '
        f'(model.json: {type(error).__name__}: {error}).') from error
  left = [path.name for path in files.leftovers(folder / 'model.json')]
  return [*names, *left, 'model.json']


def _find(path_or_name: str | os.PathLike) -> pathlib.Path:
  """The folder of a checkpoint; a shipped name wins over a folder of that name."""
  names = ', '.join(shipped()) or 'none'
  if str(path_or_name) in shipped():
    return ASSETS / str(path_or_name)
  folder = pathlib.Path(path_or_name).expanduser().absolute()
  with _refused():
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


def _read_description(folder: pathlib.Path) -> tuple[str, Any, dict[str, Any]]:
  """Kind, config and metadata from `model.json`."""
  try:
    description = json.loads((folder / 'model.json').read_text())
    version, kind = description['format'], description['kind']
    fields, metadata = dict(description['config']), dict(description['metadata'])
    sizes_on_file = dict(description['files'])
  except (ValueError, KeyError, TypeError) as error:
    raise _damaged(folder / 'model.json', f'{type(error).__name__}: {error}') from error
  if version != _FORMAT:
    raise CheckpointError(
        f'{folder} has format {version!r}; this version of cspd_jax reads format {_FORMAT}.')
  sizes = _file_sizes(folder)
  if wrong := [f'{name} has {sizes[name]} bytes instead of {size}' if name in sizes
               else f'{name} is missing' for name, size in sizes_on_file.items()
               if sizes.get(name) != size]:
    raise _damaged(folder, '; '.join(wrong))
  config_class = _kind(kind).config
  known = {field.name for field in dataclasses.fields(config_class)}
  if unknown := sorted(set(fields) - known):
    raise CheckpointError(
        f'{folder}: its config has fields that {config_class.__name__} does not: '
        f'{", ".join(unknown)} (known: {", ".join(sorted(known))}).')
  try:
    return kind, config_class(**fields), metadata
  except (TypeError, ValueError) as error:
    raise CheckpointError(f'{folder}: its config is not valid: {error}') from error


def _file_sizes(folder: pathlib.Path) -> dict[str, int]:
  """Bytes of every file of the arrays, by its path in the folder."""
  return {file.relative_to(folder).as_posix(): file.stat().st_size
          for file in sorted((folder / 'arrays').rglob('*')) if file.is_file()}


def _damaged(path: pathlib.Path, reason: str) -> CheckpointError:
  return CheckpointError(
      f'{path} is damaged or incomplete ({reason[:1000]}); copy or convert the model again.')


def _expected(kind: Kind, config: Any) -> Params:
  return jax.eval_shape(lambda: kind.init(config, jax.random.key(0)))


def _shapes(params: Params) -> dict[str, tuple[int, ...]]:
  flat, _ = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda x: hasattr(x, 'shape'))
  return {'/'.join(str(getattr(key, 'key', key)) for key in path): tuple(leaf.shape)
          for path, leaf in flat}


def _check_shapes(what: str, expected: Params, found: dict[str, tuple[int, ...]]) -> None:
  """Raises one CheckpointError with every difference between two sets of shapes."""
  wanted = _shapes(expected)
  problems = [f'missing: {name} {wanted[name]}' for name in sorted(wanted.keys() - found.keys())]
  problems += [
      f'unexpected: {name} {found[name]}' for name in sorted(found.keys() - wanted.keys())]
  problems += [
      f'mis-shaped: {name} is {found[name]}, the config asks for {wanted[name]}'
      for name in sorted(wanted.keys() & found.keys()) if wanted[name] != found[name]]
  if problems:
    raise CheckpointError(f'{what}: parameters do not belong to the config:\n  ' +
                          '\n  '.join(problems))


def _cast(params: Params, dtype: Any) -> Params:
  """Host arrays, the floating-point ones in `dtype` unless it is None."""
  def cast(leaf):
    leaf = np.asarray(leaf)
    if dtype is None or not jnp.issubdtype(leaf.dtype, jnp.floating):
      return leaf
    return leaf.astype(jnp.dtype(dtype))
  return jax.tree.map(cast, params)
