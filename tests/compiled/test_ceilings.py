"""What rounds cost on an H200, compiled for one: no later change brings a copy back.

The ceilings are today's figures with a little room. Skipped where the compilers are not installed.
"""

import functools

import pytest

from cspd_jax import families
from cspd_jax.measure import tables
from experiments.costs import predicted
from tests.compiled import compilers
from tests.docs import pages

pytestmark = pytest.mark.compiled
_XL, _7B = 'c2i_xl_256', 'lumina_mgpt_7b_768'


@functools.cache
def _cost(name, decoder, layers):
  accelerator, device = compilers.find('h200')
  model = families.describe(name, layers=layers)
  condition = families.FAMILIES[model.family].published.condition(model.config, 1)
  return predicted.decode(model, decoder, 1, True, condition, accelerator, device)


def _whole(name, decoder):
  """The cost of all layers."""
  layers = families.describe(name).config.num_layers
  return predicted.extrapolated(*(_cost(name, decoder, count) for count in (2, 3)), layers - 2)


@pytest.mark.parametrize('by', ['local', 'neighbours'])
def test_a_pass_of_a_cheap_corrector_is_few_kernels(by):
  two, three = (_cost(_XL, f'corrected(corrector={by}, iterations={count}, window=64)', 1).kernels
                for count in (2, 3))
  assert three - two <= 20


# Of a round: bytes over the weights and the live half of the cache, kernels and branches.
_CEILINGS = {
    (_XL, 'vanilla'): (1.02, 455, 0),
    (_XL, 'mc_sjd(window=64)'): (2.55, 465, 0),
    (_XL, 'eagle(tree=EAGLE)'): (1.95, 668, 0),
    (_7B, 'vanilla'): (1.01, 538, 0),
    (_7B, 'mc_sjd(window=64)'): (1.31, 554, 0),
    (_7B, 'eagle(tree=EAGLE)'): (1.44, 770, 0),
    (_7B, 'corrected(corrector=eagle, iterations=4, window=64)'): (1.55, 790, 0),
}


@pytest.mark.parametrize('case', _CEILINGS, ids=' '.join)
def test_ceilings(case):
  cost, (over_ideal, kernels, branches) = _whole(*case), _CEILINGS[case]
  model = families.describe(case[0])
  condition = families.FAMILIES[model.family].published.condition(model.config, 1)
  ideal = predicted.least_bytes(model, True, condition)
  assert cost.bytes / ideal <= over_ideal
  assert cost.kernels <= kernels and cost.conditionals <= branches
  # No layer copies anything of a MiB or more, such as its keys.
  assert _cost(*case, 2).copies == _cost(*case, 3).copies


@pytest.mark.parametrize('decoder', ['vanilla', 'mc_sjd(window=16)'])
@pytest.mark.parametrize('name, report', [(_XL, 'accelerator_xl'), (_7B, 'accelerator_large')])
def test_predictions_are_close_to_what_a_card_measured(name, report, decoder):
  """At the rates that it measured on itself, which are those of an H100."""
  accelerator, _ = compilers.find('h200')
  card = accelerator._replace(bandwidth=2.74e12, flops=786e12)
  first = tables.read_tables(pages.ROOT / 'docs' / 'reports' / f'{report}.json')[0]
  row = next(row for row in first.rows if row['decoder'] == decoder)
  ratio = 1e-3 * row['ms'] / predicted.seconds(_whole(name, decoder), card)
  assert 0.8 < ratio < 1.35
