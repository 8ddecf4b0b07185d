"""Lines about the programs that are compiled."""

import contextlib
import functools
import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import testing
from cspd_jax.core import compilations, programs
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing.tabular import tabular
from tests.builders import models
from tests.marks import representative


def _double(x):
  return jnp.ones(3).sum() + 2 * x  # The sum is computed outside of the program.


def test_a_line_per_program(capsys):
  run = programs.jit(_double, label='twice')
  with compilations.reported(total=2):
    for size in (2, 2, 3, 4):
      run(jnp.ones(size))
    programs.jit(_double)(jnp.ones(2))
  run(jnp.ones(5))
  captured = capsys.readouterr()
  assert captured.out == ''
  lines = captured.err.splitlines()
  assert lines[::2] == [f'compiling twice{number}...' for number in (' (1 of 2)', ' (2 of 2)', '')]
  assert all(re.fullmatch(r'compiled twice in \d+\.\d s', line) for line in lines[1::2])


def test_a_function_that_fails_ends_no_line_of_another(capsys):
  def fail(x):
    raise ValueError(x.shape)

  with compilations.reported():
    with pytest.raises(ValueError):
      programs.jit(fail, label='fails')(jnp.ones(7))
    programs.jit(_double)(jnp.ones(7))
  assert capsys.readouterr().err == 'compiling fails...\n'


@pytest.fixture
def impatient(monkeypatch):
  """Lines come at once, and no second one."""
  monkeypatch.setattr(compilations, '_PATIENCE', 0.02)


def test_a_long_block_says_what_it_does(impatient, capsys):
  with compilations.told(lambda: 'decoding'):
    time.sleep(0.2)
  assert capsys.readouterr().err == 'decoding...\n'
  for reported, speaks in ((contextlib.nullcontext(), False), (compilations.reported(), True)):
    with reported, compilations.told(lambda: 'decoding', speaks):
      time.sleep(0.1)
    assert capsys.readouterr().err == ''


def test_a_long_block_says_what_it_compiles(impatient, capsys):
  def slow(x):
    time.sleep(0.2)
    return 2 * x

  with compilations.told(lambda: 'decoding'), compilations.told(lambda: 'inside'):
    programs.jit(slow, label='slowly')(jnp.ones(2))
  assert capsys.readouterr().err == 'compiling slowly...\n'


def test_a_short_block_says_nothing(capsys):
  threads = threading.active_count()
  with compilations.told(lambda: 'decoding'):
    programs.jit(_double, label='twice')(jnp.ones(3))
  assert capsys.readouterr().err == '' and threading.active_count() == threads


_TABLE = tabular(jax.random.key(0), 3, 6, guided=True, row_width=3)
# Long calls of the package, by how the line of each begins.
_CALLS = {
    '(generating with|compiling) vanilla': lambda **options: models.of_table().generate(
        [0], decoder='vanilla', **options),
    '(decoding with|compiling the prefill of) vanilla': lambda **options: list(
        models.of_table().stream([0], decoder='vanilla', **options)),
    r'loading demo: \d of \d networks': functools.partial(cspd_jax.load, 'demo'),
    r'drawing sequences: \d+ of 64': functools.partial(
        testing.check_sampler, lambda key, labels: (time.sleep(0.01), jax.random.randint(
            key, (len(labels), 1), 0, 2))[1], np.full((1, 2), 0.5), 2, samples=64, batch_size=8),
    'checking the target: .*, check 1 of ': functools.partial(
        testing.check_target, _TABLE.target, _TABLE.params, jnp.zeros(2, int)),
    'checking the verifier: results, check 1 of ': functools.partial(
        testing.check_verifier, rejection())}


@pytest.mark.parametrize('line', representative(
    _CALLS, *[line for line in _CALLS if 'checking' not in line]))
def test_long_calls_say_what_they_do(impatient, capsys, line):
  _CALLS[line]()
  assert re.match(line, capsys.readouterr().err)
  _CALLS[line](progress=False)
  assert capsys.readouterr().err == ''
