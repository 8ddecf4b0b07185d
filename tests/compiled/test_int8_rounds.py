"""Rounds of targets of 8 bits, compiled for an H200: kernels widen what they read themselves.

Skipped where the compilers are not installed.
"""

import pytest

from cspd_jax import families
from experiments.costs import predicted, timed_rounds
from tests.compiled import compilers

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize('decoder', ['vanilla', 'mc_sjd(window=64)'])
def test_a_round_reads_half_of_the_matrices(decoder):
  accelerator, device = compilers.find('h200')
  model = families.describe('lumina_mgpt_7b_768', layers=2)
  condition = families.FAMILIES[model.family].published.condition(model.config, 1)
  whole, rounded = (
      predicted.decode(one, decoder, 1, True, condition, accelerator, device)
      for one in (model, timed_rounds.with_int8_matrices(model)))
  matrices = 2 * 2 * (4 * 4096**2 + 3 * 4096 * 11008)  # Two layers, two bytes a number.
  # Nothing wide is written and read again.
  assert 0.45 * matrices < whole.bytes - rounded.bytes < 0.55 * matrices
