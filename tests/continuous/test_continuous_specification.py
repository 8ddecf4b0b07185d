"""Decoders of continuous tokens by specification, and the options that they refuse."""

import functools

import numpy as np
import pytest

from cspd_jax.continuous import decoders, schedule as schedule_lib, specification
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.testing.proofs import analytic

LEVELS = schedule_lib.make(6)
CHAIN = analytic.gaussian_chain(8, 0.9, schedule=LEVELS)
DRAFTS = {'model': CHAIN.target}
DEFAULTS = dict(schedule=6, kernels_per_call=3, block_length=4, prefix_share=0.0)
GUARANTEES = {'mar': 'exact', 'parallel': 'exact', 'exact_head': 'exact', 'windows': 'exact',
              'exact_path': 'exact', 'cspd_paper': 'biased', 'cspd_released': 'biased',
              'cspd_relaxed': 'bounded'}


@pytest.mark.parametrize('name', specification.DECODERS)
def test_build(name):
  spec = specification.complete(name, **DEFAULTS)
  decoder = specification.build(spec, CHAIN.target, DRAFTS)
  assert decoder.distribution and decoder.verifier.guarantee
  assert decoder.guarantee is Guarantee(GUARANTEES[name])
  assert decoder.schedule.num_levels == 6 and specification.DECODERS[name].summary
  if specification.needs(spec):
    assert decoder.drafter.model is CHAIN.target
    with pytest.raises(ValueError, match=f'{name} drafts with a draft model'):
      specification.build(spec, CHAIN.target)
  else:
    assert decoder.drafter is None or decoder.drafter.model is None


def stops_of(decoder):
  """The ranks at which the rounds of all stages end."""
  return sum((stage.stops for stage in decoder.stages), ())


def test_a_specification_is_the_call_of_a_constructor():
  spec = 'cspd_relaxed(block_length=3, prefix_share=0.5, kappa=7)'
  decoder = specification.build(spec, CHAIN.target, DRAFTS)
  assert stops_of(decoder) == (1, 2, 3, 4, 5, 7, 8) and decoder.stages[1].visibility.name == 'block'
  assert decoder.schedule.num_levels == 100
  assert stops_of(specification.build('mar(num_iter=3)', CHAIN.target)) == stops_of(decoders.mar(
      CHAIN.target, 3))


def test_complete_does_not_replace_parameters_of_the_text():
  spec = specification.complete(
      'parallel(block_length=2)', block_length=4, window=8, prefix_share=None)
  assert str(spec) == 'parallel(block_length=2)'
  assert str(specification.complete(spec, prefix_share=0.5)) == (
      'parallel(block_length=2, prefix_share=0.5)')


def test_parallel_has_the_steps_of_block_verification():
  parallel, blocks = (
      specification.build(specification.complete(name, **DEFAULTS), CHAIN.target, DRAFTS)
      for name in ('parallel', 'cspd_released'))
  assert stops_of(parallel) == stops_of(blocks) == (1, 5, 8)


def test_the_fitted_blend_is_evaluated_at_the_levels_of_the_decoder(monkeypatch):
  num_levels, used = [], []
  speculative = decoders.speculative_head.speculative

  def rho(schedule):
    num_levels.append(schedule.num_levels)
    return np.linspace(0, 1, schedule.num_levels)

  def recording(target, schedule, length, rho, *more):
    used.append(rho)
    return speculative(target, schedule, length, rho, *more)

  monkeypatch.setattr(decoders.speculative_head, 'speculative', recording)
  target = CHAIN.target._replace(rho=rho)
  specification.build('exact_head(schedule=9)', target)
  specification.build('exact_head', target)
  specification.build('exact_head', CHAIN.target)
  assert num_levels == [9, 100] and used[2] is None
  np.testing.assert_array_equal(used[0], np.linspace(0, 1, 9))


@pytest.mark.parametrize('spec, message', [
    ('vanilla', "'vanilla' is not registered; it must be one of mar, parallel"),
    ('mar+rejection', 'have one part'),
    ('exact_path(num_iter=4)', "exact_path has no parameter 'num_iter'; it has draft_length"),
    ('exact_head(rho=1)', "exact_head has no parameter 'rho'; it has kernels_per_call"),
    ('cspd_paper(draft=1)', "cspd_paper has no parameter 'draft'"),
    ('mar(schedule=cosine)', "schedule is 'cosine'; it must be a whole number or None"),
    ('cspd_relaxed(aligned=1)', 'aligned is 1; it must be True or False'),
    ('cspd_relaxed(kappa=big)', "kappa is 'big'; it must be a number")])
def test_errors_name_the_parameter(spec, message):
  with pytest.raises(ValueError, match=message):
    specification.build(spec, CHAIN.target, DRAFTS)


def test_options_at_their_ends():
  windows = functools.partial(decoders.windows, CHAIN.target, schedule=LEVELS)
  assert windows(2, kernels_per_call=7).verifier.exact and windows(np.int64(3)).verifier.exact
