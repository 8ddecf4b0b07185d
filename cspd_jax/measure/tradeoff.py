"""Trade-off curves: relaxed verifiers from mild to strong, on the same drafter."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cspd_jax.measure.rows import Row
from cspd_jax.plots import curves as plot

# What the panels of a picture show: metric, and the words beside its axis.
_MEASURES = {
    'tv_bound_per_token': 'bound on total variation per token',
    'nll_excess': 'NLL above the entropy, nats per token',
    'frechet': 'Frechet distance to {baseline}'}


class Curve(NamedTuple):
  """A family of verifiers.

  Attributes:
    name: of the curve.
    verifier: the verifier's specification with `{}` for the value that changes.
    values: from mild to strong.
    from_exact: whether the curve begins with the exact decoder.
    like: name of the curve of which this is a variant; '' if it is none.
  """

  name: str
  verifier: str
  values: tuple[float, ...]
  from_exact: bool = True
  like: str = ''


class Point(NamedTuple):
  """A decoder on a curve.

  Attributes:
    curve: its name; None for the exact decoder, where curves begin.
    value: what `{}` stands for there; None likewise.
    row: the decoder.
  """

  curve: str | None
  value: float | None
  row: Row


def specifications(drafter: str, curves: Sequence[Curve]) -> dict[tuple, str]:
  """Specifications by `(curve, value)`, that of the exact decoder by `(None, None)`."""
  return {(None, None): f'{drafter}+exact'} | {
      (curve.name, value): f'{drafter}+{curve.verifier.format(format(value, "g"))}'
      for curve in curves for value in curve.values}


def of_curve(points: Sequence[Point], curve: Curve) -> list[Row]:
  """The rows that a curve joins, among the points of one drafter."""
  return [point.row for point in points
          if point.curve == curve.name or (point.curve is None and curve.from_exact)]


def panels(points: Mapping[str, Sequence[Point]], curves: Sequence[Curve], baseline: str,
           noise: Mapping[str, tuple[float, float]]) -> list[list[plot.Panel]]:
  """Small multiples over the accepted length: a row per drafter, a column per measure.

  Args:
    points: by title of the row.
    curves: that are drawn.
    baseline: the decoder that the distances are to.
    noise: mean and deviation of what noise amounts to, by metric.
  """
  result = []
  for title, found in points.items():
    result.append([])
    for measure, label in _MEASURES.items():
      lines = {curve.name: line for curve in curves
               if (line := _line(of_curve(found, curve), measure, curve.like))}
      floor = sum(noise[measure]) if measure == 'frechet' and measure in noise else None
      if lines:
        result[-1].append(plot.Panel(title, label.format(baseline=baseline), lines, floor))
  return result


def _line(rows: Sequence[Row], measure: str, like: str) -> plot.Curve | None:
  """A measure over the accepted length where it is known; None if that is nowhere."""
  known = [row.figures for row in rows if row.figures.get(measure) is not None]
  if not known:
    return None
  x, y, error = ([one[name] for one in known]
                 for name in ('accepted_length', measure, f'{measure}_error'))
  return plot.Curve(x, y, () if None in error else error, like=like)


class Path(NamedTuple):
  """A curve image by image.

  Attributes:
    rounds: `[points, N]` rounds after the prefill.
    tv_bound: `[points, N]`.
    tokens: tokens of an image.
  """

  rounds: np.ndarray
  tv_bound: np.ndarray
  tokens: int

  def lengths(self, kept: np.ndarray) -> np.ndarray:
    """Measures the accepted lengths, `[points]`, of the images `kept` `[N]` bool."""
    return (self.tokens - 1) / self.rounds[:, kept].mean(axis=1)

  def at(self, lengths: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Interpolates `tv_bound` per token at accepted lengths, from the images `kept`."""
    x, y = self.lengths(kept), self.tv_bound[:, kept].mean(axis=1) / self.tokens
    order = np.argsort(x)
    return np.interp(lengths, x[order], y[order])


class Gap(NamedTuple):
  """How far one curve is below another.

  Attributes:
    mean: over the accepted lengths that both reach.
    error: its standard error over images.
    low: least of these lengths.
    high: greatest of them.
    ours: bound per token of the first curve in the middle.
    theirs: of the second.
  """

  mean: float
  error: float
  low: float
  high: float
  ours: float
  theirs: float


def path(rows: Sequence[Row]) -> Path:
  """The images of a curve."""
  decoded = [row.sample.decoded for row in rows]
  return Path(np.array([one.rounds - 1 for one in decoded], np.float64),
              np.array([one.tv_bound for one in decoded], np.float64), decoded[0].tokens.shape[1])


def gap(better: Path, worse: Path) -> Gap | None:
  """Compares the bounds on total variation of two curves; None if they have no length in common.

  The error is found by the jackknife.
  """
  count = better.rounds.shape[1]
  everything = np.ones(count, bool)
  reach = [curve.lengths(everything) for curve in (better, worse)]
  low, high = max(x.min() for x in reach), min(x.max() for x in reach)
  if low >= high:
    return None
  lengths, middle = np.linspace(low, high, 33), np.array([(low + high) / 2])
  mean = lambda kept: np.mean(worse.at(lengths, kept) - better.at(lengths, kept))
  error = math.sqrt((count - 1) * np.var([mean(~row) for row in np.eye(count, dtype=bool)]))
  return Gap(float(mean(everything)), error, float(low), float(high),
             *(float(curve.at(middle, everything)[0]) for curve in (better, worse)))
