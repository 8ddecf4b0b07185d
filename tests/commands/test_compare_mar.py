"""`cspd-compare` with decoders of continuous tokens: the same program, other columns."""

import json

import numpy as np
import pytest

from cspd_jax.cli import groups
from cspd_jax.commands import compare
from cspd_jax.continuous.specification import DECODERS, needs
from tests.experiments import calls

pytestmark = pytest.mark.usefixtures('load_once')


@pytest.fixture
def run(mars, capsys, tmp_path):
  def run(*words):
    words = [word.format(tmp=mars) for word in words]
    return calls.call(
        compare.main, capsys, tmp_path / 'out', f'--model={mars}/model', '--budget=1e-3',
        '--num_images=2', *words)
  return run


@pytest.mark.slow
def test_a_few_decoders_by_default(mars):
  job = compare.prepare(compare.Config(groups.LoadFlags(str(mars / 'model'))))
  assert list(job.images) == ['mar', 'exact_head'] and len(job.prompts) == 4


def _rows(result):
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  return {row['decoder']: row for row in report['rows']}


# Every decoder, in sizes for images of four tokens.
_DECODERS = (
    'mar(schedule=4)', 'exact_head(schedule=4, kernels_per_call=3)',
    'parallel(schedule=4, block_length=2)', 'exact_path(schedule=4, draft_length=1)',
    'cspd_paper(schedule=4, draft_length=1)', 'cspd_released(schedule=4, block_length=2)',
    'cspd_relaxed(schedule=4, block_length=2)')


@pytest.mark.slow
def test_every_decoder(run):
  result = run(f'--decoder={",".join(_DECODERS)}', '--guidance_scale=1.5', '--seed=5')
  rows = {name.partition('(')[0]: row for name, row in _rows(result).items()}
  assert rows.keys() == DECODERS.keys() - {'windows'}
  assert rows['mar']['target_passes'] == 4 and rows['mar']['head_calls'] == 4 * 4
  assert rows['mar']['head_rows'] == 2 * rows['mar']['head_calls']
  # A prefix of one token, then blocks that end after places 2 and 3.
  for name in ('parallel', 'cspd_released', 'cspd_relaxed'):
    assert rows[name]['target_passes'] == 3
  for name, row in rows.items():
    assert (row['acceptance'] is None) == (name in ('mar', 'parallel'))
    assert (row['draft_passes'] > 0) == (needs(name) is not None)
    assert row['distribution'] in result.out and row['seconds_per_image'] > 0
    assert (result.folder / row['images']).read_bytes().startswith(b'\x89PNG')
  assert (result.folder / 'accepted.png').read_bytes().startswith(b'\x89PNG')
  assert np.shape(rows['cspd_relaxed']['acceptance_by_position']) == (2, 2)
  table = result.out[result.out.index('decoder  '):result.out.index('mar(schedule=4): ')]
  assert 'accept' not in table, 'acceptance rates share no column'


@pytest.mark.slow
def test_without_draft_model(run):
  result = run('--model={tmp}/alone', '--guidance_scale=1',
              '--decoder=mar(num_iter=2, schedule=4), '
              'exact_head(num_iter=2, kernels_per_call=3, schedule=4)')
  rows = _rows(result)
  assert [name.partition('(')[0] for name in rows] == ['mar', 'exact_head']
  mar, exact_head = rows.values()
  assert mar['head_calls'] == 2 * 4 and mar['head_rows'] == 4 * 4
  assert 0 <= exact_head['acceptance'] <= 1 and mar['acceptance'] is None
  assert exact_head['tested'] == 'denoising kernels' and len(exact_head['acceptance_by_level']) == 4
  table, sentences = result.out[result.out.index('decoder  '):].split(
      '\nmar(num_iter=2, schedule=4): ')
  assert 'accepts' in sentences and 'accept' not in table
  assert exact_head['target_passes'] == 2
  assert exact_head['speedup'] == pytest.approx(
      mar['seconds_per_image'] / exact_head['seconds_per_image'])
