"""Does what papers say hold here? Answers from the numbers of a comparison."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cspd_jax.core import spec as spec_lib
from cspd_jax.measure import tradeoff
from cspd_jax.measure.rows import Row

# Standard errors that a difference must exceed.
_CLEAR = 2.0
# The largest of some dozens of exact decoders exceeds this once in a few hundred runs.
_BIASED = 4.0


class Conclusion(NamedTuple):
  """Attributes:
    claim: what should hold.
    answer: 'yes', 'no' or 'unclear', if the difference is within its noise.
    numbers: what the answer rests on.
  """

  claim: str
  answer: str
  numbers: str


class Claim(NamedTuple):
  """That one decoder, or curve, is better than another.

  Attributes:
    text: what should hold.
    better: specification of a decoder, or name of a curve.
    worse: of another.
    metric: the decoders' figure, where more is better; None for curves, where the bound on total
      variation at equal accepted length counts and less is better.
  """

  text: str
  better: str
  worse: str
  metric: str | None = None


def of_guarantees(rows: Sequence[Row]) -> list[Conclusion]:
  """Whether the decoders keep what they promise; nothing of what was not measured."""
  figures, result = [row.figures for row in rows], []
  unbiased = {
      one['decoder']: abs(one['nll_excess']) / one['nll_excess_error'] for one in figures
      if one['guarantee'] != 'relaxed' and one.get('nll_excess_error')}
  if unbiased:
    worst = max(unbiased, key=unbiased.get)
    result.append(Conclusion(
        'exact decoders are exact', 'yes' if unbiased[worst] < _BIASED else 'no',
        f'NLL minus entropy is 0 within {unbiased[worst]:.1f} standard errors for all '
        f'{len(unbiased)} of them (most for {worst})'))
  # The first row is the baseline.
  # In windows as long if that was measured: other shapes are rounded differently.
  equal = [one['equal_to_baseline'] if one.get('equal_in_window') is None
           else one['equal_in_window']
           for one in figures[1:] if one['equal_to_baseline'] is not None]
  if equal:
    result.append(Conclusion(
        f'seed-exact decoders give the images of {figures[0]["decoder"]}',
        'yes' if min(equal) == 1 else 'no',
        f'{np.mean(equal):.0%} of the images are equal, with {len(equal)} decoders'))
  return result


def of_rows(rows: Sequence[Row], claims: Sequence[Claim]) -> list[Conclusion]:
  """Claims about a figure of two decoders, if both were measured."""
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
  """Claims about two curves, by drafter."""
  known, result = {curve.name: curve for curve in curves}, []
  for claim in claims:
    if claim.metric is not None:
      continue
    for drafter, found in points.items():
      text = f'{claim.text}, {drafter}'
      gap = tradeoff.gap(*(tradeoff.path(tradeoff.of_curve(found, known[name]))
                           for name in (claim.better, claim.worse)))
      if gap is None:
        result.append(Conclusion(text, 'unclear', 'the curves have no accepted length in common'))
        continue
      result.append(Conclusion(
          text, _answer(gap.mean, gap.error),
          f'{gap.ours:.4f} against {gap.theirs:.4f} per token at length '
          f'{(gap.low + gap.high) / 2:.2f}; lower by {gap.mean:.4f} +- {gap.error:.4f} on average '
          f'from {gap.low:.2f} to {gap.high:.2f}'))
  return result


def _answer(gap: float, error: float) -> str:
  return 'unclear' if abs(gap) <= _CLEAR * error else 'yes' if gap > 0 else 'no'
