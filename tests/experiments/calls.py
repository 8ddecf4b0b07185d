"""Calls of programs in the process of the tests."""

import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple


class Call(NamedTuple):
  """What came of one call."""

  code: int
  out: str
  err: str
  folder: pathlib.Path


def call(main: Callable, capsys, folder: pathlib.Path, *words: str) -> Call:
  """Calls a command with an output folder of its own; of equal flags the last one counts.

  What a command prints is for readers: numbers are rounded.
  """
  commands = main.__module__.startswith('cspd_jax.commands') and 'train' not in main.__module__
  flag = '--output' if commands else '--workdir'
  # Flags of lists that are repeated would be joined.
  latest = {word.partition('=')[0]: word for word in (f'{flag}={folder}', *words)}
  code = main(['command', *latest.values()])
  captured = capsys.readouterr()
  assert not re.search(r'\d\.\d{12}', captured.out + captured.err), captured
  return Call(code, captured.out, captured.err, folder)


def call_with_classes(main: Callable, model: pathlib.Path, capsys, folder: pathlib.Path, *words: str
                      ) -> Call:
  """Calls a program of scenes with a model of classes, which has no prompts file or guidance."""
  return call(main, capsys, folder, f'--model={model}', '--guidance_scale=1', '--prompts=none',
              *words)


def check_refused(result: Call, words: list[str]) -> None:
  """Checks that wrong input ended in one message with `words` before anything was done."""
  assert result.code == 2
  assert result.err.startswith('error: ') and result.err.count('error: ') == 1, result.err
  assert 'Traceback' not in result.err
  for word in words:
    assert word in result.err, result.err
  assert result.out == '', 'nothing is compiled before the input is checked'
  assert not result.folder.exists()
