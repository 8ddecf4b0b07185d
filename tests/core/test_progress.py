"""The line that says how far a job is."""

from cspd_jax.core import progress


def test_done_and_total(capsys, monkeypatch):
  monkeypatch.setattr(progress.tqdm.tqdm, 'monitor_interval', 0)
  with progress.bar('decoding') as show:
    show(0, 4)
    progress.say('a line')
    show(3, 4)
    show(4, 4)
  captured = capsys.readouterr()
  assert 'a line\n' in captured.out
  assert 'decoding:   0%' in captured.err and '0/4' in captured.err


def test_nothing_is_shown_before_the_first_step(capsys):
  with progress.bar('decoding'):
    pass
  assert capsys.readouterr().err == ''
