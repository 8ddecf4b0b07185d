"""Marks for tests with many cases."""

from collections.abc import Iterable

import pytest


def representative(cases: Iterable, *kept) -> list:
  """The cases for `parametrize`, all but those `kept` marked slow."""
  return [case if case in kept else
          pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.slow)
          for case in cases]
