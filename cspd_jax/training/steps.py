"""States of a training, kept in files of one step each.

A file is there complete or not at all, and every array in it has a checksum. The last two are kept:
if one is damaged, training goes on from the one before.
"""

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.checkpoints import files, reading

_KEPT = 2


def save(folder: pathlib.Path, number: int, state: Any) -> None:
  """Keeps the state after step `number`, and of those before the last one.

  Args:
    folder: of this training alone.
    number: steps done.
    state: a pytree of arrays.
  """
  leaves = {name: _plain(np.asarray(leaf)) for name, leaf in _named(jax.device_get(state)).items()}
  files.write_arrays(folder / f'step_{number:08d}.npz', leaves)
  kept = _files(folder)
  # Later ones are from before a damaged file made the training go back.
  for later in [one for one in kept if one > number]:
    kept.pop(later).unlink(missing_ok=True)
  _forget(kept)


def restore(folder: pathlib.Path, like: Any) -> Any:
  """The last state that can be read; None if there is none. Files that cannot be are told of.

  Args:
    folder: see `save`.
    like: a state of the same structure, shapes and dtypes.

  Raises:
    ValueError: if the folder holds something else.
  """
  if folder.is_symlink():
    raise ValueError(f'{folder} is a link, and files of what it leads to would be removed; move it '
                     'away, or give another folder.')
  for left in files.leftovers(folder / '*'):
    left.unlink(missing_ok=True)
  found = _files(folder)
  for number in sorted(found, reverse=True):
    try:
      stored = reading.arrays(found[number], 'going back to an earlier step')
    except ValueError as error:
      logging.warning('%s', error)
      continue
    state = _filled(found[number], like, stored)
    # A process may have been killed before it removed what its last state replaced.
    _forget({one: path for one, path in found.items() if one <= number})
    return state
  return None


def _forget(found: dict[int, pathlib.Path]) -> None:
  """Removes all files but the last ones."""
  for number in sorted(found)[:-_KEPT]:
    found[number].unlink(missing_ok=True)


def _files(folder: pathlib.Path) -> dict[int, pathlib.Path]:
  """The files by their steps."""
  found = {}
  for path in folder.iterdir():
    if name := re.fullmatch(r'step_(\d+)\.npz', path.name):
      found[int(name[1])] = path
    elif path.is_dir():
      raise ValueError(f'{path} is no state of a training, but perhaps one of an earlier version; '
                       'move it away, or give another folder.')
  return found


def _named(state: Any) -> dict[str, Any]:
  """The leaves of a state by their paths."""
  return {jax.tree_util.keystr(path, simple=True, separator='.'): leaf
          for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _plain(leaf: np.ndarray) -> np.ndarray:
  """An array as .npz files can hold it: the bits of a number that NumPy does not know."""
  return leaf.view(f'u{leaf.dtype.itemsize}') if leaf.dtype.kind == 'V' else leaf


def _filled(path: pathlib.Path, like: Any, stored: dict[str, np.ndarray]) -> Any:
  """A state like another, of stored numbers; raises ValueError if they are of another."""
  wanted = {name: _plain(np.empty(leaf.shape, leaf.dtype)) for name, leaf in _named(like).items()}
  for name in wanted.keys() | stored.keys():
    forms = [f'{one[name].dtype}{list(one[name].shape)}' if name in one else 'nothing'
             for one in (stored, wanted)]
    if forms[0] != forms[1]:
      raise ValueError(f'{path} holds {forms[0]} as {name!r} instead of {forms[1]}, a state of '
                       'another training; give another folder.')
  leaves, structure = jax.tree.flatten(like)
  # A step gives its input's memory away, so it must not be that of the file's bytes.
  return structure.unflatten([
      jnp.array(stored[name].view(leaf.dtype)) for name, leaf in zip(wanted, leaves, strict=True)])
