"""Rule tables: exact inverses, and the tensor lists of every published size.

`tests/data/manifests` holds names and shapes of the tensors of each published
file, taken from the official modules at their real sizes.
"""

import gzip
import json
import math
import pathlib

import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import base

_MANIFESTS = sorted(
    (pathlib.Path(__file__).parent.parent / 'data' / 'manifests').glob('llamagen_*.json.gz'))


def _published_model(path):
  name = path.name.removeprefix('llamagen_').removesuffix('.json.gz')
  if name.startswith('vq'):
    return rules.FAMILIES['llamagen_vq'], name.replace('vq', 'vq_'), {}
  return rules.FAMILIES['llamagen'], name, {'image_size': int(name.split('_')[-1])}


def test_every_preset_has_a_manifest():
  named = {(family.kind, name) for family, name, _ in map(_published_model, _MANIFESTS)}
  families = [rules.FAMILIES[name] for name in ('llamagen', 'llamagen_vq')]
  assert named == {(family.kind, name) for family in families for name in family.presets}


@pytest.mark.slow
@pytest.mark.verifies('shapes', 'llamagen')
@pytest.mark.parametrize('path', _MANIFESTS, ids=lambda path: path.name.split('.')[0])
def test_published_tensors_are_exactly_those_of_the_model(path):
  manifest = json.loads(gzip.decompress(path.read_bytes()))
  shapes = {name: tuple(shape) for name, shape in manifest['tensors'].items()}
  family, name, options = _published_model(path)
  expected = {name: shape for name, shape in shapes.items() if name != 'quantize.codebook_used'}
  assert convert.published_shapes(family, family.presets[name]) == expected
  assert family.infer(shapes, options) == family.presets[name]
  # The null caption is a buffer, which the published count of parameters leaves out or in.
  count = sum(map(math.prod, expected.values()))
  null = math.prod(expected.get('cls_embedding.uncond_embedding', (0,)))
  assert manifest['parameters'] in (count, count - null)


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


@pytest.mark.slow
def test_several_tensors_may_become_one_parameter():
  join = base.Transform(lambda *parts: (np.concatenate(parts),), lambda x: tuple(np.split(x, 2)))
  rule, = base.expand([base.Rule(('a.{i}', 'b.{i}'), ('x_{i}',), join)], ['x_3'])
  assert rule.sources == ('a.3', 'b.3') and rule.destinations == ('x_3',)
  published = rule.publish({'x_3': np.arange(4)})
  assert {name: array.tolist() for name, array in published.items()} == {
      'a.3': [0, 1], 'b.3': [2, 3]}
