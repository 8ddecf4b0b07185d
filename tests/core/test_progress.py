"""The line that says how far a job is."""

import pytest

from cspd_jax.core import progress


def test_a_log_file_has_a_line_now_and_then(capsys, monkeypatch):
  with progress.bar('decoding') as show:
    for done in range(9):
      show(done, 8)
    progress.note('a line')
    monkeypatch.setattr(progress, 'SECONDS_OF_LINES', 0.0)
    show(8, 8)
  lines = capsys.readouterr().err
  assert '\r' not in lines
  assert [line.split('|')[0] for line in lines.splitlines()] == [
      'decoding:   0%', 'a line', 'decoding: 100%']


def test_a_log_file_has_a_line_at_the_end(capsys):
  """It stayed at 0% if the job took less than the time between two lines."""
  with progress.bar('decoding') as show:
    for done in range(5):
      show(done, 4)
  with pytest.raises(KeyboardInterrupt), progress.bar('again') as show:
    show(0, 4)
    show(3, 4)
    raise KeyboardInterrupt
  assert [line.split('|')[0] for line in capsys.readouterr().err.splitlines()] == [
      'decoding:   0%', 'decoding: 100%', 'again:   0%', 'again:  75%']


def test_bytes_that_are_no_utf_8_are_escaped():
  name = b'caf\xe9'.decode(errors='surrogateescape')
  assert progress.unicode(f'{name}\n\u65e5') == 'caf\\udce9\n\u65e5'
  assert progress.lines(f'{name}\n') == 'caf\\udce9\n'


@pytest.mark.parametrize('is_terminal', [False, True])
def test_pace_per_hour(capsys, monkeypatch, is_terminal):
  """Steps that an earlier run has finished do not count."""
  clock = [100.0]
  monkeypatch.setattr(progress.sys.stderr, 'isatty', lambda: is_terminal)
  monkeypatch.setattr(progress.tqdm.tqdm, 'monitor_interval', 0)
  monkeypatch.setattr(progress.time, 'perf_counter', lambda: clock[0])
  monkeypatch.setattr('tqdm.std.time', lambda: clock[0])
  with progress.bar('generating') as show:
    show(500, 2000)
    clock[0] += 200
    show(650, 2000)
  assert '650/2000' in (lines := capsys.readouterr().err) and '2,700 images/hour' in lines
  with progress.bar('converting', 'tensor') as show:
    show(0, 500)
    clock[0] += 0.5
    show(400, 500)
  assert '800.00tensor/s' in (lines := capsys.readouterr().err) and 'hour' not in lines
