"""`cspd-tune` on a tiny model: what it measures, stores and refuses."""

import csv
import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.commands import tune
from cspd_jax.families import folder as folder_lib
from cspd_jax.generation.parts import DraftNetwork
from cspd_jax.measure import tuning
from cspd_jax.measure.bench import Bench
from tests.builders import models
from tests.experiments import calls


def _call(capsys, out, beach, *words):
  return calls.call(tune.main, capsys, out, f'--model={beach}', *words)


def test_the_fastest_are_stored_and_used(beach, capsys, tmp_path, monkeypatch):
  own, kind = tmp_path / 'own', jax.devices()[0].device_kind
  folder_lib.place(beach, own).store(kind, {1: 'sjd(window=2)'})
  # Machines differ; here, one image at once is fastest with one decoder and two with another.
  best = {1: 'mc_sjd(window=3)', 2: 'vanilla'}
  monkeypatch.setattr(tuning, 'measure', lambda bench, texts, size, repeats: {
      text: 1.0 if text == best[size] else 2.0 for text in texts})
  result = _call(
      capsys, tmp_path / 'out', own, '--batch_size=1,2', '--window=3', '--num_images=2',
      '--decoder=vanilla,mc_sjd,eagle,jacobi+cool', '--guidance_scale=1')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  assert report['chosen'] == {str(size): text for size, text in best.items()}
  assert 'EAGLE network' in report['left_out']['eagle(tree=chain(2))']
  assert 'it is bounded' in report['left_out']['jacobi(window=3)+cool']
  assert report['device_kind'] == kind and f'for {kind}: mc_sjd(window=3) from 1' in result.out
  rows = list(csv.DictReader((result.folder / 'rows.csv').open()))
  # Two candidates and what the model was decoded with before, for both numbers of images.
  assert len(rows) == 6 and {row['batch_size'] for row in rows} == {'1', '2'}
  for row in rows:
    assert float(row['predicted_seconds']) == pytest.approx(
        float(row['rounds_of_batch']) * float(row['ms_per_round']) / 1e3 / int(row['batch_size']))
    assert row['guarantee'] in ('exact', 'seed-exact') and row['decoder'] in result.out
  assert result.out.endswith(f'Next: cspd-generate --model={own} --guidance_scale=1.0\n')
  speedups = {(row['batch_size'], row['decoder']): float(row['speedup']) for row in rows}
  assert speedups['1', 'mc_sjd(window=3)'] == 2 and speedups['2', 'mc_sjd(window=3)'] == 0.5
  assert [table['title'] for table in report['tables']] == ['1 image at once', '2 images at once']
  model = cspd_jax.load(own)
  assert model.generate('sea', guidance_scale=1).decoder == 'mc_sjd(window=3)'
  assert model.generate(['sea', 'sky', 'sand'], guidance_scale=1).decoder == 'vanilla'
  chosen = {row['batch_size']: row for row in rows if row['chosen']}
  assert model.defaults['seconds'] == {model.devices[0].device_kind: {
      size: [row['decoder'], pytest.approx(float(row['measured_seconds']))]
      for size, row in chosen.items()}}


@pytest.mark.slow
def test_a_dry_run_measures_and_stores_nothing(beach, capsys, tmp_path):
  before = (beach / 'model.json').read_bytes()
  result = _call(
      capsys, tmp_path / 'out', beach, '--dry_run', '--batch_size=2',
      '--decoder=seed_exact(window=3)', '--num_images=3', '--minutes=1e-9',
      '--guarantee=seed-exact')
  assert result.code == 0, result.err
  row, = csv.DictReader((result.folder / 'rows.csv').open())
  assert row['chosen'] == 'yes' and row['decoder'] == 'seed_exact(window=3)'
  assert float(row['images_per_hour']) == pytest.approx(3600 / float(row['measured_seconds']))
  # Three images in two rows are a queue: two rows share its rounds and prefills.
  assert float(row['predicted_seconds']) == pytest.approx(
      float(row['rounds_of_batch']) * float(row['ms_per_round']) / 1e3 / 2)
  assert result.out.endswith(
      f"Next: cspd-generate --model={beach} --decoder='seed_exact(window=3)' --batch_size=2\n")
  assert 'Stored' not in result.out and (beach / 'model.json').read_bytes() == before


@pytest.mark.slow
def test_the_baseline_is_not_stored_for_want_of_time(beach, capsys, tmp_path):
  result = _call(
      capsys, tmp_path / 'out', beach, f'--store={tmp_path}/own', '--batch_size=1',
      '--decoder=vanilla,mc_sjd', '--window=3,4', '--num_images=2',
      '--minutes=1e-9')
  assert result.code == 0, result.err
  assert 'Not all candidates were tried: the time limit of 1e-09 minutes' in result.out
  assert 'Nothing is stored: vanilla may be' in result.out and 'Stored in' not in result.out
  assert not (tmp_path / 'own').exists()


def _without_work(monkeypatch, seconds):
  """Replaces measurements by `seconds`, a function of the decoder; returns what is asked for."""
  asked = []

  def short_run(bench, text, size, pace):
    asked.append(text)
    return tuning.TimedRun(text, bench.tokens_per_round(text), 2.0, np.array([5]), seconds(text),
                           size)

  monkeypatch.setattr(tuning, 'short_run', short_run)
  monkeypatch.setattr(tuning, 'pace', lambda bench, size: tuning.Pace(lambda: None, 1.0))
  monkeypatch.setattr(tuning, 'measure', lambda bench, texts, size, repeats: {
      text: seconds(text) for text in texts})
  return asked


