"""What decoders of continuous tokens do: passes, head calls, tests and their outcome."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cspd_jax.metrics import base
from cspd_jax.metrics.base import Metric


def _count(name: str, heading: str, field: str, meaning: str) -> Metric:
  """The mean over images of a count in the result; counts of every round are added up."""
  def measure(sample: base.Sample, model: Any) -> base.Value:
    del model
    counts = np.asarray(getattr(sample.decoded, field))
    return base.mean(counts.reshape(len(counts), -1).sum(axis=1))
  return Metric(name, heading, '{:.0f}', measure, ('continuous',), meaning=meaning)


def _share(name: str, heading: str, form: str, numerator: Callable, denominator: Callable,
           meaning: str) -> Metric:
  """A share of one count in another, over all images; not known where nothing is counted."""
  def measure(sample: base.Sample, model: Any) -> base.Value:
    del model
    a, b = numerator(sample.decoded), denominator(sample.decoded)
    return base.ratio(a.sum(axis=1), b.sum(axis=1)) if a.size else base.UNKNOWN
  return Metric(name, heading, form, measure, ('continuous',), meaning=meaning)


TARGET_PASSES = _count(
    'target_passes', 'target passes', 'target_passes',
    "passes of the target's transformer per image")
DRAFT_PASSES = _count(
    'draft_passes', 'draft passes', 'draft_passes',
    "passes of the draft model's transformer per image")
HEAD_CALLS = _count(
    'head_calls', 'head calls', 'head_calls',
    "calls of the target's diffusion head per image, one after the other")
HEAD_ROWS = _count(
    'head_rows', 'head rows', 'head_rows',
    "states that the target's head was asked about per image")
DRAFT_HEAD_CALLS = _count(
    'draft_head_calls', 'draft head calls', 'draft_head_calls',
    "calls of the draft model's head per image")
RESIDUAL_TRIALS = _count(
    'residual_trials', 'residual trials', 'trials',
    'proposals looked at for residual draws, per image')
RESIDUAL_MISSED = _count(
    'residual_missed', 'residual missed', 'missed',
    'residual draws per image of which no proposal was taken')
ACCEPTANCE = _share(
    'acceptance', 'accepted', '{:.1%}', lambda g: g.accepted, lambda g: g.tested,
    'share of accepted ones among what the decoder tests; no two decoders test the same')
SQUARED_ERROR = _share(
    'squared_error', 'squared error', '{:.4f}', lambda g: g.error, lambda g: g.tested,
    'squared distance of a tested token to the one that the target would have emitted')
SQUARED_ERROR_BOUND = _share(
    'squared_error_bound', 'its bound', '{:.4f}', lambda g: g.error_bound, lambda g: g.tested,
    'what the expectation of that distance is bounded by')
