"""Whether a place of a window, or a row of a batch, changes the last bits is seen."""

import functools
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core import matrices, programs, row_tiles
from cspd_jax.decoding import rounding
from cspd_jax.files import store
from cspd_jax.models import llamagen
from tests.builders import published
from tests.decoding import test_windows

CLEAN = test_windows.TARGET


def found(target, window, params, count=3):
  """What a comparison of a target with conditions that are classes finds."""
  begins = rounding.passes(window, target.num_tokens, count)
  run = programs.jit(functools.partial(rounding.digests, target, window), short_sums=True)
  return rounding.compare(begins, jax.device_get(run(params, np.ones(count, np.int32), begins)))


def doctored(change):
  """The target with other last bits: `(logits [S, B, N, V], params) -> factor`."""
  def score(params, cache, tokens, start, tree):
    logits, features, cache = CLEAN.score(params, cache, tokens, start, tree)
    return logits * (1 + np.float32(2**-22) * change(logits, params)), features, cache

  return CLEAN._replace(score=score)


def of_place(logits, place):
  return (jnp.arange(logits.shape[2]) == place)[:, None]


def of_row(logits, row):
  return (jnp.arange(logits.shape[1]) == row)[:, None, None]


# Targets that round otherwise in one place, in one row, or in one dtype.
DOCTORED = {
    'the last place': lambda logits, params: of_place(logits, logits.shape[2] - 1),
    'the first place': lambda logits, params: of_place(logits, 0),
    'a place of one stream': lambda logits, params: (
        of_place(logits, 2) & (jnp.arange(2) == 1)[:, None, None, None]),
    'the last row': lambda logits, params: of_row(logits, logits.shape[1] - 1),
    'what another row holds': lambda logits, params: (
        jnp.sum(logits[..., 0]) > jnp.sum(logits[..., 0], axis=(0, 2)))[:, None, None],
    'only in bfloat16': lambda logits, params: of_place(logits, 3) & (
        jax.tree.leaves(params)[0].dtype == jnp.bfloat16)}


@pytest.mark.parametrize('name', DOCTORED)
def test_what_rounds_otherwise_is_seen(name):
  target = doctored(DOCTORED[name])
  result = found(target, 5, test_windows.params('bfloat16'))
  assert not result.is_equal and 0 < result.places + result.rows <= 2 * result.compared
  assert (result.rows > 0) if 'row' in name else (result.places > 0)
  if 'bfloat16' in name:
    assert found(target, 5, test_windows.params('float32')).is_equal
  assert f'the logits of {result.places} depend on the place' in str(result)


@pytest.mark.parametrize('count', [1, 3])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_clean_target_is_clean(dtype, count):
  assert found(CLEAN, 5, test_windows.params(dtype), count).is_equal
  assert found(CLEAN, 8, test_windows.params(dtype), count).is_equal


def test_passes_reach_every_place_and_leave_no_slot_empty():
  for window in (1, 2, 3, 5, 8, 20, 64):
    for num_tokens in (70, 256, 1024):
      begins = rounding.passes(window, num_tokens, 5)
      steps = np.diff(begins, axis=1)
      assert not begins[:, 0].any() and steps.min() >= 0 and steps.max() <= window
      assert begins.max() < num_tokens and len(np.unique(begins[:, -1])) == min(4, window + 3)
      if window == 1:
        continue
      # Where a token stands, in one row: every place is compared with another one.
      places = {}
      for begin in begins[0]:
        for place in range(window):
          places.setdefault(begin + place, set()).add(place)
      assert {place for each in places.values() if len(each) > 1 for place in each} == set(
          range(window))


# Networks with the products of the library, in the forms of a CPU and as arrays.
NETWORKS = {
    'llamagen': (llamagen, llamagen.LlamaGenConfig(
        height=10, width=10, vocab_size=200, num_classes=3, dim=192, num_layers=1, num_heads=3,
        ffn_dim=512)),
    'grouped': (llamagen, llamagen.LlamaGenConfig(
        height=10, width=10, vocab_size=200, num_classes=3, dim=128, num_layers=1, num_heads=4,
        num_kv_heads=2, ffn_dim=352)),
}
FORMS = 'arrays', 'output-major', 'int8'


