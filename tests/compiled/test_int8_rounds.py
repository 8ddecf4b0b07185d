"""Rounds of targets of 8 bits, compiled for an H200: kernels widen what they read themselves.

Skipped where the compilers are not installed.
"""

import dataclasses

import jax
import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.files import matrices, weights
from cspd_jax.files.store import KINDS
from experiments.costs import predicted
from tests.compiled import compilers

pytestmark = pytest.mark.compiled


def _rounded(model):
  """The described model with described matrices of 8 bits."""
  inputs = matrices.check('int8', model.family, KINDS[model.family].matrices)
  names = iter(weights.named(model.params))

  def described(leaf):
    if not (count := inputs(next(names))):
      return leaf
    return matrices.Int8(jax.ShapeDtypeStruct(leaf.shape, np.int8),
                         jax.ShapeDtypeStruct(leaf.shape[count:], np.float32))

  return dataclasses.replace(model, params=jax.tree.map(described, model.params))


@pytest.mark.parametrize('decoder', ['vanilla', 'mc_sjd(window=64)'])
def test_a_round_reads_half_of_the_matrices(decoder):
  accelerator, device = compilers.find('h200')
  model = families.describe('lumina_mgpt_7b_768', layers=2)
  condition = families.FAMILIES[model.family].published.condition(model.config, 1)
  whole, rounded = (
      predicted.decode(one, decoder, 1, True, condition, accelerator, device)
      for one in (model, _rounded(model)))
  matrices = 2 * 2 * (4 * 4096**2 + 3 * 4096 * 11008)  # Two layers, two bytes a number.
  assert whole.weights - rounded.weights == pytest.approx(0.5 * matrices, rel=0.01)
  # Nothing wide is written and read again.
  assert whole.total_bytes - rounded.total_bytes > 0.45 * matrices, dict(rounded.bytes)
