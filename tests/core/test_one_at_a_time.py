"""Programs for NVIDIA GPUs are compiled one at a time, and keep the kernels that XLA chooses."""

import concurrent.futures
import threading
import time

import jax
import jax.numpy as jnp
import jaxlib
import pytest

from cspd_jax.core import programs

OPTION = 'xla_gpu_per_fusion_autotune_cache_dir'


@pytest.fixture(autouse=True)
def _on_cuda(monkeypatch):
  """Makes this process take its CPU for an NVIDIA GPU, whose options its compiler has, too."""
  monkeypatch.setattr(programs, 'on_cuda', lambda: True)
  folder = jax.config.jax_compilation_cache_dir
  yield
  jax.config.update('jax_compilation_cache_dir', folder)


@pytest.mark.parametrize('compile_of', [
    lambda run: run(jnp.ones(2)), lambda run: programs.compiled_for(run, jnp.ones(2))])
def test_one_program_is_compiled_at_a_time(compile_of):
  running, most = [], []

  def program(number):
    def traced(x):
      running.append(number)
      most.append(len(running))
      time.sleep(0.02)  # For the other threads to begin.
      return x * number
    return programs.jit(traced, inspect=lambda args, text: running.remove(number))

  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(compile_of, map(program, range(4))))
  assert most == [1] * 4 and running == []


def _is_free():
  """Whether another thread can compile now."""
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    return pool.submit(lambda: programs._COMPILING.acquire(timeout=5) and (
        programs._COMPILING.release() or True)).result()


def test_only_what_compiles_is_inspected_and_has_a_turn():
  seen = []
  run = programs.jit(lambda x, y: (x + 1, y), donate_argnums=1, short_sums=True,
                     inspect=lambda args, text: seen.append((args[0].shape, text[:9])))
  for size in (2, 2, 3, 2):
    result, _ = run(jnp.zeros(size), jnp.zeros(size))
    assert result.tolist() == [1.0] * size
  assert seen == [((2,), 'HloModule'), ((3,), 'HloModule')]
  assert programs.compiled_for(run, jnp.zeros(4), jnp.zeros(4)).seconds > 0
  assert run.lower(jnp.zeros(5), jnp.zeros(5)).as_text() and len(seen) == 3
  run(jnp.zeros(4), jnp.zeros(4))
  assert len(seen) == 3 and _is_free()


def test_an_error_ends_the_turn():
  def wrong(x):
    raise KeyError('of the function')

  with pytest.raises(KeyError):
    programs.jit(wrong)(jnp.ones(2))
  assert _is_free()


def test_a_call_that_does_not_compile_does_not_wait():
  run, entered, leave = programs.jit(lambda x: x + 1), threading.Event(), threading.Event()
  run(jnp.ones(2))

  def slow(x):
    entered.set()
    assert leave.wait(30)
    return x

  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    compiling = pool.submit(programs.jit(slow), jnp.ones(2))
    assert entered.wait(30) and run(jnp.ones(2)).tolist() == [2.0, 2.0]
    leave.set()
    compiling.result()


def test_kernels_are_kept_with_the_compilation_cache(tmp_path, monkeypatch):
  jax.config.update('jax_compilation_cache_dir', str(tmp_path))
  folder = tmp_path / f'kernels-{jax.devices()[0].device_kind}-{jaxlib.__version__}'
  assert programs.compiler_options() == {OPTION: str(folder)} and folder.is_dir()
  assert programs.jit(lambda x: x + 1)(1) == 2  # XLA has the option.
  monkeypatch.setenv('XLA_FLAGS', f'--{OPTION}=/elsewhere')
  assert programs.kept_kernels() is None
  monkeypatch.delenv('XLA_FLAGS')
  keeps = jax.config.jax_persistent_cache_enable_xla_caches
  jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')
  assert programs.compiler_options() is None
  jax.config.update('jax_persistent_cache_enable_xla_caches', keeps)
  jax.config.update('jax_compilation_cache_dir', None)
  assert programs.compiler_options() is None


@pytest.mark.parametrize('fault', ['no such option', 'no folder'])
def test_a_version_without_the_option_compiles_without_it(tmp_path, monkeypatch, caplog, fault):
  root = tmp_path / 'root'
  if fault == 'no folder':
    root.write_text('')
  else:
    monkeypatch.setattr(programs, '_KEPT', OPTION[:-4])
  jax.config.update('jax_compilation_cache_dir', str(root))
  with caplog.at_level('WARNING', logger='absl'):
    assert programs.jit(lambda x: x + 1)(1) == 2 and programs.compiler_options() is None
  assert 'cannot keep the kernels' in caplog.text
