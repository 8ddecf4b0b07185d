"""The strict conversion driver.

Every published tensor must be used or be on the family's short list of known
leftovers, every parameter must be made, and every shape must fit; all that is
wrong is reported at once.
"""

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from checkpoints_conversion import read as read_lib, rules as rules_lib, shards
from checkpoints_conversion.rules import base, family as family_lib
from checkpoints_conversion.rules.family import ConversionError, FileFamily
from cspd_jax.checkpoints import store, weights
from cspd_jax.version import __version__

Params = Any

_VERSION = 2


def convert(family: FileFamily, config: Any, tensors: Mapping[str, shards.Tensor]) -> Params:
  """Converts published tensors to parameters.

  Args:
    family: the family of the network's file.
    config: sizes of the network.
    tensors: published arrays by name.

  Returns:
    The parameters as host arrays, in the dtypes of the published ones.

  Raises:
    ConversionError: naming every missing, unexpected or mis-shaped tensor.
  """
  parts = [group() for group in groups(family, config, tensors)]
  _, paths, treedef = _rules(family, config)
  made = {path: leaf for part in parts for path, leaf in traverse_util.flatten_dict(
      part, sep='/').items()}
  return jax.tree.unflatten(treedef, [made[path] for path in paths])


def groups(
    family: FileFamily, config: Any, tensors: Mapping[str, shards.Tensor], *,
    release: Callable[[], None] = lambda: None, allow_nonfinite: bool = False,
) -> list[weights.Group]:
  """As `convert`, for parameters that are made one group of tensors after the other.

  Args:
    family: see `convert`.
    config: see `convert`.
    tensors: see `convert`; they are read when a group is made.
    release: frees what was read of the tensors; called before each group.
    allow_nonfinite: whether numbers may be NaN or infinite.

  Returns:
    Functions that each return a part of the parameters.

  Raises:
    ConversionError: see `convert`. A group also raises it for numbers that are not finite, naming
      the tensor.
  """
  _check(family, config, tensors)
  parts = weights.grouped(
      _rules(family, config)[0],
      lambda rule: sum(tensors[name].nbytes for name in rule.sources))

  def make(part: list[base.Rule]) -> Params:
    release()
    made: dict[str, np.ndarray] = {}
    for rule in part:
      published = {name: np.asarray(tensors[name]) for name in rule.sources}
      if not allow_nonfinite:
        try:
          weights.check_finite(published)
        except ValueError as error:
          raise ConversionError(f'tensor {error}') from error
      parameters = rule.transform.forward(*published.values())
      made.update(zip(rule.destinations, parameters, strict=True))
    return traverse_util.unflatten_dict(made, sep='/')

  return [functools.partial(make, part) for part in parts]


def _check(family: FileFamily, config: Any, tensors: Mapping[str, shards.Tensor]) -> None:
  """Raises ConversionError with all that is wrong with the names, shapes and dtypes of tensors."""
  wanted = published_shapes(family, config)
  found = {name: tuple(tensor.shape) for name, tensor in tensors.items()
           if name in wanted or not re.fullmatch(family.leftovers, name)}
  problems = [f'missing: {name} {wanted[name]}' for name in wanted if name not in found]
  problems += [f'unexpected: {name} {found[name]}' for name in found if name not in wanted]
  problems += [f'mis-shaped: {name} is {found[name]}, the model asks for {wanted[name]}'
               for name in wanted if name in found and found[name] != wanted[name]]
  numbers = _floating(family, config)
  problems += [f'not floating-point: {name} is {tensors[name].dtype}' for name in numbers
               if name in found and not jnp.issubdtype(tensors[name].dtype, np.floating)]
  if problems:
    raise ConversionError(
        f'The tensors do not belong to this {family.kind} model ({config}):\n  ' +
        '\n  '.join(problems))


def publish(family: FileFamily, config: Any, params: Params) -> dict[str, np.ndarray]:
  """Inverts `convert`: parameters under their published names and layouts."""
  rules, paths, _ = _rules(family, config)
  leaves = dict(zip(paths, jax.tree.leaves(jax.device_get(params)), strict=True))
  return {name: np.ascontiguousarray(array)
          for rule in rules for name, array in rule.publish(leaves).items()}


def published_shapes(family: FileFamily, config: Any) -> dict[str, tuple[int, ...]]:
  """Lists names and shapes of the published tensors of any size; nothing is allocated."""
  rules, paths, _ = _rules(family, config)
  leaves = dict(zip(paths, jax.tree.leaves(_template(family.kind, config)), strict=True))
  return {name: array.shape for rule in rules
          for name, array in jax.eval_shape(rule.publish, leaves).items()}


