"""Measurements that are kept until a report is complete, so that a repeated command resumes."""

from collections.abc import Callable
from typing import Any

from cspd_jax.files import atomic, reading
from cspd_jax.files.run_folder import Report

_NAME = 'kept.json'


class Journal:
  """Numbers by name, in a file of an unfinished report; each is measured once."""

  def __init__(self, report: Report):
    """Reads what an interrupted run has measured.

    Args:
      report: opened with the `run` that determines what is measured.

    Raises:
      ValueError: if the file is damaged.
    """
    self._path = report.path(_NAME)
    self._values: dict[str, Any] = (
        reading.json(self._path, f'remove {self._path}') if report.has(_NAME) else {})

  def names(self, kind: str) -> list[str]:
    """Returns the names of what is kept of a kind."""
    return list(self._values.get(kind, {}))

  def measured(self, kind: str, name: str, measure: Callable[[], Any]) -> Any:
    """Returns what `measure` returns, or has returned in an interrupted run.

    Args:
      kind: what is measured, such as 'run'.
      name: of which decoder or size.
      measure: `() -> ` numbers, lists and dictionaries of them.
    """
    values = self._values.setdefault(kind, {})
    if name not in values:
      values[name] = atomic.plain(measure())
      atomic.write_json(self._path, self._values)
    return values[name]

  def remove(self) -> None:
    """Removes the file, before the report is completed."""
    self._path.unlink(missing_ok=True)
