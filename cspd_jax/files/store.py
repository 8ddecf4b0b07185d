"""Saves and loads networks, each in a folder of its own.

A folder holds `model.json` (the kind of network, the sizes in its config, the format version,
metadata and a list of the other files with their digests) and the parameters as safetensors; see
`files.weights`. `families.folder` builds models from them.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import safetensors

from cspd_jax import sharding as sharding_lib
from cspd_jax.files import atomic, description, folders, int8, paths, weights
from cspd_jax.files.description import KINDS, CheckpointError

Params = Any

ASSETS = pathlib.Path(__file__).parents[1] / 'assets'
# The shipped model that is loaded by default.
DEFAULT = 'emoji'


class Loaded(NamedTuple):
  """A loaded model of a kind of `description.KINDS`; metadata is the argument `extra` of `save`."""

  kind: str
  config: Any
  params: Params
  metadata: dict[str, Any]


def shipped() -> list[str]:
  """Returns the names of the networks in the package, such as 'demo/target'."""
  return sorted(file.parent.relative_to(ASSETS).as_posix()
                for file in ASSETS.glob(f'*/*/{description.FILE}'))


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
  """Saves a model, and replaces an older checkpoint in the same folder.

  The folder becomes complete or stays unchanged: a temporary folder is written and renamed. If the
  process is killed, the next save removes its files.

  Args:
    path: the folder to write.
    kind: a key of `description.KINDS`.
    config: the model's sizes.
    params: its parameters.
    dtype: the stored dtype of floating-point parameters; None preserves theirs.
    extra: JSON values by name, which `load` returns as metadata.
    allow_nonfinite: whether parameters may be NaN or infinite.

  Raises:
    CheckpointError: if the parameters do not belong to the config or are not finite, `dtype` is not
      a floating-point dtype, `path` is neither an older checkpoint nor an empty folder, it holds
      files that `save` did not write, or another process is writing it.
  """
  _check_config(kind, config)
  _check_shapes(f'params for a {kind!r} model', description.expected(KINDS[kind], config), params)
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
  """Saves a model like `save`, but builds one group of parameters after the other.

  The arguments and errors of `save`, and:

  Args:
    groups: functions that each return a part of the parameters' tree, and together all of it.
    state: JSON value on which the parameters depend: groups that a killed process wrote are reused
      by the next one with the same state. None starts again.
    progress: called as `progress(done, total)` with numbers of groups.
  """
  _check_config(kind, config)
  try:
    json.dumps(extra)
  except TypeError as error:
    raise CheckpointError(f'extra must hold JSON values only: {error}.') from error
  with description.refused():
    weights.checked_dtype(dtype)
    folder = paths.folder('path', path).resolve()
    recover(folder.parent)
    with folders.replacing(folder, description.listed, state) as new:
      write(new, kind, config, groups, extra, dtype=dtype, allow_nonfinite=allow_nonfinite,
            progress=progress)


def write(folder: pathlib.Path, kind: str, config: Any, groups: Sequence[weights.Group],
          extra: Mapping[str, Any] | None = None, **options: Any) -> None:
  """Writes a network into a folder that `joining` yields; arguments are those of `save_groups`.

  A network that a stopped process completed there is left as it is.
  """
  if (folder / description.FILE).exists():
    return
  digests = weights.write(folder, description.expected(KINDS[kind], config), groups, **options)
  atomic.write_json(folder / description.FILE, {
      'format': description.FORMAT, 'kind': kind, 'config': dataclasses.asdict(config),
      'metadata': dict(extra or {}), 'files': weights.file_sizes(folder), 'blake2b': digests})


@contextlib.contextmanager
def joining(folder: pathlib.Path, states: Mapping[str, Any], file: str,
            content: Callable[[], Any]) -> Iterator[dict[str, pathlib.Path]]:
  """Yields folders to `write` networks into, which replace those in `folder` together.

  Arguments and errors are those of `folders.replacing_together`.
  """
  with description.refused(), folders.replacing_together(
      folder, states, description.listed, file, content) as new:
    yield new


def recover(folder: pathlib.Path) -> None:
  """Finishes the work of a process that was killed in `joining`."""
  with description.refused():
    folders.recover_together(folder, description.listed, description.FILE)


def check_place(path: str | os.PathLike, resumes: bool = False) -> None:
  """Raises CheckpointError if `save` would refuse to write a network there.

  `resumes` is for callers of `save_groups` with a state.
  """
  with description.refused():
    folders.check(paths.folder('path', path).resolve(), description.listed, resumes)


def load(path_or_name: str | os.PathLike, *, dtype: Any = None, quantize: str | None = None,
         sharding: Any = None, verify: bool = True, allow_nonfinite: bool = False,
         name: str = 'path_or_name') -> Loaded:
  """Loads a model: a folder written by `save`, or a shipped model by its name.

  Args:
    path_or_name: the folder or the name.
    dtype: the dtype of the floating-point parameters; None preserves the stored one.
    quantize: 'int8' turns the matrices of the layers into `int8.Int8`; None leaves them.
    sharding: a device, a `jax.sharding.Sharding`, a tree of those like the parameters, or a mesh of
      `sharding.make_mesh`, divided as their kind specifies. None means the default device.
    verify: whether to read every file twice and compare its digest with the stored one.
    allow_nonfinite: whether parameters may be NaN or infinite.
    name: name of the argument that specifies the network, for messages.

  Raises:
    CheckpointError: if it does not exist or is damaged, or its parameters do not belong to its
      config or are not finite.
    ValueError: for parameters that cannot be divided over the mesh or have no int8 matrices,
      another `dtype`, or without a device.
  """
  weights.checked_dtype(dtype)
  folder = _find(path_or_name, name)
  kind, config, metadata, digests = description.read(folder)
  expected = description.expected(KINDS[kind], config)
  inputs = int8.check(quantize, kind, KINDS[kind].matrices)
  if isinstance(sharding, jax.sharding.Mesh):
    sharding = sharding_lib.split(expected, KINDS[kind].split, sharding)
  if verify:
    description.verify(folder, digests)
  with _readable(folder):
    stored = weights.opened(folder, digests)
  _check_shapes(f'{folder}, a {kind!r} model', expected, stored)
  names = weights.named(expected)
  devices = {} if sharding is None else weights.named(jax.tree.broadcast(sharding, expected))

  def read(leaf, index=None, dtype=None):
    with _readable(folder):
      array = leaf.read(index)
    array = weights.cast(array, dtype)
    if not allow_nonfinite:
      with description.refused(f'{folder}: '):
        weights.check_finite({leaf.name: array})
    return array

  def put(leaf):
    num_inputs, where = inputs(leaf.name), devices.get(leaf.name)
    if num_inputs:
      return int8.put(int8.quantized(read(leaf), num_inputs), num_inputs, where)
    place = description.placement(leaf.name, leaf, where, KINDS[kind].orders)
    if isinstance(where, jax.sharding.Sharding) and not where.is_fully_replicated:
      # Every process reads the slices of its own devices only.
      return jax.make_array_from_callback(
          leaf.shape, place, lambda index: read(leaf, index, dtype))
    return jax.device_put(read(leaf, dtype=dtype), place)

  params = jax.tree.unflatten(jax.tree.structure(expected), [put(stored[name]) for name in names])
  return Loaded(kind, config, params, metadata)


def describe(path_or_name: str | os.PathLike, *, name: str = 'path_or_name',
             remedy: str | None = None) -> Loaded:
  """Describes a network without reading its parameters; arguments and errors as for `load`.

  `remedy` is what to do without a network there, where no shipped one serves; None names those.

  Returns:
    The network with the shapes and dtypes that its config requires as parameters.
  """
  kind, config, metadata, *_ = description.read(_find(path_or_name, name, remedy))
  return Loaded(kind, config, description.expected(KINDS[kind], config), metadata)


def sketch(kind: str, config: Any) -> Loaded:
  """Describes a network that is not stored; raises CheckpointError if the kind is not registered.
  """
  return Loaded(kind, config, description.expected(description.kind_of(kind), config), {})


def _find(path_or_name: str | os.PathLike, name: str = 'path_or_name', remedy: str | None = None
          ) -> pathlib.Path:
  """Returns the folder of a checkpoint; a shipped name has priority over a folder of that name."""
  names = remedy or f'shipped models: {", ".join(shipped()) or "none"}'
  if str(path_or_name) in shipped():
    return ASSETS / str(path_or_name)
  with description.refused():
    folder = paths.find(name, path_or_name)
    recover(folder.parent)
    folders.recover(folder)
  if not folder.exists():
    raise CheckpointError(
        f'{name} is {paths.shown(path_or_name)}: there is no such folder'
        f'{"" if remedy else ", and no shipped model of that name"}; {names}.')
  if not (folder / description.FILE).is_file():
    raise CheckpointError(
        f'{name} is {paths.shown(path_or_name)}, which is not a checkpoint folder: it has no '
        'model.json. Published .pt and .safetensors files are converted with '
        f'`cspd-convert`; {names}.')
  return folder


def _check_config(kind: str, config: Any) -> None:
  config_class = description.kind_of(kind).config
  if not isinstance(config, config_class):
    raise CheckpointError(
        f'config is a {type(config).__name__}; a {kind!r} model requires a '
        f'{config_class.__name__}.')


@contextlib.contextmanager
def _readable(folder: pathlib.Path) -> Iterator[None]:
  """Turns errors of files that cannot be read into CheckpointErrors."""
  try:
    yield
  except (safetensors.SafetensorError, OSError, ValueError) as error:
    raise description.damaged(folder, str(error)) from error


def _check_shapes(network: str, expected: Params, params: Params) -> None:
  """Raises one CheckpointError with every difference between the shapes of two trees."""
  if problems := weights.differences(expected, params):
    raise CheckpointError(f'{network}: parameters do not belong to the config:\n  ' +
                          '\n  '.join(problems))
