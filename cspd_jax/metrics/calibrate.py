"""Finds the relaxation that meets a goal: such a bound on total variation, or so long a round."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Calibrated(NamedTuple):
  """The outcome of a calibration.

  Attributes:
    value: the parameter found.
    mean: what was measured there.
    error: standard error of that mean over the samples.
    history: every `(value, mean)` that was measured, in order.
  """

  value: float
  mean: float
  error: float
  history: tuple[tuple[float, float], ...]


def calibrate(measure: Callable[[float, Any], np.ndarray], low: float, high: float, goal: float,
              key: Any, *, steps: int = 10, tolerance: float = 0.01) -> Calibrated:
  """The parameter between `low` and `high` at which a mean measurement meets `goal`.

  Bisection on a noisy measurement. All measurements get the same key, so they share their
  random numbers: the noise moves the curve as a whole but hardly bends it, and a curve
  that rises in the mean rises as measured, nearly. What noise remains is told by `error`.

    def tv_bound(delta, key):
      decoder = make_decoder(target, drafter, cool(delta))
      return jax.jit(decoder)(params, condition, key).tv_bound

    found = calibrate(tv_bound, 1.0, 3.0, goal=0.1, key=jax.random.key(0))

  Options of a verifier are static, so every step compiles a decoder.

  Args:
    measure: `(value, key) -> [n]`: one figure per image, with a mean that is monotone in
      the value; `Decoded.tv_bound`, or tokens per round.
    low: one end of the range.
    high: the other end, above `low`.
    goal: the mean that is wanted.
    key: passed to `measure`, the same every time.
    steps: measurements at most, the two ends included; at least 2.
    tolerance: it is enough if the mean is within this share of the goal.

  Returns:
    A `Calibrated`: of all that was measured, what came closest to the goal.

  Raises:
    ValueError: if the options make no sense, a measurement is not finite, or the goal is
      not between the measurements at the two ends.
  """
  _check(low, high, steps, tolerance)
  found = []

  def mean_at(value):
    samples = np.asarray(measure(value, key), np.float64).reshape(-1)
    if not samples.size or not np.all(np.isfinite(samples)):
      raise ValueError(f'measure returned {samples} at {value}; it must return finite numbers.')
    error = samples.std(ddof=1) / np.sqrt(samples.size) if samples.size > 1 else np.nan
    found.append((float(value), float(samples.mean()), float(error)))
    return found[-1][1]

  at_low, at_high = mean_at(low), mean_at(high)
  if not min(at_low, at_high) <= goal <= max(at_low, at_high):
    raise ValueError(
        f'goal is {goal}, but the measurement is {at_low:.6g} at low = {low} and {at_high:.6g} at '
        f'high = {high}; give a goal between them or a wider range.')
  missed = lambda: min(abs(mean - goal) for _, mean, _ in found)
  while len(found) < steps and missed() > tolerance * abs(goal):
    middle = (low + high) / 2
    if (mean_at(middle) < goal) == (at_low < at_high):
      low = middle
    else:
      high = middle
  value, mean, error = min(found, key=lambda entry: abs(entry[1] - goal))
  return Calibrated(value, mean, error, tuple(entry[:2] for entry in found))


def _check(low: float, high: float, steps: int, tolerance: float) -> None:
  """Raises ValueError for options of `calibrate` that make no sense."""
  if not low < high:
    raise ValueError(f'low is {low} and high {high}; low must be below high.')
  if steps < 2:
    raise ValueError(f'steps is {steps}; it must be at least 2, for the two ends.')
  if not tolerance >= 0:
    raise ValueError(f'tolerance is {tolerance}; it must be at least 0.')
