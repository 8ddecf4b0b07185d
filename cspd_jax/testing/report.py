"""Problems as sentences, by check: the form in which all checks of a part report."""

import pathlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.core import compilations
from cspd_jax.core.contracts import ContractError


class Check(NamedTuple):
  """One property that a part must have."""

  name: str  # Name of the check.
  run: Callable[[Any], Iterator[str]]  # `probe -> sentences` on mistakes; the first is reported.
  after: tuple[str, ...] = ()  # Checks that must pass for this one to be meaningful.
  of_trees: bool = False  # Whether it is left out for a target that scores chains only.


class CheckReport(NamedTuple):
  """The result of all checks.

  Attributes:
    problems: a sentence by check.
    passed: checks without problems.
    left_out: checks that are not meaningful because of the problems.
    notes: sentences on properties that could not be checked, which are not problems.
  """

  problems: dict[str, str]
  passed: list[str]
  left_out: list[str]
  notes: tuple[str, ...] = ()

  def __str__(self) -> str:
    lines = [f'- {sentence}' for sentence in self.problems.values()]
    lines.append(f'Passed: {", ".join(self.passed) or "nothing"}.')
    if self.left_out:
      lines.append(f'Not checked because of this: {", ".join(self.left_out)}.')
    lines += [f'Note: {note}' for note in self.notes]
    return '\n'.join(lines)


class ProblemsError(AssertionError):
  """A part is not what decoders need; `report` has its problems by check."""

  def __init__(self, part: str, report: CheckReport):
    super().__init__(f'the {part} is not what decoders need:\n{report}')
    self.report = report


def required(part: str, report: CheckReport) -> CheckReport:
  """Returns the report on a part; raises `ProblemsError` if it has problems."""
  if report.problems:
    raise ProblemsError(part, report)
  return report


def collect(part: str, checks: Sequence[Check], probe: Any, progress: bool) -> CheckReport:
  """Runs checks of a part in their order, without those that need one that failed.

  With `progress`, a line on stderr says which one runs once that takes more than five seconds.
  """
  report, now = CheckReport({}, [], []), [0, '']
  doing = lambda: f'checking the {part}: {now[1]}, check {now[0]} of {len(checks)}'
  with compilations.told(doing, progress):
    for number, check in enumerate(checks, 1):
      now[:] = number, check.name
      if any(name in report.problems or name in report.left_out for name in check.after):
        report.left_out.append(check.name)
      elif sentence := next(check.run(probe), None):
        report.problems[check.name] = sentence
      else:
        report.passed.append(check.name)
  return report


def complaint(error: Exception, sentence: str) -> str:
  """The sentence of a ContractError, or `sentence` with what another exception says for `{}`."""
  if isinstance(error, ContractError):
    return str(error)
  packages = (jax.__path__[0], np.__path__[0])
  frames = [frame for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith(packages)]
  place = f'{pathlib.Path(frames[-1].filename).name}:{frames[-1].lineno}'
  first = (str(error).splitlines() or [''])[0].rstrip('.')
  return sentence.replace('{}', f'{type(error).__name__} at {place}: {first}')
