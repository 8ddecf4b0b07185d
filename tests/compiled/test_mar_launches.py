"""Launches of MAR-B's head on an H200, from compilation: no later change adds to them.

The ceilings are today's figures with a little room. Skipped where the compilers are not installed.
"""

import jax
import pytest

from cspd_jax import families
from experiments.costs import devices, hlo, rounds
from tests.compiled import compilers

pytestmark = pytest.mark.compiled
_LEVELS = 100


def _figures(decoder):
  """The round of a token of MAR-B with one layer in its transformer, and the calls of its head."""
  _, device = compilers.find('h200')
  model = families.describe('mar_b', layers=1)
  condition = families.FAMILIES[model.family].published.condition(model.config, 1)
  arguments = [model.params, condition, jax.random.split(jax.random.key(0), 1),
               model.engine.settled(model.sampling()), None]
  program = devices.compiled(model.decoder(decoder, guided=True), arguments, device)
  return rounds.read(hlo.parse(program.as_text()), ())


def _of_head(found):
  """Kernels of the head by how often they run."""
  return [kernel for kernel in found.kernels if kernel.scope == 'fused_head']


# Kernels of a round, in which the loop over `exact_head`'s calls counts once.
@pytest.mark.parametrize('decoder, times, ceiling', [
    ('mar', _LEVELS, 1900), ('exact_head', 1, 150)])
def test_launches_of_a_token(decoder, times, ceiling):
  found = _figures(decoder)
  # A kernel for the state, two per block and one for the output.
  assert [kernel.times for kernel in _of_head(found)] == [times] * 14
  assert sum(kernel.times for kernel in found.kernels) <= ceiling
  # A level reads the matrices of its blocks, of 16 bits, and what it takes of the modulations.
  matrices = 2 * (12 * 1024**2 + 48 * 1024)
  assert sum(kernel.bytes for kernel in _of_head(found)) < 1.2 * matrices
  # Nothing of the size of a matrix is copied.
  assert not [kernel.arrays for kernel in found.kernels if kernel.moves and kernel.written >= 2**21]


def test_a_call_of_windows_draws_its_drafts_in_one_kernel():
  figures = _figures('windows(window=8)')
  # One before the first call of the loop, and one in the loop, which counts once.
  drafts = [kernel for kernel in figures.kernels if kernel.scope == 'draft_loop']
  assert [kernel.times for kernel in drafts if kernel.name.startswith('pallas_call')] == [1, 1]
  assert sum(kernel.times for kernel in figures.kernels) <= 240
