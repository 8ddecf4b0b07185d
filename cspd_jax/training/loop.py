"""A training loop that can be stopped at any time and continued to the same result.

The whole state, with the step in it, is checkpointed by Orbax; batches are a function of the step.
A run that is started again continues after its last checkpoint and ends with the parameters that
an uninterrupted run would have. Metrics go to a file with one JSON object per line.
"""

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

from absl import logging
import jax
import numpy as np
import orbax.checkpoint as ocp


def run(
    state: Any,
    step_fn: Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]],
    batch_fn: Callable[[int], Any],
    *,
    num_steps: int,
    batch_size: int,
    workdir: str | pathlib.Path,
    name: str,
    checkpoint_every: int = 500,
    log_every: int = 50,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
    evaluate_every: int | None = None,
) -> Any:
  """Trains until `num_steps`.

  Args:
    state: the state before the first step: a pytree with an attribute `step`.
    step_fn: `(state, batch) -> (state, scalar metrics)`, already jitted.
    batch_fn: the batch of a step's number.
    num_steps: steps to reach in all.
    batch_size: examples per batch, for the examples per second.
    workdir: folder for checkpoints `<name>/` and metrics `<name>.jsonl`.
    name: of this training, for these paths and the log.
    checkpoint_every: steps between checkpoints; the last step always has one.
    log_every: steps between log lines.
    evaluate: held-out metrics of a state.
    evaluate_every: steps between evaluations; None means never.

  Returns:
    The last state.
  """
  workdir = pathlib.Path(workdir).absolute()
  workdir.mkdir(parents=True, exist_ok=True)
  metrics_path = workdir / f'{name}.jsonl'
  options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
  with ocp.CheckpointManager(workdir / name, options=options) as manager:
    if manager.latest_step() is not None:
      state = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
      logging.info('%s: continuing after step %d', name, int(state.step))
    start = int(state.step)
    _drop_later_lines(metrics_path, start)
    began, last = time.time(), (time.time(), start)
    for index in range(start, num_steps):
      state, metrics = step_fn(state, batch_fn(index))
      done = index + 1
      record = {}
      if done % log_every == 0 or done == num_steps:
        record = {key: float(value) for key, value in metrics.items()}
        now = time.time()
        rate = (done - last[1]) / max(now - last[0], 1e-9)
        last = (now, done)
        logging.info(
            '%s: step %d/%d, %s, %.1f ex/s, %.0f s to go', name, done, num_steps,
            ', '.join(f'{key} {value:.4g}' for key, value in record.items()),
            rate * batch_size, (num_steps - done) / rate)
        record['examples_per_second'] = rate * batch_size
      if evaluate and evaluate_every and (done % evaluate_every == 0 or done == num_steps):
        held_out = evaluate(state)
        logging.info('%s: step %d held out: %s', name, done,
                     ', '.join(f'{key} {value:.4g}' for key, value in held_out.items()))
        record |= held_out
      if record:
        with metrics_path.open('a') as file:
          file.write(json.dumps({'step': done, **record}) + '\n')
      if done % checkpoint_every == 0 or done == num_steps:
        manager.save(done, args=ocp.args.StandardSave(state))
    if start < num_steps:
      jax.block_until_ready(state)
      logging.info('%s: %d steps in %.0f s', name, num_steps - start, time.time() - began)
  return state


def _drop_later_lines(path: pathlib.Path, step: int) -> None:
  """Removes the metrics of steps that are about to be repeated, and a half-written last line."""
  if not path.exists():
    return
  kept = []
  for line in path.read_text().splitlines():
    try:
      if json.loads(line)['step'] <= step:
        kept.append(line + '\n')
    except ValueError:
      continue
  path.write_text(''.join(kept))


def jit_step(step: Callable[..., Any], *static: Any) -> Callable[[Any, Any], Any]:
  """`step(state, batch, *static)` compiled, with the old state's memory reused."""
  return jax.jit(lambda state, batch: step(state, batch, *static), donate_argnums=0)


def mean_metrics(metrics: list[dict[str, jax.Array]]) -> dict[str, float]:
  """The mean of each scalar metric over a list of batches."""
  return {key: float(np.mean([float(m[key]) for m in metrics])) for key in metrics[0]}
