"""Saving and loading networks: one folder per network.

A folder holds `model.json` (the kind of network, the sizes in its config, the format version, free
metadata and a list of the other files with their digests) and `arrays/` (the parameters, written by
Orbax as host arrays, without the devices they were on). `families.folder` makes a model of them.
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
from cspd_jax.checkpoints import (
  description,
  files,
  folders,
  int8,
  kinds,
  paths,
  reading,
  weights,
)
from cspd_jax.checkpoints.description import CheckpointError
from cspd_jax.checkpoints.kinds import KINDS
from cspd_jax.core import programs

Params = Any

ASSETS = pathlib.Path(__file__).parents[1] / 'assets'


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

  The folder appears complete or not at all: it is written beside its place, and what a process
  leaves that is killed is removed by the next save.

  Args:
    path: the folder to write.
    kind: a key of `kinds.KINDS`.
    config: the model's sizes.
    params: its parameters.
    dtype: the dtype to store floating-point parameters in; None keeps theirs.
    extra: anything that JSON can hold, returned by `load` as metadata.
    allow_nonfinite: whether parameters may be NaN or infinite.

  Raises:
    CheckpointError: if the parameters do not belong to the config, they are not finite, `path` is
      something else than an older checkpoint or an empty folder, it holds files that `save` did
      not write, or another process is writing it.
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
  with description.refused():
    place = paths.folder('path', path).resolve()
    recover(place.parent)
    with folders.replacing(place, description.listed, state) as new:
      write(new, kind, config, groups, extra, dtype=dtype, allow_nonfinite=allow_nonfinite,
            progress=progress)


def write(folder: pathlib.Path, kind: str, config: Any, groups: Sequence[weights.Group],
          extra: Mapping[str, Any] | None = None, **options: Any) -> None:
  """As `save_groups`, into a folder that `joining` yields; the options are its, but for `state`."""
  names = weights.write(folder, groups, **options)
  sizes = weights.file_sizes(folder)
  files.write_json(folder / description.FILE, {
      'format': description.FORMAT, 'kind': kind, 'config': dataclasses.asdict(config),
      'metadata': dict(extra or {}), 'groups': names, 'files': sizes,
      'blake2b': weights.digests(folder, sizes)})


@contextlib.contextmanager
def joining(folder: pathlib.Path, states: Mapping[str, Any], file: str,
            content: Callable[[], Any]) -> Iterator[dict[str, pathlib.Path]]:
  """Yields folders to `write` networks into, which come to `folder` together; see `folders`."""
  with description.refused(), folders.replacing_together(
      folder, states, description.listed, file, content) as new:
    yield new


def recover(folder: pathlib.Path) -> None:
  """Moves networks into place that a killed process was joining to `folder`; see `folders`."""
  with description.refused():
    folders.recover_together(folder, description.listed, description.FILE)


def check_place(path: str | os.PathLike) -> None:
  """Raises CheckpointError if `save` would not write a network there, before there is one."""
  with description.refused():
    folders.check(paths.folder('path', path).resolve(), description.listed)


def annotate(path_or_name: str | os.PathLike, extra: Mapping[str, Any]) -> None:
  """Adds to the metadata of a checkpoint; the parameters stay as they are.

  Args:
    path_or_name: a folder written by `save`, or the name of a shipped model.
    extra: entries that JSON can hold; they replace entries of the same name.

  Raises:
    CheckpointError: if there is no such checkpoint, or it is damaged.
  """
  folder = _find(path_or_name)
  description.read(folder)
  content = reading.json(folder / description.FILE, description.REMEDY)
  content['metadata'] |= extra
  files.write_json(folder / description.FILE, content)


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
    ValueError: if they cannot be divided over the mesh, have no matrices of 8 bits, or JAX has no
      device.
  """
  folder = _find(path_or_name)
  kind, config, metadata, groups, digests = description.read(folder)
  expected = kinds.expected(KINDS[kind], config)
  inputs = int8.check(quantize, kind, KINDS[kind].matrices)
  if isinstance(sharding, jax.sharding.Mesh):
    sharding = sharding_lib.split(expected, KINDS[kind].split, sharding)
  if verify:
    description.verify(folder, digests)
  with _readable(folder):
    described = weights.stored(folder, groups)
    _check_shapes(f'{folder}, a {kind!r} model', expected, weights.joined(described.values()))
  devices = {} if sharding is None else weights.named(jax.tree.broadcast(sharding, expected))

  def finish(name, leaf):
    count, place = inputs(name), devices.get(name)
    leaf = leaf if count else weights.cast(leaf, dtype)
    if not allow_nonfinite:
      with description.refused(f'{folder}: '):
        weights.check_finite({name: leaf})
    if count:
      return int8.put(int8.quantized(leaf, count), count, place)
    return jax.device_put(leaf, kinds.placement(name, leaf, place, KINDS[kind].orders))

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
  found = description.read(_find(path_or_name))
  return Loaded(found.kind, found.config, kinds.expected(KINDS[found.kind], found.config),
                found.metadata)


def sketch(kind: str, config: Any) -> Loaded:
  """Describes a network of given sizes, as `describe` does.

  Raises:
    CheckpointError: if there is no such kind.
  """
  kind = kinds.current(kind)
  return Loaded(kind, config, kinds.expected(description.kind_of(kind), config), {})


def _find(path_or_name: str | os.PathLike) -> pathlib.Path:
  """The folder of a checkpoint; a shipped name wins over a folder of that name."""
  names = ', '.join(shipped()) or 'none'
  if str(path_or_name) in shipped():
    return ASSETS / str(path_or_name)
  with description.refused():
    folder = paths.find('path_or_name', path_or_name)
    recover(folder.parent)
    folders.recover(folder)
  if not folder.exists():
    raise CheckpointError(
        f'path_or_name is {str(path_or_name)!r}: there is no such folder, and no model of that '
        f'name comes with the package (shipped: {names}).')
  if not (folder / description.FILE).is_file():
    raise CheckpointError(
        f'path_or_name is {str(path_or_name)!r}, which is not a checkpoint folder: it has no '
        'model.json. Published .pt and .safetensors files are converted with '
        f'`cspd-convert`; shipped models: {names}.')
  return folder


def _check_config(kind: str, config: Any) -> None:
  known = description.kind_of(kind)
  if not isinstance(config, known.config):
    raise CheckpointError(
        f'config is a {type(config).__name__}; a {kind!r} model takes a {known.config.__name__}.')


@contextlib.contextmanager
def _readable(folder: pathlib.Path) -> Iterator[None]:
  """Turns the many errors that Orbax raises for files that it cannot read into CheckpointErrors.

  A machine without the device or the memory that is needed is no fault of the files.
  """
  programs.check_devices()
  try:
    yield
  except (CheckpointError, MemoryError, jax.errors.JaxRuntimeError):
    raise
  except Exception as error:
    raise description.damaged(folder, str(error) or type(error).__name__) from error


def _check_shapes(what: str, expected: Params, found: Params) -> None:
  """Raises one CheckpointError with every difference between the shapes of two trees."""
  if problems := weights.differences(expected, found):
    raise CheckpointError(f'{what}: parameters do not belong to the config:\n  ' +
                          '\n  '.join(problems))
