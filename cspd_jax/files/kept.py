"""Results that are kept until a report is complete, so that a repeated command resumes.

Numbers by name (`Journal`), and arrays by the inputs that determine them (`within`).
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cspd_jax.files import atomic, npz, reading
from cspd_jax.files.run_folder import Report

# `(inputs, compute) -> ` what `compute` returns, arrays by name, or an earlier call of the same
# inputs: texts and arrays that determine the result.
Keep = Callable[[Sequence[Any], Callable[[], Mapping[str, np.ndarray]]], Mapping[str, np.ndarray]]
_NUMBERS, _ARRAYS = 'kept.json', 'kept_{}.npz'


class Journal:
  """Numbers by name, in a file of an unfinished report; each is measured once."""

  def __init__(self, report: Report):
    """Reads what a report, opened with the `run` that determines it, has; refuses damaged files."""
    self._path = report.path(_NUMBERS)
    self._values: dict[str, Any] = (
        reading.json(self._path, f'remove {self._path}') if report.has(_NUMBERS) else {})

  def names(self, kind: str) -> list[str]:
    """Returns the names of what is kept of a kind."""
    return list(self._values.get(kind, {}))

  def measured(self, kind: str, name: str, measure: Callable[[], Any]) -> Any:
    """Returns what `measure` returns, or has returned in an interrupted run.

    `kind` is what is measured, such as 'run', and `name` of which decoder or size. The result is
    numbers, lists and dictionaries of them.
    """
    values = self._values.setdefault(kind, {})
    if name not in values:
      values[name] = atomic.plain(measure())
      atomic.write_json(self._path, self._values)
    return values[name]


def nothing(inputs: Sequence[Any], compute: Callable[[], Mapping[str, np.ndarray]]
            ) -> Mapping[str, np.ndarray]:
  """Keeps nothing."""
  del inputs
  return compute()


def within(report: Report) -> Keep:
  """Returns a function that keeps results in an unfinished report, by a digest of their inputs."""
  def keep(inputs, compute):
    name = _ARRAYS.format(_digest(inputs))
    if report.has(name):
      return npz.arrays(report.path(name), atomic.REMAKE)
    values = compute()
    atomic.write_arrays(report.path(name), values)
    return values

  return keep


def remove(report: Report) -> None:
  """Removes all that is kept, also for other inputs, before the report is completed."""
  for pattern in (_NUMBERS, _ARRAYS.format('*')):
    for file in report.path(_NUMBERS).parent.glob(pattern):
      file.unlink()


def _digest(inputs: Sequence[Any]) -> str:
  """Identifies texts and arrays."""
  digest = hashlib.sha256()
  for value in inputs:
    array = np.asarray(value)
    digest.update(f'{array.dtype}{array.shape}'.encode())
    digest.update(array.tobytes())
  return digest.hexdigest()