@pytest.mark.slow
def test_passes_are_tried_at_the_best_window(capsys, tmp_path, monkeypatch):
  monkeypatch.setattr(tune, '_PASSES', (2, 1, 3))
  monkeypatch.setattr(tune, '_BEST', 1)
  models.llamagens(tmp_path)
  best = 'corrected(corrector=layers, iterations=3, window=5)'
  asked = _without_work(
      monkeypatch, lambda text: 1.0 if text == best else 1.1 if 'window=5' in text else 2.0)
  result = _call(
      capsys, tmp_path / 'out', tmp_path / 'model', f'--store={tmp_path / "own"}', '--window=3,5',
      '--decoder=vanilla,corrected(corrector=layers),corrected(corrector=layers,iterations=1)',
      '--batch_size=1')
  assert result.code == 0, result.err
  default = str(cspd_jax.load(tmp_path / 'model').specification())
  assert asked == ['vanilla', *(
      f'corrected(corrector=layers, iterations={passes}, window={window})'
      for passes in (2, 1) for window in (3, 5)), default, best]
  rows = json.loads((result.folder / 'report.json').read_text())['rows']
  assert {row['decoder'] for row in rows if row['measured_seconds']} == {
      'vanilla', best, default}
  assert str(cspd_jax.load(tmp_path / 'own').specification()) == best


@pytest.mark.slow
def test_a_default_that_nobody_knows_is_replaced(beach, capsys, tmp_path, monkeypatch):
  own = tmp_path / 'own'
  folder_lib.place(beach, own).store(jax.devices()[0].device_kind, {1: 'faster'})
  asked = _without_work(monkeypatch, lambda text: 1 if 'window=3' in text else 2)
  result = _call(capsys, tmp_path / 'out', own, '--batch_size=1', '--window=3,5',
                '--decoder=mc_sjd,jacobi(window=3)')
  assert result.code == 0, result.err
  assert asked == ['mc_sjd(window=3)', 'mc_sjd(window=5)', 'jacobi(window=3)', 'vanilla']
  report = json.loads((result.folder / 'report.json').read_text())
  assert "'faster' is not registered" in report['left_out']['the stored decoder']
  assert str(cspd_jax.load(own).specification()) == 'mc_sjd(window=3)'


def test_a_kill_after_the_measurements_loses_no_choice(beach, capsys, tmp_path, monkeypatch):
  """The report is the last to be written: what was measured is there until the choice is stored."""
  words = (f'--store={tmp_path}/own', '--batch_size=1', '--window=3', '--decoder=mc_sjd')
  asked = _without_work(monkeypatch, lambda text: 1 if 'window=3' in text else 2)
  with monkeypatch.context() as patch:
    patch.setattr(tune.Report, 'write', lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert _call(capsys, tmp_path / 'out', beach, *words).code == 130
  assert str(cspd_jax.load(tmp_path / 'own').specification()) == 'mc_sjd(window=3)'
  del asked[:]
  assert _call(capsys, tmp_path / 'out', beach, *words).code == 0 and not asked


def test_half_of_the_minutes_are_for_the_search(beach, capsys, tmp_path, monkeypatch):
  """`--minutes=1` took two: the search used all of it, and the measurements came on top."""
  asked = _without_work(monkeypatch, len)
  monkeypatch.setattr(tune.time, 'perf_counter', lambda: 20.0 * len(asked))
  result = _call(capsys, tmp_path / 'out', beach, '--dry_run', '--batch_size=1', '--minutes=1',
                '--window=3,4,5,6', '--decoder=mc_sjd')
  assert result.code == 0, result.err
  assert len(asked) == 2 and 'the time limit of 1 minute was reached' in result.out


def test_an_interrupted_run_resumes(beach, capsys, tmp_path, monkeypatch):
  words = ('--dry_run', '--batch_size=1', '--window=3,4,5', '--decoder=mc_sjd')
  candidates = [f'mc_sjd(window={window})' for window in (3, 4, 5)]

  def seconds(text):
    if stop and len(asked) == 3:
      raise KeyboardInterrupt
    return 1 / len(asked)

  stop = [True]
  asked = _without_work(monkeypatch, seconds)
  result = _call(capsys, tmp_path / 'out', beach, *words)
  assert result.code == 130 and asked == candidates
  assert 'interrupted: measured candidates are kept; the same command resumes' in result.err
  # Other images are another run, which does not use these measurements.
  stop.clear()
  del asked[:]
  other = tmp_path / 'other'
  shutil.copytree(tmp_path / 'out', other)
  result = _call(capsys, other, beach, *words, '--seed=5')
  assert result.code == 0 and asked[:3] == candidates and 'already' not in result.out
  model = cspd_jax.load(beach)
  draft = DraftNetwork(None, model.params)
  first, second = (tune._settings(tune.Config(), tune.Plan(Bench(dataclasses.replace(
      model, drafts={'eagle': one}), ['sea']), [], {}, {}, {}, None))
                   for one in (draft, draft._replace(params=model.tokenizer.params)))
  assert first != second, 'a network that drafts was trained again'
  del asked[:]
  result = _call(capsys, tmp_path / 'out', beach, *words, '--minutes=99')
  assert result.code == 0, result.err
  assert f'2 candidates are measured already, in {tmp_path / "out"}\n' in result.out
  assert asked[0] == candidates[2] and not {*candidates[:2]} & {*asked}
  rows = {row['decoder']: row for row in json.loads(
      (result.folder / 'report.json').read_text())['rows']}
  assert rows.keys() >= {*candidates} and [file.name for file in sorted(
      result.folder.iterdir())] == ['report.json', 'rows.csv']