class Source(NamedTuple):
  """A published file that fits a network.

  Attributes:
    network: as `store.describe` would give it.
    groups: make the parameters; see `groups`.
    state: what the parameters depend on, as JSON can hold it.
  """

  network: store.Loaded
  groups: list[weights.Group]
  state: Any

  def save(self, output: str | os.PathLike, *, dtype: Any = None, **options: Any) -> None:
    """Makes the parameters and saves the network; see `store.save_groups`."""
    kind, config, _, metadata = self.network
    store.save_groups(output, kind, config, self.groups, state=self.stored(dtype),
                           dtype=dtype, extra=metadata, **options)

  def write(self, folder: pathlib.Path, **options: Any) -> None:
    """As `save`, into a folder that `families.joining` yields for the state `stored(dtype)`."""
    kind, config, _, metadata = self.network
    store.write(folder, kind, config, self.groups, metadata, **options)

  def stored(self, dtype: Any) -> Any:
    """What the stored network depends on, as JSON can hold it."""
    return [self.state, None if dtype is None else str(jnp.dtype(dtype))]


def open_source(
    family_name: str,
    source: str | os.PathLike,
    *,
    model: str | None = None,
    options: Mapping[str, int | None] | None = None,
    key: str | None = None,
    allow_nonfinite: bool = False,
) -> Source:
  """Opens a published file and checks everything but the numbers.

  Args:
    family_name: a key of `rules.FAMILIES`.
    source: see `read.read`.
    model: name of a published model; None infers the sizes from the shapes.
    options: what the shapes do not tell, for instance `image_size`; None counts as not given.
      Only without `model`.
    key: see `read.read`.
    allow_nonfinite: whether numbers may be NaN or infinite.

  Raises:
    ValueError: (or a subclass) for anything that is wrong with the input.
  """
  family = rules_lib.get(family_name)
  given = {name: value for name, value in (options or {}).items() if value is not None}
  if model is not None and model not in family.presets:
    raise ConversionError(
        f'model is {model!r}; the published {family_name} models are: '
        f'{", ".join(sorted(family.presets))}. Leave it out to infer the sizes from the file.')
  if model is not None and given:
    raise ConversionError(
        f'{", ".join(sorted(given))}: only without model, which sets the sizes itself.')
  read = read_lib.read(source, key=key, prefer=family.prefer, shares=family.shares)
  shapes = {name: tuple(tensor.shape) for name, tensor in read.tensors.items()}
  family = family._replace(**family.variant(shapes))
  told = family.settings(read_lib.settings(source))
  config = family.presets[model] if model else family_lib.infer(family, shapes, given, told)
  _check_settings(family, config, told)
  made = groups(family, config, read.tensors, release=read.release,
                allow_nonfinite=allow_nonfinite)
  metadata = {'source': os.path.basename(os.path.abspath(source)), 'model': model,
              'key': read.key, 'sha256': read_lib.sha256(source), 'converter': _VERSION,
              **family.metadata(config)}
  network = store.Loaded(family.kind, config, _template(family.kind, config), metadata)
  state = [__version__, family_name, dataclasses.asdict(config), metadata, allow_nonfinite]
  return Source(network, made, state)


def convert_file(
    family_name: str,
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    dtype: Any = None,
    progress: Callable[[int, int], None] | None = None,
    allow_nonfinite: bool = False,
    **arguments: Any,
) -> Any:
  """Converts a published file to the folder of a network.

  If the process was killed, the next one with the same source goes on where it was.

  Args:
    family_name: see `open_source`.
    source: see `open_source`.
    output: the folder to write.
    dtype: the dtype to store; None keeps the published one.
    progress: called as `progress(done, total)`.
    allow_nonfinite: see `open_source`.
    **arguments: those of `open_source`.

  Returns:
    The config of the network.

  Raises:
    ValueError: (or a subclass) for anything that is wrong with the input.
  """
  made = open_source(family_name, source, allow_nonfinite=allow_nonfinite, **arguments)
  made.save(output, dtype=dtype, progress=progress, allow_nonfinite=allow_nonfinite)
  return made.network.config


def _check_settings(family: FileFamily, config: Any, told: Mapping[str, Any]) -> None:
  """Raises ConversionError where the file of settings beside the weights tells something else."""
  problems = [f'{name} is {value!r}, the model has {getattr(config, name)!r}'
              for name, value in told.items() if getattr(config, name) != value]
  if problems:
    raise ConversionError(
        f'The settings beside the weights (config.json or params.json) are not those of this '
        f'{family.kind} model:\n  ' + '\n  '.join(problems) +
        '\nGive another model, or download files that belong together.')


def _floating(family: FileFamily, config: Any) -> list[str]:
  """Names of the published tensors that hold weights; others are files."""
  rules, paths, _ = _rules(family, config)
  leaves = dict(zip(paths, jax.tree.leaves(_template(family.kind, config)), strict=True))
  return [name for rule in rules for name in rule.sources
          if jnp.issubdtype(leaves[rule.destinations[0]].dtype, np.floating)]


@functools.lru_cache(maxsize=8)  # Tracing a big network takes seconds.
def _template(kind: str, config: Any) -> Params:
  return store.sketch(kind, config).params


def _rules(family: FileFamily, config: Any) -> tuple[list[base.Rule], list[str], Any]:
  """Returns the rules of one network, its parameters' paths and their tree structure."""
  flat, treedef = jax.tree_util.tree_flatten_with_path(_template(family.kind, config))
  paths = ['/'.join(key.key for key in path) for path, _ in flat]
  return base.expand(family.rules(config), paths), paths, treedef
