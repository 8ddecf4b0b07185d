"""What decoders of continuous tokens do: passes, head calls, tests and their outcome."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cspd_jax.metrics import base
from cspd_jax.metrics.base import Metric


def _count(name: str, heading: str, counts: Callable[[Any], np.ndarray], meaning: str,
           phrase: str = '', tabled: bool = True, better: str = '') -> Metric:
  """The mean over images of a count in the result; counts of every round are added up."""
  def measure(sample: base.Sample, model: Any) -> base.Value:
    del model
    found = np.asarray(counts(sample.decoded))
    return base.mean(found.reshape(len(found), -1).sum(axis=1))
  return Metric(name, heading, '{:.0f}', measure, ('continuous',), meaning=meaning, phrase=phrase,
                better=better, tabled=tabled)


def _per_test(name: str, heading: str, form: str, amounts: Callable[[Any], np.ndarray | None],
              meaning: str) -> Metric:
  """What `amounts` `[N, T]` come to per tested draft; not known where none is tested."""
  def measure(sample: base.Sample, model: Any) -> base.Value:
    del model
    found = amounts(sample.decoded)
    if found is None:
      return base.UNKNOWN
    return base.ratio(found.sum(axis=1), sample.decoded.tests.tested.sum(axis=1))
  # No two decoders test the same, so these have no column in which they would be compared.
  return Metric(name, heading, form, measure, ('continuous',), meaning=meaning, tabled=False)


ROUNDS = _count(
    'rounds', 'rounds', lambda decoded: decoded.rounds,
    'rounds per image; passes within a round run side by side')
TARGET_PASSES = _count(
    'target_passes', 'target passes', lambda decoded: decoded.costs.target_passes,
    "passes of the target's transformer per image", '{:.0f} passes of the target')
DRAFT_PASSES = _count(
    'draft_passes', 'draft passes', lambda decoded: decoded.costs.draft_passes,
    "passes of the draft model's transformer per image")
HEAD_CALLS = _count(
    'head_calls', 'head calls', lambda decoded: decoded.costs.head_calls,
    "calls of the target's diffusion head per image, one after the other", '{:.0f} head calls',
    better='lower')
HEAD_ROWS = _count(
    'head_rows', 'head rows', lambda decoded: decoded.costs.head_rows,
    "states that the target's head was asked about per image")
DRAFT_HEAD_CALLS = _count(
    'draft_head_calls', 'draft head calls', lambda decoded: decoded.costs.draft_head_calls,
    "calls of the draft model's head per image", tabled=False)
RESIDUAL_TRIALS = _count(
    'residual_trials', 'residual trials', lambda decoded: decoded.tests.trials,
    'proposals looked at for residual draws, per image', tabled=False)
RESIDUAL_MISSED = _count(
    'residual_missed', 'residual missed', lambda decoded: decoded.tests.missed,
    'residual draws per image of which no proposal was taken', tabled=False)
ACCEPTANCE = _per_test(
    'acceptance', 'accepted', '{:.1%}', lambda decoded: decoded.tests.accepted,
    'share of accepted ones among what the decoder tests; no two decoders test the same')
SQUARED_ERROR = _per_test(
    'squared_error', 'squared error', '{:.4f}',
    lambda decoded: decoded.errors and decoded.errors.squared,
    'squared distance of a tested token to the one that the target would have emitted')
SQUARED_ERROR_BOUND = _per_test(
    'squared_error_bound', 'its bound', '{:.4f}',
    lambda decoded: decoded.errors and decoded.errors.bound,
    'what the expectation of that distance is bounded by')


def details(sample: base.Sample, model: Any) -> dict[str, Any]:
  """Shares of accepted drafts in places, None where nothing was tested.

  By position of the grid, by autoregressive step (the place of a token in its order), and by
  level of the denoising kernels, where those are tested.
  """
  decoded, (rows, columns) = sample.decoded, model.grid
  tested, accepted = decoded.tests.tested, decoded.tests.accepted
  at = lambda leaf: np.take_along_axis(leaf, decoded.order, axis=1)
  by_position = _shares(accepted, tested)
  found: dict[str, Any] = dict(
      acceptance_by_position=[by_position[i * columns:(i + 1) * columns] for i in range(rows)],
      acceptance_by_step=_shares(at(accepted), at(tested)))
  if decoded.kernels is not None:
    found['acceptance_by_level'] = _shares(decoded.kernels.accepted, decoded.kernels.tested)
  return found


def _shares(accepted: np.ndarray, tested: np.ndarray) -> list[float | None]:
  """`[n]` shares over images of `[N, n]` counts."""
  return [float(a / t) if t else None for a, t in zip(accepted.sum(axis=0), tested.sum(axis=0))]
