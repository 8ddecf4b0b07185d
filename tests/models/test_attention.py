"""Attention: what it computes, and how it is chosen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import attention


def _normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def test_attention_is_softmax_over_what_is_visible():
  query, keys, values = _normal(0, 2, 3, 4, 6), _normal(1, 2, 2, 5, 6), _normal(2, 2, 2, 5, 6)
  mask = np.random.default_rng(3).random((2, 3, 5)) < 0.5
  mask[..., 0] = True
  with jax.default_matmul_precision('highest'):
    out = attention.attend(query, keys, values, jnp.asarray(mask))
  for row, token, head in np.ndindex(2, 3, 4):
    seen = mask[row, token]
    scores = keys[row, head // 2][seen] @ query[row, token, head] / np.sqrt(6)
    expected = jax.nn.softmax(scores) @ values[row, head // 2][seen]
    np.testing.assert_allclose(out[row, token, head], expected, atol=1e-5)


@pytest.mark.parametrize('stored', ['arrays', 'int8'])
@pytest.mark.parametrize('shared', [False, True], ids=['mask per row', 'one mask'])
def test_keys_first_is_the_same_attention(shared, stored):
  """On a CPU `attend` computes `keys_first`, elsewhere `plain`."""
  query, keys, values = _normal(0, 2, 3, 4, 8), _normal(1, 2, 2, 9, 8), _normal(2, 2, 2, 9, 8)
  mask = np.random.default_rng(3).random((1 if shared else 2, 3, 9)) < 0.5
  mask[..., 1] = True
  if stored == 'int8':
    keys, values = attention.quantized(keys), attention.quantized(values)
  for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, 0.05)):
    arguments = query.astype(dtype), *jax.tree.map(
        lambda leaf: leaf.astype(dtype) if stored == 'arrays' else leaf, (keys, values))
    with jax.default_matmul_precision('highest'):
      want = attention.plain(*arguments, jnp.asarray(mask))
      for got in (attention.keys_first(*arguments, jnp.asarray(mask)),
                  attention.attend(*arguments, jnp.asarray(mask))):
        assert got.dtype == want.dtype == dtype
        np.testing.assert_allclose(np.float32(got), np.float32(want), atol=tolerance)
  text = lambda platform: jax.jit(attention.attend).trace(query, keys, values, mask).lower(
      lowering_platforms=(platform,)).as_text()
  assert 'optimization_barrier' in text('cpu') and 'optimization_barrier' not in text('cuda')


# What the fused path asks for is checked with the implementation of the same call that runs here.
_fused = functools.partial(attention.fused, implementation='xla')


@pytest.mark.parametrize('shared', [False, True], ids=['mask per row', 'one mask'])
def test_fused_attention_is_asked_for_the_same(shared):
  query, keys, values = _normal(0, 2, 3, 4, 8), _normal(1, 2, 2, 9, 8), _normal(2, 2, 2, 9, 8)
  mask = np.random.default_rng(3).random((1 if shared else 2, 3, 9)) < 0.5
  mask[..., 1], mask[..., 0], mask[..., 7:] = True, False, False
  with jax.default_matmul_precision('highest'):
    expected = attention.plain(query, keys, values, jnp.asarray(mask))
    for live in (None, jnp.array([7, 7])):
      np.testing.assert_allclose(
          _fused(query, keys, values, jnp.asarray(mask), live), expected, atol=1e-5)


def test_the_trial_tells_wrong_attention_apart(monkeypatch):
  device, right = jax.devices()[0], attention.fused
  assert attention.difference(device, 'xla') < attention._TOLERANCE
  wrong = {
      'no mask': lambda q, k, v, mask, live, how: right(q, k, v, mask | True, live, how),
      'live slots only': lambda q, k, v, mask, live, how: right(
          q, k, v, jnp.broadcast_to(jnp.arange(128)[None, None] <= 85, mask.shape), live, how),
      'too few slots': lambda q, k, v, mask, live, how: right(q, k, v, mask, live - 1, how),
      'other scale': lambda q, k, v, mask, live, how: right(q * 1.1, k, v, mask, live, how),
      'other heads': lambda q, k, v, mask, live, how: right(q[:, :, ::-1], k, v, mask, live, how),
      'zeros': lambda q, k, v, mask, live, how: 0 * q}
  for name, function in wrong.items():
    monkeypatch.setattr(attention, 'fused', lambda *args, implementation, function=function:
                        function(*args, implementation))
    assert not attention.difference(device, 'xla') < 2 * attention._TOLERANCE, name


def _traced(dtype, width=8):
  array = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
  # A function of its own, for traces of the same one are kept.
  return str(jax.make_jaxpr(lambda *args: attention.attend(*args))(
      array(2, 3, 4, width), array(2, 2, 9, width), array(2, 2, 9, width),
      jax.ShapeDtypeStruct((2, 3, 9), bool)))


def test_fused_attention_is_chosen_by_platform(monkeypatch):
  monkeypatch.setattr(attention, 'is_available', lambda: True)
  monkeypatch.setattr(attention, 'fused', _fused)
  chosen = "'cuda'"
  assert chosen in _traced(jnp.bfloat16) and chosen in _traced(jnp.float16)
  assert chosen not in _traced(jnp.float32)
  assert chosen not in _traced(jnp.bfloat16, width=12)
  monkeypatch.setattr(attention, 'is_available', lambda: False)
  assert chosen not in _traced(jnp.bfloat16)
