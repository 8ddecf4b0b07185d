"""Checkpoints of a training: one file per saved step.

A file is complete or absent, and every array in it has a checksum. The last two files are retained:
if one is damaged, training continues from the one before.
"""

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.checkpoints import files, reading

# Number of files that are retained.
_RETAINED = 2


def save(folder: pathlib.Path, number: int, state: Any) -> None:
  """Saves the state after step `number` and removes all earlier ones but the last.

  Args:
    folder: folder of this training alone.
    number: number of steps done.
    state: a pytree of arrays.
  """
  leaves = {name: _plain(np.asarray(leaf)) for name, leaf in _named(jax.device_get(state)).items()}
  files.write_arrays(folder / f'step_{number:08d}.npz', leaves)
  paths = _files(folder)
  # Later files are from before a damaged file made the training go back.
  for later in [step for step in paths if step > number]:
    paths.pop(later).unlink(missing_ok=True)
  _remove_old(paths)


def restore(folder: pathlib.Path, like: Any) -> Any:
  """Reads the last readable state; logs a warning for each damaged file.

  Args:
    folder: see `save`.
    like: a state of the same structure, shapes and dtypes.

  Returns:
    The state, or None if no file is readable.

  Raises:
    ValueError: if the folder holds states of another training.
  """
  if folder.is_symlink():
    raise ValueError(f'{folder} is a link, and files in its target would be removed; move it away, '
                     'or use another folder.')
  for partial in files.leftovers(folder / '*'):
    partial.unlink(missing_ok=True)
  paths = _files(folder)
  for number in sorted(paths, reverse=True):
    try:
      arrays = reading.arrays(paths[number], 'going back to an earlier step')
    except ValueError as error:
      logging.warning('%s', error)
      continue
    state = _filled(paths[number], like, arrays)
    # A process may have been killed before it removed the files that its last one replaced.
    _remove_old({step: path for step, path in paths.items() if step <= number})
    return state
  return None


def _remove_old(paths: dict[int, pathlib.Path]) -> None:
  """Removes all files but the last ones."""
  for number in sorted(paths)[:-_RETAINED]:
    paths[number].unlink(missing_ok=True)


def _files(folder: pathlib.Path) -> dict[int, pathlib.Path]:
  """Returns the files by step."""
  paths: dict[int, pathlib.Path] = {}
  for path in folder.iterdir():
    if match := re.fullmatch(r'step_(\d+)\.npz', path.name):
      paths[int(match[1])] = path
    elif path.is_dir():
      raise ValueError(f'{path} is a folder, perhaps a checkpoint of an earlier version; move it '
                       'away, or use another folder.')
  return paths


def _named(state: Any) -> dict[str, Any]:
  """Returns the leaves of a state by path."""
  return {jax.tree_util.keystr(path, simple=True, separator='.'): leaf
          for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _plain(leaf: np.ndarray) -> np.ndarray:
  """Views an array of a dtype that NumPy does not support as unsigned integers, for .npz files."""
  return leaf.view(f'u{leaf.dtype.itemsize}') if leaf.dtype.kind == 'V' else leaf


def _filled(path: pathlib.Path, like: Any, arrays: dict[str, np.ndarray]) -> Any:
  """Returns a state like `like` with the arrays of a file; raises ValueError if they differ."""
  expected = {name: _plain(np.empty(leaf.shape, leaf.dtype)) for name, leaf in _named(like).items()}
  for name in expected.keys() | arrays.keys():
    forms = [f'{group[name].dtype}{list(group[name].shape)}' if name in group else 'nothing'
             for group in (arrays, expected)]
    if forms[0] != forms[1]:
      raise ValueError(f'{path} holds {forms[0]} as {name!r} instead of {forms[1]}, a state of '
                       'another training; use another folder.')
  leaves, structure = jax.tree.flatten(like)
  # A step donates the memory of its input, so it must not be that of the file's bytes.
  return structure.unflatten([
      jnp.array(arrays[name].view(leaf.dtype))
      for name, leaf in zip(expected, leaves, strict=True)])
