"""Lines about the programs that are compiled."""

import re

import jax.numpy as jnp
import pytest

from cspd_jax.core import compilations, programs


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
