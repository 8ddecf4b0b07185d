"""Launches of diffusion heads on an H200, from compilation: no later change adds to them.

The ceilings are today's figures with a little room. Skipped where the compilers are not installed.
"""

import pytest

from cspd_jax import families
from experiments.costs import predicted
from tests.compiled import compilers

pytestmark = pytest.mark.compiled


def _cost(decoder, name='mar_b', iterations=1):
  """The cost of a round of a model with one transformer layer, by the calls of its head's loop."""
  accelerator, device = compilers.find('h200')
  model = families.describe(name, layers=1)
  condition = families.FAMILIES[model.family].published.condition(model.config, 1)
  return predicted.decode(model, decoder, 1, True, condition, accelerator, device, iterations)


# The loop over levels of `mar` is a part of its round, as often as there are levels.
@pytest.mark.parametrize('name, levels, ceiling', [
    ('mar_b', 100, 1900), ('nextstep_1_512', 50, 2217)])
def test_launches_of_a_token(name, levels, ceiling):
  cost = _cost('mar', name)
  # A kernel for the state, two per block and one for the output: 14 and 26 a level.
  assert levels * (14 if name == 'mar_b' else 26) < cost.kernels <= ceiling
  assert cost.copies == 0, 'nothing of the size of a matrix is copied'


def test_a_call_of_exact_head():
  one, two = (_cost('exact_head', iterations=count) for count in (1, 2))
  assert one.kernels <= 150 and one.copies == 0
  # A call reads the matrices of its blocks, of 16 bits, and the modulations of 32 states.
  matrices = 2 * (12 * 1024**2 + 48 * 1024)
  assert two.kernels - one.kernels <= 70 and two.bytes - one.bytes < 1.6 * matrices


def test_a_call_of_windows_draws_its_drafts_in_one_kernel():
  one, two = (_cost('windows(window=8)', iterations=count) for count in (1, 2))
  assert one.kernels <= 240 and two.kernels - one.kernels <= 80
