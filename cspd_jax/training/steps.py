"""Checkpoints of a training: one Orbax checkpoint per saved step.

A step is a folder that appears as a whole, with digests of its files. The last two are retained: if
one is damaged, training continues from the one before.
"""

import os
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from orbax.checkpoint import v1 as ocp

from cspd_jax.files import atomic, folders, reading, weights

# Number of steps that are retained.
_RETAINED = 2
# In the folder of a step: the checkpoint, and the digests of its files.
_STATE, _DIGESTS = 'state', 'digests.json'
# Bytes that Orbax writes in addition to the numbers.
_MARGIN = 1 << 20
_REMEDY = 'going back to an earlier step'


def save(folder: pathlib.Path, number: int, state: Any) -> None:
  """Saves the state after step `number` and removes all earlier ones but the last.

  The folder is that of this training alone. A full or read-only disk raises OSError.
  """
  arrays = atomic.arrays_of(jax.device_get(state))
  leaves = {name: leaf for name, leaf in arrays.items() if leaf.size}  # Orbax stores no others.
  folder = folder.resolve()
  with folders.replacing(folder / f'step_{number:08d}', _listed) as new:
    _reserve(new / _STATE, _MARGIN + sum(leaf.nbytes for leaf in leaves.values()))
    ocp.save_checkpointables(new / _STATE, {'state': leaves})
    atomic.write_json(new / _DIGESTS, weights.digests(new, _names(new)))
  saved = _steps(folder)
  # Later steps are from before a damaged one made the training go back.
  for later in [step for step in saved if step > number]:
    folders.remove(saved.pop(later), _listed)
  _remove_old(saved)


def restore(folder: pathlib.Path, like: Any) -> Any:
  """Reads the last readable state, or None; logs a warning for each damaged one.

  It has the structure, shapes and dtypes of `like`; states of another training raise ValueError.
  """
  if folder.is_symlink():
    raise ValueError(f'{folder} is a link, and files in its target would be removed; move it away, '
                     'or use another folder.')
  saved = _steps(folder.resolve())
  for number in sorted(saved, reverse=True):
    try:
      arrays = _read(saved[number])
    except ValueError as error:
      logging.warning('%s', error)
      continue
    empty = {name: leaf for name, leaf in atomic.arrays_of(like).items() if not leaf.size}
    # A step of the training donates the memory of its input, so it must be JAX's own.
    state = jax.tree.map(jnp.array, atomic.tree_of(empty | arrays, like, saved[number]))
    # A process may have been killed before it removed the steps that its last one replaced.
    _remove_old({step: path for step, path in saved.items() if step <= number})
    return state
  return None


def _reserve(path: pathlib.Path, size: int) -> None:
  """Raises the system's error if a file of `size` bytes cannot be written."""
  # If a disk is full, the threads of Orbax print pages.
  with atomic.naming(path), path.open('xb') as stream:
    os.posix_fallocate(stream.fileno(), 0, size)
  path.unlink()


def _names(step: pathlib.Path) -> list[str]:
  """Returns the files of a step's checkpoint, by their paths in the folder of the step."""
  return sorted(path.relative_to(step).as_posix() for path in (step / _STATE).rglob('*')
                if path.is_file())


def _listed(step: pathlib.Path) -> list[str]:
  """Returns everything that `save` writes into the folder of a step."""
  return [*_names(step), _DIGESTS]


def _read(step: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the arrays of a step by name; raises ValueError if a file is damaged."""
  digests = reading.json(step / _DIGESTS, _REMEDY)
  if digests != weights.digests(step, _names(step)):
    raise ValueError(f'{step} has other files than were saved; {_REMEDY}.')
  described = ocp.checkpointables_metadata(step / _STATE).metadata['state']
  # Orbax returns host arrays if they are requested. These are views of one number.
  like = {name: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
          for name, leaf in described.items()}
  return ocp.load_checkpointables(step / _STATE, {'state': like})['state']


def _remove_old(saved: dict[int, pathlib.Path]) -> None:
  """Removes all steps but the last ones."""
  for number in sorted(saved)[:-_RETAINED]:
    folders.remove(saved[number], _listed)


def _steps(folder: pathlib.Path) -> dict[int, pathlib.Path]:
  """Returns the folders of saved steps by number; removes what a killed process left of others."""
  saved: dict[int, pathlib.Path] = {}
  for path in list(folder.iterdir()):
    if match := re.fullmatch(r'step_(\d+)', path.name):
      saved[int(match[1])] = path
    elif match := re.fullmatch(r'\.(step_\d+)\.unfinished', path.name):
      folders.discard(folder / match[1], _listed)
    else:
      raise ValueError(f'{path} is not a step of a training; move it away, or use another folder.')
  return saved
