"""The programs that time official code refuse what cannot work before they import any of it."""

import pytest

import cspd_jax
from experiments import against_llamagen, against_mar, against_nextstep, against_released
from tests.experiments import calls

_MAR = [
    ([], 'repo is none'), (['--repo={tmp}'], 'does not contain models/mar.py'),
    (['--repo={tmp}', '--size=mar_s'], 'mar_b, mar_l, mar_h'),
    (['--repo={tmp}', '--tokens=200'], 'at most 160, the number of hidden'),
    (['--repo={tmp}', '--steps=300'], 'num_iter is 300'),
    (['--repo={tmp}', '--decoder=windows(window=3)'], 'does not contain for mar_demo'),
    (['--repo={tmp}', '--accepted={tmp}/none.json'], 'cannot be read as JSON')]
_NEXTSTEP = [
    ([], 'repo is none'), (['--repo={tmp}', '--decoder=windows(window=999)'], 'does not contain'),
    (['--repo={tmp}', '--repeats=65'], 'repeats is 65'),
    (['--repo={tmp}'], 'does not contain nextstep/models/pipeline_nextstep.py')]
_LLAMAGEN = [
    ([], 'repo is none'), (['--repo={tmp}', '--size=c2i_s'], 'c2i_b_256, c2i_l_256'),
    (['--repo={tmp}', '--tokens_per_round=9', '--decoder=mc_sjd(window=4)'], '1 to 4'),
    (['--repo={tmp}', '--decoder=eagle(tree=chain(2))'],
     'does not contain; give --tokens_per_round'),
    (['--repo={tmp}', '--tokens_per_round=2'], 'does not contain autoregressive/models/gpt.py')]

_RELEASED = [
    ([], 'repo is none'),
    (['--repo={tmp}', '--method=medusa'], 'sjd, scd, scd_gumbel, sjd_pac, sjd_pp, paths, llamagen'),
    (['--repo={tmp}'], 'does not contain scheduler/jacobi_iteration_lumina_mgpt.py'),
    (['--repo={tmp}', '--window=1'], 'window is 1'),
    (['--repo={tmp}', '--model=demo'], 'whose rows have an end token; use emoji'),
    (['--repo={tmp}', '--method=eagle'], 'like it with class labels; use demo'),
    (['--method=llamagen', '--model=demo'], 'clone of https://github.com/FoundationVision/LlamaGen'),
    (['--repo={tmp}', '--method=lantern', '--model=demo'],
     'does not contain models/ea_model_llamagen.py'),
    (['--repo={tmp}', '--method=transformers'], 'transformers is a package; leave it out'),
    (['--repo={tmp}', '--official', '--guidance_scale=2'], 'guidance_scale is 2 and official is'),
    (['--method=transformers', '--official'], 'no options of its programs; leave it out, or choose '
     'a method of: sjd, scd, scd_gumbel, sjd_pac, sjd_pp, paths.'),
    (['--method=transformers', '--num_images=1'], 'num_images is 1'),
    (['--method=transformers', '--quantize=int8'], "quantize is 'int8'"),
    (['--method=transformers', '--best=mc_jd'], "'mc_jd'"),
    (['--repo={tmp}', '--method=mar'], 'decodes models of the family mar; use mar_demo'),
    (['--repo={tmp}', '--method=mar', '--model=mar_demo', '--window=65'], 'must be at most 64'),
    (['--repo={tmp}', '--method=mar', '--model=mar_demo'], 'does not contain models/mar.py'),
    (['--repo={tmp}', '--method=cspd', '--model=mar_demo'],
     'does not contain spec_decode/spec_decode_runner.py')]


@pytest.mark.slow
@pytest.mark.parametrize('program, words, message', [
    *((against_mar, *case) for case in _MAR), *((against_llamagen, *case) for case in _LLAMAGEN),
    *((against_released, *case) for case in _RELEASED),
    *((against_nextstep, *case) for case in _NEXTSTEP)])
def test_programs_that_cannot_be_timed_are_refused(capsys, tmp_path, program, words, message):
  result = calls.call(program.main, capsys, tmp_path / 'out', *(
      word.format(tmp=tmp_path) for word in words))
  calls.check_refused(result, [message])


def test_a_clone_of_another_commit_is_named(capsys, tmp_path):
  method = against_released.METHODS['scd']
  file = tmp_path / 'clone' / method.file
  file.parent.mkdir(parents=True)
  file.write_text('')
  result = calls.call(against_released.main, capsys, tmp_path / 'out', '--method=scd',
                      f'--repo={tmp_path}/clone')
  calls.check_refused(result, ['is not that of commit 7322379; check that commit out'])


def test_a_model_without_a_draft_model_is_named():
  model = cspd_jax.load('mar_demo', draft=None)
  with pytest.raises(ValueError, match='has no draft model'):
    against_released.METHODS['cspd'].check(model)
