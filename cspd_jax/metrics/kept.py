"""Results of batches that are kept until a report is complete, so that a repeated run resumes."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cspd_jax.files import atomic, npz
from cspd_jax.files.run_folder import Report

# `(inputs, compute) -> ` what `compute` returns, arrays by name, or an earlier call of the same
# inputs: texts and arrays that determine the result.
Keep = Callable[[Sequence[Any], Callable[[], Mapping[str, np.ndarray]]], Mapping[str, np.ndarray]]
_NAME = 'kept_{}.npz'


def nothing(inputs: Sequence[Any], compute: Callable[[], Mapping[str, np.ndarray]]
            ) -> Mapping[str, np.ndarray]:
  """Keeps nothing."""
  del inputs
  return compute()


def within(report: Report) -> Keep:
  """Returns a function that keeps results in an unfinished report, by a digest of their inputs."""
  def keep(inputs, compute):
    name = _NAME.format(_digest(inputs))
    if report.has(name):
      return npz.arrays(report.path(name), atomic.REMAKE)
    values = compute()
    atomic.write_arrays(report.path(name), values)
    return values

  return keep


def remove(report: Report) -> None:
  """Removes what `within` kept, also for other inputs, before the report is completed."""
  place = report.path(_NAME.format(''))
  for file in place.parent.glob(_NAME.format('*')):
    file.unlink()


def _digest(inputs: Sequence[Any]) -> str:
  """Identifies texts and arrays."""
  digest = hashlib.sha256()
  for value in inputs:
    array = np.asarray(value)
    digest.update(f'{array.dtype}{array.shape}'.encode())
    digest.update(array.tobytes())
  return digest.hexdigest()
