"""Tests whether published claims about decoders hold, from the results of a comparison."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cspd_jax.core import spec as spec_lib
from cspd_jax.measure import tradeoff
from cspd_jax.measure.measurements import Measurement

# Standard errors that a significant difference exceeds.
_CLEAR = 2.0
# The largest deviation of some dozens of exact decoders exceeds this once in a few hundred runs.
_BIASED = 4.0


class Conclusion(NamedTuple):
  """A tested claim.

  Attributes:
    claim: the claim in words.
    answer: 'yes', 'no', or 'unclear' if the difference is within its noise.
    numbers: the figures on which the answer is based.
  """

  claim: str
  answer: str
  numbers: str


class Claim(NamedTuple):
  """A claim that one decoder, or curve, is better than another.

  Attributes:
    text: the claim in words.
    better: specification of a decoder, or name of a curve.
    worse: the decoder or curve to compare it with.
    metric: the metric of the decoders, for which larger is better; None for curves, whose bounds
      on total variation at equal accepted length are compared, for which smaller is better.
  """

  text: str
  better: str
  worse: str
  metric: str | None = None


def of_guarantees(rows: Sequence[Measurement]) -> list[Conclusion]:
  """Tests whether the decoders meet their guarantees; omits guarantees that were not measured."""
  figures, result = [row.figures for row in rows], []
  deviations = {
      row['decoder']: abs(row['nll_excess']) / row['nll_excess_error'] for row in figures
      if row['guarantee'].is_exact and row.get('nll_excess_error')}
  if deviations:
    worst = max(deviations, key=lambda name: deviations[name])
    result.append(Conclusion(
        'exact decoders are exact', 'yes' if deviations[worst] < _BIASED else 'no',
        f'NLL minus entropy is 0 within {deviations[worst]:.1f} standard errors for all '
        f'{len(deviations)} of them (the largest deviation is that of {worst})'))
  # The first row is the baseline. The comparison with the baseline in windows of the same length
  # takes precedence where it was measured: other shapes are rounded differently.
  equal = [row['equal_to_baseline'] if row.get('equal_in_window') is None
           else row['equal_in_window']
           for row in figures[1:] if row['equal_to_baseline'] is not None]
  if equal:
    result.append(Conclusion(
        f'seed-exact decoders generate the images of {figures[0]["decoder"]}',
        'yes' if min(equal) == 1 else 'no',
        f'{np.mean(equal):.0%} of the images are equal, with {len(equal)} decoders'))
  return result


def of_rows(rows: Sequence[Measurement], claims: Sequence[Claim]) -> list[Conclusion]:
  """Tests claims about a metric of two decoders, if both were measured."""
  by_name, result = {row.decoder: row.figures for row in rows}, []
  for claim in claims:
    if claim.metric is None:
      continue
    names = [str(spec_lib.parse(text)) for text in (claim.better, claim.worse)]
    if not set(names) <= by_name.keys():
      continue
    (a, b), (a_error, b_error) = ([by_name[name][key] for name in names]
                                  for key in (claim.metric, f'{claim.metric}_error'))
    result.append(Conclusion(
        claim.text, _answer(a - b, math.hypot(a_error, b_error)),
        f'{claim.metric.replace("_", " ")} {a:.2f} +- {a_error:.2f} against {b:.2f} +- '
        f'{b_error:.2f}'))
  return result


def of_curves(points: Mapping[str, Sequence[tradeoff.Point]], curves: Sequence[tradeoff.Curve],
              claims: Sequence[Claim]) -> list[Conclusion]:
  """Tests claims about two curves, for every drafter."""
  by_name, result = {curve.name: curve for curve in curves}, []
  for claim in claims:
    if claim.metric is not None:
      continue
    for drafter, own_points in points.items():
      text = f'{claim.text}, {drafter}'
      gap = tradeoff.gap(*(tradeoff.path(tradeoff.of_curve(own_points, by_name[name]))
                           for name in (claim.better, claim.worse)))
      if gap is None:
        result.append(Conclusion(text, 'unclear', 'the curves have no accepted length in common'))
        continue
      result.append(Conclusion(
          text, _answer(gap.mean, gap.error),
          f'{gap.better:.4f} against {gap.worse:.4f} per token at length '
          f'{(gap.low + gap.high) / 2:.2f}; lower by {gap.mean:.4f} +- {gap.error:.4f} on average '
          f'from {gap.low:.2f} to {gap.high:.2f}'))
  return result


def _answer(gap: float, error: float) -> str:
  return 'unclear' if abs(gap) <= _CLEAR * error else 'yes' if gap > 0 else 'no'
