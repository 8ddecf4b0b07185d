"""Products of float32 arrays and bfloat16 matrices: exact parts, and where they are used."""

import jax
import jax.numpy as jnp
import numpy as np
import products
import pytest

from cspd_jax.models import diffusion_head


@pytest.fixture(name='x', scope='module')
def _x():
  rng = np.random.default_rng(0)
  scale = 10.0 ** rng.integers(-20, 20, (64, 96))
  return jnp.asarray(rng.standard_normal((64, 96)) * scale, jnp.float32)


@pytest.mark.parametrize('jit', [False, True])
def test_parts_have_the_sum(x, jit):
  low, middle, high = (jax.jit if jit else lambda f: f)(diffusion_head.parts)(x)
  assert {part.dtype for part in (low, middle, high)} == {jnp.dtype(jnp.bfloat16)}
  total = sum(np.float64(part) for part in (low, middle, high))
  np.testing.assert_array_equal(total, np.float64(x))
  assert np.abs(np.float64(high) - np.float64(x)).max() > 0  # Two parts would not be enough.
  assert np.any(np.float64(high) + np.float64(middle) != np.float64(x))


def test_the_product_of_parts_has_the_precision_of_float32():
  rng = np.random.default_rng(1)
  x = jnp.asarray(rng.standard_normal((2, 5, 512)), jnp.float32)
  kernel = jnp.asarray(rng.standard_normal((512, 3, 32)), jnp.bfloat16)
  expected = np.tensordot(np.float64(x), np.float64(kernel), 1)
  dims = ((2,), (0,)), ((), ())
  actual = {name: np.float64(jax.jit(product)(x, kernel)) for name, product in dict(
      split=diffusion_head._split, plain=lambda x, k: diffusion_head.dot_general(x, k, dims),
      rounded=lambda x, k: jnp.tensordot(x.astype(jnp.bfloat16), k, 1,
                                         preferred_element_type=jnp.float32)).items()}
  error = {name: np.abs(product - expected).max() for name, product in actual.items()}
  assert error['split'] < 1e-4 and error['plain'] < 1e-4 < 0.01 < error['rounded']


@pytest.mark.parametrize('platform', ['cuda', 'tpu', 'cpu'])
def test_bfloat16_matrices_are_multiplied_in_bfloat16_on_accelerators(platform):
  head = diffusion_head.Head(32, 1, 16)
  shapes = jax.eval_shape(lambda: head.init(
      jax.random.key(0), jnp.zeros((1, 16)), jnp.zeros(1, int), jnp.zeros((1, 8))))
  shape = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32)
  for dtype in (jnp.float32, jnp.bfloat16):
    params = jax.tree.map(lambda leaf, dtype=dtype: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes)
    with jax.default_matmul_precision('highest'):
      result = products.lowered(
          head.apply, params, shape(2, 16), shape(2), shape(2, 8), platform=platform)
    split = dtype == jnp.bfloat16 and platform != 'cpu'
    # The modulation, the widest product, has one for each part.
    num = 10 if split else 8
    assert result == [products.BFLOAT16 if split else products.FLOAT32] * num
