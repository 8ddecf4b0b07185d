"""The strict conversion of published tensors to the parameters of a network.

Every published tensor must be used or be one of the family's leftovers, every parameter must be
built, and every shape must fit; one error lists the problems of every kind.
"""

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from checkpoints_conversion import read as read_lib, rules as rules_lib
from checkpoints_conversion.rules import base, family as family_lib
from checkpoints_conversion.rules.family import ConversionError, FileFamily
from checkpoints_conversion.tensors import REMEDY, AnyTensor
from cspd_jax.files import atomic, store, weights
from cspd_jax.version import __version__

Params = Any

_VERSION = 2
# The entry of a network's metadata with the tensors of the source that the network does not have.
LEFT_OUT = 'left_out'
# Names of them in a text.
_MOST_NAMES = 3
# Of quantised weights; bitsandbytes, AWQ, GPTQ and MLX store several of their numbers in one.
_PACKED = ('uint8', 'int8', 'uint32', 'int32')


def convert(family: FileFamily, config: Any, tensors: Mapping[str, AnyTensor]) -> Params:
  """Converts published tensors to host arrays of parameters, in the dtypes of the published ones.

  Raises ConversionError with the missing, unexpected and mis-shaped tensors.
  """
  return _joined(groups(family, config, tensors))


def _joined(parts: Sequence[weights.Group]) -> Params:
  return traverse_util.unflatten_dict({
      path: leaf for part in parts for path, leaf in traverse_util.flatten_dict(part()).items()})


def groups(family: FileFamily, config: Any, tensors: Mapping[str, AnyTensor], *,
           allow_nonfinite: bool = False) -> list[weights.Group]:
  """Returns functions that each read some of the tensors, and return a part of the parameters.

  Raises ConversionError as `convert`. Unless `allow_nonfinite`, a function also raises it for
  numbers that are not finite, naming the tensor.
  """
  _check(family, config, tensors)
  parts = weights.grouped(
      rules_of(family, config)[0],
      lambda rule: sum(tensors[name].nbytes for name in rule.sources))

  def build(part: list[base.Rule]) -> Params:
    parameters: dict[str, np.ndarray] = {}
    for rule in part:
      published = {name: np.asarray(tensors[name]) for name in rule.sources}
      if not allow_nonfinite:
        check_finite('tensor', published)
      leaves = rule.transform.forward(*published.values())
      parameters.update(zip(rule.destinations, leaves, strict=True))
    return traverse_util.unflatten_dict(parameters, sep='/')

  return [functools.partial(build, part) for part in parts]


def check_finite(kind: str, arrays: Params) -> None:
  """Raises ConversionError, naming the array and its kind, if a number is not finite."""
  try:
    weights.check_finite(arrays)
  except ValueError as error:
    raise ConversionError(f'{kind} {error}') from error


def _check(family: FileFamily, config: Any, tensors: Mapping[str, AnyTensor]) -> None:
  """Raises ConversionError with the wrong names, shapes and dtypes of the tensors."""
  expected = published_shapes(family, config)
  rules, leaves = rules_of(family, config)
  floating = [name for rule in rules for name in rule.sources  # Others are files.
              if jnp.issubdtype(leaves[rule.destinations[0]].dtype, np.floating)]
  shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()
            if name in expected or not re.fullmatch(family.leftovers, name)}
  if problems := weights.listed({
      'missing': [f'{name} {expected[name]}' for name in expected if name not in shapes],
      'unexpected': [f'{name} {shapes[name]}' for name in shapes if name not in expected],
      'mis-shaped': [f'{name} is {shapes[name]}, the model needs {expected[name]}'
                     for name in expected if name in shapes and shapes[name] != expected[name]],
      'mis-typed': [f'{name} is {tensors[name].dtype}; {REMEDY}' for name in floating
                    if name in shapes and str(tensors[name].dtype) not in weights.FLOATING]}):
    raise ConversionError(
        f'The tensors do not belong to this {family.kind} model ({config}):\n  ' +
        '\n  '.join(problems))


def publish(family: FileFamily, config: Any, params: Params) -> dict[str, np.ndarray]:
  """Inverts `convert`: returns parameters under their published names and layouts."""
  rules, leaves = rules_of(family, config, jax.device_get(params))
  return {name: np.ascontiguousarray(array)
          for rule in rules for name, array in rule.publish(leaves).items()}


