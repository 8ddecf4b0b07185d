"""Decoders of continuous tokens by specification, and the options that they refuse."""

import functools
import re

import jax
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


SILENT = LEVELS._replace(min_log_variance=np.where(np.arange(6) < 1, -np.inf, 0.0))
BLOCKS = [
    (dict(block_length=0), 'block_length is 0; it must be a whole number from 1'),
    (dict(block_length=9), 'block_length is 9; .* number of tokens, 8'),
    (dict(prefix_share=-0.1), 'prefix_share is -0.1; it must be from 0 to 1'),
    (dict(prefix_share=1.1), 'prefix_share is 1.1'),
    (dict(kappa=0.0), 'kappa is 0.0; it must be finite and above 0'),
    (dict(guidance='cosine'), "guidance is 'cosine'"),
    # Drafts of a kernel without noise would never be accepted, and all become zero as released.
    (dict(schedule=SILENT), 'a kernel without noise')]


@pytest.mark.parametrize('name, options, message', [
    ('mar', dict(num_iter=0), 'num_iter is 0'),
    ('mar', dict(num_iter=9), 'num_iter is 9; .* from 1 to the number of tokens, 8'),
    ('mar', dict(num_iter=2.5), r'num_iter is 2\.5; it must be a whole number'),
    ('mar', dict(guidance='cosine'), "guidance is 'cosine'; it must be one of linear, constant"),
    ('mar', dict(schedule='6'), "schedule is '6'; it must be a Schedule or the number of levels"),
    ('mar', dict(schedule=1), 'num_levels is 1; it must be a whole number from 2 to 1000'),
    ('parallel', dict(block_length=0), 'block_length is 0; .* 1 to .* 8'),
    ('parallel', dict(block_length=9), 'block_length is 9'),
    ('parallel', dict(block_length=2.5), r'block_length is 2\.5; it must be a whole number'),
    ('exact_head', dict(kernels_per_call=0),
     'kernels_per_call is 0; it must be a whole number from 1 to the number of levels, 6'),
    ('exact_head', dict(kernels_per_call=7), 'kernels_per_call is 7'),
    ('exact_head', dict(kernels_per_call=2.0), r'kernels_per_call is 2\.0; .* a whole number'),
    ('exact_head', dict(rho=np.ones(9)), r'rho has shape \(9,\)'),
    ('exact_head', dict(rho=np.full(6, np.nan)), 'one finite number per level'),
    ('windows', dict(window=0), 'window is 0'), ('windows', dict(window=9), 'window is 9'),
    ('windows', dict(window='8'), "window is '8'; it must be a whole number"),
    ('windows', dict(window=2.0), r'window is 2\.0; it must be a whole number'),
    ('windows', dict(window=True), 'window is True; it must be a whole number'),
    ('windows', dict(kernels_per_call=0), 'kernels_per_call is 0'),
    ('windows', dict(kernels_per_call=2.5), r'kernels_per_call is 2\.5; .* a whole number'),
    ('windows', dict(rho=np.ones(3)), 'rho has shape'),
    ('windows', dict(num_iter=9), 'num_iter is 9'),
    ('windows', dict(guidance='none'), 'guidance is'),
    ('windows', dict(schedule=SILENT), 'a kernel without noise'),
    ('windows', dict(schedule=schedule_lib.flow(6, last_step=0.1, last_deviation=0)),
     'a kernel without noise'),
    ('exact_path', dict(draft_length=0), 'draft_length is 0; it must be a whole number from 1'),
    ('exact_path', dict(draft_length=9), 'draft_length is 9; .* number of tokens, 8'),
    ('exact_path', dict(max_trials=0), 'max_trials is 0; .* from 1 to 65536'),
    ('exact_path', dict(max_trials=2**16 + 1), 'max_trials is 65537; .* from 1 to 65536'),
    ('exact_path', dict(eta=0.0), 'eta is 0.0'), ('exact_path', dict(eta=2.0), 'eta is 2.0'),
    ('exact_path', dict(split=-1), 'split is -1; .* 0 to the last level, 5'),
    ('exact_path', dict(split=6), 'split is 6'),
    ('exact_path', dict(split=2.0), 'split is 2.0; it must be a whole number'),
    ('exact_path', dict(prefix_share=2.0), 'prefix_share is 2.0; it must be from 0 to 1'),
    ('exact_path', dict(prefix_share=-0.1), 'prefix_share is -0.1; it must be from 0 to 1'),
    ('exact_path', dict(guidance='none'), "guidance is 'none'"),
    ('exact_path', dict(schedule=SILENT), 'a kernel without noise'),
    ('cspd_paper', dict(draft_length=0), 'draft_length is 0; it must be a whole number from 1'),
    ('cspd_released', dict(sigma='on'), "sigma is 'on'; it must be one of off, paper"),
    *((name, *case) for name in ('cspd_released', 'cspd_relaxed') for case in BLOCKS)])
def test_options_out_of_range(name, options, message):
  entry = specification.DECODERS[name]
  models = [CHAIN.target] * (2 if specification.needs(name) else 1)
  with pytest.raises(ValueError, match=message) as error:
    entry.build(*models, **dict(schedule=LEVELS) | options)
  assert not re.search(r'[a-z]\. ', str(error.value)) and str(error.value).endswith('.')


def test_options_at_their_ends():
  windows = functools.partial(decoders.windows, CHAIN.target, schedule=LEVELS)
  assert windows(2, kernels_per_call=7).verifier.exact and windows(np.int64(3)).verifier.exact


@pytest.mark.parametrize('sampling', [{'temperature': 1.0}, 1.0, (1.0, 1.0)])
def test_sampling_options_of_other_types(sampling):
  decoder, labels = specification.build('mar', CHAIN.target, DRAFTS), np.zeros(2, int)
  with pytest.raises(ValueError, match='must be a cspd_jax.SamplingParams, such as SamplingParams'):
    decoder.check(labels, sampling)
  with pytest.raises(ValueError, match='must be a cspd_jax.SamplingParams, such as SamplingParams'):
    jax.eval_shape(decoder, None, labels, jax.random.key(0), sampling)
