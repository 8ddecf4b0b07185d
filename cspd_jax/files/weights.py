"""Parameters as safetensors files, written in groups and read leaf by leaf.

A network has one file, `model.safetensors`. One that is larger than a few gigabytes has several,
and an index with the names that model hubs use, so that other programs read them too.
"""

import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
from flax import traverse_util

from cspd_jax.core import fields
from cspd_jax.files import atomic, paths, reading

Params = Any
T = TypeVar('T')
# Returns a part of the parameters.
Group = Callable[[], Params]

# Dtypes that floating-point weights may have. JAX computes with no narrower ones by itself.
FLOATING = ('float64', 'float32', 'float16', 'bfloat16')
# Dtypes of NumPy by their names in safetensors files.
_DTYPES = {name: np.dtype(dtype) for name, dtype in {
    'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': ml_dtypes.bfloat16,
    'I64': np.int64, 'I32': np.int32, 'I16': np.int16, 'I8': np.int8,
    'U64': np.uint64, 'U32': np.uint32, 'U16': np.uint16, 'U8': np.uint8, 'BOOL': np.bool_,
}.items()}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

_SINGLE, _INDEX = 'model.safetensors', 'model.safetensors.index.json'
# What `file_names` may hold.
NAMES = re.compile(r'model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json')
# The groups that are written so far, while a network is written.
_JOURNAL = 'written.json'
# Bytes of a file at most, unless one group is larger, as model hubs have it, and least of a group.
_LARGEST, _GROUP = 5_000_000_000, 64 << 20
# Numbers that are checked at a time, and problems of a kind that a message names.
_BLOCK, _SHOWN = 1 << 20, 10
# Bytes of index, description and folders in addition to the numbers.
_MARGIN = 1 << 20
_REMEDY = 'convert the model again'


class StoredArray(NamedTuple):
  """A parameter in a file that is being written: name, dtype there, shape, and bytes."""

  name: str
  dtype: str
  shape: list[int]
  size: int


class Leaf(NamedTuple):
  """An array in a safetensors file; nothing has been read but the header of the file.

  The name of a parameter is its path in the tree with slashes; the dtype is the file's name for it
  if NumPy has no such dtype.
  """

  file: pathlib.Path
  name: str
  shape: tuple[int, ...]
  dtype: np.dtype | str

  def read(self, index: tuple[slice, ...] | None = None) -> np.ndarray:
    """Returns the array, or a slice of it, as a host array."""
    # Closing the file frees the pages of it that are in memory.
    with safetensors.safe_open(self.file, 'numpy') as file:
      return file.get_slice(self.name)[index] if index else file.get_tensor(self.name)


def grouped(items: Iterable[T], size: Callable[[T], int]) -> list[list[T]]:
  """Divides items into runs whose total `size` in bytes is enough for a group."""
  groups: list[list[T]] = []
  total = _GROUP
  for item in items:
    if total >= _GROUP:
      groups.append([])
      total = 0
    groups[-1].append(item)
    total += size(item)
  return groups


def divided(params: Params) -> list[Group]:
  """Divides parameters into groups, which become host arrays when they are called."""
  def part(items):
    return lambda: traverse_util.unflatten_dict(jax.device_get(dict(items)), sep='/')

  return [part(items) for items in grouped(named(params).items(), lambda item: item[1].nbytes)]


