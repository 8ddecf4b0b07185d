"""`cspd-compare` from end to end on tiny models, and with wrong input."""

import dataclasses
import json
import pathlib
import shlex
from unittest import mock

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.cli import groups
from cspd_jax.commands import compare, comparison
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.families import folder as folder_lib
from cspd_jax.files import store
from cspd_jax.measure import timing
from cspd_jax.plots import grid
from tests.builders import models as models_lib
from tests.experiments import calls

pytestmark = pytest.mark.usefixtures('load_once')


@pytest.fixture
def run(llamagens, capsys, tmp_path):
  """Calls the program with a tiny model."""
  def run(*words):
    words = [word.format(tmp=llamagens, demo=store.ASSETS / 'demo') for word in words]
    return calls.call(compare.main, capsys, tmp_path / 'out', f'--model={llamagens}/model',
                      '--decoder=vanilla,sjd_pac,speculative', '--budget=1e-3', *words)
  return run


def _report(result):
  """The content of report.json, and its rows by decoder."""
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  return report, {row['decoder']: row for row in report['rows']}


def test_writes_report_and_pictures(run, monkeypatch):
  draw, notes = grid.acceptance_map, {}
  monkeypatch.setattr(grid, 'acceptance_map', lambda *args, **options: (
      notes.update(options['notes']), draw(*args, **options))[1])
  result = run('--decoder=vanilla,seed_exact', '--prompt=owl', '--guidance_scale=1.5', '--seed=5')
  report, rows = _report(result)
  assert notes == {name: f'{row["rounds"]:.1f} passes' for name, row in rows.items()}
  names = ['vanilla', 'seed_exact']
  files = {f'images_{name}.png' for name in names} | {'acceptance.png', 'speed.png'}
  assert {file.name for file in result.folder.iterdir()} == files | {'report.json', 'report.md'}
  for file in files:
    assert (result.folder / file).read_bytes().startswith(b'\x89PNG')
  assert report['num_images'] == 1 and report['captions'] == ['owl']
  assert list(rows) == names
  assert report['settings']['sampling']['guidance_scale'] == 1.5
  for row in rows.values():
    assert row['guarantee'] == 'seed-exact'
    assert 1 <= row['rounds'] <= 16
    assert row['step_compression'] == pytest.approx(16 / row['rounds'])
    assert 1 <= row['accepted_length'] <= 5
    assert 0 <= row['one_token_rounds'] <= 1
    assert row['seconds_per_image'] == pytest.approx(
        row['ms_per_round'] * row['rounds'] / 1000)
    assert row['speedup'] == pytest.approx(
        rows['vanilla']['seconds_per_image'] / row['seconds_per_image'])
    assert row['compile_seconds'] > 0
    assert (result.folder / row['images']).is_file()
  assert rows['vanilla']['rounds'] == 16
  assert rows['vanilla']['tokens_equal_baseline'] is True
  assert rows['seed_exact']['tokens_equal_baseline'] is True
  table = result.out[result.out.index('decoder  '):].splitlines()
  assert [line.split()[0] for line in table[2:4]] == ['vanilla', 'seed_exact(window=8)']
  assert 'TV bound' not in result.out
  fastest = min(rows.values(), key=lambda row: row['seconds_per_image'])
  next_step = shlex.split(result.out.splitlines()[-1])
  if max(row['noise'] or 0 for row in rows.values()) > 0.05:  # The times of one image show none.
    assert 'The machine is busy' in result.out and next_step[1] == 'cspd-generate'
  elif fastest['decoder'] == 'vanilla':  # Which images so small may show.
    assert 'cspd-compare' in next_step and next_step[-1] == '--all=true'
  else:
    assert 'cspd-generate' in next_step
    assert next_step[-1] == f'--decoder={fastest["specification"]}'


@pytest.mark.slow
def test_vanilla_in_a_window_is_no_baseline(run):
  _, rows = _report(run('--decoder=vanilla(window=4),vanilla,sjd', '--prompt=2'))
  assert rows['vanilla']['speedup'] == 1 != rows['vanilla(window=4)']['speedup']
  assert rows['vanilla(window=4)']['rounds'] == 16


@pytest.mark.slow
def test_without_vanilla_there_is_no_speedup(run):
  result = run('--decoder=speculative', '--prompt=2,0', '--num_images=3', '--guidance_scale=1')
  report, rows = _report(result)
  assert report['captions'] == ['owl', 'cat', 'owl']
  row = rows['speculative']
  assert row['guarantee'] == 'exact'
  assert row['speedup'] is None and row['tokens_equal_baseline'] is None
  assert any(' - ' in line for line in result.out.splitlines()[-5:])


