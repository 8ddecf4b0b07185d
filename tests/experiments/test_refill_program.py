"""`experiments.refill` on a tiny model: the rounds are those of the images."""

import json

import pytest

from experiments import refill
from tests.experiments import calls
from tests.families import tiny


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny.saved(tmp_path_factory.mktemp('models') / 'beach')


@pytest.mark.slow
def test_batches_and_a_queue(folder, capsys, tmp_path):
  result = calls.call(
      refill.main, capsys, tmp_path / 'out', f'--model={folder}', '--decoder=mc_sjd',
      '--window=4', '--num_images=12', '--batch_size=3', '--repeats=1', '--guidance_scale=1')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  row, = report['rows']
  assert row['decoder'] == 'mc_sjd(window=4)' in result.out and row['same_images'] == 1
  # Three rows share the rounds of twelve images; a prefill is none of them.
  least, most = (4 * (row[name] - 1) for name in ('rounds', 'most_rounds'))
  assert least <= row['rounds_in_queue'] < row['rounds_in_batches'] <= most
  assert row['speedup'] == pytest.approx(row['seconds_in_batches'] / row['seconds_in_queue'])
  assert report['tables'][0]['title'].endswith('12 images, 3 at once')


@pytest.mark.slow
@pytest.mark.parametrize('words, message', [
    (['--model=mar_demo'], ['mar_demo', 'discrete']), (['--decoder=eagle'], ['EAGLE network']),
    (['--num_images=3', '--batch_size=2'], ['batch_size is 2 and there are 3 images'])])
def test_refused_options(folder, capsys, tmp_path, words, message):
  calls.check_refused(calls.call(
      refill.main, capsys, tmp_path / 'out', f'--model={folder}', *words), message)
