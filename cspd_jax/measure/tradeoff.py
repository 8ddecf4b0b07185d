"""Trade-off curves of relaxed verifiers, and tests of published claims about decoders.

A curve has one drafter, and verifiers with relaxation of increasing strength.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cspd_jax.core import spec as spec_lib
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.measure.measurements import Measurement
from cspd_jax.plots import charts as plot

# The metrics that the panels of a figure show, and the labels of their axes.
_MEASURES = {
    'tv_bound_per_token': 'bound on total variation per token',
    'nll_excess': 'NLL above the entropy, nats per token',
    'frechet': 'Frechet distance to {baseline}'}


class TradeoffCurve(NamedTuple):
  """A verifier with a parameter that varies along a curve."""

  name: str  # Name of the curve.
  verifier: str  # The verifier's specification with `{}` for the parameter.
  values: tuple[float, ...]  # Values of the parameter, by increasing relaxation.
  from_exact: bool = True  # Whether the curve starts at the exact decoder.
  like: str = ''  # Name of the curve that this is a variant of; '' if it is not a variant.


class Point(NamedTuple):
  """A decoder on a curve."""

  curve: str | None  # Name of the curve; None for the exact decoder, where curves start.
  value: float | None  # Value of the parameter; None for the exact decoder.
  row: Measurement  # The decoder's measurements.


def specifications(drafter: str, curves: Sequence[TradeoffCurve]) -> dict[tuple, str]:
  """Returns specifications by `(curve, value)`; `(None, None)` is the exact decoder."""
  return {(None, None): f'{drafter}+rejection'} | {
      (curve.name, value): f'{drafter}+{curve.verifier.format(format(value, "g"))}'
      for curve in curves for value in curve.values}


def curve_rows(points: Sequence[Point], curve: TradeoffCurve) -> list[Measurement]:
  """Returns the rows on a curve, from the points of one drafter."""
  return [point.row for point in points
          if point.curve == curve.name or (point.curve is None and curve.from_exact)]


def panels(points: Mapping[str, Sequence[Point]], curves: Sequence[TradeoffCurve], baseline: str,
           noise: Mapping[str, tuple[float, float]]) -> list[list[plot.Panel]]:
  """Builds panels over the accepted length: a row per drafter, a column per metric.

  `points` are by drafter; `baseline` is the decoder whose images are the reference of distances,
  `noise` the mean and deviation of metrics due to noise alone, by name.
  """
  result = []
  for title, own_points in points.items():
    panels_of_row: list[plot.Panel] = []
    for measure, label in _MEASURES.items():
      lines = {curve.name: line for curve in curves
               if (line := _line(curve_rows(own_points, curve), measure, curve.like))}
      floor = sum(noise[measure]) if measure == 'frechet' and measure in noise else None
      if lines:
        panels_of_row.append(plot.Panel(title, label.format(baseline=baseline), lines, floor))
    result.append(panels_of_row)
  return result


def _line(rows: Sequence[Measurement], measure: str, like: str) -> plot.Curve | None:
  """Returns a metric over the accepted length; None if no row has the metric."""
  measured = [row.figures for row in rows if row.figures.get(measure) is not None]
  if not measured:
    return None
  x, y, error = ([figures[name] for figures in measured]
                 for name in ('accepted_length', measure, f'{measure}_error'))
  return plot.Curve(x, y, () if None in error else error, like=like)


class TradeoffPath(NamedTuple):
  """A curve with the results of every image."""

  rounds: np.ndarray  # `[points, N]` rounds after the prefill.
  tv_bound: np.ndarray  # `[points, N]` bounds on total variation.
  tokens: int  # Tokens of an image.

  def lengths(self, selected: np.ndarray) -> np.ndarray:
    """Returns the accepted lengths, `[points]`, over the `selected` `[N]` bool images."""
    return (self.tokens - 1) / self.rounds[:, selected].mean(axis=1)

  def at(self, lengths: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """Interpolates `tv_bound` per token at accepted lengths, over the `selected` images."""
    x, y = self.lengths(selected), self.tv_bound[:, selected].mean(axis=1) / self.tokens
    order = np.argsort(x)
    return np.interp(lengths, x[order], y[order])


class Gap(NamedTuple):
  """The distance by which one curve is below another."""

  mean: float  # Mean distance over the accepted lengths that both curves cover.
  error: float  # Its standard error over images.
  low: float  # The smallest and the largest of these lengths.
  high: float
  better: float  # Bound per token of the lower curve at the middle length.
  worse: float  # Bound per token of the upper curve at the middle length.


def path(rows: Sequence[Measurement]) -> TradeoffPath:
  """Collects the results of every image from the rows of a curve."""
  decoded = [row.sample.decoded for row in rows]
  return TradeoffPath(np.array([point.rounds - 1 for point in decoded], np.float64),
              np.array([point.tv_bound for point in decoded], np.float64),
              decoded[0].tokens.shape[1])


def gap(better: TradeoffPath, worse: TradeoffPath) -> Gap | None:
  """Compares two curves, with the jackknife's error over images; None without a common length."""
  count = better.rounds.shape[1]
  everything = np.ones(count, bool)
  reach = [curve.lengths(everything) for curve in (better, worse)]
  low, high = max(x.min() for x in reach), min(x.max() for x in reach)
  if low >= high:
    return None
  lengths, middle = np.linspace(low, high, 33), np.array([(low + high) / 2])
  mean = lambda selected: np.mean(worse.at(lengths, selected) - better.at(lengths, selected))
  error = math.sqrt((count - 1) * np.var([mean(~row) for row in np.eye(count, dtype=bool)]))
  return Gap(float(mean(everything)), error, float(low), float(high),
             *(float(curve.at(middle, everything)[0]) for curve in (better, worse)))


