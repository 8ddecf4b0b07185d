"""Checkpoints of a training: one file per saved step.

A file is complete or absent, and every array in it has a checksum. The last two files are retained:
if one is damaged, training continues from the one before.
"""

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
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
  files.write_tree(folder / f'step_{number:08d}.npz', jax.device_get(state))
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
    # A step donates the memory of its input, so it must not be that of the file's bytes.
    state = jax.tree.map(jnp.array, files.tree_of(arrays, like, paths[number]))
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
