"""The energy distance: its closed form for normal numbers, no bias, and its test."""

import math

import numpy as np

from cspd_jax.metrics.energy import energy

RNG = np.random.default_rng(0)


def test_the_distance_of_two_normal_distributions():
  for mean in (1.0, 2.0):
    # |N(mean, 2)| has a known mean, that of two equal distributions 2 / sqrt(pi).
    expected = 2 * (2 / math.sqrt(math.pi) * math.expm1(-mean**2 / 4) + mean * math.erf(mean / 2))
    measured = energy(RNG.normal(size=(900, 1)), RNG.normal(mean, size=(900, 1)), exchanges=99)
    assert abs(measured.distance - expected) < 4 * measured.standard_error < 0.5 * expected


def test_equal_distributions_with_one_condition_per_pair_have_distance_0():
  conditions = 3 * RNG.normal(size=(12, 3))
  draw = lambda: conditions + RNG.normal(size=(12, 3))
  measured = [energy(draw(), draw(), exchanges=99) for _ in range(400)]
  distances, p_values = (np.array([getattr(one, name) for one in measured])
                         for name in ('distance', 'p_value'))
  assert abs(distances.mean()) < 4 * distances.std() / 20
  assert 0.02 < np.mean(p_values <= 0.1) < 0.18


def test_a_shift_is_rejected():
  conditions = RNG.normal(size=(100, 8))
  first, second = (conditions + RNG.normal(size=(100, 8)) for _ in range(2))
  assert energy(first, second).p_value > 0.01
  shifted = energy(first + 0.4, second)
  assert shifted.p_value <= 0.001 and shifted.distance > 3 * shifted.standard_error
