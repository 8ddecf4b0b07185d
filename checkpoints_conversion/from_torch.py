"""Models from PyTorch modules in memory, without files in between."""

import dataclasses
import functools
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_dtypes
from absl import logging

from checkpoints_conversion import convert, folder, read, rules, tensors as tensors_lib
from checkpoints_conversion.rules.family import ConversionError, FileFamily, is_inside
from cspd_jax import families
from cspd_jax.files import store, weights
from cspd_jax.generation.model import Model

if TYPE_CHECKING:
  import torch


def from_torch(
    source: 'torch.nn.Module | Mapping[str, torch.Tensor]', family: str, *,
    model: str | None = None, options: Mapping[str, int | None] | None = None,
    config: Mapping[str, Any] | None = None, dtype: Any = None, sampling: str | None = None,
    name: str | None = None, allow_nonfinite: bool = False, **parts: Any) -> Model:
  """Converts a PyTorch model in memory, with the checks of `cspd-convert`.

    janus = transformers.JanusForConditionalGeneration.from_pretrained(...)
    model = cspd_jax.from_torch(janus, 'janus_pro', text='Janus-Pro-1B/tokenizer.json')

  Args:
    source: the module of the target, or its state dict with the names of published files; on any
      device.
    family: the family of its published files, as for `cspd-convert --family`.
    model: name of a published model; None infers the sizes from the shapes.
    options: sizes that neither shapes nor settings determine, as for `cspd-convert`; only without
      `model`.
    config: the content of the model's config.json. None uses that of the module if it is one of
      transformers or LlamaGen's, and an empty mapping none.
    dtype: floating-point dtype of the parameters; None keeps that of the tensors.
    sampling: name of the official options that become the model's defaults; None selects those for
      pictures.
    name: name of the model; None uses `family`.
    allow_nonfinite: whether weights may be NaN or infinite.
    **parts: the model's other networks by role, such as `tokenizer=` and `text=`: a module, a state
      dict, a published file, a folder that `cspd-convert` wrote, a loaded network, or None to leave
      it out. Networks that are published in the file of the target come with `source`.

  Raises:
    ValueError: (or a subclass) for any problem with the input.
  """
  weights.checked_dtype(dtype, in_jax=True)
  files = rules.get(family)
  models = None if files.model is None else families.family.get(files.model)
  if models is None or files.kind not in models.roles['target']:
    raise ConversionError(f'family is {family!r}, {files.title}, which is not a target; give the '
                          'family of a target, and other networks as parts.')
  supported = [role for role in models.roles if role != 'target']
  if unknown := sorted(set(parts) - set(supported)):
    raise ConversionError(f'{unknown[0]} is not a part of a {models.name!r} model; parts are: '
                          f'{", ".join(supported)}.')
  settings = _settings(source, config)
  tensors = _tensors('source', source)
  of_source = functools.partial(
      convert.of_tensors, tensors=tensors, contents=settings, allow_nonfinite=allow_nonfinite,
      metadata=lambda: {'source': type(source).__name__})
  opened = of_source(family, model=model, options=options)
  loaded = {'target': _loaded(opened, dtype, allow_nonfinite)}
  for other, paths in files.layout(model).items():
    role = folder.role_of(rules.get(other), models, None)
    if role not in ('target', *parts) and '.' in paths and is_inside(rules.get(other), tensors):
      loaded[role] = _loaded(of_source(other), dtype, allow_nonfinite)
  for role, part in parts.items():
    if part is not None:
      loaded[role] = _part(files, models, model, role, part, dtype, allow_nonfinite)
  defaults = folder.defaults_of(files, opened.network.config, 'target', sampling)
  built: Any = models.build(families.Parts(family if name is None else name, loaded, defaults))
  return built  # Of a cascade with the interface of a model.


