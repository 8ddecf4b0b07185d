"""How programs end."""

import contextlib
import errno
import importlib.util
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from cspd_jax.cli import exits
from cspd_jax.core import fields, progress
from tests.marks import representative

_FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'a/b')


def ended_code(error):
  def main():
    raise error

  return exits.code_of(main)


def ended(capsys, error):
  return ended_code(error), capsys.readouterr().err


@pytest.mark.parametrize('error, code, said', [
    (KeyboardInterrupt(), 130, 'interrupted\n'),
    (ValueError('x is 1;\n  y is 2.\n'), 2, 'error: x is 1; y is 2.\n'),
    (_FULL, 2, "error: No space left on device: 'a/b'; free some space and repeat the command.\n"),
    (OSError(errno.EROFS, 'Read-only file system'), 2,
     'error: Read-only file system (the system names no file; it may be the standard output)\n'),
    (OSError('no words'), 2, 'error: no words\n'),
    (ImportError('no torch'), 2, 'error: no torch\n'),
    (jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory'), 2, 'error: the machine is '
     'out of memory (RESOURCE_EXHAUSTED: Out of memory); request less at once, such as a smaller '
     'batch.\n')])
def test_codes_and_messages(capsys, error, code, said):
  assert ended(capsys, error) == (code, said)


def test_names_that_hold_control_characters(capsys):
  """A name in a file of someone else moves no cursor and hides nothing on a terminal."""
  name = 'a\x1b[2J\x07\x9b1m\u202ecat\rb'

  def main():
    print(f'model {name} 日本 👩‍🎨\tend')
    print('\r 10%', end='')
    print(name, file=sys.stderr)
    raise ValueError(f'{name} is wrong')

  assert exits.code_of(main) == 2
  out, err = capsys.readouterr()
  shown = r'a\x1b[2J\x07\x9b1m\u202ecat\rb'
  assert out == f'model {shown} 日本 👩‍🎨\tend\n\r 10%'
  assert err == f'{shown}\nerror: {shown.replace(chr(92) + "r", " ")} is wrong\n'


def test_memory_that_cannot_be_had(capsys):
  """Of Python, of NumPy and of JAX, on this machine."""
  for make in (lambda: [0] * 10**15, lambda: np.zeros(10**15),
               lambda: jax.block_until_ready(jax.numpy.zeros((10**7, 10**7)))):
    assert exits.code_of(make) == 2
    err = capsys.readouterr().err
    assert err.startswith('error: the machine is out of memory (') and err.count('\n') == 1


@pytest.mark.parametrize('error', [
    TypeError('a mistake'), KeyError('x'), jax.errors.JaxRuntimeError('INTERNAL: a mistake')])
def test_mistakes_of_the_program_keep_their_traceback(error):
  def main():
    raise error

  with pytest.raises(type(error)):
    exits.code_of(main)


def test_long_messages_are_cut(capsys):
  _, err = ended(capsys, ValueError('x' * 10**5))
  assert len(err) < 2000 and err.endswith(' ...\n')


def test_lists_of_problems_keep_their_lines(capsys):
  code, err = ended(capsys, fields.ListedError('2 problems:\n  x is 1\n\n  y is 2  \n'))
  assert (code, err) == (2, 'error: 2 problems:\n  x is 1\n  y is 2\n')
  _, err = ended(capsys, fields.ListedError('\n'.join(['x' * 80] * 1000)))
  assert len(err) < 9000 and err.endswith(' ...\n')


@pytest.mark.parametrize('both', representative([False, True], False))
def test_a_pipe_that_nobody_reads(tmp_path, both):
  """It ended with 141 at the next line that was printed, and what came after that was lost."""
  program = ('import pathlib, sys; from cspd_jax.cli import exits\n'
             'def main():\n'
             '  for _ in range(10000):\n'
             '    print("x" * 100)\n'
             '    print("x" * 100, file=sys.stderr)\n'
             '  print("the end", flush=True)\n'
             f'  pathlib.Path({str(tmp_path / "result")!r}).write_text("work")\n'
             '  return 7\n'
             'sys.exit(exits.code_of(main))')
  with open(tmp_path / 'log', 'wb') as log, subprocess.Popen(
      [sys.executable, '-c', program], stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT if both else log) as process:
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 7
  assert (tmp_path / 'result').read_text() == 'work'
  lines = (tmp_path / 'log').read_text().splitlines()
  assert lines == ([] if both else ['x' * 100] * 10000)


@pytest.mark.parametrize('names', [['stdout'], ['stderr'], ['stdout', 'stderr']])
def test_streams_that_are_closed(monkeypatch, names):
  """Python has None in their place."""
  for name in names:
    monkeypatch.setattr(sys, name, None)

  def main():
    with progress.bar('x') as show:
      show(1, 2)
      progress.say('x')

  assert exits.code_of(main) == 0
  assert ended_code(ValueError('x')) == 2


def test_a_standard_output_that_is_full(monkeypatch, capsys):
  with contextlib.suppress(OSError), open('/dev/full', 'w') as full:
    monkeypatch.setattr(sys, 'stdout', full)
    assert exits.code_of(lambda: print('x')) == 2
  assert capsys.readouterr().err == (
      'error: No space left on device (the system names no file; it may be the standard output); '
      'free some space and repeat the command.\n')


def test_a_standard_error_that_is_full(tmp_path):
  """It ended with 1, and the work was lost; what it says is no result."""
  program = ('import sys; from cspd_jax.cli import exits\n'
             'def main():\n'
             '  print("x" * 10**5, file=sys.stderr, flush=True)\n'
             '  print("work")\n'
             '  if len(sys.argv) > 1: raise ValueError("x is 1")\n'
             '  return 7\n'
             'sys.exit(exits.code_of(main))')
  if not os.path.exists('/dev/full'):
    pytest.skip('the system has no such device')
  for words, code in (((), 7), (('wrong',), 2)):
    with open('/dev/full', 'w') as full:
      done = subprocess.run([sys.executable, '-c', program, *words], stdout=subprocess.PIPE,
                            stderr=full, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, 'work\n')


def test_a_device_that_there_is_not():
  """Neither is the model damaged, nor is it a mistake of the program."""
  has_gpu = importlib.util.find_spec('jax_cuda12_plugin') is not None
  device = 'abacus' if has_gpu else 'cuda'
  program = ('import sys; from cspd_jax.files import store; from cspd_jax.cli import exits; '
             'import jax; code = exits.code_of(lambda: store.load("demo/target")); '
             'sys.exit(exits.code_of(lambda: jax.numpy.zeros(3)) + code)')
  done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True,
                        env=os.environ | {'JAX_PLATFORMS': device}, check=False)
  lines = done.stderr.splitlines()
  assert done.returncode == 4 and len(lines) == 2 and lines[0] == lines[1], done.stderr
  assert lines[0].startswith(f'error: JAX_PLATFORMS is {device}, and JAX cannot start on such')