@pytest.mark.slow
def test_relaxed_decoders_have_pictures_and_a_bound(run):
  result = run('--decoder=jacobi+uniform(delta=3), vanilla', '--num_images=1')
  _, rows = _report(result)
  row = rows['jacobi+uniform(delta=3)']
  assert row['guarantee'] == 'bounded' and row['tv_bound'] > 0
  assert (result.folder / row['images']).read_bytes().startswith(b'\x89PNG')
  assert row['images'] == 'images_sjd_uniform_delta_3.png' and 'TV bound' in result.out


@pytest.mark.slow
def test_paired_differences(run):
  result = run('--decoder=seed_exact,vanilla,jacobi+uniform(delta=3)', '--num_images=4', '--paired')
  report, rows = _report(result)
  names = [f'{name}_change{part}' for name in ('nll', 'brightness', 'contrast', 'detail')
           for part in ('', '_error', '_error_unpaired')]
  assert report['settings']['paired'] and not set(names) & set(rows['vanilla'])
  for name in names:
    exact, relaxed = (rows[decoder][name] for decoder in ('seed_exact', 'jacobi+uniform(delta=3)'))
    assert exact == 0 or name.endswith('unpaired')
    assert relaxed != 0
  lines = result.out[result.out.index('Minus vanilla'):].splitlines()
  assert lines[3].split()[:4] == ['seed_exact', 'NLL', '+0.0000', '0.0000']


def _job(model, **more):
  return compare.prepare(compare.Config(groups.LoadFlags(str(model)), **more))


def test_a_few_decoders_by_default(llamagens):
  job = _job(llamagens / 'model')
  assert list(job.images) == ['vanilla', 'mc_sjd(window=4)', 'corrected_seed_exact(window=8)']
  assert job.untimed == 'corrected_seed_exact(window=8)' and len(job.prompts) == 4
  assert not job.left_out
  images = groups.Images(prompt='owl,cat,dog')
  assert len(_job(llamagens / 'model', images=images).prompts) == 3
  assert _job(llamagens / 'model', decoder=('vanilla', 'sjd')).untimed is None


def test_a_cpu_compares_its_default_and_shows_the_one_of_accelerators():
  model = cspd_jax.load()
  long = model.defaults['decoder']['gpu']
  job = _job('emoji')
  assert list(job.images) == ['vanilla', str(model.specification()), long]
  assert job.untimed == long and long in comparison.PASS_ON_H100


def test_passes_of_an_accelerator_are_those_that_were_measured():
  path = pathlib.Path(__file__).parents[2] / 'docs' / 'reports' / 'accelerator_xl.json'
  rows = {row['decoder']: row for row in json.loads(path.read_text())['rows'] if 'ms' in row}
  for name, ratio in comparison.PASS_ON_H100.items():
    row = rows[name.replace('corrected_seed_exact', 'corrected').replace('seed_exact', 'mc_sjd')]
    assert ratio == round(row['ms'] / row['vanilla_ms'], 2), name


@pytest.mark.slow
@pytest.mark.parametrize('own', ['vanilla', 'seed_exact(window=8)'])
def test_the_models_own_decoder_is_compared_once(llamagens, tmp_path, own):
  folder_lib.place(llamagens / 'alone', tmp_path / 'own').store(
      jax.devices()[0].device_kind, {1: own})
  job = _job(tmp_path / 'own')
  long = 'corrected_seed_exact(window=8)'
  assert list(job.images) == list(dict.fromkeys(['vanilla', own, long])) and job.untimed == long


@pytest.mark.slow
def test_a_long_window_shows_its_passes_and_no_times(capsys, tmp_path, llamagens, monkeypatch):
  monkeypatch.setitem(comparison.PASS_ON_H100, 'corrected_seed_exact(window=8)', 2.0)
  result = calls.call(compare.main, capsys, tmp_path / 'out', f'--model={llamagens}/model',
                      '--num_images=2', '--budget=1e-3')
  report, rows = _report(result)
  row = rows['corrected_seed_exact(window=8)']
  assert row['seconds_per_image'] is row['speedup'] is None and row['timed_runs'] == 0
  assert row['projected'] == pytest.approx(rows['vanilla']['rounds'] / row['rounds'] / 2)
  assert rows['vanilla']['timed_runs'] == rows['mc_sjd(window=4)']['timed_runs'] == 1
  assert 'takes 2.0 times as long there as one of vanilla' in result.out
  assert 'speed.png' in report['files'] and not result.out.splitlines()[-1].count('corrected')


def test_left_out_decoders_are_named(llamagens):
  job = _job(llamagens / 'alone', all=True)
  assert 'speculative(length=4)' not in job.images and 'sjd_pac(window=8)' in job.images
  assert "'model' part" in job.left_out['speculative']
  assert 'medusa' in job.left_out['medusa'] and len(job.prompts) == 4
  with pytest.raises(ValueError, match='decoder eagle cannot run: it drafts with .* has none: '
                                       'train one with cspd-train --model=.* --kind=eagle'):
    _job(llamagens / 'alone', decoder=('eagle',))