def _settings(source: Any, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
  """Returns settings by file; without `config`, what `save_pretrained` would write for a module."""
  own: Any = getattr(_unwrapped(source), 'config', None)
  if config is None and hasattr(own, 'to_diff_dict'):
    config = own.to_diff_dict()
  elif config is None and dataclasses.is_dataclass(own):  # LlamaGen's.
    config = vars(own)
  return {'config.json': config} if config else {}


def _unwrapped(source: Any) -> Any:
  """Returns the module in wrappers of torch.compile, DistributedDataParallel and DataParallel."""
  inner = getattr(source, '_orig_mod', None)
  if inner is None and not hasattr(source, 'config'):
    inner = getattr(source, 'module', None)
  return source if inner is None else _unwrapped(inner)


def _tensors(name: str, source: Any) -> dict[str, tensors_lib.AnyTensor]:
  """Returns the tensors of a module or of a state dict as views of host arrays."""
  inner = _unwrapped(source)
  state = source.state_dict() if hasattr(source, 'state_dict') else source
  if isinstance(state, Mapping) and (inside := [
      str(key) for key, value in state.items() if isinstance(value, Mapping)]):
    # A training file, of which a part is the state dict.
    raise ConversionError(f'{name} is a {type(source).__name__} of {", ".join(inside)[:80]}; pass '
                          f'the part that holds the tensors, such as {name}[{inside[0]!r}].')
  if not isinstance(state, Mapping) or not all(
      hasattr(tensor, 'detach') for tensor in state.values()):
    raise ConversionError(f'{name} is a {type(source).__name__}; it must be a torch.nn.Module or a '
                          'mapping from names to torch tensors.')
  state = read.strip(name, {str(key): tensor.detach() for key, tensor in state.items()})
  if hasattr(inner, 'save_pretrained'):
    # Modules of transformers 5 have other names in memory than in files.
    loading = sys.modules.get('transformers.core_model_loading')
    revert = getattr(loading, 'revert_weight_conversion', lambda module, tensors: tensors)
    state = revert(inner, state)
  return {key: _array(tensor) for key, tensor in state.items()}


def _array(tensor: Any) -> tensors_lib.AnyTensor:
  import torch  # It is installed: the tensor is one of its own.
  try:
    tensor = tensor.cpu()  # One on the device 'meta' has no numbers.
    if tensor.dtype == torch.bfloat16:  # NumPy has this dtype only from ml_dtypes.
      return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
  except (RuntimeError, TypeError, NotImplementedError):
    return tensors_lib.Unusable(
        tensor.shape, f'{tensor.dtype} of layout {tensor.layout} on {tensor.device.type!r}')


def _part(files: FileFamily, models: families.Family, model: str | None, role: str, part: Any,
          dtype: Any, allow_nonfinite: bool) -> store.Loaded:
  """Returns a network from any form of a part of `from_torch`."""
  if isinstance(part, store.Loaded):
    return part
  is_path = isinstance(part, str | os.PathLike)
  if is_path and os.path.isfile(os.path.join(part, store.FILE)):
    return store.load(part, dtype=dtype, allow_nonfinite=allow_nonfinite)
  of_role = [name for name, other in rules.FAMILIES.items()
             if other.model == models.name and other.kind in models.roles[role]]
  layout = [name for name in files.layout(model) if name in of_role and name != files.name]
  names = layout[:1] or ([files.name] if role == 'draft' else of_role)
  if len(names) != 1:
    raise ConversionError(f'{role} may be one of: {", ".join(names) or "no published file"}; '
                          'convert it with cspd-convert and pass its folder.')
  if is_path:
    opened = convert.open_source(names[0], part, allow_nonfinite=allow_nonfinite)
  else:
    opened = convert.of_tensors(
        names[0], _tensors(role, part), _settings(part),
        metadata=lambda: {'source': type(part).__name__}, allow_nonfinite=allow_nonfinite)
  return _loaded(opened, dtype, allow_nonfinite)


def _loaded(opened: convert.Source, dtype: Any, allow_nonfinite: bool) -> store.Loaded:
  for line in opened.assumptions:
    logging.warning('%s (in from_torch, flags are options)', line)
  params = weights.cast(opened.params(), dtype, allow_nonfinite=allow_nonfinite)
  return opened.network._replace(params=jax.tree.map(jnp.asarray, params))
