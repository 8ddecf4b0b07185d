"""Metrics read directly from a `Decoded` in NumPy: rounds, accepted lengths, tests, bounds."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cspd_jax.decoding.base import Decoded
from cspd_jax.generation.model import Model
from cspd_jax.metrics import base
from cspd_jax.metrics.base import Metric


def step_compression(decoded: Decoded) -> base.Value:
  """Returns the papers' step compression, the mean over images of `T / rounds`; 1 for `vanilla`.

  It exceeds the tokens of all images per forward pass of all of them, which time depends on.
  """
  return base.mean(decoded.tokens.shape[1] / decoded.rounds)


def tokens_per_pass(decoded: Decoded) -> base.Value:
  """Returns the tokens of all images per forward pass of all of them; 1 for `vanilla`."""
  return base.ratio(np.full(len(decoded.tokens), decoded.tokens.shape[1]), decoded.rounds)


def accepted_length(decoded: Decoded) -> base.Value:
  """Returns the tokens per round after the prefill; NaN if there was no such round."""
  return base.ratio(np.full(len(decoded.tokens), decoded.tokens.shape[1] - 1), decoded.rounds - 1)


def by_depth(decoded: Decoded, length: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns how many drafts of a chain were accepted and tested, `[length]` each, by depth.

  A draft is tested if all before it were accepted. The last token of an image may be a draft or
  drawn by the target, so that its depth counts as neither.
  """
  depth = np.arange(1, length + 1)
  accepted, tested = np.zeros(length, int), np.zeros(length, int)
  for rounds in np.asarray(decoded.round_of_token):
    committed = np.bincount(rounds)[1:, None]  # Per round after the prefill.
    remaining = len(rounds) - 1 - np.cumsum(committed, axis=0) + committed
    is_tested = (depth <= committed) & (depth < remaining)
    tested += is_tested.sum(axis=0)
    accepted += (is_tested & (depth < committed)).sum(axis=0)
  return accepted, tested


STEP_COMPRESSION = Metric(
    'step_compression', 'step compr.', '{:.2f}x',
    lambda sample, model: step_compression(sample.decoded),
    meaning='mean over images of the tokens per forward pass of the target', better='higher')

DISCRETE = (
    Metric('rounds', 'forward passes', '{:.1f}',
           lambda sample, model: base.mean(sample.decoded.rounds),
           meaning='forward passes of the target per image, including the prefill',
           phrase='{:.1f} forward passes per image'),
    STEP_COMPRESSION,
    Metric('tokens_per_pass', 'tokens/pass', '{:.2f}',
           lambda sample, model: tokens_per_pass(sample.decoded),
           meaning='tokens of all images per forward pass of the target for all of them',
           better='higher', tabled=False),
    Metric('accepted_length', 'acc. length', '{:.2f}',
           lambda sample, model: accepted_length(sample.decoded),
           meaning='tokens per round after the prefill: the accepted drafts plus one',
           better='higher'),
    Metric('one_token_rounds', 'one-token', '{:.0%}', lambda sample, model: base.ratio(
               sample.decoded.accepted[:, 1], sample.decoded.rounds - 1),
           meaning='fraction of the rounds after the prefill that accepted no draft'),
    Metric('tv_bound', 'TV bound', '{:.2f}',
           lambda sample, model: base.mean(sample.decoded.tv_bound), group='bound',
           meaning='bound on the total variation between the distribution of the images and the '
           "target's; informative only below 1"),
    Metric('tv_bound_per_token', '/token', '{:.4f}', lambda sample, model: base.mean(
               sample.decoded.tv_bound / sample.tokens.shape[1]),
           group='bound', meaning='the same bound per token'))


def _count(name: str, heading: str, counts: Callable[[Any], np.ndarray], meaning: str,
           **shown: Any) -> Metric:
  """Builds a metric: the mean over images of a count, summed over rounds if it has them."""
  def measure(sample: base.Sample, model: Model) -> base.Value:
    values = np.asarray(counts(sample.decoded))
    return base.mean(values.reshape(len(values), -1).sum(axis=1))
  return Metric(name, heading, '{:.0f}', measure, ('continuous',), meaning=meaning, **shown)


