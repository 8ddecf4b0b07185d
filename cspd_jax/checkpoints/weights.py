"""Parameters as files, written and read in groups, so that a host never holds all of them.

A group is a part of the parameters' tree, which Orbax writes into a folder of its own.
"""

import concurrent.futures
import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import traverse_util
from orbax.checkpoint import v1 as ocp

from cspd_jax.checkpoints import paths

Params = Any
T = TypeVar('T')
# Returns a part of the parameters.
Group = Callable[[], Params]

# Dtypes that floating-point weights may have. JAX computes with no narrower ones by itself.
FLOATING = ('float64', 'float32', 'float16', 'bfloat16')
# Minimal bytes of the arrays of a group.
_GROUP = 64 << 20
# Numbers that are checked at a time, and bytes of a file that are read at a time.
_BLOCK = 1 << 20
# Problems of a kind that a message names.
_SHOWN = 10
# Seconds that all threads of a failed save have to end.
_PATIENCE = 10.0
# Seconds without another error after which they count as ended.
_QUIET = 1.0
# Bytes that Orbax writes in addition to the numbers.
_MARGIN = 1 << 20


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


def write(folder: pathlib.Path, groups: Sequence[Group], *, dtype: Any, allow_nonfinite: bool,
          progress: Callable[[int, int], None] | None = None) -> list[str]:
  """Writes the groups that an earlier process did not write.

  Args:
    folder: parent of `arrays/`, which is created if absent.
    groups: called one by one, in this order, unless they are written already.
    dtype: dtype of floating-point parameters; None preserves theirs.
    allow_nonfinite: whether numbers may be NaN or infinite.
    progress: called as `progress(done, total)` with numbers of groups.

  Returns:
    Paths of the groups in the folder.

  Raises:
    ValueError: naming a parameter with numbers that are not finite, or if the disk is full.
    OSError: if the disk becomes full meanwhile, or the system refuses to write.
  """
  names = [f'arrays/{i:04d}' for i in range(len(groups))]
  (folder / 'arrays').mkdir(exist_ok=True)
  for other in set((folder / 'arrays').glob('*')) - {folder / name for name in names}:
    shutil.rmtree(other)  # An incomplete group.
  for i, (name, group) in enumerate(zip(names, groups, strict=True)):
    # Orbax writes to a temporary folder and renames it.
    if not (folder / name).exists():
      params = cast(group(), dtype)
      if not allow_nonfinite:
        check_finite(params)
      # On a full disk, Orbax waits for minutes and prints pages.
      paths.check_space(folder, _MARGIN + sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
      with _one_error(folder):
        ocp.save_checkpointables(folder / name, {'params': params})
    # Only object stores need this marker, which names a folder of the machine that saved.
    (folder / name / 'commit_success.txt').unlink(missing_ok=True)
    if progress:
      progress(i + 1, len(names))
  return names


@contextlib.contextmanager
def _one_error(folder: pathlib.Path) -> Iterator[None]:
  """Raises the system's error if Orbax cannot write, without the pages that its threads print."""
  before, logger = set(threading.enumerate()), logging.get_absl_logger()
  hooks, last = (sys.unraisablehook, threading.excepthook), [time.monotonic()]
  is_foreign = lambda record: 'orbax' not in record.pathname
  sys.unraisablehook = lambda *args: last.append(time.monotonic())
  threading.excepthook = lambda args: args.thread in before and hooks[1](args)
  logger.addFilter(is_foreign)
  try:
    yield
  except Exception as error:
    end = time.monotonic() + _PATIENCE
    for thread in set(threading.enumerate()) - before:
      thread.join(max(0, end - time.monotonic()))
    # Threads that are not Python's cannot be joined; they have ended when errors stop.
    last.append(time.monotonic())
    while (now := time.monotonic()) < min(end, last[-1] + _QUIET):
      time.sleep(min(end, last[-1] + _QUIET) - now)
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
      raise OSError(int(code[1]), os.strerror(int(code[1])), str(folder)) from error
    raise
  finally:
    logger.removeFilter(is_foreign)
    sys.unraisablehook, threading.excepthook = hooks


def shapes(folder: pathlib.Path, names: Iterable[str]) -> dict[str, Params]:
  """Returns shapes and dtypes of the parameters of every group, as Orbax stored them."""
  groups = {name: ocp.checkpointables_metadata(folder / name).metadata['params'] for name in names}
  if None in groups.values():
    raise ValueError('no parameters can be read')
  return groups


def read(folder: pathlib.Path, name: str, described: Params) -> dict[str, np.ndarray]:
  """Returns the parameters of a group as host arrays by name; `described` is its `shapes`."""
  # If host arrays are requested, Orbax ignores the devices of the machine that saved. These
  # only carry shape and dtype: they are views of one number.
  like = jax.tree.map(
      lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), described)
  return named(ocp.load_checkpointables(folder / name, {'params': like})['params'])


