"""`experiments.against`: what cannot be compared is refused, and both codes get their rows."""

import json
import sys
import types

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.core import programs
from experiments import against
from experiments.released import Loops, nextstep, sizes
from tests.experiments import calls

_CASES = [
    ([], 'repo is none'), (['--repo={tmp}', '--method=medusa'], 'sjd, scd, scd_gumbel, sjd_pac, '
                           'sjd_pp, paths, transformers, llamagen'),
    (['--repo={tmp}'], 'does not contain scheduler/jacobi_iteration_lumina_mgpt.py'),
    (['--repo={tmp}', '--model=demo'], 'whose rows have an end token; use emoji'),
    (['--repo={tmp}', '--method=eagle'], 'like it with class labels; use demo'),
    (['--method=llamagen', '--model=demo'], 'clone of https://github.com/FoundationVision/LlamaGen'),
    (['--repo={tmp}', '--method=lantern', '--model=demo'],
     'does not contain models/ea_model_llamagen.py'),
    (['--repo={tmp}', '--method=transformers'], 'transformers is a package here; leave it out'),
    (['--repo={tmp}', '--official', '--guidance_scale=2'], 'guidance_scale is 2 and official is'),
    (['--method=transformers', '--official'], 'no options of its programs; leave it out, or choose '
     'a method of: sjd, scd, scd_gumbel, sjd_pac, sjd_pp, paths.'),
    (['--method=transformers', '--num_images=1'], 'num_images is 1'),
    (['--method=transformers', '--quantize=int8'], "quantize is 'int8'"),
    (['--method=transformers', '--decoder=mc_jd'], "'mc_jd'"),
    (['--method=transformers', '--compiled'], "compiled is True, but the weights of model"),
    (['--repo={tmp}', '--method=mar'], 'decodes models of the family mar; use mar_demo'),
    (['--repo={tmp}', '--method=mar', '--model=mar_demo'], 'does not contain models/mar.py'),
    (['--repo={tmp}', '--method=cspd', '--model=mar_demo'],
     'does not contain spec_decode/spec_decode_runner.py'),
    (['--repo={tmp}', '--method=mar', '--model=mar_b', '--decoder=windows(window=3)'],
     'does not contain for mar_demo'),
    (['--repo={tmp}', '--method=mar', '--model=mar_b', '--accepted={tmp}/none.json'],
     'cannot be read as JSON'),
    (['--method=mar', '--model=mar_b', '--tokens_per_round=2'], 'tokens_per_round is 2, but'),
    (['--method=mar', '--model=mar_b', '--guidance_scale=2'], "'mar_b', are random"),
    (['--method=nextstep'], 'with random weights only; use nextstep_184m'),
    (['--method=nextstep', '--model=nextstep_184m'], 'repo is none'),
    (['--method=nextstep', '--model=nextstep_184m', '--repeats=65'], 'repeats is 65'),
    (['--method=llamagen', '--model=c2i_b_256', '--decoder='], 'decoder is ()'),
    (['--method=llamagen', '--model=c2i_b_256', '--tokens_per_round=9',
      '--decoder=mc_sjd(window=4)'], '1 to 4'),
    (['--method=llamagen', '--model=c2i_b_256', '--decoder=eagle(tree=chain(2))'],
     'does not contain; give --tokens_per_round')]


@pytest.mark.slow
@pytest.mark.parametrize('words, message', _CASES)
def test_what_cannot_be_compared_is_refused(capsys, tmp_path, words, message):
  result = calls.call(against.main, capsys, tmp_path / 'out', *(
      word.format(tmp=tmp_path) for word in words))
  calls.check_refused(result, [message])


def test_a_clone_of_another_commit_is_named(tmp_path):
  method = against.METHODS['scd']
  (tmp_path / method.file).parent.mkdir(parents=True)
  (tmp_path / method.file).write_text('')
  with pytest.raises(ValueError, match='is not that of commit 7322379; check that commit out'):
    against.clone(str(tmp_path), method)


def test_a_model_without_a_draft_model_is_named():
  model = cspd_jax.load('mar_demo', draft=None)
  with pytest.raises(ValueError, match='has no draft model'):
    against.METHODS['cspd'].check(model)


@pytest.fixture
def packages(monkeypatch):
  """In the place of PyTorch, which the methods import."""
  monkeypatch.setitem(sys.modules, 'torch', types.SimpleNamespace(
      __version__='0', set_num_threads=lambda count: None, get_num_threads=lambda: 1))


def _stand_in(folder, work):
  """Loops that decode as one token at a time here, once with all noise of one image."""
  decoder = programs.jit(work.model.decoder('vanilla'))

  def decode(name, number, seed):
    decoded = jax.device_get(decoder(
        work.model.params, work.conditions[number], jax.random.split(jax.random.key(
            0 if name == 'again' else seed), 1), work.sampling))
    return decoded.tokens[0], 273 if name == 'vanilla' else 91, .5

  return Loops(1e-5, {'vanilla': 1, 'again': 3}, decode)


@pytest.mark.slow
def test_both_decode_the_same_prompts(capsys, tmp_path, monkeypatch, packages):
  method = against.METHODS['transformers']._replace(load=_stand_in, best=('seed_exact(window=4)',))
  monkeypatch.setitem(against.METHODS, 'transformers', method)
  result = calls.call(against.main, capsys, tmp_path / 'out', '--method=transformers',
                      '--num_images=2')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  rows = {(row['code'], row['decoder']): row for row in report['rows']}
  assert [(*name, row['window']) for name, row in rows.items()] == [
      ('released', 'vanilla', 1), ('released', 'again', 3), ('cspd_jax', 'vanilla', 1),
      ('cspd_jax', 'seed_exact(window=4)', 4)]
  assert rows['released', 'again']['tokens_per_pass'] == 3
  ours, same = rows['cspd_jax', 'vanilla'], rows['cspd_jax', 'seed_exact(window=4)']
  assert same['gap'] == pytest.approx(ours['gap']) and same['asked'] == ours['asked']
  assert report['outputs_differ'] == 1e-5 and report['commit'] is None


@pytest.mark.slow
def test_parts_are_timed_at_random_weights(monkeypatch):
  small = nextstep.nextstep.NextStepConfig(
      height=4, width=4, vocab_size=8, latent_channels=2, patch_size=1, dim=16, num_layers=1,
      num_heads=2, num_kv_heads=2, ffn_dim=16, head_width=16, head_layers=1, num_levels=8)
  monkeypatch.setattr(nextstep, 'CONFIG', small)
  own = against.METHODS['nextstep'].sizes
  model = own.models['nextstep_184m'](dtype='float32')
  counts = []
  loops = Loops(0.0, {}, None, lambda count: counts.append(count) or {
      'transformer': lambda: None, 'head': lambda: None})
  table = sizes.prepare(own, model, ['exact_head'], own.accepted, None)(
      sizes.work(model, False), loops, 1)
  assert counts == [6] and [row['name'] for row in table.rows] == ['PyTorch', 'mar', 'exact_head']
  assert table.rows[0]['head_calls'] == 8 and np.isclose(
      table.rows[0]['round_ms'], table.rows[0]['transformer_ms'] + table.rows[0]['head_ms'])
