"""`experiments.products`: rates of products by the ways to compile them, and refused flags."""

import json

import pytest

from experiments import products
from tests.experiments import calls


@pytest.mark.slow
def test_every_way_is_timed(capsys, tmp_path):
  result = calls.call(products.main, capsys, tmp_path / 'out', '--sizes=64x96,96x64', '--rows=2,80',
                      '--repeats=1', '--programs=')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  assert [(row['size'], row['rows']) for row in report['rows']] == [
      ('64x96', 2), ('64x96', 80), ('96x64', 2), ('96x64', 80)]
  rates = [row[name] for row in report['rows']
           for name in ('XLAs_choice', 'without_YNNPACK', 'by_outputs', 'by_outputs_Eigen')]
  assert all(0 < rate < 1e5 for rate in rates)


@pytest.mark.slow
def test_whole_programs_are_timed(capsys, tmp_path):
  result = calls.call(products.main, capsys, tmp_path / 'out', '--sizes=64x96', '--rows=2',
                      '--repeats=1', '--programs=pixels to tokens,tokens to pixels')
  report = json.loads((result.folder / 'report.json').read_text())
  assert [row.get('program') for row in report['rows']] == [
      None, 'pixels to tokens', 'tokens to pixels']
  assert all(report['rows'][1][way] > 0 for way in ('XLAs_choice', 'as_here', 'short_sums'))


@pytest.mark.slow
def test_models_are_stored_the_fastest_way(capsys, tmp_path):
  """The rule of `core.matrices`: with the rows of a window, twice what XLA chooses, or nearly."""
  result = calls.call(products.main, capsys, tmp_path / 'out', '--sizes=1280x3456', '--rows=8,16',
                      '--programs=')
  report = json.loads((result.folder / 'report.json').read_text())
  for row in report['rows']:
    assert row['by_outputs'] > 1.3 * row['XLAs_choice'], row
    assert row['by_outputs'] > 1.1 * row['without_YNNPACK'], row
