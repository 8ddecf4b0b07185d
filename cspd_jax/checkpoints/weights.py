"""Parameters as files, a group of them after the other, so that a host never holds them all.

A group is a part of the parameters' tree, written by Orbax into a folder of its own.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
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

# Bytes of arrays that are made, written and read together, at least.
_GROUP = 64 << 20
# Numbers that are looked at together, bytes that are read together.
_BLOCK = 1 << 20
# Seconds that the threads of a save that failed have to end, together.
_PATIENCE = 10.0
# Seconds without another error after which they have ended.
_QUIET = 1.0
# Bytes of what Orbax writes beside the numbers.
_MARGIN = 1 << 20


def grouped(items: Iterable[T], size: Callable[[T], int]) -> list[list[T]]:
  """Neighbours together, so that their bytes, as `size` gives them, are enough for a group."""
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
  """Groups of parameters, which become host arrays when they are called for."""
  def part(items):
    return lambda: traverse_util.unflatten_dict(jax.device_get(dict(items)), sep='/')

  return [part(items) for items in grouped(named(params).items(), lambda item: item[1].nbytes)]


def write(folder: pathlib.Path, groups: Sequence[Group], *, dtype: Any, allow_nonfinite: bool,
          progress: Callable[[int, int], None] | None = None) -> list[str]:
  """Writes the groups that are not there yet.

  Args:
    folder: where `arrays/` is, or will be.
    groups: called one by one, in this order, unless an earlier process wrote the group.
    dtype: of floating-point parameters; None keeps theirs.
    allow_nonfinite: whether numbers may be NaN or infinite.
    progress: called as `progress(done, total)` with numbers of groups.

  Returns:
    Where the groups are in the folder.

  Raises:
    ValueError: naming a parameter with numbers that are not finite, or if the disk is full.
    OSError: if the disk fills up meanwhile, or the system refuses to write.
  """
  names = [f'arrays/{i:04d}' for i in range(len(groups))]
  (folder / 'arrays').mkdir(exist_ok=True)
  for other in set((folder / 'arrays').glob('*')) - {folder / name for name in names}:
    shutil.rmtree(other)  # A group that was not complete.
  for i, (name, group) in enumerate(zip(names, groups, strict=True)):
    # Orbax writes beside the place and renames.
    if not (folder / name).exists():
      params = cast(group(), dtype)
      if not allow_nonfinite:
        check_finite(params)
      # Orbax waits for minutes for a full disk, and ends with pages.
      paths.check_space(folder, _MARGIN + sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
      with _one_error(folder):
        ocp.save_checkpointables(folder / name, {'params': params})
    # Only object stores need this marker, and it names a folder of the machine that saved.
    (folder / name / 'commit_success.txt').unlink(missing_ok=True)
    if progress:
      progress(i + 1, len(names))
  return names


@contextlib.contextmanager
def _one_error(folder: pathlib.Path) -> Iterator[None]:
  """Raises what the system says if Orbax cannot write, whose threads print pages about it."""
  before, logger = set(threading.enumerate()), logging.get_absl_logger()
  hooks, last = (sys.unraisablehook, threading.excepthook), [time.monotonic()]
  is_of_others = lambda record: 'orbax' not in record.pathname
  sys.unraisablehook = lambda *args: last.append(time.monotonic())
  threading.excepthook = lambda args: args.thread in before and hooks[1](args)
  logger.addFilter(is_of_others)
  try:
    yield
  except Exception as error:
    end = time.monotonic() + _PATIENCE
    for thread in set(threading.enumerate()) - before:
      thread.join(max(0, end - time.monotonic()))
    # Threads that are not Python's cannot be joined: they have ended when nothing more is raised.
    last.append(time.monotonic())
    while (now := time.monotonic()) < min(end, last[-1] + _QUIET):
      time.sleep(min(end, last[-1] + _QUIET) - now)
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
      raise OSError(int(code[1]), os.strerror(int(code[1])), str(folder)) from error
    raise
  finally:
    logger.removeFilter(is_of_others)
    sys.unraisablehook, threading.excepthook = hooks


def stored(folder: pathlib.Path, names: Iterable[str]) -> dict[str, Params]:
  """Shapes and dtypes of the parameters of every group, as Orbax describes them."""
  found = {name: ocp.checkpointables_metadata(folder / name).metadata['params'] for name in names}
  if None in found.values():
    raise ValueError('no parameters can be read')
  return found


def read(folder: pathlib.Path, name: str, described: Params) -> dict[str, np.ndarray]:
  """The parameters of a group as host arrays by name; `described` is what `stored` gives for it."""
  # Asking for host arrays makes Orbax ignore the devices of the machine that saved. These
  # only carry shape and dtype: they are views of one number.
  like = jax.tree.map(
      lambda found: np.broadcast_to(np.zeros((), found.dtype), found.shape), described)
  return named(ocp.load_checkpointables(folder / name, {'params': like})['params'])


def named(tree: Params) -> dict[str, Any]:
  """Leaves by their paths, in the order of the tree."""
  flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: hasattr(x, 'shape'))
  return {jax.tree_util.keystr(path, simple=True, separator='/'): leaf for path, leaf in flat}


def joined(parts: Iterable[Params]) -> Params:
  """Parts of a tree as one."""
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


def cast(params: Params, dtype: Any) -> Params:
  """Host arrays, the floating-point ones in `dtype` unless it is None."""
  def one(leaf):
    leaf = np.asarray(leaf)
    if dtype is None or not jnp.issubdtype(leaf.dtype, jnp.floating):
      return leaf
    with np.errstate(over='ignore'):  # `check_finite` says it with the name.
      return leaf.astype(jnp.dtype(dtype), copy=False)
  return jax.tree.map(one, params)


def differences(expected: Params, params: Params) -> list[str]:
  """What is missing, unexpected, or of another shape or kind of numbers in a tree of arrays.

  Floating-point numbers may have any width.
  """
  wanted, found = named(expected), named(params)
  problems = [f'missing: {name} {tuple(wanted[name].shape)}'
              for name in sorted(wanted.keys() - found.keys())]
  problems += [f'unexpected: {name} {tuple(found[name].shape)}'
               for name in sorted(found.keys() - wanted.keys())]
  for name in sorted(wanted.keys() & found.keys()):
    one, other = found[name], wanted[name]
    if tuple(one.shape) != tuple(other.shape):
      problems.append(f'mis-shaped: {name} is {tuple(one.shape)}, the config asks for '
                      f'{tuple(other.shape)}')
    elif one.dtype != other.dtype and not all(
        jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in (one, other)):
      problems.append(f'mis-typed: {name} is {one.dtype}, the config asks for {other.dtype}')
  return problems


def check_finite(arrays: Params) -> None:
  """Raises ValueError if a number of a tree of host arrays is NaN or infinite, naming the array."""
  for name, leaf in named(arrays).items():
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
      continue
    # Rows, so that an array in another order is not copied as a whole.
    rows = max(1, _BLOCK // max(1, leaf[:1].size)) if leaf.ndim else 1
    for first in range(0, max(1, len(leaf) if leaf.ndim else 1), rows):
      block = leaf[first:first + rows] if leaf.ndim else leaf
      if not np.isfinite(block).all():
        wrong = block[~np.isfinite(block)].reshape(-1)
        raise ValueError(
            f'{name} of shape {leaf.shape} holds numbers that are not finite, such as {wrong[0]}; '
            'take a file without, or allow_nonfinite if they are meant.')


def file_sizes(folder: pathlib.Path) -> dict[str, int]:
  """Bytes of every file of the arrays, by its path in the folder."""
  return {file.relative_to(folder).as_posix(): file.stat().st_size
          for file in sorted((folder / 'arrays').rglob('*')) if file.is_file()}


def digests(folder: pathlib.Path, names: Iterable[str],
            begin: Callable[[], Any] = lambda: hashlib.blake2b(digest_size=32)) -> dict[str, str]:
  """Hexadecimal digests of files, read in threads.

  Args:
    folder: where the files are.
    names: their paths in the folder.
    begin: makes the digest of nothing, by default a BLAKE2b of 32 bytes.
  """
  names = sorted(names)
  with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
    found = pool.map(lambda name: _digest(folder / name, begin()), names)
    return dict(zip(names, found, strict=True))


def _digest(path: pathlib.Path, state: Any) -> str:
  with path.open('rb') as stream:
    while block := stream.read(_BLOCK):
      state.update(block)
  return state.hexdigest()
