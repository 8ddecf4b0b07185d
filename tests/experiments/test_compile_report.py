"""`experiments.compile_report`, with this machine's CPU in the place of an accelerator."""

import json

import jax
import pytest

from experiments import compile_report
from experiments.costs import devices
from tests.experiments import calls

_CPU = devices.Accelerator(1e10, 1e11, 1e-6, 0, 'cpu', '', ())


@pytest.fixture
def here(monkeypatch):
  """Compiles for this machine."""
  check = devices.check
  monkeypatch.setattr(devices, 'check', lambda name: _CPU if name == 'h200' else check(name))
  monkeypatch.setattr(devices, 'describe', lambda name: jax.devices()[0])


def _call(capsys, out, *words):
  return calls.call(compile_report.main, capsys, out, '--model=demo', *words)


def test_missing_wheels(monkeypatch, capsys, tmp_path):
  monkeypatch.setattr(devices.importlib.metadata, 'distributions',
                      lambda name='': [name] * (name == 'jax-cuda12-pjrt'))
  calls.check_refused(_call(capsys, tmp_path / 'out'), [
      'jax-cuda12-plugin, nvidia-cuda-nvcc-cu12 must be installed',
      f'pip install --no-deps jax-cuda12-plugin=={jax.__version__}'])


@pytest.mark.slow
def test_a_report(here, capsys, tmp_path):
  accepted = tmp_path / 'accepted.json'
  accepted.write_text(json.dumps(dict(rows=[
      dict(decoder='corrected(corrector=neighbours, window=4)', step_compression=2.5)])))
  result = _call(
      capsys, tmp_path / 'out', '--layers=1', '--window=4', '--dtype=float32', '--guided=false',
      '--decoder=corrected(corrector=neighbours)', f'--accepted={accepted}')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  vanilla, corrected = report['rows']
  assert (vanilla['decoder'], corrected['decoder']) == (
      'vanilla', 'corrected(corrector=neighbours, window=4)')
  assert vanilla['speedup'] == vanilla['tokens_per_round'] == 1
  assert corrected['speedup'] == pytest.approx(2.5 * vanilla['ms'] / corrected['ms'])
  assert 1 < vanilla['over_ideal'] < 100 and 1 < corrected['over_ideal'] < 100
  assert corrected['kernels'] > vanilla['kernels'] and corrected['gflops'] > vanilla['gflops']
  assert 1 < report['ideal_mib'] < vanilla['mib']
  page = (result.folder / 'report.md').read_text()
  assert page.startswith('**demo, h200**') and '| `vanilla` |' in page
  assert '*`python -m experiments.compile_report --model=demo --layers=1 --window=4' in page
  assert (report['compiled_layers'], report['compiled_for']) == (1, 'h200')
  for row in report['rows']:
    assert row['decoder'] in result.out


@pytest.mark.slow
def test_a_report_of_continuous_tokens(here, capsys, tmp_path):
  result = _call(capsys, tmp_path / 'out', '--model=mar_demo', '--layers=1', '--dtype=float32',
                '--decoder=exact_head')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  mar, exact_head = report['rows']
  assert (mar['decoder'], exact_head['decoder']) == ('mar', 'exact_head')
  # A hundred calls of the head, and one turn of a loop that takes as many as it needs.
  assert mar['kernels'] > 5 * exact_head['kernels'] > 0
  assert exact_head['speedup'] is None

  # With measured calls the loop counts as often, but the rest of the round does not.
  rows, accepted = [exact_head], tmp_path / 'accepted.json'
  for calls_per_round in (12, 23):
    accepted.write_text(json.dumps(dict(rows=[
        dict(model='other', decoder='exact_head', step_compression=9, calls_per_round=9),
        dict(model='mar_demo', decoder='exact_head', step_compression=1,
             calls_per_round=calls_per_round)])))
    result = _call(
        capsys, tmp_path / f'out{calls_per_round}', '--model=mar_demo', '--layers=1',
        '--dtype=float32', '--decoder=exact_head', f'--accepted={accepted}',
        '--accepted_model=mar_demo')
    counted = json.loads((result.folder / 'report.json').read_text())['rows'][1]
    assert counted['head_calls'] == calls_per_round
    rows.append(counted)
  one, twelve, more = (row['kernels'] for row in rows)
  assert more - twelve == twelve - one > 0 and twelve < 12 * one
  assert counted['speedup'] == pytest.approx(mar['ms'] / counted['ms'])