def named(tree: Params) -> dict[str, Any]:
  """Returns leaves by their paths, in the order of the tree."""
  flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: hasattr(x, 'shape'))
  return {jax.tree_util.keystr(path, simple=True, separator='/'): leaf for path, leaf in flat}


def joined(parts: Iterable[Params]) -> Params:
  """Joins parts of a tree."""
  whole: dict[str, Any] = {}
  for part in parts:
    _merge(whole, part)
  return whole


def _merge(tree: dict[str, Any], part: Params) -> None:
  for name, value in part.items():
    if isinstance(value, dict):
      _merge(tree.setdefault(name, {}), value)
    else:
      tree[name] = value


def checked_dtype(dtype: Any) -> Any:
  """Returns a dtype, or None; raises ValueError unless parameters can have it."""
  if dtype is None:
    return None
  try:
    name = str(jnp.dtype(dtype))
  except TypeError:
    name = ''
  if name not in FLOATING:
    raise ValueError(f'dtype is {dtype!r}; it must be a floating-point dtype of at least 16 bits: '
                     f'{", ".join(FLOATING)}.')
  return dtype


def cast(params: Params, dtype: Any) -> Params:
  """Returns host arrays, the floating-point ones in `dtype` unless it is None."""
  def convert(leaf):
    leaf = np.asarray(leaf)
    if dtype is None or not jnp.issubdtype(leaf.dtype, jnp.floating):
      return leaf
    with np.errstate(over='ignore'):  # `check_finite` reports it with the name.
      return leaf.astype(jnp.dtype(dtype), copy=False)
  return jax.tree.map(convert, params)


def differences(expected: Params, params: Params) -> list[str]:
  """Lists leaves that are missing, unexpected, or of another shape or kind of dtype.

  Floating-point numbers may have any dtype of `FLOATING`. Returns the lines of `listed`.
  """
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
  """Returns a line for each of the first problems of every kind, and one with the number of others.

  Args:
    problems: by kind, such as 'missing'.
  """
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
            'use another file, or set allow_nonfinite if they are intended.')


def file_sizes(folder: pathlib.Path) -> dict[str, int]:
  """Returns the bytes of every file of the arrays, by its path in the folder."""
  return {file.relative_to(folder).as_posix(): file.stat().st_size
          for file in sorted((folder / 'arrays').rglob('*')) if file.is_file()}


def digests(folder: pathlib.Path, names: Iterable[str],
            begin: Callable[[], Any] = lambda: hashlib.blake2b(digest_size=32)) -> dict[str, str]:
  """Returns hexadecimal digests of files, which are read in threads.

  Args:
    folder: parent of the files.
    names: their paths in the folder.
    begin: returns the digest of no bytes, by default a BLAKE2b of 32 bytes.
  """
  names = sorted(names)
  with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
    results = pool.map(lambda name: _digest(folder / name, begin()), names)
    return dict(zip(names, results, strict=True))


def _digest(path: pathlib.Path, state: Any) -> str:
  with path.open('rb') as stream:
    while block := stream.read(_BLOCK):
      state.update(block)
  return state.hexdigest()
