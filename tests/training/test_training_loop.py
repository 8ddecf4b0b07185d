"""Stopping, continuing and recording a training."""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.training import loop
from cspd_jax.training.optimizer import OptimizerConfig


class _State(NamedTuple):
  step: jax.Array
  value: jax.Array


def _step(state, batch):
  value = 0.9 * state.value + batch
  return _State(state.step + 1, value), {'value': value}


def _run(workdir, num_steps, **kwargs):
  return loop.run(
      _State(jnp.int32(0), jnp.float32(1)), jax.jit(_step), lambda index: jnp.float32(index),
      OptimizerConfig(num_steps=num_steps, batch_size=1, warmup_steps=0),
      loop.Intervals(checkpoint_every=3, log_every=2, evaluate_every=3), workdir, 'toy', **kwargs)


def _lines(workdir):
  return [json.loads(line) for line in (workdir / 'toy.jsonl').read_text().splitlines()]


def test_finished_run_does_nothing(tmp_path):
  first = _run(tmp_path, 5)
  lines = _lines(tmp_path)
  again = _run(tmp_path, 5)
  np.testing.assert_array_equal(first.value, again.value)
  assert _lines(tmp_path) == lines
  with pytest.raises(ValueError, match='has done 5 steps; num_steps is 4, so use another folder'):
    _run(tmp_path, 4)


def test_metrics_hold_every_step_once_after_a_crash(tmp_path):
  _run(tmp_path, 5)
  # As a run killed after its last checkpoint leaves it: later lines, and one half written.
  with (tmp_path / 'toy.jsonl').open('a') as file:
    file.write(json.dumps({'step': 6, 'value': -1}) + '\n{"step": 8, "va')
  _run(tmp_path, 9)
  assert [line['step'] for line in _lines(tmp_path)] == [2, 4, 5, 6, 8, 9]
  assert all(line['value'] > 0 for line in _lines(tmp_path))


def test_evaluations_are_recorded(tmp_path):
  _run(tmp_path, 5, evaluate=lambda state: {'held_out': float(state.step)})
  assert {line['step']: line['held_out'] for line in _lines(tmp_path) if 'held_out' in line} == {
      3: 3.0, 5: 5.0}


def test_batches_visit_everything_once_per_epoch_in_a_new_order():
  tokens = np.arange(12)[:, None]
  epochs = [np.concatenate([loop.batch_of(tokens, tokens[:, 0], 3, i, 4)[1]
                            for i in range(start, start + 3)]) for start in (0, 3)]
  for epoch in epochs:
    np.testing.assert_array_equal(np.sort(epoch), np.arange(12))
  assert (epochs[0] != epochs[1]).any()
