"""Matrices of 8 bits: what is stored, what is multiplied, what they are a target of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import cspd_jax
from cspd_jax import sharding
from cspd_jax.files import matrices, store
from cspd_jax.models import llamagen
from tests.marks import representative
from tests.models import published

CONFIG = llamagen.LlamaGenConfig(
    height=3, width=3, dim=16, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=24,
    vocab_size=12, num_classes=3)
MATRICES = ('query', 'key', 'value', 'out', 'gate', 'up', 'down')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('model') / 'target'
  store.save(folder, 'llamagen', CONFIG, published.params('llamagen', CONFIG, 3))
  return folder


@pytest.mark.parametrize('shape, num_inputs', [((5, 7), 1), ((3, 4, 6), 2), ((4, 3, 2), 1)])
def test_numbers_are_rounded_by_output(shape, num_inputs):
  kernel = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
  kernel[..., 0] *= 100
  kernel[..., 1] = 0
  result = matrices.quantized(kernel, num_inputs)
  assert result.values.dtype == np.int8 and result.scale.shape == shape[num_inputs:]
  assert np.all(np.abs(result.values * result.scale - kernel) <= result.scale / 2 * 1.0001)
  largest = np.abs(result.values).max(axis=tuple(range(num_inputs)))
  assert np.all((largest == 127) | (result.scale == 0)) and not result.values[..., 1].any()


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize('equation, shapes', [
    ('rld,dhe->rlhe', ((2, 3, 8), (8, 2, 5))), ('rlhe,hed->rld', ((2, 3, 2, 4), (2, 4, 6)))])
def test_products_are_those_of_the_rounded_matrix(equation, shapes, dtype):
  rng = np.random.default_rng(1)
  x, kernel = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
  x = jnp.asarray(x, dtype)
  result = matrices.quantized(kernel, 2 if 'h' in equation.split('-')[0][:4] else 1)
  products = matrices.einsum(equation, x, matrices.put(result, 1, None))
  assert products.dtype == x.dtype
  want = np.einsum(equation, np.asarray(x, np.float32), result.values * result.scale)
  np.testing.assert_allclose(
      np.asarray(products, np.float32), want, rtol=2 * jnp.finfo(dtype).eps, atol=1e-5)


def test_a_target_of_8_bits_is_smaller_and_near(folder):
  whole, small = cspd_jax.load(folder), cspd_jax.load(folder, quantize='int8', dtype='bfloat16')
  transformer = small.params['transformer']
  for layer in ('layers_0', 'layers_1'):
    stored = {name for name, leaf in transformer[layer].items() if isinstance(leaf, matrices.Int8)}
    assert stored == {*MATRICES}
  assert {str(transformer[name].dtype) for name in ('token_embedding', 'output')} == {'bfloat16'}
  kept = [whole.params['transformer']['layers_0'][name] for name in MATRICES]
  stored = [transformer['layers_0'][name].values for name in MATRICES]
  assert sum(x.nbytes for x in kept) == 4 * sum(x.nbytes for x in stored)
  # Numbers are rounded from those that are stored, not from those in `dtype`.
  jax.tree.map(np.testing.assert_array_equal, transformer['layers_0']['down'],
               matrices.quantized(whole.params['transformer']['layers_0']['down'], 1))


@pytest.mark.parametrize('decoder', representative(
    ('seed_exact', 'corrected_seed_exact(by=layers)'), 'seed_exact'))
def test_exact_decoders_are_exact_to_it(folder, decoder):
  model = cspd_jax.load(folder, quantize='int8')

  def tokens(specification):
    decode = model.decoder(model.engine.complete(specification, window=4), guided=True)
    return np.asarray(jax.jit(decode)(
        model.params, model.condition([0, 1, 2]), jax.random.key(5),
        model.sampling(guidance_scale=2.0), model.draft_params(specification)).tokens)

  np.testing.assert_array_equal(tokens(decoder), tokens('vanilla'))


def test_scales_are_where_their_outputs_are():
  mesh = sharding.make_mesh(1, 1)
  place = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))
  kernel = matrices.quantized(np.ones((4, 2, 3), np.float32), 1)
  assert matrices.put(kernel, 1, place(None, 'model')).scale.sharding.spec == PartitionSpec('model')
  assert matrices.put(kernel, 1, place('model')).scale.sharding.spec == PartitionSpec()
  assert matrices.put(kernel, 1, jax.devices()[0]).scale.devices() == {jax.devices()[0]}


def test_a_mesh_divides_it(folder):
  model = cspd_jax.load(folder, quantize='int8', sharding=sharding.make_mesh(1, 1))
  layer = model.params['transformer']['layers_0']
  assert layer['gate'].scale.sharding.spec == PartitionSpec('model')
  assert layer['down'].values.sharding.spec == PartitionSpec('model')
  assert layer['down'].scale.sharding.spec == PartitionSpec()


@pytest.mark.parametrize('options, message', [
    (dict(quantize='int4'), "quantize is 'int4'; it must be 'int8', or None"),
    (dict(quantize='int8', target=store.Loaded('llamagen', CONFIG, {}, {})),
     "quantize is 'int8', but target is loaded already; pass its folder")])
def test_refused_options(folder, options, message):
  with pytest.raises(ValueError, match=message):
    cspd_jax.load(folder, **options)


def test_networks_without_matrices_are_refused():
  with pytest.raises(ValueError, match="a 'mar' network has no int8 matrices"):
    cspd_jax.load('mar_demo', quantize='int8')
