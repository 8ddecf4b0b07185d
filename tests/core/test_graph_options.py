"""How decoders are compiled: CUDA graphs, where there are any."""

import jax
import jax.numpy as jnp
import pytest

from cspd_jax.core import programs


def test_no_graphs_are_asked_for_elsewhere(monkeypatch):
  assert not programs.on_cuda()
  for graphs in programs.GRAPHS:
    monkeypatch.setenv('CSPD_JAX_GRAPHS', graphs)
    assert not [name for name in programs.compiler_options() or () if 'gpu' in name]
    assert programs.jit(lambda x: x + 1)(1) == 2


def test_loops_are_recorded_if_asked_for(monkeypatch):
  monkeypatch.setattr(programs, 'on_cuda', lambda: True)
  monkeypatch.delenv('CSPD_JAX_GRAPHS', raising=False)
  assert programs.compiler_options() is None
  monkeypatch.setenv('CSPD_JAX_GRAPHS', 'loop')
  assert programs.compiler_options('round') is None
  (recorded,) = programs.compiler_options().values()
  assert {'WHILE', 'CONDITIONAL', 'CUDNN'} <= set(recorded.split(','))
  # XLA knows the option whatever it compiles for.
  count = programs.jit(lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: 2 * x, x))
  assert count(jnp.int32(3)) == 12


def test_other_words(monkeypatch):
  monkeypatch.setenv('CSPD_JAX_GRAPHS', 'all')
  with pytest.raises(ValueError, match="CSPD_JAX_GRAPHS is 'all'; it must be one of round, loop"):
    programs.jit(lambda x: x)