def published_shapes(family: FileFamily, config: Any) -> dict[str, tuple[int, ...]]:
  """Returns names and shapes of the published tensors of any size; nothing is allocated."""
  rules, leaves = rules_of(family, config)
  return {name: array.shape for rule in rules
          for name, array in jax.eval_shape(rule.publish, leaves).items()}


class Source(NamedTuple):
  """A published file that fits a network.

  Attributes:
    network: the network as `store.describe` returns it.
    groups: build the parameters.
    state: JSON values by name on which the parameters depend.
    assumptions: a line for every size that was neither in the file nor specified, see
      `FileFamily.assumed`, and for every file of weights in the folder that was not read.
    defaults: sampling options that the settings state; see `FileFamily.defaults`.
  """

  network: store.Loaded
  groups: list[weights.Group]
  state: Mapping[str, Any]
  assumptions: tuple[str, ...] = ()
  defaults: family_lib.Defaults = MappingProxyType({})

  def params(self) -> Params:
    """Builds the parameters, as host arrays in the dtypes of the published ones."""
    return _joined(self.groups)

  def write(self, folder: pathlib.Path, *, dtype: Any, **options: Any) -> None:
    """Builds the parameters in a folder that `families.joining` yields for `state_of(dtype)`."""
    kind, config, _, metadata = self.network
    store.write(folder, kind, config, self.groups, metadata, state=self.state_of(dtype),
                dtype=dtype, **options)

  def state_of(self, dtype: Any) -> dict[str, Any]:
    """Returns JSON values by name on which the network depends if it is stored in `dtype`."""
    return {**self.state, 'dtype': None if dtype is None else str(jnp.dtype(dtype))}


def open_source(
    family_name: str, source: str | os.PathLike, *, model: str | None = None,
    options: Mapping[str, int | None] | None = None, key: str | None = None,
    allow_nonfinite: bool = False) -> Source:
  """Opens a published file and checks everything except the numbers.

  Args:
    family_name: a key of `rules.FAMILIES`.
    source: a file or a folder; any problem with it raises ValueError or a subclass.
    model: name of a published model; None infers the sizes from the shapes.
    options: sizes that the shapes do not determine, for instance `image_size`; None counts as
      absent. Only without `model`.
    key: the part of a PyTorch file that holds the weights; see `read.read`.
    allow_nonfinite: whether numbers may be NaN or infinite.
  """
  family = _checked(family_name, model, options)
  content = read_lib.read(source, key=key, prefer=family.prefer, shares=family.shares)
  try:
    opened = of_tensors(
        family_name, content.tensors, read_lib.settings(source) | dict(content.settings),
        model=model, options=options,
        metadata=lambda: atomic.plain({
            'source': os.path.basename(os.path.abspath(source)), 'key': content.key,
            'sha256': read_lib.sha256(source)}), allow_nonfinite=allow_nonfinite)
  except ConversionError as error:
    if reason := read_lib.incomplete(source):
      raise ConversionError(f'{reason}.\n{error}') from error
    raise
  others = [f'left out {name}, which is not among the files of this model'
            for name in read_lib.left_out(source)]
  return opened._replace(assumptions=(*opened.assumptions, *content.notes, *others))


