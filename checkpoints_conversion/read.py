"""Reading published weight files as host arrays.

Safetensors files are mapped with NumPy alone. Pickled PyTorch files need torch,
and are only read if they hold tensors and plain values: a pickle with other
objects runs code when it is opened.
"""

import argparse
import hashlib
import os
import pathlib
import pickle
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from checkpoints_conversion import safetensors, shards
from cspd_jax.checkpoints import paths, reading, weights

# What single files are called.
SUFFIXES = ('.safetensors', '.pt', '.pth', '.ckpt', '.bin', '.json', '.tiktoken')
# Files of one checkpoint, whose names have two digits.
_MOST_PARTS = 100
_PREFIXES = ('_orig_mod.', 'module.')
# Where published and training files keep the weights; a file without any is the weights.
_OUTER_KEYS = ('model', 'module', 'state_dict')


class ReadError(ValueError):
  """A weight file that cannot be read."""


class Weights(NamedTuple):
  """What was read.

  Attributes:
    tensors: arrays by name, or what becomes one by `np.asarray`, without the prefixes of compiled
      and wrapped modules.
    key: the part of the file that they were in; None if they were the file.
    release: frees the memory of what was read; the arrays stay, and may be read again.
  """

  tensors: dict[str, shards.Tensor]
  key: str | None
  release: Callable[[], None] = lambda: None


def read(
    path: str | os.PathLike, *, key: str | None = None, prefer: str | None = None,
    shares: Mapping[str, str] = MappingProxyType({}),
) -> Weights:
  """Reads the tensors of a weight file.

  Args:
    path: a `.safetensors` file, a folder of those, a file that `torch.save` wrote, a folder of
      Meta's `consolidated*.pth`, or a `.json` or `.tiktoken` file, whose bytes are one tensor of
      the name 'file'.
    key: which part of a PyTorch file holds the weights, for instance 'ema'. None
      takes `prefer` or the first of 'model', 'module' and 'state_dict', or the file itself.
    prefer: the part to take, where there is one of this name and `key` is None.
    shares: what each of several of Meta's files holds; see `shards.join`.

  Raises:
    ReadError: if there is no such file, or it is damaged, holds something else
      than tensors, or needs torch and torch is not installed.
  """
  path = pathlib.Path(path).expanduser()
  found = files(path)
  if found[0].suffix in ('.json', '.tiktoken'):
    return Weights({'file': np.frombuffer(_bytes(found[0]), np.uint8)}, None)
  if found[0].suffix != '.safetensors':
    return _read_consolidated(path, found, key, prefer, shares)
  if key is not None:
    raise ReadError(f'key is {key!r}, but {path} is safetensors and has no parts; leave it out.')
  tensors: dict[str, np.ndarray] = {}
  releases = []
  for file in found:
    part = _read_safetensors(file)
    if twice := sorted(tensors.keys() & part.tensors.keys()):
      raise ReadError(f'{file} repeats tensors of another file of the folder: {twice}.')
    tensors.update(part.tensors)
    releases.append(part.release)
  return Weights(_strip(path, tensors), None, lambda: _all(releases))


def _read_consolidated(path: pathlib.Path, found: list[pathlib.Path], key: str | None,
                       prefer: str | None, shares: Mapping[str, str]) -> Weights:
  """One PyTorch file, or those of a model-parallel checkpoint as one."""
  parts = [_read_torch(file, key, prefer) for file in found]
  if len(parts) == 1:
    return parts[0]
  try:
    return Weights(shards.join([part.tensors for part in parts], shares), parts[0].key)
  except ValueError as error:
    raise ReadError(f'source is {path}, whose {len(found)} files do not belong together: {error}.'
                    ) from error


def _all(functions: list[Callable[[], None]]) -> None:
  for function in functions:
    function()


def files(path: pathlib.Path) -> list[pathlib.Path]:
  """The files of a source: itself, or those of a folder.

  Raises:
    ReadError: if one of them is missing.
  """
  if not path.exists():
    raise ReadError(f'source is {path}: there is no such file.')
  if not path.is_dir():
    if not path.is_file():
      raise ReadError(f'source is {path}, which is neither a file nor a folder.')
    return [path]
  found = sorted(path.glob('*.safetensors'))
  for index in sorted(path.glob('*.safetensors.index.json')):
    try:
      # The cache of the hub has links, and the files are only read.
      found = [paths.inside(path, name, index, links=True)
               for name in sorted(set(_json(index)['weight_map'].values()))]
    except ReadError:
      raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise ReadError(f'{index} is damaged ({type(error).__name__}: {error}); download it again.'
                      ) from error
  if not found:
    found = _consolidated(path)
  if not found:
    raise ReadError(
        f'source is {path}, a folder without .safetensors files or consolidated.pth; give the file '
        'itself, or the name of a published model, whose files are looked for.')
  if missing := [file.name for file in found if not file.is_file()]:
    raise ReadError(f'source is {path}, where {", ".join(missing)} is missing; download it.')
  return found


