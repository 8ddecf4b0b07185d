"""`experiments.sweep` and what it measures, on tiny models, and its configurations."""

import csv
import functools
import importlib
import json
import pathlib
import types

import numpy as np
import pytest

import cspd_jax
from configs import relaxed
from cspd_jax.cli import groups
from cspd_jax.measure.bench import Bench
from experiments import measures, sweep
from experiments.sweep import Config, Setting
from tests.builders import models
from tests.experiments import calls
from tests.marks import representative

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'


def _call(model, capsys, out, *words):
  result = calls.call(sweep.main, capsys, out, f'--model={model}', *words)
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  assert len(list(csv.DictReader((result.folder / 'rows.csv').open()))) == len(report['rows'])
  return result, report


@pytest.mark.slow
def test_rows_of_every_window(beach, capsys, tmp_path):
  out, report = _call(
      beach, capsys, tmp_path / 'out', '--window=3,5', '--num_images=4', '--guidance_scale=1',
      '--decoder=jacobi(coupling=maximal)+rejection,sjd_pac(tree=paths(2, 2))')
  assert [(row['window'], row['decoder']) for row in report['rows']] == [
      (3, 'jacobi(coupling=maximal, window=3)+rejection'),
      (5, 'jacobi(coupling=maximal, window=5)+rejection'),
      (5, 'sjd_pac(tree=paths(2, 2), window=5)')]
  for row in report['rows']:
    assert 1 <= row['step_compression'] <= row['window'] and row['step_compression_error'] > 0
    assert 0 <= row['one_token_rounds'] <= 1 and row['decoder'] in out.out
  assert [(table['title'], table['rows']) for table in report['tables']] == [
      ('window 3', [0]), ('window 5', [1, 2])]
  assert 'sjd_pac(tree=paths(2, 2), window=3)' in report['left_out']


@pytest.mark.slow
def test_pairs_and_curves(beach, capsys, tmp_path):
  """Everything that is asserted of rows, times, curves and claims comes from one call."""
  out, report = _call(
      beach, capsys, tmp_path / 'out', f'--config={CONFIGS}/relaxed.py', '--seed=3',
      '--drafter=jacobi(coupling=maximal)', '--window=4', '--length=2',
      '--verifier=rejection,match,block,cool(clamp=False, length=3)',
      '--curve_drafter=jacobi(coupling=maximal)', '--num_images=3', '--batch_size=2',
      '--reference_sets=2', '--timed_images=1', '--guidance_scale=1.5')
  drafter = 'jacobi(coupling=maximal, window=4)'
  title = {table['title']: [report['rows'][i] for i in table['rows']] for table in report['tables']}
  assert list(title) == ['window 4', 'curves']
  rows = {(row['drafter'], row['verifier']): row for row in title['window 4']}
  assert {name: row['guarantee'] for name, row in rows.items()} == {
      ('vanilla', None): 'seed-exact', (drafter, 'rejection'): 'exact',
      (drafter, 'match'): 'seed-exact', (drafter, 'cool(clamp=False, length=3)'): 'bounded'}
  for row in rows.values():
    assert row['window'] == 4 and row['guidance_scale'] == 1.5 and row['temperature'] == 1
    assert row['step_compression'] >= 1 and row['accepted_length'] <= 4
    assert (row['tv_bound'] > 0) == (row['guarantee'] == 'bounded')
    assert row['tv_bound_per_token'] == pytest.approx(row['tv_bound'] / 16)
    assert row['equal_to_baseline'] == (1 if row['guarantee'] == 'seed-exact' else None)
    assert row['speedup'] > 0 and row['ms_per_round'] > 0 and row['nll_excess_error'] > 0
  assert 'keeps drafts' in report['left_out'][f'{drafter}+block']
  assert f'{drafter}+block is left out' in out.out and report['noise']['frechet'][0] > 0
  # Vanilla's images of the same classes and other keys are as likely as its own.
  plain = rows['vanilla', None]
  assert abs(plain['nll_difference']) < 6 * plain['nll_difference_error'] + 0.5
  curves = relaxed.CURVES
  assert [(row['curve'], row['value']) for row in title['curves']] == [
      (None, None), *((curve.name, value) for curve in curves for value in curve.values
                      if curve.name != 'GSD' or value <= 6)]  # Colours of the family.
  assert not any('speedup' in row for row in title['curves'])
  assert f'{drafter}+grouped(group=24) is left out: group is 24' in out.out
  for name, start in (('png', b'\x89PNG'), ('svg', b'<?xml')):
    assert (out.folder / f'curves.{name}').read_bytes().startswith(start)
  claims = [one['claim'] for one in report['conclusions']]
  assert 'exact decoders are exact' in claims and all(claim in out.out for claim in claims)
  assert any('G*' in claim and claim.endswith(f', {drafter}') for claim in claims)


