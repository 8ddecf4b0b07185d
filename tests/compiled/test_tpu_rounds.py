"""What rounds cost on a TPU v5e, compiled for one: no later change brings a copy or a loop back.

Two layers, so that figures are of a program and not of a model. The ceilings are today's figures
with a little room. Skipped where the compiler is not installed.
"""

import pytest

from cspd_jax import families
from experiments.costs import predicted
from tests.compiled import compilers

pytestmark = pytest.mark.compiled
_XL, _7B = 'c2i_xl_256', 'lumina_mgpt_7b_768'

# Of a model, a decoder and a number of images: kernels of a round, and MiB beside parameters.
_CEILINGS = {
    (_7B, 'vanilla', 1): (90, 180),
    (_7B, 'mc_sjd(window=64)', 1): (240, 190),
    (_XL, 'eagle(tree=EAGLE)', 1): (555, 30),
    (_XL, 'vanilla', 16): (180, 130),
    (_XL, 'mc_sjd(window=16)', 16): (290, 190),
}


@pytest.mark.parametrize('case', _CEILINGS, ids=lambda case: ' '.join(map(str, case)))
def test_rounds_on_a_tpu(case):
  accelerator, device = compilers.find('v5e')
  name, decoder, batch = case
  model = families.describe(name, layers=2)
  condition = families.FAMILIES[model.family].published.condition(model.config, batch)
  cost = predicted.decode(model, decoder, batch, True, condition, accelerator, device)
  kernels, temporaries = _CEILINGS[case]
  assert cost.kernels <= kernels
  # Parameters that are laid out anew before the loop would be among them.
  assert cost.temporaries <= temporaries * 2**20
  assert (cost.loops, cost.conditionals) == (0, 0), 'no image is served by itself'
  assert cost.copies == 0, 'the cache is updated in place'
