"""Parameters in the order in which loops on TPUs read them, tried on the devices at hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

import cspd_jax.families  # noqa: F401
from cspd_jax import sharding
from cspd_jax.files import placement, store
from cspd_jax.models import llamagen, transformer

CONFIG = llamagen.LlamaGenConfig(
    height=2, width=2, dim=16, num_layers=1, num_heads=2, ffn_dim=24, vocab_size=12, num_classes=3)


@pytest.fixture
def as_on_a_tpu(monkeypatch):
  monkeypatch.setattr(placement, '_PLATFORMS', ('cpu',))
  monkeypatch.setattr(placement, '_LANES', 8)


def _order(leaf):
  return leaf.format.layout.major_to_minor


def test_loaded_parameters_lie_as_they_are_read(tmp_path, as_on_a_tpu):
  shapes = jax.eval_shape(lambda: llamagen.init(CONFIG, jax.random.key(0)))
  rng = np.random.default_rng(0)
  params = jax.tree.map(
      lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype), shapes)
  store.save(tmp_path / 'model', 'llamagen', CONFIG, params)
  result = store.load(tmp_path / 'model').params
  jax.tree.map(np.testing.assert_array_equal, result, params)
  layer = result['transformer']['layers_0']
  assert [_order(layer[name]) for name in ('query', 'key', 'value')] == 3 * [(1, 0, 2)]
  assert _order(layer['out']) == (0, 1, 2) and _order(layer['gate']) == (0, 1)
  # Programs take them as they lie.
  run = jax.jit(lambda x, kernel: jnp.einsum('rld,dhe->rlhe', x, kernel))
  x = jnp.ones((1, 2, 16))
  np.testing.assert_allclose(
      run(x, layer['query']), run(x, params['transformer']['layers_0']['query']), rtol=1e-5)
  [_, taken], _ = run.lower(x, layer['query']).compile().input_formats
  assert taken.layout.major_to_minor == (1, 0, 2)


def test_divided_parameters_keep_their_sharding(as_on_a_tpu):
  where = NamedSharding(sharding.make_mesh(1, 1), PartitionSpec(None, sharding.MODEL))
  result = placement.of('transformer/layers_0/key', jnp.zeros((16, 2, 8)), where,
                        transformer.ORDERS)
  assert isinstance(result, Format) and result.sharding == where


@pytest.mark.parametrize('name,shape', [
    ('layers_0/query', (16, 2, 7)),  # No whole tiles.
    ('layers_0/query', (16, 8)), ('layers_0/out', (2, 8, 16)),
    ('layers_0/query/values', (16, 2, 8))])
def test_other_parameters_stay(name, shape, as_on_a_tpu):
  assert placement.of(name, jnp.zeros(shape), None, transformer.ORDERS) is None


def test_nothing_is_done_elsewhere(monkeypatch):
  monkeypatch.setattr(placement, '_LANES', 8)
  where = SingleDeviceSharding(jax.devices('cpu')[0])
  assert placement.of(
      'layers_0/query', jnp.zeros((16, 2, 8)), where, transformer.ORDERS) is where
