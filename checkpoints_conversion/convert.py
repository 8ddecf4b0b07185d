"""The strict conversion driver.

Every published tensor must be used or be on the family's short list of known
leftovers, every parameter must be made, and every shape must fit; all that is
wrong is reported at once.
"""

import functools
import os
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkpoints_conversion import read as read_lib, rules as rules_lib
from checkpoints_conversion.rules import base, family as family_lib
from checkpoints_conversion.rules.family import ConversionError, FileFamily
from cspd_jax.core import checkpoint

Params = Any

_VERSION = 1


def convert(family: FileFamily, config: Any, tensors: Mapping[str, np.ndarray]) -> Params:
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
  rules, paths, treedef = _rules(family, config)
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
  made: dict[str, np.ndarray] = {}
  for rule in rules:
    parts = rule.transform.forward(tensors[rule.source])
    made.update(zip(rule.destinations, parts, strict=True))
  return jax.tree.unflatten(treedef, [made[path] for path in paths])


def publish(family: FileFamily, config: Any, params: Params) -> dict[str, np.ndarray]:
  """Inverts `convert`: parameters under their published names and layouts."""
  rules, paths, _ = _rules(family, config)
  leaves = dict(zip(paths, jax.tree.leaves(jax.device_get(params)), strict=True))
  return {rule.source: np.ascontiguousarray(
      rule.transform.inverse(*(leaves[path] for path in rule.destinations))) for rule in rules}


def published_shapes(family: FileFamily, config: Any) -> dict[str, tuple[int, ...]]:
  """Lists names and shapes of the published tensors of any size; nothing is allocated."""
  rules, paths, _ = _rules(family, config)
  leaves = dict(zip(paths, jax.tree.leaves(_template(family.kind, config)), strict=True))
  return {rule.source: jax.eval_shape(
      rule.transform.inverse, *(leaves[path] for path in rule.destinations)).shape
          for rule in rules}


def convert_file(
    family_name: str,
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    dtype: Any = None,
    **arguments: Any,
) -> Any:
  """Converts a published file to the folder of a network.

  Args:
    family_name: see `convert_source`.
    source: see `convert_source`.
    output: the folder to write.
    dtype: the dtype to store; None keeps the published one.
    **arguments: those of `convert_source`.

  Returns:
    The config of the network.

  Raises:
    ValueError: (or a subclass) for anything that is wrong with the input.
  """
  made = convert_source(family_name, source, **arguments)
  checkpoint.save(output, made.kind, made.config, made.params, dtype=dtype, extra=made.metadata)
  return made.config


def convert_source(
    family_name: str,
    source: str | os.PathLike,
    *,
    model: str | None = None,
    options: Mapping[str, int | None] | None = None,
    key: str | None = None,
) -> checkpoint.Loaded:
  """Converts a published file in memory.

  Args:
    family_name: a key of `rules.FAMILIES`.
    source: see `read.read`.
    model: name of a published model; None infers the sizes from the shapes.
    options: what the shapes do not tell, for instance `image_size`; None counts as not given.
      Only without `model`.
    key: see `read.read`.

  Returns:
    The network as `checkpoint.load` would give it, with host arrays.

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
  tensors, key = read_lib.read(source, key=key, prefer=family.prefer)
  shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
  config = family.presets[model] if model else family_lib.infer(family, shapes, given)
  params = convert(family, config, tensors)
  metadata = {'source': os.path.basename(os.path.abspath(source)), 'model': model, 'key': key,
              'sha256': read_lib.sha256(source), 'converter': _VERSION, **family.metadata(config)}
  return checkpoint.Loaded(family.kind, config, params, metadata)


def _floating(family: FileFamily, config: Any) -> list[str]:
  """Names of the published tensors that hold weights; others are files."""
  rules, paths, _ = _rules(family, config)
  leaves = dict(zip(paths, jax.tree.leaves(_template(family.kind, config)), strict=True))
  return [rule.source for rule in rules
          if jnp.issubdtype(leaves[rule.destinations[0]].dtype, np.floating)]


@functools.lru_cache(maxsize=8)  # Tracing a big network takes seconds.
def _template(kind: str, config: Any) -> Params:
  init = checkpoint.KINDS[kind].init
  return jax.eval_shape(lambda: init(config, jax.random.key(0)))


def _rules(family: FileFamily, config: Any) -> tuple[list[base.Rule], list[str], Any]:
  """Returns the rules of one network, its parameters' paths and their tree structure."""
  flat, treedef = jax.tree_util.tree_flatten_with_path(_template(family.kind, config))
  paths = ['/'.join(key.key for key in path) for path, _ in flat]
  return base.expand(family.rules(config), paths), paths, treedef
