"""The registry of decoders of continuous tokens."""

import pytest

from cspd_jax.continuous import decoders
from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.testing import analytic

LEVELS = schedule_lib.make(6)
CHAIN = analytic.gaussian_chain(8, 0.9, schedule=LEVELS)
OPTIONS = decoders.Options(schedule=LEVELS, head_length=3, length=4, prefix_share=0.0)


@pytest.mark.parametrize('name', decoders.DECODERS)
def test_build(name):
  needs = decoders.DECODERS[name].drafts
  decoder = decoders.build(
      name, CHAIN.target, draft=CHAIN.target if needs else None, options=OPTIONS)
  assert decoder.distribution and decoder.guarantee
  if needs:
    with pytest.raises(ValueError, match=f'{name} needs a draft model'):
      decoders.build(name, CHAIN.target, options=OPTIONS)


def test_parallel_has_the_steps_of_block_verification():
  parallel = decoders.build('parallel', CHAIN.target, options=OPTIONS)
  blocks = decoders.build('cspd_released', CHAIN.target, draft=CHAIN.target, options=OPTIONS)
  assert parallel.hidden == tuple(8 - stop for _, stop in blocks.blocks)
  assert parallel.hidden == (7, 3, 0)


def test_unknown_name():
  with pytest.raises(ValueError, match="name is 'vanilla'; it must be one of: mar, parallel"):
    decoders.build('vanilla', CHAIN.target)
