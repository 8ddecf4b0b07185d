"""A training loop that can be stopped at any time and continued to the same result.

The whole state, including the step, is saved in files, and batches are a function of the step. A
run that is started again continues after the last readable state and ends with the parameters of an
uninterrupted run. Metrics go to a file with one JSON object per line.

An Orbax `CheckpointManager` keeps the last two steps, each with digests of its arrays: if one is
damaged, training continues from the one before.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from cspd_jax.core import progress
from cspd_jax.files import atomic, paths
from cspd_jax.training.optimizer import OptimizerConfig

# Upper bounds of fields of a smoke test, in whichever part of a recipe they are.
_SMOKE = dict(
    num_steps=6, batch_size=4, warmup_steps=2, cooldown_steps=2, quantize_from=2,
    windows_per_image=2, num_depths=2, num_train_images=16, num_held_out_images=8,
    num_measured_images=2, num_plain_images=16, log_every=2, checkpoint_every=2, evaluate_every=3)

# Saved steps that are kept; one is there if another is damaged.
_KEPT = 2
# Threads of Orbax that save in the background would meet a full disk too late.
_STEPS = ocp.CheckpointManagerOptions(
    max_to_keep=_KEPT, step_prefix='step', step_format_fixed_length=8,
    enable_async_checkpointing=False, cleanup_tmp_directories=True,
    save_root_metadata=False)
# Bytes that Orbax writes in addition to the numbers.
_MARGIN = 1 << 20

Conditions = TypeVar('Conditions')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intervals:
  """The steps between actions of a training; each of them also follows the last step.

  Attributes:
    log_every: steps between log lines.
    checkpoint_every: steps between checkpoints.
    evaluate_every: steps between held-out measurements.
  """

  log_every: int = 50
  checkpoint_every: int = 250
  evaluate_every: int = 250


def check_folder(name: str, folder: str | os.PathLike) -> pathlib.Path:
  """Returns the path of a folder that can hold a training; otherwise raises ValueError, by `name`.

  Besides the errors of `paths.folder`, Orbax cannot write into a folder whose path is no UTF-8.
  """
  path = paths.folder(name, folder)
  if (text := str(path.resolve())) != progress.unicode(text):
    raise ValueError(f'{name} is {paths.shown(folder)}, whose path {text!r} has bytes that are no '
                     'UTF-8, which the files of a training cannot have; choose another folder.')
  return path


def run(state: Any, step_fn: Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]],
        batch_fn: Callable[[int], Any], optimizer: OptimizerConfig, intervals: Intervals,
        workdir: str | pathlib.Path, name: str,
        evaluate: Callable[[Any], dict[str, float]] | None = None) -> Any:
  """Trains until the last step and returns its state.

  The state before the first step is a pytree with an attribute `step`. The functions are `step_fn`,
  `(state, batch) -> (state, scalar metrics)`, already jitted, `batch_fn`, `index -> batch`, and
  `evaluate`, `state -> held-out metrics`. States are stored in `workdir/<name>/` and metrics in
  `workdir/<name>.jsonl`; states of other shapes or of more steps raise ValueError. A caller whose
  other options may change holds `workdir` by a `run_folder.Run`.
  """
  num_steps = optimizer.num_steps
  workdir = check_folder('workdir', workdir)
  folder, metrics_path = workdir / name, paths.inside(workdir, f'{name}.jsonl', workdir)
  folder.mkdir(parents=True, exist_ok=True)
  steps = manager(folder)
  if (restored := restore(steps, state)) is not None:
    state = restored
    logging.info('%s: continuing after step %d', name, int(state.step))
  if (start := int(state.step)) > num_steps:
    raise ValueError(f'workdir is {str(workdir)!r}, where {name} has done {start} steps; num_steps '
                     f'is {num_steps}, so use another folder.')
  _drop_later_lines(metrics_path, start)
  began = time.time()
  last = began, start
  for index in range(start, num_steps):
    state, metrics = step_fn(state, batch_fn(index))
    done, record = index + 1, dict[str, float]()
    if _due(done, intervals.log_every, num_steps):
      record |= _trained(name, optimizer, done, metrics, last)
      last = time.time(), done
    if evaluate and _due(done, intervals.evaluate_every, num_steps):
      record |= (measured := evaluate(state))
      logging.info('%s: step %d held out: %s', name, done, _text(measured))
    if record:
      with atomic.naming(metrics_path), metrics_path.open('a', encoding='utf-8') as file:
        file.write(json.dumps({'step': done, **record}) + '\n')
    if _due(done, intervals.checkpoint_every, num_steps):
      save(steps, done, state)
  steps.close()
  jax.block_until_ready(state)
  if start < num_steps:
    logging.info('%s: %d steps in %.0f s', name, num_steps - start, time.time() - began)
  return state


def _due(done: int, every: int, num_steps: int) -> bool:
  """Whether an action is due that happens every `every` steps and after the last one."""
  return done % every == 0 or done == num_steps


def _trained(name: str, optimizer: OptimizerConfig, done: int, metrics: dict[str, jax.Array],
             last: tuple[float, int]) -> dict[str, float]:
  """Logs the metrics of step `done`; returns them with the examples per second since the last."""
  record = {key: float(value) for key, value in metrics.items()}
  rate = (done - last[1]) / max(time.time() - last[0], 1e-9)
  logging.info(
      '%s: step %d/%d, %s, %.1f ex/s, %.0f s to go', name, done, optimizer.num_steps,
      _text(record), rate * optimizer.batch_size, (optimizer.num_steps - done) / rate)
  return {**record, 'examples_per_second': rate * optimizer.batch_size}


def _text(metrics: dict[str, float]) -> str:
  return ', '.join(f'{key} {value:.4g}' for key, value in metrics.items())


def _drop_later_lines(path: pathlib.Path, step: int) -> None:
  """Removes the metrics of steps that will be repeated, and a partially written last line."""
  if not path.exists():
    return
  with path.open('rb') as lines, atomic.writing(path) as remaining:
    for line in lines:
      try:
        if json.loads(line)['step'] <= step:
          remaining.write(line.rstrip() + b'\n')
      except (ValueError, KeyError, TypeError):
        continue


def manager(folder: pathlib.Path) -> ocp.CheckpointManager:
  """Returns the manager of the steps in a folder, which exists and belongs to one training alone.

  Raises ValueError for a link, in whose target steps would be removed.
  """
  if folder.is_symlink():
    raise ValueError(f'{folder} is a link, and files in its target would be removed; move it away, '
                     'or use another folder.')
  return ocp.CheckpointManager(folder.resolve(), options=_STEPS, item_handlers=dict(
      state=ocp.StandardCheckpointHandler(), digests=ocp.JsonCheckpointHandler()))


def save(steps: ocp.CheckpointManager, number: int, state: Any) -> None:
  """Saves the state after step `number`; a full or read-only disk raises OSError."""
  arrays = _stored(atomic.arrays_of(jax.device_get(state)))
  _reserve(pathlib.Path(steps.directory), _MARGIN + sum(array.nbytes for array in arrays.values()))
  # Later steps are from before a damaged one made the training go back.
  for later in [step for step in steps.all_steps() if step >= number]:
    steps.delete(later)
  steps.save(number, args=ocp.args.Composite(
      state=ocp.args.StandardSave(arrays), digests=ocp.args.JsonSave(_digests(arrays))))


def restore(steps: ocp.CheckpointManager, like: Any) -> Any:
  """Reads the last readable state, or None; logs a warning for each damaged one.

  It has the structure, shapes and dtypes of `like`; states of another training raise ValueError.
  """
  for number in sorted(steps.all_steps(), reverse=True):
    try:
      arrays = _read(steps, number)
    except Exception as error:  # Orbax and the libraries below it raise errors of every kind.
      logging.warning('step %d in %s cannot be read (%.200s); going back to an earlier step.',
                      number, steps.directory, error)
      continue
    # A process may have been killed while it removed a step that its last one replaced.
    for old in [step for step in sorted(steps.all_steps()) if step <= number][:-_KEPT]:
      steps.delete(old)
    named = atomic.arrays_of(like)
    empty = {name: leaf for name, leaf in named.items() if name not in _stored(named)}
    # A step of the training donates the memory of its input, so it must be JAX's own.
    return jax.tree.map(jnp.array, atomic.tree_of(
        empty | arrays, like, pathlib.Path(steps.directory)))
  return None


def _read(steps: ocp.CheckpointManager, number: int) -> dict[str, np.ndarray]:
  """Returns the arrays of a step by name; raises an error of any kind if it is damaged."""
  described = steps.item_metadata(number)['state']
  # Orbax returns host arrays if they are requested. These are views of one number.
  like = {name: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
          for name, leaf in described.items()}
  result = steps.restore(number, args=ocp.args.Composite(
      state=ocp.args.StandardRestore(like), digests=ocp.args.JsonRestore()))
  if result['digests'] != _digests(result['state']):
    raise ValueError('other numbers than were saved')
  return result['state']


def _stored(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the arrays that have numbers; Orbax stores no others."""
  return {name: array for name, array in arrays.items() if array.size}


