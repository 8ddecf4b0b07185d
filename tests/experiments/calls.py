"""Calls of programs in the process of the tests."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple


class Call(NamedTuple):
  """What came of one call."""

  code: int
  out: str
  err: str
  folder: pathlib.Path


def call(main: Callable, capsys, folder: pathlib.Path, *words: str) -> Call:
  """Calls a command with an output folder of its own; of equal flags the last one counts."""
  commands = main.__module__.startswith('cspd_jax.commands') and 'train' not in main.__module__
  flag = '--output' if commands else '--workdir'
  code = main(['command', f'{flag}={folder}', *words])
  captured = capsys.readouterr()
  return Call(code, captured.out, captured.err, folder)


def check_refused(found: Call, words: list[str]) -> None:
  """Checks that wrong input ended in one message with `words` before anything was done."""
  assert found.code == 2
  assert found.err.startswith('error: ') and found.err.count('error: ') == 1, found.err
  assert 'Traceback' not in found.err
  for word in words:
    assert word in found.err, found.err
  assert found.out == '', 'nothing is compiled before the input is checked'
  assert not found.folder.exists()
