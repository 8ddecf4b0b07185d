"""Reading safetensors files with NumPy alone, mapped, after all of the header is checked."""

import json
import math
import mmap
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from cspd_jax.checkpoints import reading

_DTYPES = {name: np.dtype(dtype) for name, dtype in {
    'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': ml_dtypes.bfloat16,
    'F8_E4M3': ml_dtypes.float8_e4m3fn, 'F8_E5M2': ml_dtypes.float8_e5m2,
    'F8_E8M0': ml_dtypes.float8_e8m0fnu, 'C64': np.complex64,
    'I64': np.int64, 'I32': np.int32, 'I16': np.int16, 'I8': np.int8,
    'U64': np.uint64, 'U32': np.uint32, 'U16': np.uint16, 'U8': np.uint8, 'BOOL': np.bool_,
}.items()}


class Mapped(NamedTuple):
  """A mapped file.

  Attributes:
    tensors: read-only arrays by name.
    release: frees the memory of what was read; the arrays stay, and may be read again.
  """

  tensors: dict[str, np.ndarray]
  release: Callable[[], None]


def read(path: str | os.PathLike) -> Mapped:
  """Maps the tensors of a file; nothing is copied.

  A file is 8 bytes with the length of the header, the header in JSON, and the numbers, which the
  header's tensors must cover without gap or overlap.

  Raises:
    ValueError: if the file is damaged or breaks a rule of the format.
  """
  path = pathlib.Path(path)
  with path.open('rb') as file:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), 'little')
    if size < 8 or length > min(size - 8, reading.MOST_HEADER):
      raise ValueError(f'it has {size} bytes and a header of {length}')
    header = _header(file.read(length))
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
  begin = 8 + length
  layout = sorted((_entry(name, entry) for name, entry in header.items()), key=lambda one: one[1:3])
  position = 0
  for name, first, last, _, _ in layout:
    if first != position:
      raise ValueError(f'tensor {name!r} begins at {first}, the one before it ends at {position}')
    position = last
  if begin + position != size:
    raise ValueError(f'its tensors end at byte {begin + position} of {size}')
  data = np.frombuffer(mapped, np.uint8)
  tensors = {name: data[begin + first:begin + last].view(dtype).reshape(shape)
             for name, first, last, dtype, shape in layout}
  return Mapped(tensors, lambda: _release(mapped))


def _release(mapped: mmap.mmap) -> None:
  if hasattr(mmap, 'MADV_DONTNEED'):
    mapped.madvise(mmap.MADV_DONTNEED)


def _header(text: bytes) -> dict[str, Any]:
  """Tensors by name as the header has them."""
  if not text.startswith(b'{'):
    raise ValueError('its header is not JSON')
  try:
    header = json.loads(text.decode(), object_pairs_hook=_unique)
  except RecursionError as error:
    raise ValueError('its header is not one of tensors') from error
  metadata = header.pop('__metadata__', {})
  if not isinstance(metadata, dict) or not all(isinstance(x, str) for x in metadata.values()):
    raise ValueError('its metadata is not text by name')
  return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) < len(pairs):
    names = [name for name, _ in pairs]
    raise ValueError(f'{next(name for name in names if names.count(name) > 1)!r} is there twice')
  return found


def _entry(name: str, entry: Any) -> tuple[str, int, int, np.dtype, tuple[int, ...]]:
  """Name, first byte, byte after the last, dtype and shape of a tensor."""
  if not isinstance(entry, dict) or entry.keys() != {'dtype', 'shape', 'data_offsets'}:
    raise ValueError(f'tensor {name!r} must have dtype, shape and data_offsets')
  dtype, shape, offsets = entry['dtype'], entry['shape'], entry['data_offsets']
  if not isinstance(dtype, str) or dtype not in _DTYPES:
    raise ValueError(f'tensor {name!r} has dtype {dtype!r}; it can be: {", ".join(_DTYPES)}')
  if not _counts(shape) or len(shape) > 32:
    raise ValueError(f'tensor {name!r} has shape {str(shape)[:100]}')
  if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
    raise ValueError(f'tensor {name!r} has data_offsets {str(offsets)[:100]}')
  first, last = offsets
  if math.prod(shape) * _DTYPES[dtype].itemsize != last - first:
    raise ValueError(f'tensor {name!r} of {dtype} and shape {shape} has {last - first} bytes')
  return name, first, last, _DTYPES[dtype], tuple(shape)


def _counts(numbers: Any) -> bool:
  """Whether these are whole numbers from 0 on."""
  return isinstance(numbers, list) and all(
      type(number) is int and number >= 0 for number in numbers)
