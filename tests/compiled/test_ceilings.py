"""What rounds cost on an H200, compiled for one: no later change brings a copy back.

The ceilings are today's figures with a little room. Skipped where the compilers are not installed.
"""

import functools

import pytest

from cspd_jax import families
from cspd_jax.generation import memory
from experiments.costs import predicted
from tests.compiled import compilers

pytestmark = pytest.mark.compiled
_XL, _7B = 'c2i_xl_256', 'lumina_mgpt_7b_768'


@pytest.mark.parametrize('by', ['local', 'neighbours'])
def test_a_pass_of_a_cheap_corrector_is_few_kernels(by):
  accelerator, device = compilers.find('h200')
  model = families.describe(_XL, layers=1)
  condition = families.FAMILIES[model.family].published.condition(model.config, 1)
  two, three = (predicted.decode(
      model, f'corrected(corrector={by}, iterations={iterations}, window=64)', 1, True, condition,
      accelerator, device).total_kernels for iterations in (2, 3))
  assert three - two <= 20


@functools.cache
def _figures(model, decoder):
  """Figures of all layers, from two and three; and the live half of the cache of two."""
  accelerator, device = compilers.find('h200')
  few, more = (families.describe(model, layers=layers) for layers in (2, 3))
  condition = families.FAMILIES[few.family].published.condition(few.config, 1)
  one, other = (predicted.decode(part, decoder, 1, True, condition, accelerator, device)
                for part in (few, more))
  layers = families.describe(model).config.num_layers
  return predicted.extrapolated(one, other, layers - 2), memory.live_cache(
      few.target(), few.params, condition)


@functools.cache
def _ideal(model):
  """Bytes of the weights and the live half of the cache of all layers."""
  result, live = _figures(model, 'vanilla')
  return result.weights + live * families.describe(model).config.num_layers / 2


# Of a round: bytes over ideal, in all and without partial sums that the cache of the device holds;
# kernels and branches.
_CEILINGS = {
    (_XL, 'vanilla'): (1.02, 1.01, 455, 0),
    (_XL, 'mc_sjd(window=64)'): (2.55, 1.21, 465, 0),
    (_XL, 'eagle(tree=EAGLE)'): (1.95, 1.40, 668, 0),
    (_7B, 'vanilla'): (1.01, 1.01, 538, 0),
    (_7B, 'mc_sjd(window=64)'): (1.31, 1.08, 554, 0),
    (_7B, 'eagle(tree=EAGLE)'): (1.44, 1.25, 770, 0),
    (_7B, 'corrected(corrector=eagle, iterations=4, window=64)'): (1.55, 1.44, 790, 0),
}


@pytest.mark.parametrize('case', _CEILINGS, ids=' '.join)
def test_ceilings(case):
  result, _ = _figures(*case)
  over_ideal, without_sums, kernels, branches = _CEILINGS[case]
  assert result.total_bytes / _ideal(case[0]) <= over_ideal, dict(result.bytes)
  assert (result.total_bytes - result.cached_sums) / _ideal(case[0]) <= without_sums, (
      dict(result.bytes))
  assert result.total_kernels <= kernels, dict(result.kernels)
  assert result.conditionals <= branches
  assert result.copied == 0, 'the cache is updated in place'
  # No layer copies anything of a MiB or more, such as its keys.
  layers = families.describe(case[0]).config.num_layers
  assert all(count < layers for count in result.copies.values()), dict(result.copies)