@pytest.mark.slow
def test_scenes(capsys, tmp_path, monkeypatch):
  """Tokens per pass inside things and on ground, what images show, and pictures of them."""
  captions = ['a cat on white', 'a dog', 'an owl flat']
  monkeypatch.setattr(models, 'NAMES', captions)
  models.llamagens(tmp_path)
  num_tokens = cspd_jax.load(str(tmp_path / 'model')).num_tokens
  np.savez(tmp_path / 'tokens.npz', tokens=np.zeros((2, num_tokens), np.int16))
  monkeypatch.setattr(measures, '_SCENES', tmp_path / 'tokens.npz')
  out, report = _call(
      tmp_path / 'model', capsys, tmp_path / 'out', '--window=3', '--decoder=mc_sjd',
      '--num_images=6', '--scales=1,2', '--measure=ground,asked,variety')
  assert [row['guidance_scale'] for row in report['rows']] == [1, 2]
  for row in report['rows']:
    assert 0 <= row['ground_share'] <= 1 and row['tokens_per_pass_inside'] >= 1
    assert 0 < row['variety'] <= 1 and 0 < row['from_scenes'] <= 1
    assert row['asked'] == pytest.approx((row['thing'] + row['ground'] + row['style']) / 3)
  assert {'inside things', 'guidance scale', 'asked'} <= report['tables'][0]['columns'].keys()
  assert {'images.png', 'failures.png'} <= report['files'].keys() and 'inside things' in out.out
  assert report['weights'].keys() > {'target', 'tokenizer'}


@pytest.mark.slow
def test_points_of_every_temperature(beach, capsys, tmp_path):
  _, report = _call(
      beach, capsys, tmp_path / 'out', '--window=4', '--num_images=4', '--decoder=mc_sjd',
      '--temperatures=0.5,1', '--scales=1', '--measure=entropy')
  cold, warm = report['rows']
  assert cold['entropy'] < warm['entropy'] and 1 <= warm['step_compression'] <= 4
  assert 'uncertainty.png' in report['files']


@pytest.mark.slow
def test_rounds_of_a_decoder(beach, capsys, tmp_path):
  """Of batches and of a queue, beside bare passes, and of the baseline's shapes."""
  _, report = _call(
      beach, capsys, tmp_path / 'out', '--guidance_scale=1', '--decoder=seed_exact', '--window=3',
      '--num_images=12', '--batch_size=3', '--dtype=bfloat16', '--measure=overhead,queue,rounding')
  row, = report['rows']
  assert (row['decoder'], row['same_shapes']) == ('seed_exact(window=3)', 'vanilla(window=3)')
  assert row['rest'] == pytest.approx(1 - row['ms_of_forward_pass'] / row['ms_per_round'])
  # Three rows share the rounds of twelve images; a prefill is none of them.
  least, most = (4 * (row[name] - 1) for name in ('rounds', 'most_rounds'))
  assert least <= row['rounds_in_queue'] < row['rounds_in_batches'] <= most
  assert row['speedup'] == pytest.approx(row['seconds_in_batches'] / row['seconds_in_queue'])
  assert row['same_images'] == 1 and row['dtype'] == 'bfloat16'
  assert row['images_in_window'] == row['tokens_in_window'] == 0


