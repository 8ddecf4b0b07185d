"""Rounds of targets with a cache in int8, compiled for an H200: it is smaller and updated in place.

Skipped where the compilers are not installed.
"""

import pytest

from cspd_jax import families
from cspd_jax.families.folder import with_cache_dtype
from cspd_jax.generation import memory
from experiments.costs import predicted
from tests.compiled import compilers

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize('decoder, share', [('vanilla', 0.9), ('mc_sjd(window=64)', 0.3)])
def test_a_program_needs_less_memory(decoder, share):
  accelerator, device = compilers.find('h200')
  whole = families.describe('lumina_mgpt_7b_768', layers=2)
  rounded = with_cache_dtype(whole, 'int8')
  condition = families.FAMILIES[whole.family].published.condition(whole.config, 1)
  of_whole, of_rounded = (
      predicted.decode(model, decoder, 1, True, condition, accelerator, device)
      for model in (whole, rounded))
  caches = [memory.cache_size(model.target(guided=True), model.params, condition, 2353)
            for model in (whole, rounded)]
  # Scores of a window are not fused, so a part of what the cache saves goes to them.
  assert of_whole.temporaries - of_rounded.temporaries > share * (caches[0] - caches[1])
  # Nothing wide is written and read again, and no slot is copied.
  assert of_rounded.copies == 0 and of_rounded.bytes < 1.1 * of_whole.bytes
