"""The result of a check."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Verdict = Literal['passed', 'failed', 'not compared']


@dataclasses.dataclass(frozen=True)
class Result:
  """One question and its answer.

  Attributes:
    name: the question, in a few words.
    verdict: 'not compared' if nothing here can tell; `words` then say what would.
    words: a sentence with the numbers that decided.
    numbers: those and further numbers by name, for the report.
  """

  name: str
  verdict: Verdict
  words: str
  numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def judged(name: str, is_right: Any, words: str, **numbers: Any) -> Result:
  """Returns a result that passed or failed."""
  return Result(name, 'passed' if is_right else 'failed', words, numbers)


def skipped(name: str, words: str) -> Result:
  """Returns a result of nothing that was compared."""
  return Result(name, 'not compared', words)
