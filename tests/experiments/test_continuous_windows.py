"""`experiments.continuous_windows`: the row of a setting."""

import types

import numpy as np
import pytest

from cspd_jax.metrics import base
from experiments import continuous_windows


def test_the_error_is_that_of_the_tokens_per_round(monkeypatch):
  rounds, ones = np.array([2, 4, 8]), np.ones((3, 16))
  tests = types.SimpleNamespace(tested=ones, accepted=ones)
  costs = types.SimpleNamespace(head_calls=rounds, target_passes=rounds, head_rows=rounds)
  decoded = types.SimpleNamespace(
      tokens=np.zeros((3, 16, 2)), rounds=rounds, tests=tests, kernels=tests, costs=costs)

  class Images(tuple):
    sampler = types.SimpleNamespace(model=types.SimpleNamespace(name='model'))

  monkeypatch.setattr(continuous_windows.decode, 'decoded', lambda images: decoded)

  row = continuous_windows.measured(
      continuous_windows.Setting('window 8', 'windows(window=8)', {}), Images(range(3)))
  expected = base.ratio(np.full(3, 16), rounds)
  assert row['tokens_per_pass'] == 48 / 14
  assert row['tokens_per_pass_error'] == pytest.approx(expected.standard_error)
