"""Keys and values in int8: what is stored, what is attended to, and that it is one target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.families.folder import with_cache_dtype
from cspd_jax.files import store
from cspd_jax.generation import memory
from cspd_jax.models import attention, llamagen
from cspd_jax.testing import check_target
from tests.builders import published

CONFIG = llamagen.LlamaGenConfig(
    height=4, width=4, dim=16, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=24,
    vocab_size=12, num_classes=3)


def _normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('model') / 'target'
  store.save(folder, 'llamagen', CONFIG, published.params('llamagen', CONFIG, 3))
  return folder


def test_slots_are_rounded_one_by_one():
  x = _normal(0, 2, 3, 5, 8) * jnp.array([1e-3, 1, 0, 50, 3])[:, None]
  slots = attention.quantized(x)
  assert slots.values.dtype == jnp.int8 and slots.scale.shape == (2, 3, 5, 1)
  assert slots.shape == x.shape
  assert np.all(np.abs(slots.values * slots.scale - x) <= slots.scale / 2 * 1.0001)
  largest = np.abs(np.asarray(slots.values, int)).max(-1)
  assert np.all(largest[:, :, [0, 1, 3, 4]] == 127) and not slots.values[:, :, 2].any()


@pytest.mark.parametrize('dtype, tolerance', [('float32', 1e-5), ('bfloat16', 3e-2)])
def test_attention_is_that_to_the_rounded_numbers(dtype, tolerance):
  query, keys, values = _normal(0, 2, 3, 4, 8), _normal(1, 2, 2, 9, 8), 5 * _normal(2, 2, 2, 9, 8)
  mask = np.random.default_rng(3).random((2, 3, 9)) < 0.5
  mask[..., 0] = True
  with jax.default_matmul_precision('highest'):
    slots = [attention.quantized(x) for x in (keys, values)]
    out = attention.attend(query.astype(dtype), *slots, jnp.asarray(mask))
    expected = attention.plain(query, *(x.values * x.scale for x in slots), jnp.asarray(mask))
    unrounded = attention.plain(query, keys, values, jnp.asarray(mask))
  assert out.dtype == jnp.dtype(dtype)
  np.testing.assert_allclose(out.astype(jnp.float32), expected, atol=tolerance)
  assert np.abs(expected - unrounded).max() > 1e-3


@pytest.mark.slow
def test_windows_trees_and_commit_agree(folder):
  model = cspd_jax.load(folder, cache_dtype='int8')
  with jax.default_matmul_precision('highest'):
    check_target(model.target(guided=True), model.params, model.condition([0, 1, 2]))


@pytest.mark.slow
@pytest.mark.parametrize('decoder', [
    'seed_exact', 'corrected_seed_exact(corrector=layers)',
    'jacobi(coupling=gumbel, tree=kary(2, 2))+match'])
def test_exact_decoders_are_exact_to_it(folder, decoder):
  model = cspd_jax.load(folder, cache_dtype='int8', quantize='int8')

  def tokens(specification):
    decode = model.decoder(model.table.complete(specification, window=8), guided=True)
    return np.asarray(jax.jit(decode)(
        model.params, model.condition([0, 1, 2]), jax.random.key(5),
        model.sampling(guidance_scale=2.0), model.draft_params(specification)).tokens)

  np.testing.assert_array_equal(tokens(decoder), tokens('vanilla'))


@pytest.mark.slow
def test_images_do_not_depend_on_the_batch():
  model = cspd_jax.load('demo', cache_dtype='int8')
  generate = lambda size: model.generate(
      ['cat', 'rocket', 'cat'], seed=3, decoder='mc_sjd(window=8)', batch_size=size).tokens
  np.testing.assert_array_equal(generate(2), generate(1))


@pytest.mark.slow
def test_the_cache_is_smaller_and_the_estimate_says_so():
  whole = cspd_jax.load('demo', dtype='bfloat16')
  small = cspd_jax.load('demo', dtype='bfloat16', cache_dtype='int8')
  sizes = [memory.cache_size(model.target(guided=True), model.params, model.condition(['cat']), 256)
           for model in (whole, small)]
  width = whole.config.transformer.head_dim
  assert sizes[1] / sizes[0] == pytest.approx((width + 4) / (2 * width), rel=0.01)
  assert whole.cache_dtype is None and with_cache_dtype(small, 'int8') is small


@pytest.mark.slow
def test_continuous_tokens():
  pytest.importorskip('tokenizers')
  whole, small = (cspd_jax.load('emoji_continuous', cache_dtype=dtype) for dtype in (None, 'int8'))

  def z(model):
    target, condition = model.target(guided=True), model.condition(['cat'])
    _, cache = target.cached.prefill(model.params, condition, 8)
    tokens = _normal(4, 1, 4, target.token_dim)
    return target.cached.score(model.params, cache, tokens, jnp.zeros(1, jnp.int32))[0]

  apart = np.abs(jax.jit(lambda: z(small))() - jax.jit(lambda: z(whole))())
  assert 0 < apart.max() < 0.2 * np.abs(z(whole)).max()