@pytest.mark.slow
@pytest.mark.parametrize('window, own', [(3, ['mc_sjd(window=3)']), (8, [])])
def test_what_the_model_takes_is_among_all(llamagens, tmp_path, window, own):
  kind = jax.devices()[0].device_kind
  folder_lib.place(llamagens / 'alone', tmp_path / 'own').store(
      kind, {1: f'mc_sjd(window={window})'})
  job = _job(tmp_path / 'own', all=True)
  assert [name for name in job.images if name.startswith('mc_sjd(')] == ['mc_sjd(window=8)', *own]


@pytest.mark.slow
@pytest.mark.parametrize('every', [False, True])
def test_others_run_where_the_model_takes_one_that_nobody_knows(llamagens, tmp_path, every):
  folder_lib.place(llamagens / 'alone', tmp_path / 'own').store(
      jax.devices()[0].device_kind, {1: 'hurry(window=3)'})
  job = _job(tmp_path / 'own', all=every)
  assert 'vanilla' in job.images and 'hurry' in job.left_out["the model's default decoder"]


@pytest.mark.slow
def test_pictures_come_before_the_times(run, monkeypatch):
  written = []
  write = compare._write  # pylint: disable=protected-access
  monkeypatch.setattr(compare, '_write', lambda *words: written.append(list(words[1])) or
                      write(*words))
  with monkeypatch.context() as killed:
    killed.setattr(timing, 'measure', mock.Mock(side_effect=KeyboardInterrupt))
    result = run('--num_images=1')
  names = ['vanilla', 'sjd_pac', 'speculative']
  assert result.code == 130 and written == [names[:1], names]
  report = json.loads((result.folder / 'report.json').read_text())
  files = {f'images_{name}.png' for name in names} | {'acceptance.png'}
  assert set(report['files']) == files | {'report.md'}
  assert {file.name for file in result.folder.iterdir()} == files | {'report.json', 'report.md'}
  for row in report['rows']:
    assert row['seconds_per_image'] is row['speedup'] is None and row['rounds'] >= 1
  for name in ('images_vanilla.png', 'acceptance.png'):
    assert f'look at {result.folder}/{name}' in result.out
  again = run('--num_images=1')
  report, rows = _report(again)
  assert set(report['files']) == files | {'speed.png', 'report.md'}
  assert all(row['seconds_per_image'] > 0 for row in rows.values())


@pytest.mark.slow
def test_what_the_captions_ask_for_is_scored(capsys, tmp_path, monkeypatch):
  monkeypatch.setattr(models_lib, 'NAMES', ['a cat on white', 'a dog', 'an owl flat'])
  models_lib.llamagens(tmp_path)
  result = calls.call(compare.main, capsys, tmp_path / 'out', f'--model={tmp_path}/model',
                     '--decoder=vanilla,seed_exact', '--num_images=3', '--budget=1e-3', '--asked',
                     '--paired')
  _, rows = _report(result)
  for row in rows.values():
    assert row['asked'] == pytest.approx((row['thing'] + row['ground'] + row['style']) / 3)
  row, = (row for name, row in rows.items() if name != 'vanilla')
  assert row['asked_change'] == row['asked_change_error'] == 0, 'the same images'
  assert 'asked  error' in result.out and '+0.0000' in result.out


@pytest.mark.parametrize('rows, decoder', [
    ((('biased', 1), ('bounded', 2), ('exact', 4), ('seed-exact', 3)), 'seed-exact'),
    ((('exact', 2), ('biased', 1)), 'exact'), ((('biased', 2), ('bounded', 1)), None)])
def test_only_exact_decoders_are_recommended(rows, decoder):
  job = compare.CompareJob(compare.Config(), cspd_jax.load('demo'), {}, {}, [0], None)
  default = 'corrected(corrector=local, iterations=2, window=8)'
  line = compare._next_step(job, [  # pylint: disable=protected-access
      dict(guarantee=Guarantee(word), specification=word, decoder=word, noise=None,
           seconds_per_image=seconds)
      for word, seconds in rows])
  if decoder is None:
    assert 'None of these decoders is exact; vanilla is' in line
  else:
    assert line.endswith(f'--decoder={decoder}')
    assert f'The default of demo on cpu is {default}, which model.json names' in line


def _row(decoder, speedup, error, noise=0.01, **more):
  return dict(guarantee=Guarantee.SEED_EXACT, specification=decoder, decoder=decoder, noise=noise,
              seconds_per_image=1 / speedup, speedup=speedup, speedup_error=error, **more)


