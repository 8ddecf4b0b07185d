"""`python -m experiments.benchmark` from end to end on a tiny family."""

import csv
import json
import math
import pathlib

import pytest

from experiments import benchmark
from tests.experiments import calls

PAPERS = pathlib.Path(__file__).parents[2] / 'configs' / 'papers.py'


def _call(main, beach, capsys, out, *words):
  small = (f'--model={beach}', '--drafter=jacobi(coupling=maximal)', '--verifier=rejection',
           '--curve_drafter=', '--window=4', '--length=2', '--num_images=3', '--batch_size=2',
           '--reference_sets=2', '--timed_images=1')
  return calls.call(main, capsys, out, *small, *(word.format(tmp=beach) for word in words))


@pytest.fixture(scope='module')
def good(beach, tmp_path_factory):
  """Everything that is asserted of pairs, curves and reports comes from one call."""
  out = tmp_path_factory.mktemp('good') / 'out'
  with pytest.MonkeyPatch.context() as patch:
    lines = []
    patch.setattr('builtins.print', lambda *words, **options: lines.append(' '.join(words)))
    code = benchmark.main([
        'benchmark', f'--model={beach}', f'--workdir={out}', '--drafter=jacobi(coupling=maximal)',
        '--verifier=rejection,match,block,cool(clamp=False, length=3)',
        '--curve_drafter=jacobi(coupling=maximal)', '--window=4', '--length=2', '--num_images=3',
        '--batch_size=2', '--reference_sets=2', '--timed_images=1', '--seed=3',
        '--guidance_scale=1.5'])
  return code, '\n'.join(lines), out


def _rows(path, curves):
  rows = list(csv.DictReader((path / 'rows.csv').open()))
  return [row for row in rows if (row['curve'] != '' or row['value'] != '') == curves]


@pytest.mark.slow
def test_pairs(good):
  code, out, folder = good
  assert code == 0
  drafter = 'jacobi(coupling=maximal, window=4)'
  rows = _rows(folder, curves=False)[:4]
  assert {(row['drafter'], row['verifier']): row['guarantee'] for row in rows} == {
      ('vanilla', ''): 'seed-exact', (drafter, 'rejection'): 'exact',
      (drafter, 'match'): 'seed-exact', (drafter, 'cool(clamp=False, length=3)'): 'bounded'}
  for row in rows:
    assert float(row['step_compression']) >= 1 and float(row['accepted_length']) <= 4
    assert (float(row['tv_bound']) > 0) == (row['guarantee'] == 'bounded')
    assert float(row['tv_bound_per_token']) == pytest.approx(float(row['tv_bound']) / 16)
    assert row['equal_to_baseline'] == ('1.0' if row['guarantee'] == 'seed-exact' else '')
    assert float(row['speedup']) > 0 and float(row['ms_per_round']) > 0
    assert float(row['nll']) > 0 and float(row['frechet']) >= 0
    assert float(row['nll_excess_error']) > 0
    assert row['drafter'] in out and row['verifier'] in out
  report = json.loads((folder / 'report.json').read_text())
  assert 'keeps drafts' in report['left_out'][f'{drafter}+block']
  assert f'{drafter}+block is left out' in out
  assert report['noise']['frechet'][0] > 0 and report['settings']['images']['seed'] == 3
  # Vanilla's images of the same classes and other keys are as likely as its own.
  assert abs(float(rows[0]['nll_difference'])) < 6 * float(rows[0]['nll_difference_error']) + 0.5


@pytest.mark.slow
def test_curves(good):
  _, out, folder = good
  rows = list(csv.DictReader((folder / 'rows.csv').open()))[4:]
  points = [(row['curve'], row['value'] and float(row['value'])) for row in rows]
  assert points == [('', '')] + [
      (curve.name, value) for curve in benchmark.CURVES for value in curve.values
      if curve.name != 'GSD' or value <= 6]  # Colours of the family.
  assert not any(row['speedup'] for row in rows)
  assert 'jacobi(coupling=maximal, window=4)+grouped(group=24) is left out: group is 24' in out
  assert (folder / 'curves.png').read_bytes().startswith(b'\x89PNG')
  assert (folder / 'curves.svg').read_bytes().startswith(b'<?xml')
  report = json.loads((folder / 'report.json').read_text())
  assert {one['answer'] for one in report['conclusions']} <= {'yes', 'no', 'unclear'}
  claims = [one['claim'] for one in report['conclusions']]
  assert 'exact decoders are exact' in claims
  assert any('G*' in claim and claim.endswith(', jacobi(coupling=maximal, window=4)')
             for claim in claims)
  for claim in claims:
    assert claim in out


@pytest.mark.slow
@pytest.mark.parametrize('paper,curve', [
    ('cool_sd', 'Cool-SD linear, printed'), ('lantern', 'LANTERN++, released')])
def test_papers(beach, capsys, tmp_path, paper, curve):
  result = _call(
      benchmark.main, beach, capsys, tmp_path / 'out',
      f'--config={PAPERS}:{paper}', '--drafter=', '--timed_images=none',
      '--curve_drafter=jacobi(coupling=maximal)', '--reference_sets=none',
      '--metrics=accepted_length,tv_bound_per_token', '--columns=accepted_length')
  assert result.code == 0, result.err
  rows = list(csv.DictReader((result.folder / 'rows.csv').open()))
  assert curve in {row['curve'] for row in rows}
  assert 'Tested claims' in result.out
  assert all(math.isfinite(float(row['tv_bound_per_token'])) for row in rows)