def of_tensors(
    family_name: str, tensors: Mapping[str, AnyTensor], contents: Mapping[str, Mapping[str, Any]],
    *, model: str | None = None, options: Mapping[str, int | None] | None = None,
    metadata: Callable[[], Mapping[str, Any]], allow_nonfinite: bool = False) -> Source:
  """Returns published tensors as a network; arguments and errors of `open_source`, and:

  Args:
    tensors: published arrays by name.
    contents: the settings next to them.
    metadata: returns what is stored with the network about the source; called last.
  """
  family = _checked(family_name, model, options)
  overrides = {name: value for name, value in (options or {}).items() if value is not None}
  shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
  family = family._replace(**family.variant(shapes))
  settings = family.settings(contents)
  packed = [f'{name} is {tensor.dtype} of shape {tuple(tensor.shape)}; {REMEDY}'
            for name, tensor in tensors.items()
            if str(tensor.dtype) in _PACKED and not re.fullmatch(family.leftovers, name)]
  if packed and family.kind != 'text':  # Their shapes are not those of the network.
    raise ConversionError(
        'The weights are quantised, and several of their numbers may be packed into one:\n  ' +
        '\n  '.join(weights.listed({'quantised': packed})))
  config = (family.presets[model] if model
            else family_lib.infer(family, shapes, overrides, settings))
  # A user may choose another size of images, on which no weight depends.
  chosen = {'height', 'width'} & overrides.keys()
  if problems := [f'{name} is {value!r}, the model has {getattr(config, name)!r}'
                  for name, value in settings.items()
                  if name not in chosen and getattr(config, name) != value]:
    raise ConversionError(
        f'The settings next to the weights (config.json or params.json) are not those of this '
        f'{family.kind} model:\n  ' + '\n  '.join(problems) +
        '\nSpecify another model, or download files that belong together.')
  parameters = groups(family, config, tensors, allow_nonfinite=allow_nonfinite)
  rest = _left_out(family, config, tensors)
  extra = {**metadata(), 'family': family.name, 'model': model, 'converter': _VERSION,
           **family.metadata(config), **({LEFT_OUT: rest} if rest else {})}
  network = store.Loaded(family.kind, config, _template(family.kind, config), extra)
  state = dict(version=__version__, family=family_name, config=dataclasses.asdict(config),
               extra=extra, allow_nonfinite=allow_nonfinite)
  assumptions = () if model else tuple(family.assumed(config, {*settings, *overrides}))
  if rest:
    assumptions += (f'left out {rest}, which this network does not have',)
  return Source(network, parameters, state, assumptions, family.defaults(contents))


def _left_out(family: FileFamily, config: Any, tensors: Mapping[str, AnyTensor]) -> str:
  """Returns in words which tensors become no part of a network; '' if all do."""
  used = {name for rule in rules_of(family, config)[0] for name in rule.sources}
  names = [name for name in tensors if name not in used]
  more = f', ... ({len(names)} tensors)' if len(names) > _MOST_NAMES else ''
  return ', '.join(names[:_MOST_NAMES]) + more


def _checked(family_name: str, model: str | None, options: Mapping[str, Any] | None) -> FileFamily:
  """Returns a family; raises ConversionError for a model or options that it does not have."""
  family = rules_lib.get(family_name)
  if model is not None and model not in family.presets:
    raise ConversionError(
        f'model is {model!r}; the published {family_name} models are: '
        f'{", ".join(sorted(family.presets))}; leave it out to infer the sizes from the file.')
  overrides = sorted(name for name, value in (options or {}).items() if value is not None)
  if model is not None and overrides:
    raise ConversionError(
        f'{", ".join(overrides)}: only without model, which determines the sizes.')
  return family


def convert_file(
    family_name: str, source: str | os.PathLike, output: str | os.PathLike, *, dtype: Any = None,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] = lambda line: None, allow_nonfinite: bool = False,
    **arguments: Any) -> Any:
  """Converts a published file to the folder of a network and returns the config of the network.

  If the process is killed, the next one with the same source continues its work. The arguments and
  errors of `open_source`, and: `dtype` to store, None preserves the published one; `progress` is
  called as `progress(done, total)`, `note` with every line of `Source.assumptions` before.
  """
  weights.checked_dtype(dtype)
  opened = open_source(family_name, source, allow_nonfinite=allow_nonfinite, **arguments)
  for line in opened.assumptions:
    note(line)
  kind, config, _, metadata = opened.network
  store.save_groups(output, kind, config, opened.groups, state=opened.state_of(dtype), dtype=dtype,
                    extra=metadata, progress=progress, allow_nonfinite=allow_nonfinite)
  return config


@functools.lru_cache(maxsize=8)  # Tracing a big network takes seconds.
def _template(kind: str, config: Any) -> Params:
  return store.sketch(kind, config).params


def rules_of(family: FileFamily, config: Any, params: Params = None
             ) -> tuple[list[base.Rule], dict[str, Any]]:
  """Returns the rules of one network, and its parameters or their shapes by path."""
  template = _template(family.kind, config) if params is None else params
  leaves = {'/'.join(key.key for key in path): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(template)}
  return base.expand(family.rules(config), leaves), leaves