def test_rounding_counts_the_images_and_tokens_that_differ(monkeypatch):
  tokens = {name: np.zeros((4, 5), int) for name in ('seed_exact', 'vanilla', 'vanilla(window=9)')}
  tokens['vanilla'][1, 2:] = 1
  tokens['vanilla(window=9)'][[0, 3], 4] = 1
  log_probs = {name: np.zeros((4, 5), np.float32) for name in tokens}
  log_probs['seed_exact'][2, 3] = 1e-30
  of = lambda **fields: types.SimpleNamespace(**fields)
  bench = of(
      model=of(params=np.zeros(1, np.float16)), batch_size=2, baseline='vanilla',
      check=lambda text: of(drafter=of(tree=of(num_nodes=8))),
      images=lambda text: of(sampler=of(guarantee='seed-exact')),
      sample=lambda name: of(tokens=tokens[name], decoded=of(log_probs=log_probs[name])))
  for method in (Bench.tokens_per_round, Bench.same_shapes):
    setattr(bench, method.__name__, functools.partial(method, bench))
  point = measures.Point(bench, 'seed_exact', '', {}, groups.LoadFlags())
  assert measures.MEASURES['rounding'].rows(point) == [dict(
      dtype='float16', window=9, batch_size=2, log_probs_in_window=0.05, num_tokens=20,
      same_shapes='vanilla(window=9)', guarantee='seed-exact', images=0.25, tokens=0.15,
      images_in_window=0.5, tokens_in_window=0.1)]


@pytest.mark.slow
def test_the_distance_of_int8_targets(llamagens, capsys, tmp_path):
  _, report = _call(
      llamagens / 'alone', capsys, tmp_path / 'out', '--num_images=4', '--scales=1,2',
      '--decoder=vanilla', '--measure=int8', '--dtype=float32')
  assert [(row['guidance_scale'], row['int8']) for row in report['rows']] == [
      (scale, part) for scale in (1, 2) for part in ('matrices', 'cache', 'both')]
  for row in report['rows']:
    assert (row['other_mib'] < row['mib']) == (row['int8'] != 'cache')
    assert (row['other_cache_mib'] < row['cache_mib']) == (row['int8'] != 'matrices')
    assert 0 < row['total_variation'] <= row['largest'] < 0.3
    assert 0 < row['relative_entropy_error'] < row['relative_entropy'] < row['total_variation']


@pytest.mark.slow
def test_passes_and_head_calls_of_continuous_tokens(mars):
  words = lambda **options: dict(setting='one', options=options)
  config = Config(
      loading=groups.LoadFlags(f'{mars}/model'), metrics=(), measure=('head',), batch_size=4,
      images=groups.Images(num_images=4), settings=(
          Setting('windows(window=2)', dict(guidance_scale=1.5), words(guidance_scale=1.5)),
          Setting('windows(window=2)', names=words(), raster=True), Setting('mar')))
  plan = sweep.prepare(config)
  first, raster, plain = (measures.MEASURES['head'].rows(point)[0] for point in plan.points)
  assert plan.points[0].names['options'] == dict(guidance_scale=1.5)
  assert plain['tokens_per_pass'] == 1 == plain['passes_per_token'] and plain['tokens_kept'] is None
  for row in (first, raster):
    assert 1 <= row['tokens_per_pass'] <= 2 and row['tokens_per_pass_error'] >= 0
    assert row['calls_per_round'] == pytest.approx(row['calls_per_token'] * row['tokens_per_pass'])


@pytest.mark.parametrize('file', representative(
    ['kinds', 'corrected', 'lab', 'papers', 'relaxed'], 'kinds'))
def test_decoders_of_configurations_exist(file):
  """All are complete, and those of the shipped models can be built."""
  load = functools.cache(cspd_jax.load)
  module = importlib.import_module(f'configs.{file}')
  for config in module.CONFIGS.values() if file != 'relaxed' else [module.get_config()]:
    if isinstance(config, Config) and config.loading.parts is None:
      for name in config.models or (config.loading.model,):
        model = load(name)
        for setting in sweep.settings(config, model):
          model.specification(setting.decoder)
