"""The tensors of TorchScript files, read without torch and without running what they contain.

A file is a zip archive. Its `data.pkl` describes a tree of modules, whose classes are programs in
the same archive; here every class is an empty one, and only names of this module are looked up.
"""

import collections
import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from cspd_jax.checkpoints import reading

_DTYPES = {
    'DoubleStorage': np.float64, 'FloatStorage': np.float32, 'HalfStorage': np.float16,
    'BFloat16Storage': ml_dtypes.bfloat16, 'LongStorage': np.int64, 'IntStorage': np.int32,
    'ShortStorage': np.int16, 'CharStorage': np.int8, 'ByteStorage': np.uint8,
    'BoolStorage': np.bool_}


class _Module:
  """A module of the file: its tensors and modules are attributes."""


class _Storage:
  """The class of a storage in the file, by its name."""

  def __init__(self, name: str):
    self.dtype = np.dtype(_DTYPES[name])


class _Reader(pickle.Unpickler):
  """Reads `data.pkl`; raises UnpicklingError for everything but modules, tensors and values."""

  def __init__(self, archive: zipfile.ZipFile, folder: str):
    super().__init__(io.BytesIO(archive.read(f'{folder}data.pkl')))
    self._archive, self._folder = archive, folder

  def find_class(self, module: str, name: str) -> Any:
    if module.split('.')[0] == '__torch__':
      return _Module
    if module == 'torch' and name in _DTYPES:
      return _Storage(name)
    if (module, name) in _FUNCTIONS:
      return _FUNCTIONS[module, name]
    raise pickle.UnpicklingError(f'it holds {module}.{name}')

  def persistent_load(self, pid: Any) -> np.ndarray:
    kind, storage, key, _, size = pid
    if kind != 'storage' or not isinstance(storage, _Storage):
      raise pickle.UnpicklingError(f'it holds a persistent {kind!r}')
    content = self._archive.read(f'{self._folder}data/{key}')
    return np.frombuffer(content, storage.dtype, size)


def _tensor(storage: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...],
            *unused_rest: Any) -> np.ndarray:
  """Returns a tensor of a storage as a view."""
  last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
  if 0 in shape:
    return np.zeros(shape, storage.dtype)
  if min((offset, *shape, *strides)) < 0 or last >= len(storage):
    raise pickle.UnpicklingError(f'a tensor of shape {shape} is larger than its storage')
  width = storage.dtype.itemsize
  return np.lib.stride_tricks.as_strided(
      storage[offset:], shape, [stride * width for stride in strides], writeable=False)


_FUNCTIONS = {
    ('torch._utils', '_rebuild_tensor_v2'): _tensor,
    ('collections', 'OrderedDict'): collections.OrderedDict,
    **{('torch.jit._pickle', f'build_{kind}list'): lambda values: values
       for kind in ('int', 'tensor', 'double', 'bool')},
    ('torch.jit._pickle', 'restore_type_tag'): lambda value, tag: value}


def read(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Returns the tensors of a TorchScript file by name, as `state_dict` names them.

  Raises:
    ValueError: if the file is damaged, or holds other objects than modules, tensors and values.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      reading.check_members(archive.infolist(), os.path.getsize(path))
      name = next((name for name in archive.namelist() if name.endswith('data.pkl')), None)
      if name is None:
        raise pickle.UnpicklingError('it has no data.pkl')
      root = _Reader(archive, name.removesuffix('data.pkl')).load()
      if not isinstance(root, _Module):
        raise pickle.UnpicklingError('it holds no module')
      return dict(_tensors(root, ''))
  except Exception as error:  # Damaged files raise almost anything.
    raise ValueError(
        f'it is not a complete TorchScript file ({type(error).__name__}: {error!s:.300})'
    ) from error


def _tensors(module: Any, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the tensors of a module and of all modules in it."""
  for name, value in vars(module).items():
    if isinstance(value, np.ndarray):
      yield f'{prefix}{name}', value
    elif isinstance(value, _Module):
      yield from _tensors(value, f'{prefix}{name}.')
