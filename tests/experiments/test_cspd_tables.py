"""`experiments.papers.cspd`, the fit of the head's drafter, and the comparison with PyTorch."""

import csv
import json

import numpy as np
import pytest

import cspd_jax
from cspd_jax.continuous import schedule as schedule_lib
from experiments import fit_head_drafter
from experiments.papers import cspd
from tests.experiments import calls

# Decoders that verify whole blocks.
_BLOCKS = ('cspd_released', 'cspd_relaxed')


def _call(mars, capsys, out, *words):
  return calls.call(
      cspd.main, capsys, out, f'--model={mars}/model', '--num_images=3', '--lengths=2',
      '--prefix_shares=0,0.3', '--scales=1,2', '--temperatures=0.9,1', '--batch_sizes=1',
      '--kernels_per_call=2', '--repeats=1', '--batch_size=1', '--guidance=constant',
      '--decoder=cspd_released', *(word.format(tmp=mars) for word in words))


@pytest.mark.slow
def test_tables(mars, capsys, tmp_path):
  good = _call(mars, capsys, tmp_path / 'good')
  assert good.code == 0, good.err
  rows = json.loads((good.folder / 'report.json').read_text())['rows']
  assert {row['suite'] for row in rows} == {'table1', 'table3', 'table4', 'figures', 'head'}
  others = _call(mars, capsys, tmp_path / 'others', '--suite=table1', '--batch_size=2',
                 '--decoder=cspd_relaxed,exact_path')
  assert others.code == 0, others.err
  rows += json.loads((others.folder / 'report.json').read_text())['rows']
  _check_rows(rows)
  with open(good.folder / 'tables.csv', newline='') as file:
    columns = next(csv.reader(file))
  assert 'acceptance_exact_head' in columns and 'acceptance' not in columns
  points = [(row['guidance_scale'], row['temperature'], row['length']) for row in rows
            if row['suite'] == 'figures' and row['num_images'] == 3]
  assert {(1.0, 1.0, 2), (2.0, 1.0, 2), (1.0, 0.9, 2)} <= set(points)
  assert 'Table 3, cspd_released' in good.out and 'exact_head without guidance' in good.out
  assert 'Table 1, exact_path' in others.out
  assert others.out.count("paper's 1/(c+1/gamma)") == 1, 'only decoders with a schedule of passes'


def _check_rows(rows):
  for row in rows:
    # Acceptance of one decoder never shares a column with that of another.
    rates = {name for name in row if name.startswith('acceptance_')}
    assert rates == {f'acceptance_{row["mode"]}'}
    assert row['distribution'] and row['guarantee']
    assert row['num_images'] == 3
    assert row['num_iter'] == 4 and row['num_levels'] == 100 and row['dtype'] == 'float32'
    assert row['guidance'] == ('constant' if row['guided'] else 'none')
    assert min(row['temperature'], row['guidance_scale'], row['target_passes'], row['head_calls'],
               row['batch']) > 0 and row['draft_passes'] >= 0
    if row['suite'] in ('table1', 'table4', 'head'):
      assert row['speed'] > 0
  for row in (row for row in rows if row['suite'] == 'table1'):
    assert row['batch'] == 1 and ('parallel_speed' in row) == (row['mode'] in _BLOCKS)
    if row['mode'] in _BLOCKS:
      # 4 tokens in a prefix of one and two blocks, with 3 drafts.
      assert row['target_passes'] == 3 and row['draft_passes'] == 3
      np.testing.assert_allclose(row['expected_speed'], 4 / (3 + 3 * row['draft_step_cost']))
      np.testing.assert_allclose(
          row['paper_identity_speed'], 1 / (row['draft_step_cost'] + 1 / 2))
  assert {(row['mode'], row['aligned']) for row in rows if row['suite'] == 'table3'} == {
      ('cspd_released', True), ('cspd_released', False)}


def _fit(capsys, mars, *words):
  code = fit_head_drafter.main([
      'fit', f'--model={mars}/model', '--num_chains=32', '--num_iter=2', '--kernels_per_call=4',
      *words])
  return (code, *capsys.readouterr())


@pytest.mark.slow
def test_program_fits(mars, capsys, tmp_path):
  output, untouched = tmp_path / 'fitted', (mars / 'target' / 'model.json').read_bytes()
  code, out, err = _fit(capsys, mars, f'--output={output}')
  assert code == 0, err
  assert 'without guidance, head calls per token at batch 1: default ' in out
  assert 'fitted to 4 levels' in out
  assert (mars / 'target' / 'model.json').read_bytes() == untouched
  fitted = cspd_jax.load(mars / 'model', target=output)
  assert fitted.target(True).rho(schedule_lib.make()).shape == (100,)