def write(folder: pathlib.Path, expected: Params, groups: Sequence[Group], *, dtype: Any,
          allow_nonfinite: bool, progress: Callable[[int, int], None] | None = None,
          metadata: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
  """Writes the groups that an earlier process did not, in their order; returns digests of files.

  Groups and options are as for `store.save_groups`, `expected` the shapes of all parameters, the
  folder exists, and `metadata` are texts for the header of every file. Raises ValueError, naming a
  parameter, if the groups are not the expected ones, numbers are not finite or of a dtype that
  files cannot hold, and if the disk is full.
  """
  # Before the numbers of a file there is room for a header of all parameters. It is written last,
  # because dtypes, and so sizes, are known when the last group is there.
  most = {name: {'dtype': 'BF16', 'shape': list(leaf.shape), 'data_offsets': [10**14] * 2}
          for name, leaf in named(expected).items()} | _header(metadata)
  start = -(-len(json.dumps(most)) // 8) * 8 + 8
  journal = folder / _JOURNAL
  stored, done = reading.json(journal, _REMEDY, kind=list) if journal.exists() else ([], 0)
  written = [[StoredArray(*entry) for entry in file] for file in stored]
  for number, group in enumerate(groups):
    if number >= done:
      params = cast(group(), dtype, allow_nonfinite=allow_nonfinite)
      paths.check_space(folder, _MARGIN + sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
      _append(folder, written, start, named(params))
      atomic.write_json(journal, [written, number + 1])
    if progress:
      progress(number + 1, len(groups))
  entries = collections.Counter((entry.name, tuple(entry.shape))
                                for file in written for entry in file)
  wanted = collections.Counter((name, tuple(leaf.shape)) for name, leaf in named(expected).items())
  if wrong := [*(entries - wanted), *(wanted - entries)]:
    raise ValueError(f'groups and config differ in {wrong[0][0]} of shape {wrong[0][1]}; each '
                     'parameter of the config must be in one group.')
  _finish(folder, written, start, metadata)
  result = digests(folder, file_sizes(folder))
  journal.unlink(missing_ok=True)
  return result


def _append(folder: pathlib.Path, written: list[list[StoredArray]], start: int,
            leaves: Mapping[str, np.ndarray]) -> None:
  """Appends arrays to the last file, or writes them into the next one, and adds their entries."""
  size = sum(leaf.nbytes for leaf in leaves.values())
  if not written or written[-1] and size + sum(entry.size for entry in written[-1]) > _LARGEST:
    written.append([])
  path = _part(folder, len(written) - 1)
  with atomic.naming(path):
    path.touch()
  with atomic.naming(path), path.open('r+b') as stream:
    stream.seek(start + sum(entry.size for entry in written[-1]))
    for name, leaf in leaves.items():
      if (dtype := _NAMES.get(leaf.dtype)) is None:
        raise ValueError(f'{name} is {leaf.dtype}; parameters are stored in one of: '
                         f'{", ".join(map(str, _NAMES))}.')
      written[-1].append(StoredArray(name, dtype, list(leaf.shape), leaf.nbytes))
      stream.write(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    stream.truncate()  # A killed process may have written more.
    stream.flush()
    os.fsync(stream.fileno())  # The journal must not name what is lost with the machine's power.


def _part(folder: pathlib.Path, number: int) -> pathlib.Path:
  return folder / f'{number:05d}.part'


def _header(metadata: Mapping[str, str]) -> dict[str, Any]:
  """Returns the entry of a header that holds metadata, unless there is none."""
  return {'__metadata__': dict(metadata)} if metadata else {}


def _finish(folder: pathlib.Path, written: Sequence[Sequence[StoredArray]], start: int,
            metadata: Mapping[str, str]) -> None:
  """Writes the headers, names the files, and writes the index if there are several."""
  names = [_SINGLE] if len(written) == 1 else [
      f'model-{number + 1:05d}-of-{len(written):05d}.safetensors' for number in range(len(written))]
  for number, (entries, name) in enumerate(zip(written, names, strict=True)):
    path = _part(folder, number)
    if path.exists():  # Otherwise a killed process has named it.
      table = _header(metadata)
      end = 0
      for entry in entries:
        table[entry.name] = {'dtype': entry.dtype, 'shape': entry.shape,
                             'data_offsets': [end, end := end + entry.size]}
      with path.open('r+b') as stream:
        stream.write((start - 8).to_bytes(8, 'little')
                     + json.dumps(table).encode().ljust(start - 8))
        stream.flush()
        os.fsync(stream.fileno())
      path.rename(folder / name)
  if len(written) > 1:
    atomic.write_json(folder / _INDEX, {
        'metadata': {'total_size': sum(entry.size for file in written for entry in file)},
        'weight_map': {entry.name: name for file, name in zip(written, names, strict=True)
                       for entry in file}})


def opened(folder: pathlib.Path, names: Iterable[str]) -> dict[str, Leaf]:
  """Returns the parameters in files of a folder by name; only headers are read.

  Raises ValueError if two files hold the same parameter, or one is of a dtype that `write` never
  uses, SafetensorError if a file is damaged.
  """
  parameters: dict[str, Leaf] = {}
  for path in sorted(folder / name for name in names if name != _INDEX):
    for name, leaf in leaves(path).items():
      if name in parameters or isinstance(leaf.dtype, str):
        raise ValueError(f'{path.name} holds {name} as {leaf.dtype}, which '
                         + ('is in two files' if name in parameters else 'cannot be read'))
      parameters[name] = leaf
  return parameters


def leaves(path: pathlib.Path) -> dict[str, Leaf]:
  """Returns the arrays of a safetensors file by name; only the header is read.

  Raises SafetensorError unless it is intact, and ValueError if a name is there twice.
  """
  with safetensors.safe_open(path, 'numpy') as file:
    reading.check_header(path)
    names = list(file.keys())  # A file cannot be iterated over in all versions.
    headers = {name: file.get_slice(name) for name in names}
    return {name: Leaf(path, name, tuple(header.get_shape()),
                       _DTYPES.get(header.get_dtype(), header.get_dtype()))
            for name, header in headers.items()}


def named(tree: Params) -> dict[str, Any]:
  """Returns leaves by their paths, in the order of the tree."""
  flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: hasattr(x, 'shape'))
  return {jax.tree_util.keystr(path, simple=True, separator='/'): leaf for path, leaf in flat}


def checked_dtype(dtype: Any, *, in_jax: bool = False) -> Any:
  """Returns a dtype, or None; raises ValueError unless parameters, or JAX's arrays, can have it."""
  if dtype is None:
    return None
  try:
    name = str(jnp.dtype(dtype))
  except TypeError:
    name = ''
  fields.require(name in FLOATING, 'dtype', dtype,
                 f'a floating-point dtype of at least 16 bits: {", ".join(FLOATING)}')
  if in_jax and name == 'float64' and not jax.config.jax_enable_x64:
    raise ValueError("dtype is 'float64', which JAX's arrays have only after "
                     "jax.config.update('jax_enable_x64', True); call it first, or use float32.")
  return dtype


def cast(params: Params, dtype: Any, *, allow_nonfinite: bool) -> Params:
  """Returns host arrays, the floating-point ones in `dtype` unless it is None.

  Unless `allow_nonfinite`, raises ValueError, naming the array, for numbers that are not finite, or
  that are too large for `dtype`.
  """
  def convert(leaf):
    if dtype is None or not jnp.issubdtype(leaf.dtype, jnp.floating):
      return leaf
    with np.errstate(over='ignore'):  # Reported below with the name.
      return leaf.astype(jnp.dtype(dtype), copy=False)

  params = jax.tree.map(np.asarray, params)
  result = jax.tree.map(convert, params)
  if not allow_nonfinite:
    try:
      check_finite(result)
    except ValueError:
      check_finite(params)
      _refuse_large(named(params), named(result), dtype)
  return result


def _refuse_large(params: Mapping[str, np.ndarray], result: Mapping[str, np.ndarray], dtype: Any
                  ) -> NoReturn:
  """Raises ValueError for the first of finite arrays that is not finite in another dtype."""
  name, too_large = next(
      (name, mask) for name, leaf in result.items()
      if jnp.issubdtype(leaf.dtype, jnp.inexact) and (mask := ~np.isfinite(leaf)).any())
  number = float(params[name][too_large][0])
  others = [other for other in FLOATING if float(jnp.finfo(other).max) >= abs(number)]
  raise ValueError(
      f'dtype is {str(jnp.dtype(dtype))!r}, whose largest number is '
      f'{float(jnp.finfo(dtype).max):.6g}, and {name} of shape {params[name].shape} holds '
      f'{number:.6g}; it must be one of: {", ".join(others)}.')


def differences(expected: Params, params: Params) -> list[str]:
  """Returns lines about leaves that are missing, unexpected, or of other shapes or dtypes."""
  wanted, actual = named(expected), named(params)
  shapes, dtypes = [], []
  for name in sorted(wanted.keys() & actual.keys()):
    leaf, like = actual[name], wanted[name]
    if tuple(leaf.shape) != tuple(like.shape):
      shapes.append(f'{name} is {tuple(leaf.shape)}, the config requires {tuple(like.shape)}')
    elif leaf.dtype != like.dtype and not all(
        str(array.dtype) in FLOATING for array in (leaf, like)):
      dtypes.append(f'{name} is {leaf.dtype}, the config requires {like.dtype}')
  return listed({
      'missing': [f'{name} {tuple(wanted[name].shape)}'
                  for name in sorted(wanted.keys() - actual.keys())],
      'unexpected': [f'{name} {tuple(actual[name].shape)}'
                     for name in sorted(actual.keys() - wanted.keys())],
      'mis-shaped': shapes, 'mis-typed': dtypes})


def listed(problems: Mapping[str, Sequence[str]]) -> list[str]:
  """Returns a line for the first problems of every kind each, and one that counts the others."""
  lines: list[str] = []
  for kind, group in problems.items():
    lines += [f'{kind}: {problem}' for problem in group[:_SHOWN]]
    if (others := len(group) - _SHOWN) > 0:
      lines.append(f'... and {others} more {kind}, {len(group)} in all')
  return lines


def check_finite(arrays: Params) -> None:
  """Raises ValueError, naming the array, if a number of a tree of host arrays is not finite."""
  for name, leaf in named(arrays).items():
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
      continue
    # In blocks of rows, so that an array in another memory order is not copied as a whole.
    rows = max(1, _BLOCK // max(1, leaf[:1].size)) if leaf.ndim else 1
    for first in range(0, max(1, len(leaf) if leaf.ndim else 1), rows):
      block = leaf[first:first + rows] if leaf.ndim else leaf
      if not np.isfinite(block).all():
        wrong = block[~np.isfinite(block)].reshape(-1)
        raise ValueError(
            f'{name} of shape {leaf.shape} holds numbers that are not finite, such as {wrong[0]}; '
            'use another file, or if they are intended, pass allow_nonfinite.')


def file_sizes(folder: pathlib.Path) -> dict[str, int]:
  """Returns the bytes of the files of parameters in a folder, by name."""
  return {file.name: file.stat().st_size for file in sorted(folder.iterdir())
          if NAMES.fullmatch(file.name) and file.is_file()}


def digests(folder: pathlib.Path, names: Iterable[str],
            begin: Callable[[], Any] = lambda: hashlib.blake2b(digest_size=32)) -> dict[str, str]:
  """Returns hexadecimal digests of files; `begin` returns the digest of no bytes."""
  def digest(name: str) -> str:
    with (folder / name).open('rb') as stream:
      return hashlib.file_digest(stream, begin).hexdigest()

  names = sorted(names)
  with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
    return dict(zip(names, pool.map(digest, names), strict=True))