@pytest.mark.parametrize('others, words', [
    ([], None), ([(0.8, 0.05)], 'but 0.80 +- 0.05 times as fast as vanilla.'),
    ([(0.7, 0.1), (0.95, 0.04)], 'On this CPU, b generates images of the same distribution in 51 '
     'forward passes instead of 256, but 0.95 +- 0.04 times as fast as vanilla.\n')])
def test_the_baseline_is_not_recommended(others, words):
  """One sentence says what the table does of the fastest one; vanilla alone is not compared."""
  config = compare.Config(groups.LoadFlags('demo'))
  job = compare.CompareJob(config, cspd_jax.load('demo'), {}, {}, [0], None)
  rows = [_row('vanilla', 1, None, rounds=256), *(
      _row('ab'[i], *pair, rounds=50 + i, tokens_equal_baseline=False)
      for i, pair in enumerate(others))]
  line = compare._next_step(job, rows)  # pylint: disable=protected-access
  assert line.endswith('Next: cspd-compare --model=demo --all=true')
  assert line.startswith('Next') if words is None else words in line


@pytest.mark.parametrize('equal, rounds, speedup, error, noise, words', [
    (True, 61.25, 1.42, 0.25, 0.05, 'On this CPU, sjd generates the images of vanilla in 61.2 '
     'forward passes instead of 256, 1.42 +- 0.25 times as fast as vanilla.\n'),
    (False, 256, 2, None, None, 'On this CPU, sjd generates images of the same distribution, 2.00 '
     'times as fast as vanilla.\n'),
    (True, 100, 1.42, 0.05, 0.06, 'The machine is busy: equal passes took such different times '
     'that speed-ups are uncertain by 6%. ')])
def test_what_is_gained_is_said(equal, rounds, speedup, error, noise, words):
  job = compare.CompareJob(
      compare.Config(), cspd_jax.load('demo'), {}, {}, [0], None, untimed='long')
  line = compare._next_step(job, [  # pylint: disable=protected-access
      _row('vanilla', 1, None, rounds=256, tokens_equal_baseline=True),
      _row('sjd', speedup, error, noise, rounds=rounds, tokens_equal_baseline=equal),
      dict(decoder='long', guarantee=Guarantee.SEED_EXACT, noise=None, seconds_per_image=None)])
  assert line.startswith(words)
  assert ('times as fast' in line) == (noise != 0.06)


def test_the_next_command_has_what_was_measured():
  config = compare.Config(
      groups.LoadFlags('demo', 'bfloat16', 'int8', parts=('neighbours=other',)),
      sampling=groups.SamplingFlags(guidance_scale=1.5, temperature=0.7, top_k=9, top_p=0.9))
  job = compare.CompareJob(config, cspd_jax.load('demo'), {}, {}, [0], None)
  for decoder, program in (('mc_sjd(window=4)', 'cspd-generate'), ('vanilla', 'cspd-compare')):
    line = compare._next_step(job, [  # pylint: disable=protected-access
        dict(guarantee=Guarantee.EXACT, specification=decoder, decoder=decoder, noise=None,
             seconds_per_image=1)])
    assert (f'Next: {program} --model=demo --dtype=bfloat16 --quantize=int8 '
            '--parts=neighbours=other --guidance_scale=1.5 --temperature=0.7 --top_k=9 '
            '--top_p=0.9') in line


def test_decoders_that_are_one_are_named():
  """The tree of `sjd_pac` in a short window is a chain, which makes it `mc_sjd`."""
  def result(tokens, rounds):
    return mock.Mock(sample=mock.Mock(decoded=mock.Mock(
        tokens=np.array([tokens]), round_of_token=np.array([rounds]))))

  compared = dict(vanilla=result([1, 2], [0, 1]), mc_sjd=result([3, 4], [0, 0]),
                  seed_exact=result([1, 2], [0, 0]), sjd_pac=result([3, 4], [0, 0]))
  assert comparison.same_decoders(compared) == [
      'sjd_pac committed the same tokens in the same passes as mc_sjd: with these sizes they are '
      'one decoder.']


def test_files_of_decoders_with_similar_names():
  requests = dict.fromkeys(['a(b)', 'a+b', 'a_b'])
  job = compare.CompareJob(compare.Config(), cspd_jax.load('demo'), requests, {}, [], None)
  assert len(set(job.files.values())) == 3


def test_a_default_is_only_said_to_be_stored_where_it_is(beach):
  model = cspd_jax.load(str(beach))
  stored = dataclasses.replace(model, defaults={'decoder': 'seed_exact(window=4)'})
  assert 'is seed_exact(window=4), which model.json names;' in compare._default(stored, 'vanilla')
  text = compare._default(dataclasses.replace(model, defaults={}), 'no such decoder')
  assert 'The default of beach' in text and 'model.json' not in text
