"""Marks for tests with many cases."""

from collections.abc import Iterable

import pytest


def representative(cases: Iterable, *kept) -> list:
  """The cases for `parametrize`, all but those `kept` marked slow."""
  cases = list(cases)
  assert all(any(case is one or case == one for case in cases) for one in kept), kept
  return [case if case in kept else
          pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.slow)
          for case in cases]