def _digests(arrays: dict[str, np.ndarray]) -> dict[str, str]:
  return {name: hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()
          for name, array in arrays.items()}


def _reserve(folder: pathlib.Path, size: int) -> None:
  """Raises the system's error if `size` bytes cannot be written into a folder."""
  # If a disk is full, the threads of Orbax print pages.
  with atomic.naming(folder), tempfile.TemporaryFile(dir=folder) as stream:
    os.posix_fallocate(stream.fileno(), 0, size)


def smoke(recipe: Any) -> Any:
  """Returns a recipe with few steps, images and examples per batch; networks keep their sizes."""
  changes: dict[str, Any] = {}
  for field in dataclasses.fields(recipe):
    value = getattr(recipe, field.name)
    if dataclasses.is_dataclass(value):
      changes[field.name] = smoke(value)
    elif field.name in _SMOKE and value is not None:
      changes[field.name] = min(value, _SMOKE[field.name])
    elif field.name == 'num_train_images':  # As many as the time allows.
      changes[field.name] = _SMOKE[field.name]
  return dataclasses.replace(recipe, **changes)


def mean_metrics(metrics: Sequence[dict[str, Any]], sizes: Any = None) -> dict[str, float]:
  """Returns the mean of each scalar metric over batches, weighted by their sizes, if any."""
  return {key: float(np.average([float(m[key]) for m in metrics], weights=sizes))
          for key in metrics[0]}


def batch_of(tokens: np.ndarray, conditions: Conditions, seed: int, index: int, batch_size: int
             ) -> tuple[np.ndarray, Conditions]:
  """Returns batch `index` of an endless pass over images `[N, T]`, reshuffled every epoch.

  Every leaf of the conditions is `[N, ...]`, and a batch has at most `N` images. The same arguments
  return the same batch, so a continued run sees the batches of an uninterrupted one.
  """
  epoch, position = divmod(index, tokens.shape[0] // batch_size)
  order = _order(tokens.shape[0], seed, epoch)
  indices = order[position * batch_size:(position + 1) * batch_size]
  return tokens[indices], jax.tree.map(lambda leaf: leaf[indices], conditions)


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
  """Returns the order of the images in an epoch; kept, because it costs as much as a step."""
  return np.random.default_rng([seed, epoch]).permutation(count)
