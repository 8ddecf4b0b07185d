"""Launches of diffusion heads on an H200, from compilation: no later change adds to them.

The ceilings are today's figures with a little room. Skipped where the compilers are not installed.
"""

import jax
import pytest

from cspd_jax import families
from cspd_jax.decoding import warp
from experiments.costs import devices, hlo, instructions, rounds
from tests.compiled import compilers

pytestmark = pytest.mark.compiled
_LEVELS = 100


def _figures(decoder, name='mar_b'):
  """The round of a token of a model with one transformer layer, and the calls of its head."""
  _, device = compilers.find('h200')
  model = families.describe(name, layers=1)
  condition = families.FAMILIES[model.family].published.condition(model.config, 1)
  arguments = [model.params, condition, jax.random.split(jax.random.key(0), 1),
               warp.drop_inactive(model.sampling()), None]
  program = devices.compiled(model.decoder(decoder, guided=True), arguments, device)
  return rounds.read(hlo.parse(program.as_text()), ())


def _of_head(result):
  """Kernels of the head by how often they run."""
  return [kernel for kernel in result.kernels if kernel.scope == 'fused_head']


# Kernels of a round, in which the loop over `exact_head`'s calls counts once.
@pytest.mark.parametrize('decoder, times, ceiling, share', [
    ('mar', _LEVELS, 1900, 1.1), ('exact_head', 1, 150, 1.4)])
def test_launches_of_a_token(decoder, times, ceiling, share):
  result = _figures(decoder)
  # A kernel for the state, two per block and one for the output.
  assert [kernel.times for kernel in _of_head(result)] == [times] * 14
  assert sum(kernel.times for kernel in result.kernels) <= ceiling
  # A call reads the matrices of its blocks, of 16 bits, and the modulations of 2 or 32 states.
  matrices = 2 * (12 * 1024**2 + 48 * 1024)
  assert sum(kernel.bytes for kernel in _of_head(result)) < share * matrices
  # Nothing of the size of a matrix is copied.
  assert not [kernel.arrays for kernel in result.kernels
              if kernel.moves and kernel.written >= 2**21]


def test_launches_of_a_token_of_nextstep():
  result = _figures('mar', 'nextstep_1_512')
  assert [kernel.times for kernel in _of_head(result)] == [50] * 26
  # Float32 products at full precision would take more time than all others together.
  count = lambda arithmetic: sum(
      kernel.times * kernel.products.get(arithmetic, 0) for kernel in result.kernels)
  assert count(instructions.FULL) < 1e-3 * count(instructions.BFLOAT16)


def test_a_call_of_windows_draws_its_drafts_in_one_kernel():
  figures = _figures('windows(window=8)')
  # In the loop over calls, which counts once.
  drafts = [kernel for kernel in figures.kernels if kernel.scope == 'draft_loop']
  assert [kernel.times for kernel in drafts if kernel.name.startswith('pallas_call')] == [1]
  assert sum(kernel.times for kernel in figures.kernels) <= 240