def _per_test(name: str, heading: str, form: str, amounts: Callable[[Any], np.ndarray | None],
              meaning: str) -> Metric:
  """Builds a metric: the sum of `amounts` `[N, T]` per tested draft; unknown without tests."""
  def measure(sample: base.Sample, model: Model) -> base.Value:
    values = amounts(sample.decoded)
    if values is None:
      return base.UNKNOWN
    return base.ratio(values.sum(axis=1), sample.decoded.tests.tested.sum(axis=1))
  # Decoders test different things, so a column in which they are compared would mislead.
  return Metric(name, heading, form, measure, ('continuous',), meaning=meaning, tabled=False)


HEAD_CALLS = _count(
    'head_calls', 'head calls', lambda decoded: decoded.costs.head_calls,
    "sequential calls of the target's diffusion head per image", phrase='{:.0f} head calls',
    better='lower')

CONTINUOUS = (
    _count('rounds', 'forward passes', lambda decoded: decoded.rounds,
           'forward passes of the target per image, one after the other'),
    _count('target_passes', 'all passes', lambda decoded: decoded.costs.target_passes,
           'forward passes of the target per image, with those that run in parallel',
           phrase='{:.0f} forward passes'),
    _count('draft_passes', 'draft passes', lambda decoded: decoded.costs.draft_passes,
           "passes of the draft model's transformer per image"),
    HEAD_CALLS,
    _count('head_rows', 'head states', lambda decoded: decoded.costs.head_rows,
           "states that the target's head evaluates per image"),
    _count('draft_head_calls', 'draft head calls', lambda decoded: decoded.costs.draft_head_calls,
           "calls of the draft model's head per image", tabled=False),
    _per_test('acceptance', 'accepted', '{:.1%}', lambda decoded: decoded.tests.accepted,
              'acceptance rate of the tests of a decoder; not comparable between decoders, whose '
              'tests differ'),
    _count('residual_trials', 'residual trials', lambda decoded: decoded.tests.trials,
           'proposals tested for residual draws, per image', tabled=False),
    _count('residual_missed', 'residual missed', lambda decoded: decoded.tests.missed,
           'residual draws per image that accepted no proposal', tabled=False),
    _per_test('squared_error', 'squared error', '{:.4f}',
              lambda decoded: decoded.errors and decoded.errors.squared,
              'squared distance of a tested token to the one that the target would have emitted'),
    _per_test('squared_error_bound', 'its bound', '{:.4f}',
              lambda decoded: decoded.errors and decoded.errors.bound,
              'bound on the expectation of that distance'))


def details(sample: base.Sample, model: Model) -> dict[str, Any]:
  """Returns acceptance rates as nested lists, None where nothing was tested.

  By position in the grid, by autoregressive step (the index of a token in its generation order),
  and by level of the denoising kernels if the decoder tests them.
  """
  decoded, (rows, columns) = sample.decoded, model.grid
  tested, accepted = decoded.tests.tested, decoded.tests.accepted
  in_order = lambda leaf: np.take_along_axis(leaf, decoded.order, axis=1)
  by_position = _rates(accepted, tested)
  result: dict[str, Any] = dict(
      acceptance_by_position=[by_position[i * columns:(i + 1) * columns] for i in range(rows)],
      acceptance_by_step=_rates(in_order(accepted), in_order(tested)))
  if decoded.kernels is not None:
    result['acceptance_by_level'] = _rates(decoded.kernels.accepted, decoded.kernels.tested)
  return result


def _rates(accepted: np.ndarray, tested: np.ndarray) -> list[float | None]:
  """Returns `[n]` acceptance rates over images from `[N, n]` counts."""
  return [float(a / t) if t else None for a, t in zip(accepted.sum(axis=0), tested.sum(axis=0))]


def sentence(row: Mapping[str, Any]) -> str:
  """Returns the distribution and the acceptance of a continuous decoder in words.

  The rates of decoders differ in meaning. `row` has the metrics, and the distribution, guarantee
  and what is tested in words.
  """
  text = f'{row["decoder"]}: {row["distribution"]}; {row["guarantee_in_words"]}'
  if row['acceptance'] is not None:
    text += f'; accepts {row["acceptance"]:.1%} of its {row["tested"]}'
  if row['squared_error_bound'] is not None:
    text += (f'; squared distance {row["squared_error"]:.4f}, bound '
             f'{row["squared_error_bound"]:.4f}')
  if row['residual_missed']:
    text += f'; {row["residual_missed"]:.2f} residual draws per image failed'
  return text
