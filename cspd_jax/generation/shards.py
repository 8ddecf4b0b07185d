"""The finished batches of a run as files; a file that exists is complete."""

import hashlib
import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.checkpoints import files, locks, paths, reading
from cspd_jax.core.spec import Spec
from cspd_jax.generation.engines import Options

if TYPE_CHECKING:
  from cspd_jax.generation.model import Model

_SETTINGS = 'run.json'
# Settings that runs of earlier versions did not record.
_UNRECORDED = ('grid', 'config', 'tokenizer')
# How many numbers of an array are compared to detect other parameters.
_SAMPLED = 1024


class Shards:
  """A folder of finished batches, `batch_<first image>.npz`."""

  def __init__(self, folder: str | os.PathLike, settings_of_run: dict[str, Any], structure: Any):
    """Opens the folder, or creates it.

    Args:
      folder: the folder of this run only.
      settings_of_run: everything that determines the results, JSON-serialisable; see `settings`.
      structure: shapes and dtypes of the result of a full batch.

    Raises:
      ValueError: if the folder holds another run, or other files.
    """
    self._folder = paths.folder('folder', folder)
    self._leaves, self._tree = jax.tree.flatten(structure)
    # A second process would decode the same batches.
    self._hold = locks.hold(self._folder)
    path = self._folder / _SETTINGS
    new = json.loads(json.dumps(settings_of_run))
    if path.exists():
      stored, new = reading.json(path, 'use another folder'), as_recorded(new, path)
      if changed := [f'{name} was {stored.get(name)!r}, now {new.get(name)!r}'
                     for name in {**stored, **new} if stored.get(name) != new.get(name)]:
        raise ValueError(f'folder is {str(folder)!r}, which holds another run '
                         f'({"; ".join(changed)}); use another folder.')
    elif any(self._folder.iterdir()):
      raise ValueError(f'folder is {str(folder)!r}, which holds other files; use an empty or a '
                       'new folder.')
    else:
      files.write_json(path, new)

  def read(self, first: int, count: int) -> Any:
    """Reads the `count` results from image `first` on as NumPy arrays; None without a file.

    Raises:
      ValueError: if the file is not one of this run.
    """
    path = self._path(first)
    if not path.exists():
      return None
    names = tuple(f'{i}' for i in range(len(self._leaves)))
    stored = reading.arrays(path, files.REMAKE, needed=names)
    leaves = [stored[name] for name in names]
    for leaf, like in zip(leaves, self._leaves):
      if leaf.shape != (count, *like.shape[1:]) or leaf.dtype != like.dtype:
        raise ValueError(f'{path} holds {leaf.dtype} of shape {leaf.shape} instead of {like.dtype} '
                         f'of shape {(count, *like.shape[1:])}; {files.REMAKE}.')
    return jax.tree.unflatten(self._tree, leaves)

  def write(self, first: int, results: Any) -> None:
    """Writes the results from image `first` on."""
    files.write_arrays(self._path(first), {
        f'{i}': leaf for i, leaf in enumerate(jax.tree.leaves(results))})

  def _path(self, first: int) -> pathlib.Path:
    return self._folder / f'batch_{first:07d}.npz'


def batch_size_of(folder: str | os.PathLike) -> int | None:
  """Returns the batch size of the run in a folder; None without a run."""
  return size_of_run(pathlib.Path(folder) / _SETTINGS)


def size_of_run(path: pathlib.Path) -> int | None:
  """Returns the batch size that a file with the settings of a run records; None without one."""
  if not path.is_file():
    return None
  run = reading.json(path, 'use another folder', kind=object)
  size = run.get('batch_size') if isinstance(run, dict) else None
  return size if type(size) is int and size >= 1 else None


def as_recorded(settings_of_run: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
  """Returns settings without those that the run in a file, of an earlier version, lacks."""
  stored = reading.json(path, 'use another folder', kind=object) if path.is_file() else None
  if not isinstance(stored, dict):
    return settings_of_run
  return {name: value for name, value in settings_of_run.items()
          if name in stored or name not in _UNRECORDED}


def settings(model: 'Model', specification: Spec, condition: Any, seed: Any, batch_size: int,
             sampling: Options, prompts: Any = None) -> dict[str, Any]:
  """Returns the settings that determine the results of a run.

  Args:
    model: see `batches.iterate`.
    specification: of the decoder.
    condition: the condition that `model` returned for the prompts.
    seed: see `batches.iterate`.
    batch_size: see `batches.iterate`.
    sampling: see `batches.iterate`.
    prompts: the caller's prompts; None if only the condition is available.
  """
  # Runs from before this option have no such setting.
  cache = {} if model.cache_dtype is None else {'cache_dtype': model.cache_dtype}
  return cache | dict(
      model=model.name, parameters=fingerprint(model.params), grid=list(model.grid),
      config=_digest(repr(model.config)), decoder=str(specification),
      draft_parameters=fingerprint(model.draft_params(specification)),
      sampling={name: files.plain(value) for name, value in sampling._asdict().items()},
      seed=fingerprint(jax.random.key_data(seed)) if _is_key(seed) else files.plain(seed),
      prompts=_fingerprint_of_prompts(prompts, condition), batch_size=batch_size)


def network(config: Any, params: Any) -> str:
  """Returns a short digest of a network: its config and its parameters."""
  return _digest(repr(config) + fingerprint(params))


def fingerprint(arrays: Any, every: bool = False) -> str:
  """Returns a short digest of the shapes, dtypes and numbers of arrays.

  Args:
    arrays: a tree of arrays.
    every: whether the digest covers every number, or a sample of each array, which is enough for
      parameters.
  """
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
    step = 1 if every else max(1, leaf.size // _SAMPLED)
    digest.update(f'{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}'.encode())
    digest.update(np.asarray(leaf.reshape(-1)[::step]).tobytes())
  return digest.hexdigest()[:16]


def _fingerprint_of_prompts(prompts: Any, condition: Any) -> str:
  has_floats = any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(condition))
  if has_floats and isinstance(prompts, list) and all(
      isinstance(prompt, str) for prompt in prompts):
    # Features of words may differ in their last bits when the network is compiled again.
    return _digest(json.dumps(prompts))
  return fingerprint(condition, every=True)


def _digest(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_key(seed: Any) -> bool:
  return isinstance(seed, jax.Array) and jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key)
