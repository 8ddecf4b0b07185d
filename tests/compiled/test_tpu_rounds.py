"""What rounds cost on a TPU v5e, compiled for one: no later change brings a copy or a loop back.

Two layers, so that figures are of a program and not of a model; those of the smaller model stay in
fast memory then. The ceilings are today's figures with a little room. Skipped where the compiler is
not installed.
"""

import pytest

from cspd_jax import families
from experiments.costs import predicted
from tests.compiled import compilers

pytestmark = pytest.mark.compiled
_XL, _7B = 'c2i_xl_256', 'lumina_mgpt_7b_768'

# Of a model, a decoder and a number of images: kernels, MiB of a round, and MiB beside parameters.
_CEILINGS = {
    (_7B, 'vanilla', 1): (90, 1150, 180),
    (_7B, 'mc_sjd(window=64)', 1): (240, 1030, 190),
    (_XL, 'eagle(tree=EAGLE)', 1): (555, 135, 30),
    (_XL, 'vanilla', 16): (180, 330, 130),
    (_XL, 'mc_sjd(window=16)', 16): (290, 360, 190),
}


@pytest.mark.parametrize('case', _CEILINGS, ids=lambda case: ' '.join(map(str, case)))
def test_rounds_on_a_tpu(case):
  accelerator, device = compilers.find('v5e')
  name, decoder, batch = case
  model = families.describe(name, layers=2)
  condition = families.FAMILIES[model.family].published.condition(model.config, batch)
  result = predicted.decode(model, decoder, batch, True, condition, accelerator, device)
  kernels, mib, temporaries = _CEILINGS[case]
  assert result.total_kernels <= kernels, dict(result.kernels)
  assert result.total_bytes <= mib * 2**20, dict(result.bytes)
  # Parameters that are laid out anew before the loop would be among them.
  assert result.temporaries <= temporaries * 2**20
  assert (result.loops, result.conditionals) == (0, 0), 'no image is served by itself'
  assert result.copied == 0, 'the cache is updated in place'
