"""`experiments.accelerator`, with this machine's CPU in the place of an accelerator."""

import json

import pytest

from experiments import accelerator
from experiments.stages import piece as piece_lib
from tests.experiments import calls

_COLUMNS = {'decoder': '{decoder}', 'ms': '{ms:.1f}'}


def _stored(folder):
  return json.loads((folder / 'report.json').read_text())


def test_every_row_is_on_disk_and_none_is_measured_again(tmp_path):
  piece, calls_ = piece_lib.Piece(tmp_path, 60), []

  def measured():
    calls_.append(len(_stored(tmp_path)['begun']))  # A killed process leaves what it was doing.
    return dict(ms=1.5)

  for text in ('a', 'b'):
    piece.measure('rounds', _COLUMNS, dict(decoder=text), measured)
    assert _stored(tmp_path)['rows'][-1] == dict(decoder=text, ms=1.5)
  assert piece.fact('rates', lambda: 3) == 3 and calls_ == [1, 1]
  again = piece_lib.Piece(tmp_path, 60)
  again.measure('rounds', _COLUMNS, dict(decoder='a'), measured)
  again.measure('others', _COLUMNS, dict(decoder='a'), measured)
  assert again.fact('rates', lambda: 4) == 3 and len(calls_) == 3
  report = _stored(tmp_path)
  assert [table['title'] for table in report['tables']] == ['rounds', 'others']
  assert [table['rows'] for table in report['tables']] == [[0, 1], [2]]
  assert not report['begun'] and not report['notes']


def test_failures_and_the_time_limit_are_noted(capsys, tmp_path):
  piece = piece_lib.Piece(tmp_path, 60)

  def fail():
    raise RuntimeError('no  matrix\nunit')

  functions = dict(first=lambda: 1, second=fail, third=lambda: 3)
  assert piece.all('compiled', functions, threads=2) == dict(first=1, third=3)
  assert _stored(tmp_path)['notes'] == [
      dict(what='compiled: second', error='RuntimeError: no matrix unit')]
  late = piece_lib.Piece(tmp_path, -1)
  assert late.is_over and late.attempt('rounds', lambda: 1) is None
  shown = capsys.readouterr().out
  assert 'not measured: rounds (TimeoutError: the time limit was reached)' in shown


def test_rows_of_a_rehearsal_are_not_continued(tmp_path):
  piece_lib.Piece(tmp_path, 60, rehearses=True).add('rounds', _COLUMNS, dict(decoder='a', ms=1.0))
  with pytest.raises(ValueError, match='workdir holds rows of'):
    piece_lib.Piece(tmp_path, 60)


def test_the_plan(capsys, tmp_path):
  code, shown, _, folder = calls.call(accelerator.main, capsys, tmp_path / 'out', '--plan')
  assert code == 0 and all(name in shown for name in accelerator.STAGES) and not folder.exists()


def test_a_stage_whose_rows_are_of_another_machine_fails(capfd, tmp_path):
  (tmp_path / 'served').mkdir()
  (tmp_path / 'served' / 'report.json').write_text(json.dumps(
      dict(settings=dict(rehearse=True), device='another', rows=[], tables=[])))
  code = accelerator.main(['', '--rehearse', '--stages=served', f'--workdir={tmp_path}'])
  captured = capfd.readouterr()
  assert code == 1 and 'with exit code 2' in captured.out
  assert 'error: workdir holds rows of' in captured.err and 'Traceback' not in captured.err


@pytest.mark.slow
def test_a_stage_that_is_stopped_is_continued(capsys, tmp_path):
  words = ('--rehearse', '--stages=large')
  stopped = calls.call(accelerator.main, capsys, tmp_path, *words, '--minutes=0.2501')
  assert stopped.code == 0 and 'at its limit' in stopped.out or 'itself' in stopped.out
  done = calls.call(accelerator.main, capsys, tmp_path, *words)
  assert done.code == 0, done.err
  report = _stored(tmp_path / 'large')
  assert [row['decoder'] for row in report['rows']] == ['vanilla', 'mc_sjd(window=16)'] * 2
  for row in report['rows']:
    assert row['ms'] > 0 and row['predicted_ms'] > 0 and row['kernels'] > 10
    assert row['speedup'] == pytest.approx(row['tokens'] * row['vanilla_ms'] / row['ms'])
  again = calls.call(accelerator.main, capsys, tmp_path, *words)
  assert _stored(tmp_path / 'large')['rows'] == report['rows'] and again.code == 0


@pytest.mark.slow
def test_the_rehearsal(capsys, tmp_path):
  for name in ('prometheus_client', 'starlette', 'uvicorn'):
    pytest.importorskip(name, reason="a stage starts the server: pip install -e '.[serve]'")
  result = calls.call(accelerator.main, capsys, tmp_path, '--rehearse', '--minutes=30')
  assert result.code == 0, result.err
  for name in accelerator.STAGES.keys() - {'official'}:  # It needs --repo.
    report = _stored(tmp_path / name)
    left_out = [note for note in report['notes']
                if note['what'].split(':')[0] != 'kernels and plain operations']
    assert report['rows'] and not left_out, (name, left_out)
