"""Compiler options: on CPUs what is computed with them, and CUDA graphs, where there are any."""

import concurrent.futures
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.core import programs
from cspd_jax.metrics import image_scores

YNN, PASSES = 'xla_cpu_experimental_ynn_fusion_type', 'xla_disable_hlo_passes'


@pytest.fixture
def options(monkeypatch):
  """The options of a new process."""
  def of(flags=''):
    monkeypatch.setenv('XLA_FLAGS', flags)
    programs._options_of_cpus.cache_clear()
    return programs._options_of_cpus()

  yield of
  programs._options_of_cpus.cache_clear()


def _compiled(jitted, *arguments):
  return jitted.lower(*arguments).compile().as_text()


def _reductions(text):
  """The computations of a program that the library computes and that hold a reduction."""
  fused = re.findall(r'fusion\([^\n]*calls=%([\w.-]+)[^\n]*ynn_fusion', text)
  body = lambda name: re.search(rf'^%{re.escape(name)} \(.*?^}}', text, re.M | re.S)[0]
  return [name for name in fused if ' reduce(' in body(name)]


def test_products_followed_by_sums_are_right():
  """Fails if a jaxlib computes the example of jax-ml/jax issue 39103 wrongly through `jit`."""
  assert programs.wrong_rows(programs.jit) == 0


def test_no_reduction_is_part_of_a_product():
  """That fusion is what jaxlib 0.10 computes wrongly, wherever a program has it."""
  def run(x, w):
    y = x @ w
    return jnp.sum(y * y, axis=0), jnp.max(x @ w @ w.T, axis=0)

  x, w = jnp.ones((4001, 7)), jnp.ones((7, 5))
  assert _reductions(_compiled(programs.jit(run), x, w)) == []
  text = _compiled(jax.jit(run), x, w)
  # Elsewhere the library may be missing. Where it is used, the search finds its reductions.
  assert 'ynn_fusion' not in text or _reductions(text)


def test_a_decoder_has_no_such_fusion_and_no_trees():
  model = cspd_jax.load('demo')
  request = model.images(
      ['cat'], seed=0, decoder='corrected(iterations=1, window=4)', pixels=False)
  text = _compiled(request.sampler.jitted(), *request.sampler.arguments(request, np.array([0])))
  tree = ' reduce-window('
  assert _reductions(text) == [] and tree not in text
  assert tree in _compiled(programs.jit(jax.nn.softmax), jnp.ones((2, 1000)))
  softmax = cspd_jax.jit(jax.nn.softmax, static_argnames='axis')
  assert tree not in _compiled(softmax, jnp.ones((2, 1000)))
  trees_again = cspd_jax.jit(jax.nn.softmax, compiler_options={PASSES: ''})
  assert tree in _compiled(trees_again, jnp.ones((2, 1000)))


@pytest.mark.parametrize('terms', [768, 16_384, 262_144])
def test_short_sums_are_as_accurate(terms):
  x = jax.random.uniform(jax.random.key(0), (8, terms))
  # As programs are compiled outside of tests: several partial sums are added at once.
  options = {'xla_backend_optimization_level': 2, 'xla_llvm_disable_expensive_passes': False}
  sums = programs.jit(lambda x: jnp.sum(x, axis=-1), short_sums=True, options=options)(x)
  np.testing.assert_allclose(sums, np.asarray(x, np.float64).sum(axis=-1), rtol=1e-6)


def test_distances_of_evaluators_are_those_of_float64():
  """Precision and recall at the sizes of FID-50k's features, where a wrong row would count."""
  rng = np.random.default_rng(0)
  manifold = rng.standard_normal((40_001, 8)).astype(np.float32)
  rows = manifold[:64]
  distances = programs.jit(image_scores._squared_distances)(rows, manifold)
  want = ((rows[:, None].astype(np.float64) - manifold[None]) ** 2).sum(axis=-1)
  np.testing.assert_allclose(distances, want, rtol=1e-4, atol=1e-4)