# Standard errors that a significant difference exceeds, and that the largest deviation of some
# dozens of exact decoders exceeds once in a few hundred runs.
_CLEAR, _BIASED = 2.0, 4.0


class Conclusion(NamedTuple):
  """A tested claim."""

  claim: str  # The claim in words.
  answer: str  # 'yes', 'no', or 'unclear' if the difference is within its noise.
  numbers: str  # The figures on which the answer is based.


class Claim(NamedTuple):
  """A claim that one decoder, or curve, is better than another."""

  text: str  # The claim in words.
  better: str  # Specification of a decoder, or name of a curve.
  worse: str  # The decoder or curve to compare it with.
  # The metric of the decoders, for which larger is better; None for curves, whose bounds on total
  # variation at equal accepted length are compared, for which smaller is better.
  metric: str | None = None


def guarantee_conclusions(rows: Sequence[Measurement], baseline: str) -> list[Conclusion]:
  """Tests whether the decoders meet their guarantees; omits guarantees that were not measured."""
  figures, result = [row.figures for row in rows], []
  deviations = {row['decoder']: _deviation(row['nll_excess'], row['nll_excess_error'])
                for row in figures if row['guarantee'].is_exact and 'nll_excess' in row}
  if deviations := {name: value for name, value in deviations.items() if value is not None}:
    worst = max(deviations, key=lambda name: deviations[name])
    result.append(Conclusion(
        'exact decoders are exact', 'yes' if deviations[worst] < _BIASED else 'no',
        f'NLL minus entropy is 0 within {deviations[worst]:.1f} standard errors for all '
        f'{len(deviations)} of them (the largest deviation has {worst})'))
  # The comparison with the baseline in windows of the same length takes precedence where it was
  # measured: other shapes are rounded differently.
  equal = [row['equal_to_baseline'] if row.get('equal_in_window') is None
           else row['equal_in_window']
           for row in figures if row['equal_to_baseline'] is not None
           and row['guarantee'] is Guarantee.SEED_EXACT and row['decoder'] != baseline]
  if equal:
    result.append(Conclusion(
        f'seed-exact decoders generate the images of {baseline}',
        'yes' if min(equal) == 1 else 'no',
        f'{np.mean(equal):.0%} of the images are equal, with {len(equal)} decoders'))
  return result


def _deviation(excess: float | None, error: float | None) -> float | None:
  """Returns an excess in standard errors; None without an error, as of one image or certain ones.

  It is None in reports if it is infinite: an image has a token that the target excludes.
  """
  if excess is None:
    return math.inf
  return abs(excess) / error if error else math.inf if excess and error == 0 else None


def claim_conclusions(rows: Sequence[Measurement], claims: Sequence[Claim]) -> list[Conclusion]:
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


def curve_conclusions(points: Mapping[str, Sequence[Point]], curves: Sequence[TradeoffCurve],
              claims: Sequence[Claim]) -> list[Conclusion]:
  """Tests claims about two curves, for every drafter."""
  by_name, result = {curve.name: curve for curve in curves}, []
  for claim in [claim for claim in claims if claim.metric is None]:
    for drafter, own_points in points.items():
      text = f'{claim.text}, {drafter}'
      measured = gap(*(path(curve_rows(own_points, by_name[name]))
                       for name in (claim.better, claim.worse)))
      if measured is None:
        result.append(Conclusion(text, 'unclear', 'the curves have no accepted length in common'))
        continue
      result.append(Conclusion(
          text, _answer(measured.mean, measured.error),
          f'{measured.better:.4f} against {measured.worse:.4f} per token at length '
          f'{(measured.low + measured.high) / 2:.2f}; lower by {measured.mean:.4f} +- '
          f'{measured.error:.4f} on average from {measured.low:.2f} to {measured.high:.2f}'))
  return result


def _answer(gap: float, error: float) -> str:
  return 'unclear' if not abs(gap) > _CLEAR * error else 'yes' if gap > 0 else 'no'
