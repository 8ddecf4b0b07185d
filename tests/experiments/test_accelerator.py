"""`experiments.accelerator`, with this machine's CPU in the place of an accelerator."""

import json

import pytest

from cspd_jax.core import programs
from experiments import accelerator
from tests.experiments import calls

_QUICK = ('--shapes=demo', '--batch=2', '--repeats=3', '--rounds=24')


def _run(capsys, out, *words):
  return calls.call(accelerator.main, capsys, out, *_QUICK, *words)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
  monkeypatch.setattr(accelerator.timed_rounds, '_ENOUGH', 0.0)


@pytest.mark.slow
def test_rounds_of_a_size(capsys, tmp_path):
  code, shown, *_ = _run(capsys, tmp_path, '--decoder=mc_sjd(window=4)', '--tokens_per_round=2.5')
  assert code == 0 and 'mc_sjd(window=4)' in shown
  report = json.loads((tmp_path / 'report.json').read_text())
  vanilla, other = report['rows']
  assert vanilla['decoder'] == 'vanilla' and vanilla['speedup'] == 1 and not report['notes']
  assert other['tokens'] == 2.5 and other['ms'] > 0 and other['batch'] == 2
  assert other['speedup'] == pytest.approx(2.5 * vanilla['ms'] / other['ms'])
  assert other['seconds_per_image'] == pytest.approx(1e-3 * other['ms'] * 256 / 2.5 / 2)
  assert report['rates']['bandwidth'] > 1e6


@pytest.mark.slow
def test_rounds_as_one_graph_are_compared(capsys, monkeypatch, tmp_path):
  monkeypatch.setattr(programs, 'on_cuda', lambda: True)
  code, shown, *_ = _run(capsys, tmp_path, '--decoder=')
  report = json.loads((tmp_path / 'graphs' / 'report.json').read_text())
  (row,) = report['rows']
  assert code == 0 and row['decoder'] == 'vanilla' and 'other tokens 0' in shown
  assert row['other_tokens'] == 0 and row['ms'] > 0 and row['one_graph_ms'] > 0
  assert json.loads((tmp_path / 'report.json').read_text())['rows'][0]['kind'] == 'rounds'


@pytest.mark.slow
def test_failures_are_noted_and_other_measurements_continue(capsys, monkeypatch, tmp_path):
  def fail(repeats=5):
    raise RuntimeError('no matrix unit')
  monkeypatch.setattr(accelerator.timed_rounds, 'matrix_rate', fail)
  code, shown, *_ = _run(capsys, tmp_path, '--decoder=', '--minutes=0.0001')
  report = json.loads((tmp_path / 'report.json').read_text())
  assert code == 0 and not report['rows']
  assert 'RuntimeError: no matrix unit' in report['notes'][0]['error'] or (
      'time limit was reached' in report['notes'][0]['error'])
  assert 'time limit was reached' in report['notes'][-1]['error'] and 'not measured: demo' in shown


@pytest.mark.slow
@pytest.mark.parametrize('words, message', [
    (('--decoder=mc_sjd(window=5)',), 'does not contain; give --tokens_per_round'),
    (('--decoder=mc_sjd(window=4)', '--tokens_per_round=9'), 'it must be 1 to 4'),
    (('--minutes=0',), 'minutes is 0'), (('--batch=0',), 'batch is'),
    (('--shapes=nothing',), 'nothing'), (('--shapes=mar_b',), 'tokens are continuous'),
    (('--rounds=0',), 'rounds is 0')])
def test_refused_before_anything_runs(capsys, tmp_path, words, message):
  code, _, error, _ = _run(capsys, tmp_path, *words)
  assert code == 2 and message in error