def _consolidated(folder: pathlib.Path) -> list[pathlib.Path]:
  """The files of a checkpoint as Meta publishes them: one, or one for each of several devices."""
  if (whole := folder / 'consolidated.pth').is_file():
    return [whole]
  parts = sorted(folder.glob('consolidated.[0-9][0-9].pth'))
  if not parts:
    return []
  count = int(parts[-1].suffixes[0][1:]) + 1
  for name, content in settings(folder).items():
    told = content.get('model_parallel_size')
    if told is None:
      continue
    if type(told) is not int or not 1 <= told <= _MOST_PARTS:
      raise ReadError(f'source is {folder}, whose {name} has model_parallel_size {str(told):.80}; '
                      f'it must be a whole number from 1 to {_MOST_PARTS}, so download it again.')
    count = max(count, told)
  return [folder / f'consolidated.{number:02}.pth' for number in range(count)]


def settings(path: str | os.PathLike) -> dict[str, dict[str, Any]]:
  """What lies beside weights as config.json, or as params.json and consolidate_params.json.

  Args:
    path: a source; see `read`.

  Returns:
    The content of those that there are, by name.

  Raises:
    ReadError: if one is damaged.
  """
  path = pathlib.Path(path).expanduser()
  folder = path if path.is_dir() else path.parent
  return {name: _json(folder / name)
          for name in ('config.json', 'params.json', 'consolidate_params.json')
          if (folder / name).is_file()}


def _json(file: pathlib.Path) -> dict[str, Any]:
  """What a file beside the weights holds; raises ReadError."""
  try:
    return reading.json(file, 'download it again')
  except ValueError as error:
    raise ReadError(str(error)) from error


def _bytes(file: pathlib.Path) -> bytes:
  """The bytes of a tokenizer file; raises ReadError."""
  try:
    return reading.data(file, 'download it again')
  except ValueError as error:
    raise ReadError(str(error)) from error


def sha256(path: str | os.PathLike) -> dict[str, str]:
  """Hexadecimal SHA-256 of the files of a source by name, which model hubs publish."""
  found = files(pathlib.Path(path).expanduser())
  return weights.digests(found[0].parent, [file.name for file in found], hashlib.sha256)


def _read_safetensors(path: pathlib.Path) -> safetensors.Mapped:
  try:
    return safetensors.read(path)
  except ValueError as error:
    raise ReadError(
        f'{path} is not a complete safetensors file ({error}); download it again.') from error


def _read_torch(path: pathlib.Path, key: str | None, prefer: str | None) -> Weights:
  """Reads tensors and plain values; the weights may lie one level down."""
  try:
    import torch
  except ImportError as error:
    raise ReadError(
        f'{path} is a PyTorch file and torch is not installed; the build for CPUs is enough: `pip '
        'install torch --index-url https://download.pytorch.org/whl/cpu`. Or give the .safetensors '
        'version of the file.') from error
  try:
    # Training files keep their command line, a plain namespace, beside the weights.
    with torch.serialization.safe_globals([argparse.Namespace]):
      try:
        content = torch.load(path, map_location='cpu', weights_only=True, mmap=True)
      except RuntimeError:  # Files of old versions cannot be mapped.
        content = torch.load(path, map_location='cpu', weights_only=True)
  except pickle.UnpicklingError as error:
    raise ReadError(
        f'{path} is damaged, or holds Python objects beside tensors and plain values, which could '
        'run code and are not loaded; save only its state dict to another file and convert that.'
    ) from error
  except Exception as error:  # Damaged files raise almost anything.
    raise ReadError(f'{path} is not a complete PyTorch file ({type(error).__name__}: '
                    f'{str(error)[:300]}).') from error

  if not isinstance(content, Mapping):
    raise ReadError(f'{path} holds a {type(content).__name__}, not tensors by name.')
  parts = [name for name, part in content.items() if isinstance(part, Mapping)]
  if key is None:
    key = next((name for name in (prefer, *_OUTER_KEYS) if name in parts), None)
  elif key not in parts:
    raise ReadError(f'key is {key!r}; the parts of {path} are: {", ".join(map(str, parts))}.')
  tensors = content if key is None else content[key]
  # Anole's training program names what it leaves out.
  tensors = {name: value for name, value in tensors.items() if value is not None}
  if other := [f'{name} ({type(value).__name__})' for name, value in tensors.items()
               if not isinstance(value, torch.Tensor)]:
    raise ReadError(f'{path} holds other things than tensors: {", ".join(other)}.')
  arrays = {str(name): _to_numpy(path, name, value) for name, value in tensors.items()}
  return Weights(_strip(path, arrays), key)


def _to_numpy(path: pathlib.Path, name: Any, tensor: Any) -> np.ndarray:
  """The tensor's own memory as an array; raises ReadError for tensors that are no plain arrays."""
  import torch  # Present: the tensor is one of its own.
  # NumPy learns these dtypes from ml_dtypes only.
  other = {torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
           torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
           torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2)}
  tensor = tensor.detach()
  try:
    if tensor.dtype in other:
      stored, dtype = other[tensor.dtype]
      return tensor.view(stored).numpy().view(dtype)
    return tensor.numpy()
  except (RuntimeError, TypeError, NotImplementedError) as error:
    raise ReadError(f'{path}: tensor {name} is {tensor.dtype} of layout {tensor.layout} on '
                    f'{tensor.device.type!r}; save plain arrays and convert those.') from error


def _strip(path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Removes the prefixes that wrapping and compiling put before names."""
  stripped = {}
  for name, tensor in tensors.items():
    while name.startswith(_PREFIXES):
      name = name.removeprefix(next(p for p in _PREFIXES if name.startswith(p)))
    if name in stripped:
      raise ReadError(f'{path} holds {name} more than once, with different prefixes.')
    stripped[name] = tensor
  return stripped
