"""Kernels of a seed-exact decoder and of `vanilla(window=N)`, compiled for an H200, are the same.

A GPU's compiler times kernels for a product and keeps the fastest one, by the text of the fusion
that the product is part of. Two programs with equal fusions share that choice, and round alike.

Skipped where the compilers are not installed.
"""

import functools

import jax
import pytest

from cspd_jax import families
from cspd_jax.core.kernels import chosen
from cspd_jax.decoding import warp
from experiments.costs import devices
from tests.compiled import compilers

pytestmark = pytest.mark.compiled


@functools.cache
def _kernels(decoder, dtype, batch=4, **options):
  """The products of a decoder, each with its kernel."""
  _, device = compilers.find('h200')
  model = families.describe('emoji', layers=2, dtype=dtype)
  condition = families.FAMILIES[model.family].published.condition(model.config, batch)
  return chosen(devices.compiled(
      model.decoder(decoder, guided=True),
      [model.params, condition, jax.random.split(jax.random.key(0), batch),
       warp.drop_inactive(model.sampling()), model.draft_params(decoder)], device,
      options=options).as_text())


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_seed_exact_decoders_have_the_kernels_of_vanilla(dtype):
  wanted = _kernels('vanilla(window=16)', dtype)
  assert len(wanted) > 5
  assert _kernels('seed_exact(window=16)', dtype) == wanted
  assert _kernels('corrected_seed_exact(window=16)', dtype) >= wanted
  # Another number of tokens per pass has others, which may round otherwise.
  assert not _kernels('vanilla', dtype) >= wanted


def test_other_kernels_are_seen():
  wanted = _kernels('vanilla(window=16)', 'bfloat16')
  other = _kernels('seed_exact(window=16)', 'bfloat16', xla_gpu_enable_triton_gemm=False)
  products = lambda found: {text for text in found if 'fmha' not in text}
  assert wanted - other == products(wanted) and len(products(other)) > 5
