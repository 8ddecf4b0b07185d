"""Runs a program of `experiments` many times in one process.

Programs define flags, and two programs cannot define the same one in one process, so the calls of
a test file are made together in a process of their own.
"""

import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]

# Calls `main` for every list of arguments on stdin and prints what came of each.
_DRIVER = '''
import contextlib, importlib, io, json, sys
from absl.testing import flagsaver
from experiments import config_flags

program = importlib.import_module('experiments.' + sys.argv[1])
results = []
for arguments in json.load(sys.stdin):
  out, err = io.StringIO(), io.StringIO()
  saved = flagsaver.save_flag_values()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      code = program.main(config_flags.parse([sys.argv[1], *arguments]))
    except SystemExit as stop:
      code = stop.code
  flagsaver.restore_flag_values(saved)
  results.append([code, out.getvalue(), err.getvalue()])
json.dump(results, sys.stdout)
'''


class Call(NamedTuple):
  """What came of one call."""

  code: int
  out: str
  err: str
  folder: pathlib.Path


def run(program: str, calls: dict[str, list[str]], defaults: list[str],
        out: pathlib.Path) -> dict[str, Call]:
  """Calls a program once per entry, each with a `--workdir` of its own in `out`.

  Args:
    program: name of the module.
    calls: arguments by name.
    defaults: arguments of every call that has no `--config=`; the call's own count more.
    out: folder of the results.
  """
  arguments = []
  for i, words in enumerate(calls.values()):
    # The last one of several equal flags counts.
    words = [f'--workdir={out}/out{i}', *words]
    has_config = any(word.startswith('--config=') for word in words)
    arguments.append(words if has_config else defaults + words)
  done = subprocess.run(
      [sys.executable, '-c', _DRIVER, program], input=json.dumps(arguments), text=True, cwd=ROOT,
      env=dict(os.environ, JAX_PLATFORMS='cpu'), capture_output=True, check=False)
  assert done.returncode == 0, done.stderr
  return {name: Call(*result, out / f'out{i}')
          for i, (name, result) in enumerate(zip(calls, json.loads(done.stdout)))}


def check_refused(call: Call, words: list[str]) -> None:
  """Checks that wrong input ended in one message with `words` before anything was done."""
  assert call.code == 2
  assert call.err.startswith('error: ') and call.err.count('error: ') == 1, call.err
  assert 'Traceback' not in call.err
  for word in words:
    assert word in call.err, call.err
  assert call.out == '', 'nothing is compiled before the input is checked'
  assert not call.folder.exists()
