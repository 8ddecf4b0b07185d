"""The timer: functions take turns, so that a change in the machine's load meets all of them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

Name = TypeVar('Name', bound=Hashable)


class Timing(NamedTuple):
  """The timed runs of one function.

  Attributes:
    seconds: `[n]` wall-clock of every run, in the order in which they ran.
  """

  seconds: np.ndarray

  @property
  def median(self) -> float:
    """Seconds of a run, the figure to report."""
    return float(np.median(self.seconds))

  @property
  def quartiles(self) -> tuple[float, float]:
    """Seconds that a quarter and three quarters of the runs stay below."""
    lower, upper = np.quantile(self.seconds, (0.25, 0.75))
    return float(lower), float(upper)


def measure(
    runs: Mapping[Name, Callable[[], Any]],
    repeats: int = 5,
    *,
    warmup: int = 1,
    enough: float | None = None,
    budget: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[Name, Timing]:
  """Times functions that take turns.

  In every turn each function runs once, in the given order, until its result is ready. A
  compiled program may be slower the first time, so the first turns are not timed. Compile
  beforehand, or the compilation counts as a part of the first run.

  Args:
    runs: functions without arguments, by name.
    repeats: timed turns.
    warmup: turns before them that are not timed.
    enough: seconds of a timed run after which a function is not timed again; None for no limit.
    budget: seconds of all timed runs. A further turn begins only if it would end within them at
      the mean time of those before it; the first one always runs. None for no limit.
    progress: called with the turns that are done and all turns, after each.

  Returns:
    The timings by name.

  Raises:
    ValueError: if `repeats` is below 1 or `warmup` below 0.
  """
  if repeats < 1:
    raise ValueError(f'repeats is {repeats}; it must be at least 1.')
  if warmup < 0:
    raise ValueError(f'warmup is {warmup}; it must be at least 0.')
  seconds: dict[Name, list[float]] = {name: [] for name in runs}
  for turn in range(warmup + repeats):
    timed = turn - warmup
    spent = sum(map(sum, seconds.values()))
    if budget is not None and timed > 0 and spent * (timed + 1) / timed > budget:
      break
    for name, run in runs.items():
      if enough is not None and seconds[name] and seconds[name][0] > enough:
        continue
      start = time.perf_counter()
      jax.block_until_ready(run())
      if timed >= 0:
        seconds[name].append(time.perf_counter() - start)
    if progress is not None:
      progress(turn + 1, warmup + repeats)
  return {name: Timing(np.array(values)) for name, values in seconds.items()}
