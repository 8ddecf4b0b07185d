"""`experiments.topologies`, and the papers on top of it."""

import csv
import json
import pathlib

import pytest

from experiments import topologies
from tests.builders import models
from tests.experiments import calls

PAPERS = pathlib.Path(__file__).parents[2] / 'configs' / 'papers.py'


def _call(main, beach, capsys, out, *words):
  return calls.call(main, capsys, out, f'--model={beach}', *words)


@pytest.mark.slow
def test_rows_of_every_window(beach, capsys, tmp_path):
  result = _call(
      topologies.main, beach, capsys, tmp_path / 'out', '--window=3,5', '--num_images=4',
      '--decoder=jacobi(coupling=maximal)+rejection,sjd_pac(tree=paths(2, 2))',
      '--guidance_scale=1')
  assert result.code == 0, result.err
  rows = list(csv.DictReader((result.folder / 'rows.csv').open()))
  assert [(row['window'], row['decoder']) for row in rows] == [
      ('3', 'jacobi(coupling=maximal, window=3)+rejection'),
      ('5', 'jacobi(coupling=maximal, window=5)+rejection'),
      ('5', 'sjd_pac(tree=paths(2, 2), window=5)')]
  for row in rows:
    assert 1 <= float(row['step_compression']) <= int(row['window'])
    assert float(row['step_compression_error']) > 0 and 0 <= float(row['one_token_rounds']) <= 1
    assert row['verifier'] in result.out
  report = json.loads((result.folder / 'report.json').read_text())
  assert [table['title'] for table in report['tables']] == ['window 3', 'window 5']
  assert [table['rows'] for table in report['tables']] == [[0], [1, 2]]
  assert 'sjd_pac(tree=paths(2, 2), window=3)' in report['left_out']


@pytest.mark.slow
def test_scenes_have_tokens_per_pass_inside_things_and_on_ground(capsys, tmp_path, monkeypatch):
  monkeypatch.setattr(models, 'NAMES', ['a cat on white', 'a dog', 'an owl flat'])
  models.llamagens(tmp_path)
  result = _call(topologies.main, tmp_path / 'model', capsys, tmp_path / 'out', '--window=3',
                 '--decoder=mc_sjd', '--num_images=3', '--guidance_scale=1', '--ground')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  row, = report['rows']
  assert 0 <= row['ground_share'] <= 1 and row['tokens_per_pass_inside'] >= 1
  assert 'inside things' in report['tables'][0]['columns'] and 'inside things' in result.out
  assert report['weights'].keys() > {'target', 'tokenizer'}


@pytest.mark.parametrize('paper,decoder', [
    ('sjd', 'jacobi(coupling=gumbel, window=3)+rejection'), ('sjd_pac', 'mc_sjd(window=3)'),
    ('variants', 'sjd_pp(window=3)'), ('variants_emoji', 'sjd_pp(window=3)')])
def test_papers_have_their_own_decoders(beach, capsys, tmp_path, monkeypatch, paper, decoder):
  monkeypatch.setattr(topologies.measurements, 'each', lambda *_: [])
  result = _call(topologies.main, beach, capsys, tmp_path / 'out',
                f'--config={PAPERS}:{paper}', '--window=3')
  assert result.code == 0, result.err
  settings = json.loads((result.folder / 'report.json').read_text())['settings']
  assert any(decoder.startswith(text.split('+')[0].rstrip(')')) for text in settings['decoder'])


@pytest.mark.slow
def test_points_of_every_temperature(beach, capsys, tmp_path):
  result = _call(
      topologies.main, beach, capsys, tmp_path / 'out', '--window=4', '--num_images=4',
      '--decoder=mc_sjd', '--temperatures=0.5,1', '--scales=1', '--entropy')
  assert result.code == 0, result.err
  cold, warm = csv.DictReader((result.folder / 'rows.csv').open())
  assert float(cold['entropy']) < float(warm['entropy']) and cold['decoder'] == 'mc_sjd(window=4)'
  assert 1 <= float(warm['step_compression']) <= 4
  assert (result.folder / 'uncertainty.png').stat().st_size > 5000