def test_the_user_of_xla_flags_decides(options):
  products = {YNN: 'LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT'}
  trees = {PASSES: 'tree_reduction_rewriter'}
  assert options('--xla_cpu_multi_thread_eigen=true') == products | trees
  assert programs.compiler_options(short_sums=True) == products | trees
  assert programs.compiler_options() == products
  assert options(f'--{PASSES}=algsimp') == products == programs.compiler_options(short_sums=True)
  assert options(f'--{YNN}=') == trees and programs.compiler_options() is None
  assert options(f'--{YNN}= --{PASSES}=algsimp') is None


@pytest.mark.parametrize('error, is_said', [
    ("INVALID_ARGUMENT: No such compile option: 'xla_cpu_experimental'", False),
    ('INTERNAL: it is Friday', True)])
def test_versions_without_the_option(options, monkeypatch, caplog, error, is_said):
  """An unknown option is left out in silence, another error is one warning; programs compile."""
  real = jax.jit

  def without(function, compiler_options=None, **more):
    if YNN in (compiler_options or {}):
      raise jax.errors.JaxRuntimeError(error)
    return real(function, compiler_options=compiler_options, **more)

  monkeypatch.setattr(jax, 'jit', without)
  monkeypatch.setattr(programs, 'wrong_rows', lambda jit: 0 * jit(lambda x: x)(1))
  with caplog.at_level(logging.WARNING):
    assert options() is None and programs.jit(lambda x: x + 1)(1) == 2
    programs.jit(lambda x: x + 2)(1)
  assert len(caplog.records) == is_said
  assert not is_said or 'it is Friday' in caplog.text


def test_wrong_numbers_are_said_once(options, monkeypatch, caplog):
  """Wrong results of the compiler are one warning per process; here one row is wrong."""
  real = jax.jit
  monkeypatch.setattr(jax, 'jit', lambda function, **more: real(
      lambda rows: function(rows).at[7].add(1), **more))
  with caplog.at_level(logging.WARNING):
    assert options('--xla_cpu_multi_thread_eigen=true')
    programs._options_of_cpus()
  assert len(caplog.records) == 1
  assert '(1 of 40001 rows' in caplog.text and 'docs/reliability.md' in caplog.text


def test_options_are_found_while_a_function_is_traced(options):
  @jax.jit
  def outer(x):
    assert options() is not None
    return x

  assert outer(3) == 3


def test_a_program_in_a_program():
  call = programs.jit_unless_traced(lambda x: 2 * x)
  assert call(3) == 6 and jax.jit(lambda x: call(x) + 1)(3) == 7
  assert jax.jit(lambda x: call(np.float32(3)) + x)(1) == 7
  assert jax.eval_shape(call, 3.0).shape == ()
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    assert list(pool.map(call, range(4))) == [0, 2, 4, 6]


def test_no_graphs_are_asked_for_elsewhere(monkeypatch):
  assert not programs.on_cuda()
  for graphs in programs.GRAPHS:
    monkeypatch.setenv('CSPD_JAX_GRAPHS', graphs)
    assert not [name for name in programs.compiler_options() or () if 'gpu' in name]
    assert programs.jit(lambda x: x + 1)(1) == 2


def test_loops_are_recorded_if_asked_for(monkeypatch):
  monkeypatch.setattr(programs, 'on_cuda', lambda: True)
  monkeypatch.setattr(programs, 'kept_kernels', lambda: None)
  monkeypatch.delenv('CSPD_JAX_GRAPHS', raising=False)
  assert programs.compiler_options() is None
  monkeypatch.setenv('CSPD_JAX_GRAPHS', 'loop')
  assert programs.compiler_options('round') is None
  (recorded,) = programs.compiler_options().values()
  assert {'WHILE', 'CONDITIONAL', 'CUDNN'} <= set(recorded.split(','))
  # XLA knows the option whatever it compiles for.
  count = programs.jit(lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: 2 * x, x))
  assert count(jnp.int32(3)) == 12


def test_other_words_for_graphs(monkeypatch):
  monkeypatch.setenv('CSPD_JAX_GRAPHS', 'all')
  with pytest.raises(ValueError, match="CSPD_JAX_GRAPHS is 'all'; it must be one of round, loop"):
    programs.jit(lambda x: x)
