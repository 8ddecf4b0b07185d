"""Rule tables: exact inverses, and heads whose numbers rotate in another order."""

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints_conversion.rules import base
from cspd_jax.models import transformer


@pytest.mark.parametrize('transform, shape, made', [
    (base.KEEP, (5,), [(5,)]),
    (base.MATRIX, (3, 4), [(4, 3)]),
    (base.CONVOLUTION, (2, 3, 4, 5), [(4, 5, 3, 2)]),
    (base.POINTWISE, (2, 3, 1, 1), [(3, 2)]),
    (base.join_heads(2), (8, 6), [(2, 3, 8)]),
    (base.split_heads(4, 2), (24, 7), [(7, 4, 3), (7, 2, 3), (7, 2, 3)]),
])
def test_transforms_rearrange_and_invert_exactly(transform, shape, made):
  array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
  parts = transform.forward(array)
  assert [part.shape for part in parts] == made
  np.testing.assert_array_equal(transform.inverse(*parts), array)
  assert sorted(np.concatenate([part.ravel() for part in parts])) == sorted(array.ravel())


def test_fused_projections_split_into_query_key_value_by_head():
  fused = np.arange(8 * 1).reshape(8, 1)  # Two query heads, one key/value head of width 2.
  query, key, value = base.split_heads(2, 1).forward(fused)
  assert query[0].tolist() == [[0, 1], [2, 3]]
  assert key[0].tolist() == [[4, 5]] and value[0].tolist() == [[6, 7]]


def test_tables_must_make_every_parameter_once():
  table = [base.Rule('a.{i}', ('x_{i}/a',), base.KEEP), base.Rule('b', ('b',), base.KEEP)]
  expanded = base.expand(table, ['x_0/a', 'x_12/a', 'b'])
  assert [rule.source for rule in expanded] == ['a.0', 'a.12', 'b']
  with pytest.raises(ValueError, match="'c'"):
    base.expand(table, ['x_0/a', 'b', 'c'])
  with pytest.raises(ValueError, match="'b'"):
    base.expand(table + [base.Rule('again', ('b',), base.KEEP)], ['x_0/a', 'b'])


def test_several_tensors_may_become_one_parameter():
  join = base.Transform(lambda *parts: (np.concatenate(parts),), lambda x: tuple(np.split(x, 2)))
  rule, = base.expand([base.Rule(('a.{i}', 'b.{i}'), ('x_{i}',), join)], ['x_3'])
  assert rule.sources == ('a.3', 'b.3') and rule.destinations == ('x_3',)
  published = rule.publish({'x_3': np.arange(4)})
  assert {name: array.tolist() for name, array in published.items()} == {
      'a.3': [0, 1], 'b.3': [2, 3]}


def test_halves_become_pairs_and_products_stay():
  heads, width, dim = 3, 8, 5
  rng = np.random.default_rng(0)
  published = [rng.standard_normal((heads * width, dim)) for _ in range(2)]
  x, angles = rng.standard_normal((2, dim)), rng.standard_normal((2, width // 2))
  products, expected = [], []
  for which, weight in enumerate(published):
    # Their way: number i turns with number i + width / 2.
    flat = (weight @ x[which]).reshape(heads, 2, width // 2)
    cos, sin = np.cos(angles[which]), np.sin(angles[which])
    expected.append(np.concatenate(
        [flat[:, 0] * cos - flat[:, 1] * sin, flat[:, 1] * cos + flat[:, 0] * sin], axis=1))
    (kernel,) = base.separate_heads(heads, halves=True).forward(weight)
    rope = transformer.Rope(cos[None, None].astype(np.float32), sin[None, None].astype(np.float32))
    turned = transformer.rotate(jnp.einsum('d,dhe->he', x[which], kernel)[None, None], rope)
    products.append(turned[0, 0])
  np.testing.assert_allclose(
      (products[0] * products[1]).sum(1), (expected[0] * expected[1]).sum(1), atol=1e-5)


def test_norms_of_a_shard_serve_all_its_heads():
  norm = np.arange(8.0).reshape(1, 8)
  (made,) = base.head_norm(3, 1).forward(norm)
  assert made.tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]] * 3
  own = np.arange(24.0).reshape(3, 8)
  (made,) = base.head_norm(3, 3).forward(own)
  assert made[1].tolist() == [8, 12, 9, 13, 10, 14, 11, 15]
  np.testing.assert_array_equal(base.head_norm(3, 3).inverse(made), own)


def test_biases_rotate_with_their_queries():
  rng = np.random.default_rng(0)
  kernel, bias, x = (rng.standard_normal(shape) for shape in ((24, 5), (24,), (5,)))
  joined, = base.separate_heads(3, True).forward(kernel)
  moved, = base.separate_heads(3, True).forward(bias)
  ours = np.einsum('d,dhe->he', x, joined) + moved
  halves = (kernel @ x + bias).reshape(3, 8)
  angle = rng.uniform(0, 6, 4)
  turn = np.exp(1j * angle)
  expected = (halves[:, :4] + 1j * halves[:, 4:]) * turn
  rope = transformer.Rope(*(jnp.asarray(f(angle))[None, None] for f in (np.cos, np.sin)))
  turned = transformer.rotate(jnp.asarray(ours)[None, None], rope)[0, 0]
  np.testing.assert_allclose(turned[:, ::2] + 1j * turned[:, 1::2], expected, atol=1e-5)
