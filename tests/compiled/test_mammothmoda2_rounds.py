"""Rounds of MammothModa2, compiled for an H200: the networks of text are not in them."""

import dataclasses

import pytest

from cspd_jax import families
from cspd_jax.models import mammothmoda2
from docs import zoo
from experiments.costs import predicted
from tests.compiled import compilers

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize('decoder', ['vanilla', 'mc_sjd(window=16)'])
def test_a_round_reads_one_of_the_two_networks(decoder):
  accelerator, device = compilers.find('h200')
  preview = mammothmoda2.PRESETS['mammothmoda2_preview']
  condition = families.FAMILIES['mammothmoda2'].published.condition(preview, 1)
  one, two = (predicted.decode(
      zoo.described('mammothmoda2', dataclasses.replace(
          preview, num_layers=2, image_layers=layers)),
      decoder, 1, True, condition, accelerator, device) for layers in ((0, 0), (0, 2)))
  assert two.weights == one.weights and two.total_kernels == one.total_kernels
  assert two.total_bytes == pytest.approx(one.total_bytes, rel=1e-3)
  assert one.weights > 2 * 2 * 3 * 3584 * 18944
