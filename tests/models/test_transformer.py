"""The shared transformer: rotary pairs, norms, cache writes, attention."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import causal, layers, transformer

pytestmark = pytest.mark.usefixtures('precise')

CONFIG = transformer.TransformerConfig(
    vocab_size=11, dim=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, ffn_dim=20)


def _normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def _rope(length, width=CONFIG.head_dim):
  angles = np.arange(length)[None, :, None] * np.array([1.0, 0.3, 0.05])[:width // 2]
  return transformer.Rope(jnp.asarray(np.cos(angles), jnp.float32),
                          jnp.asarray(np.sin(angles), jnp.float32))


def _params(seed=0):
  model = transformer.Transformer(CONFIG)
  shapes = jax.eval_shape(lambda: model.init(
      jax.random.key(0), jnp.zeros((1, 1, CONFIG.dim)), _rope(1), transformer.causal_mask(1)))
  leaves, treedef = jax.tree.flatten(shapes['params'])
  return treedef.unflatten([0.4 * _normal(seed + i, *leaf.shape) + (leaf.ndim == 1)
                            for i, leaf in enumerate(leaves)])


def test_rotation_turns_neighbouring_pairs():
  x = jnp.array([1.0, 0.0, 0.0, 2.0]).reshape(1, 1, 1, 4)
  quarter = transformer.Rope(jnp.zeros((1, 1, 2)), jnp.ones((1, 1, 2)))
  np.testing.assert_array_equal(
      transformer.rotate(x, quarter).ravel(), [0.0, 1.0, -2.0, 0.0])


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_rotation_by_swapping_is_the_same(dtype):
  x, rope = (100 * _normal(0, 2, 5, 3, 6)).astype(dtype), _rope(5)
  swapped = jax.jit(transformer._rotate_swapped)(x, rope)
  pairs = jax.jit(transformer._rotate_pairs)(x, rope)
  assert swapped.dtype == dtype
  np.testing.assert_allclose(
      np.asarray(swapped, np.float32), np.asarray(pairs, np.float32),
      rtol=2e-6 if dtype == jnp.float32 else 1e-2, atol=2e-5)
  other = transformer.Rope(rope.cos, -rope.sin)
  assert not np.allclose(np.asarray(transformer._rotate_swapped(x, other), np.float32),
                         np.asarray(pairs, np.float32), rtol=1e-2)


def test_zero_rows_of_the_table_erase_queries_and_keys():
  x = _normal(0, 1, 3, 2, 6)
  zero = transformer.Rope(jnp.zeros((1, 3, 3)), jnp.zeros((1, 3, 3)))
  assert not transformer.rotate(x, zero).any()


def test_norm_casts_back_before_the_scale():
  x = (_normal(1, 5, 64) * 3).astype(jnp.bfloat16)
  scale = (1 + 0.2 * _normal(2, 64)).astype(jnp.bfloat16)
  wide = np.asarray(x, np.float32)
  normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
  expected = jnp.asarray(normed).astype(jnp.bfloat16) * scale
  out = layers.RMSNorm(1e-5).apply({'params': {'scale': scale}}, x)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_array_equal(np.asarray(out, np.float32), np.asarray(expected, np.float32))


@pytest.mark.parametrize('streams', [1, 2])
@pytest.mark.parametrize('images,write', [
    *((images, None) for images in (1, 3, 8, 9, 12)), (3, transformer._write_in_order),
    (3, transformer._write_together)])
def test_every_image_is_written_at_its_own_slot(images, write, streams, monkeypatch):
  if write:  # What another platform has.
    monkeypatch.setattr(jax.lax, 'platform_dependent',
                        lambda *args, **choices: transformer._by_image(write)(*args))
  rows = streams * images
  cache, new = _normal(0, rows, 2, 15, 3), _normal(1, rows, 2, 4, 3)
  start = np.arange(images) % 12
  out = jax.jit(transformer.write_slots)(cache, new, jnp.asarray(start))
  expected = np.array(cache)
  for row in range(rows):
    first = start[row % images]
    expected[row, :, first:first + 4] = new[row]
  np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize('images', [1, 2, 9])
def test_writing_copies_no_cache(images):
  cache, new = _normal(0, 2 * images, 2, 15, 64), _normal(1, 2 * images, 2, 4, 64)

  def rounds(cache, new):
    def step(i, carry):
      cache, total = carry
      cache = transformer.write_slots(cache, new, jnp.full(images, i))
      return cache, total + jnp.sum(cache, axis=2)
    return jax.lax.fori_loop(0, 8, step, (cache, jnp.zeros((2 * images, 2, 64))))

  text = jax.jit(rounds, donate_argnums=0).lower(cache, new).compile().as_text()
  body = text[:text.index('\nENTRY')]
  assert not re.findall(rf'f32\[{2 * images},2,15,64\]\S* copy\(', body)
  assert not re.findall(rf'f32\[2,{images},2,15,64\]\S* copy\(', body)


def test_activations_take_the_dtype_of_the_parameters():
  model = transformer.Transformer(CONFIG)
  params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), _params())
  embeddings = model.apply({'params': params}, jnp.zeros((1, 4), int), method='embed')
  logits, features, cache = jax.jit(model.apply)(
      {'params': params}, embeddings, _rope(4), transformer.causal_mask(4))
  assert logits.dtype == jnp.float32
  assert features.dtype == cache[0][0].dtype == cache[0][1].dtype == jnp.bfloat16


@pytest.mark.parametrize('least, transposes', [(1, False), (2**30, True)])
def test_a_round_transposes_no_large_matrix(least, transposes, monkeypatch):
  monkeypatch.setattr(transformer, '_LARGE_MATRIX', least)
  model, small = transformer.Transformer(CONFIG), _params()

  def rounds(params, x):
    step = lambda i, x: model.apply({'params': params}, x, rope, mask)[1]
    return jax.lax.fori_loop(0, x.shape[1], step, x)

  x, rope, mask = _normal(1, 2, 4, CONFIG.dim), _rope(4), transformer.causal_mask(4)
  text = jax.jit(rounds).lower(small, x).compile().as_text()
  out = small['layers_0']['out'].shape
  assert (f'f32[{out[1]},{out[0]},{out[2]}]' in text) == transposes


def test_large_matrices_give_what_small_ones_give(monkeypatch):
  model, params = transformer.Transformer(CONFIG), _params()
  arguments = {'params': params}, _normal(1, 2, 4, CONFIG.dim), _rope(4), transformer.causal_mask(4)
  result = []
  for least in (1, 2**30):
    monkeypatch.setattr(transformer, '_LARGE_MATRIX', least)
    result.append(jax.jit(lambda *args: model.apply(*args)[0])(*arguments))
  np.testing.assert_allclose(*result, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('room,slots', [(8, 11), (508, 511), (509, 512), (510, 576), (900, 960)])
def test_large_caches_are_made_of_tiles(room, slots):
  layers = ((jnp.ones((2, 1, 3, 4)),) * 2,)
  positions = causal.prompt_positions(jnp.ones((2, 3), bool))
  cache = causal.allocate(layers, positions, room)
  assert cache.layers[0][1].shape == (2, 1, slots, 4)
  np.testing.assert_array_equal(cache.layers[0][0][:, :, :3], 1)
  assert not cache.layers[0][0][:, :, 3:].any()
