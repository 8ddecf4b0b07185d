"""Finds the relaxation with a desired bound on total variation, or a desired accepted length."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Calibrated(NamedTuple):
  """The selected parameter, the mean measured there with its standard error over the samples.

  `history` are all measured `(value, mean)`, in order.
  """

  value: float
  mean: float
  error: float
  history: tuple[tuple[float, float], ...]


def calibrate(measure: Callable[[float, Any], np.ndarray], low: float, high: float, goal: float,
              key: Any, *, steps: int = 10, tolerance: float = 0.01) -> Calibrated:
  """Returns the parameter between `low` and `high` at which a mean measurement meets `goal`.

  Bisection on a noisy measurement. All measurements use the same key and therefore share their
  random numbers: the noise shifts the curve as a whole but hardly bends it, so a curve whose
  expectation is monotone is measured as nearly monotone. `error` reports the remaining noise.

    def tv_bound(delta, key):
      decoder = make_decoder(target, drafter, cool(delta))
      return jax.jit(decoder)(params, condition, key).tv_bound

    result = calibrate(tv_bound, 1.0, 3.0, goal=0.1, key=jax.random.key(0))

  Options of a verifier are static, so every step compiles a decoder.

  Args:
    measure: `(value, key) -> [n]`: one number per image, with a mean that is monotone in
      the value; for example `Decoded.tv_bound`, or tokens per round.
    low: lower end of the range.
    high: upper end of the range.
    goal: the desired mean.
    key: passed to every call of `measure`.
    steps: maximum number of measurements, including the two ends; at least 2.
    tolerance: relative deviation from the goal at which the search stops.

  Returns:
    A `Calibrated` with the measurement closest to the goal.

  Raises:
    ValueError: if the options are invalid, a measurement is not finite, or the goal is
      not between the measurements at the two ends.
  """
  _check(low, high, steps, tolerance)
  measured: list[tuple[float, float, float]] = []

  def mean_at(value):
    samples = np.asarray(measure(value, key), np.float64).reshape(-1)
    if not samples.size or not np.all(np.isfinite(samples)):
      raise ValueError(f'measure returned {samples} at {value}; it must return finite numbers.')
    error = samples.std(ddof=1) / np.sqrt(samples.size) if samples.size > 1 else np.nan
    measured.append((float(value), float(samples.mean()), float(error)))
    return measured[-1][1]

  at_low, at_high = mean_at(low), mean_at(high)
  if not min(at_low, at_high) <= goal <= max(at_low, at_high):
    raise ValueError(
        f'goal is {goal}, but the measurement is {at_low:.6g} at low = {low} and {at_high:.6g} at '
        f'high = {high}; choose a goal between them or a wider range.')
  deviation = lambda: min(abs(mean - goal) for _, mean, _ in measured)
  while len(measured) < steps and deviation() > tolerance * abs(goal):
    middle = (low + high) / 2
    if (mean_at(middle) < goal) == (at_low < at_high):
      low = middle
    else:
      high = middle
  value, mean, error = min(measured, key=lambda entry: abs(entry[1] - goal))
  return Calibrated(value, mean, error, tuple(entry[:2] for entry in measured))


def _check(low: float, high: float, steps: int, tolerance: float) -> None:
  """Raises ValueError for invalid options of `calibrate`."""
  if not low < high:
    raise ValueError(f'low is {low} and high {high}; low must be below high.')
  if steps < 2:
    raise ValueError(f'steps is {steps}; it must be at least 2, for the two ends.')
  if not tolerance >= 0:
    raise ValueError(f'tolerance is {tolerance}; it must be at least 0.')