@functools.cache
def network(name, form, dtype):
  """A target and its parameters."""
  module, config = NETWORKS[name]
  params = published.random_params(functools.partial(module.init, config))
  inputs = matrices.inputs(store.KINDS['llamagen'].matrices)
  if form == 'int8':
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: matrices.quantized(leaf, count) if (count := inputs(
            jax.tree_util.keystr(path, simple=True, separator='/'))) else leaf, params)
  cast = lambda leaf: jnp.asarray(leaf, dtype if leaf.dtype == np.float32 else leaf.dtype)
  params = jax.tree.map(cast, params)
  if form == 'output-major':
    params = matrices.by_outputs(params, inputs)
  return module.target(config, guided=True), params


def sweep(windows, dtypes=('float32', 'bfloat16'), counts=(1, 3)):
  """Comparisons that are not equal, by case."""
  cases = itertools.product(NETWORKS, FORMS, dtypes, windows, counts)
  return {case: str(result) for *case, window, count in cases
          if not (result := found(network(*case)[0], window, network(*case)[1], count)).is_equal
          for case in [(*case, window, count)]}


def test_the_networks_of_the_library_are_clean():
  assert not sweep([8], ['float32'], [1])


# By what the products of a CPU are computed: YNNPACK, and XLA's own for the CPU's instruction set
# and for older ones.
_OWN = '--xla_cpu_experimental_ynn_fusion_type='
LIBRARIES = {'YNNPACK': '', 'XLA': _OWN, 'XLA for AVX2': f'{_OWN} --xla_cpu_max_isa=AVX2',
             'XLA for AVX': f'{_OWN} --xla_cpu_max_isa=AVX',
             'XLA in one thread': f'{_OWN} --xla_cpu_multi_thread_eigen=false',
             'YNNPACK for AVX': '--xla_cpu_max_isa=AVX'}


@pytest.mark.slow
@pytest.mark.parametrize('flags', LIBRARIES.values(), ids=LIBRARIES)
def test_all_windows_are_clean_whatever_computes_products(flags):
  some = (7, 8, 13, 14, 15, 17, 20, 25, 29, 33, 45, 64)
  windows = {'': range(1, 71), _OWN: sorted({*range(1, 24), *some})}.get(flags, some)
  # Programs are dropped after every window: a process may not have the memory maps of all.
  program = ('import jax\nfrom tests.decoding import test_rounding as test\n'
             'def run(windows, dtype, counts):\n'
             '  for window in windows:\n'
             '    print(*test.sweep([window], [dtype], counts).items(), sep="\\n", end="")\n'
             '    jax.clear_caches()\n'
             f'run({list(windows)}, "float32", [3])\n'
             'run([*range(1, 9), 15, 21, 29, 33], "bfloat16", [1, 3])')
  done = subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True, check=True,
      env=os.environ | dict(  # XLA reads blanks alone as the name of a file.
          XLA_FLAGS=f'{os.environ.get("XLA_FLAGS", "")} {flags}'.strip()))
  assert not done.stdout


@pytest.mark.parametrize('factor', [0, 1])
def test_rows_are_padded_to_tiles_where_products_are_those_of_xla(monkeypatch, factor):
  options = {**(programs.compiler_options(short_sums=True) or {}), programs._FUSIONS: ''}
  monkeypatch.setattr(programs, 'compiler_options', lambda **_: options)
  monkeypatch.setattr(programs, 'uses_ynnpack', lambda: False)
  row_tiles._tile.cache_clear()
  try:
    # XLA divides more than 48 rows into blocks, which cut the tiles of the last ones otherwise.
    counts = (4, 7, 8, 11, 20, 42, 50, 70, 78, 90, 130, 174, 186, 198, 210, 270, 282, 402)
    sizes = [row_tiles.num_rows(count, factor) for count in counts]
    assert row_tiles.are_alike(factor, set(sizes))
    assert all(0 <= size - count < 48 for size, count in zip(sizes, counts, strict=True))
    x = jnp.ones((2, 20, 3))
    assert row_tiles.padded(x, 1, factor).shape == (2, row_tiles.num_rows(20, factor), 3)
    assert float(row_tiles.padded(x, -2, factor).sum()) == 120
  finally:
    row_tiles._tile.cache_clear()


def test_products_of_ynnpack_need_no_padding():
  if not programs.uses_ynnpack():
    pytest.skip('this jaxlib has no such option')
  assert [row_tiles.num_rows(count, factor) for factor in (0, 1) for count in (7, 20)] == [
      7, 20, 7, 20]
  assert row_tiles.are_alike(0, (8, 20, 33)) and row_tiles.are_alike(1, (8, 20))
