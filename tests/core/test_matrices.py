"""Forms of matrices: what is stored, what is multiplied, what models with them are targets of."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import cspd_jax
from cspd_jax import sharding
from cspd_jax.core import matrices, programs, random
from cspd_jax.decoding import warp
from cspd_jax.files import store
from cspd_jax.generation import memory, stored_run
from cspd_jax.models import llamagen
from tests.builders import published
from tests.marks import representative

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
  assert memory.precision(small) == dict(dtype='bfloat16', quantize='int8')
  transformer = small.params['transformer']
  for layer in ('layers_0', 'layers_1'):
    stored = {name for name, leaf in transformer[layer].items() if isinstance(leaf, matrices.Int8)}
    assert stored == {*MATRICES}
  assert {str(transformer[name].dtype) for name in ('token_embedding', 'output')} == {'bfloat16'}
  plain = matrices.plain(whole.params)['transformer']['layers_0']
  kept = [plain[name] for name in MATRICES]
  stored = [transformer['layers_0'][name].values for name in MATRICES]
  assert sum(x.nbytes for x in kept) == 4 * sum(x.nbytes for x in stored)
  # Numbers are rounded from those that are stored, not from those in `dtype`.
  jax.tree.map(np.testing.assert_array_equal, transformer['layers_0']['down'],
               matrices.quantized(np.asarray(plain['down']), 1))


@pytest.mark.parametrize('decoder', representative(
    ('seed_exact', 'corrected_seed_exact(corrector=layers)'), 'seed_exact'))
def test_exact_decoders_are_exact_to_it(folder, decoder):
  model = cspd_jax.load(folder, quantize='int8')

  def tokens(specification):
    decode = model.decoder(model.table.complete(specification, window=4), guided=True)
    return np.asarray(jax.jit(decode)(
        model.params, model.condition([0, 1, 2]), jax.random.key(5),
        model.sampling(guidance_scale=2.0), model.draft_params(specification)).tokens)

  np.testing.assert_array_equal(tokens(decoder), tokens('vanilla'))


def test_a_mesh_divides_it(folder):
  model = cspd_jax.load(folder, quantize='int8', sharding=sharding.make_mesh(1, 1))
  layer = model.params['transformer']['layers_0']
  assert layer['gate'].scale.sharding.spec == PartitionSpec('model')
  assert layer['down'].values.sharding.spec == PartitionSpec('model')
  assert layer['down'].scale.sharding.spec == PartitionSpec()


# The matrices of a layer of `CONFIG` on a CPU, and the output matrix.
FORMS = {*(f'layers_{i}/{name}' for i in range(2) for name in (
    'query_key_value', 'out', 'gate_up', 'down')), 'output'}


def _forms(params):
  """Returns the names of the matrices in the forms of a CPU."""
  leaves = jax.tree_util.tree_leaves_with_path(params['transformer'], is_leaf=matrices.is_form)
  return {jax.tree_util.keystr(path, simple=True, separator='/') for path, leaf in leaves
          if matrices.is_form(leaf)}


def _output_majors(params):
  return [leaf for leaf in jax.tree.leaves(params, is_leaf=matrices.is_output_major)
          if matrices.is_output_major(leaf)]


@pytest.mark.parametrize('rows', [(), (1,), (2, 3), (64,), (2, 65)])
@pytest.mark.parametrize('equation, num_inputs, shape', [
    ('...d,dhe->...he', 1, (8, 2, 5)), ('...hw,hwd->...d', 2, (2, 4, 6)),
    ('...d,dv->...v', 1, (8, 7))])
def test_products_by_outputs_are_those_of_the_matrix(equation, num_inputs, shape, rows):
  """With few rows and many, in every dtype, and in what JAX makes of a product."""
  rng = np.random.default_rng(2)
  x = rng.standard_normal((*rows, *shape[:num_inputs])).astype(np.float32)
  kernel = rng.standard_normal(shape).astype(np.float32)
  stored = jax.tree.map(jnp.asarray, matrices.output_major(kernel, num_inputs))
  want = np.einsum(equation, x.astype(np.float64), kernel)
  product = jax.jit(lambda x, kernel: matrices.einsum(equation, x, kernel))
  np.testing.assert_allclose(product(x, stored), want, rtol=1e-5, atol=1e-5)
  for dtype in ('bfloat16', 'float16'):
    got = product(jnp.asarray(x, dtype), jax.tree.map(lambda leaf: leaf.astype(dtype), stored))
    assert got.dtype == dtype
    np.testing.assert_allclose(
        np.float64(got), want, rtol=0.05, atol=20 * float(jnp.finfo(dtype).eps))
  wide = matrices.einsum(equation, jnp.asarray(x, jnp.bfloat16), stored,
                         preferred_element_type=jnp.float32)
  assert wide.dtype == jnp.float32
  gradient = jax.grad(lambda x, kernel: jnp.sum(jnp.sin(matrices.einsum(equation, x, kernel))))
  plain = gradient(x, jnp.asarray(kernel))
  np.testing.assert_allclose(gradient(x, stored), plain, rtol=1e-4, atol=1e-5)
  both = jax.vmap(product, (0, None))(np.stack([x, 2 * x]), stored)
  np.testing.assert_allclose(both[1], 2 * want, rtol=1e-5, atol=1e-5)


def test_a_matrix_by_outputs_is_taken_for_the_matrix():
  kernel = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
  stored = matrices.output_major(kernel, 2)
  assert (stored.shape, stored.ndim, stored.size, stored.nbytes, stored.dtype) == (
      kernel.shape, 3, 24, 96, np.float32) and stored.values.shape == (4, 2, 3)
  np.testing.assert_array_equal(stored, kernel)
  np.testing.assert_array_equal(jnp.pad(jax.tree.map(jnp.asarray, stored).__jax_array__(), 1),
                                np.pad(kernel, 1))
  assert np.asarray(stored, np.float64).dtype == np.float64
  (leaf,) = jax.tree.leaves(stored)
  assert leaf is stored.values and jax.eval_shape(lambda form: form, stored).shape == kernel.shape


def test_models_on_a_cpu_hold_their_matrices_by_outputs(folder, tmp_path):
  """The same target: its logits up to rounding, its digest, and its files, byte for byte."""
  model, plain = cspd_jax.load(folder), store.load(folder)
  stored = model.params['transformer']
  assert not _forms(plain.params) and _forms(model.params) == FORMS
  assert stored['layers_0'].keys() == {
      'attention_norm', 'ffn_norm', 'query_key_value', 'out', 'gate_up', 'down'}
  jax.tree.map(np.testing.assert_array_equal, matrices.plain(model.params), plain.params)
  assert stored_run.fingerprint(model.params) == stored_run.fingerprint(plain.params)
  assert memory.precision(model) == {'dtype': 'float32'}

  logits = lambda params: model.target(guided=False).prefill(params, jnp.array([1]), 4)[0]
  np.testing.assert_allclose(logits(model.params), logits(plain.params), rtol=1e-4, atol=1e-5)
  store.save(tmp_path / 'again', plain.kind, plain.config, model.params)
  for path in folder.glob('*.safetensors'):
    assert path.read_bytes() == (tmp_path / 'again' / path.name).read_bytes()
  for other in (plain, store.load(folder, for_decoding=True)):
    assert _forms(cspd_jax.load(folder, target=other).params) == FORMS


@pytest.mark.parametrize('rows', [(1,), (2, 3), (2, 65)])
def test_joined_matrices_are_those_that_were_joined(rows):
  rng = np.random.default_rng(3)
  kernels = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (
      ('query', (8, 4, 6)), ('key', (8, 2, 6)), ('value', (8, 2, 6)))}
  x = rng.standard_normal((*rows, 8)).astype(np.float32)
  for side in (kernels, {name: jnp.asarray(kernel) for name, kernel in kernels.items()}):
    stored = matrices.joined(side)
    assert stored.matrix.shape == (8, 48) and stored.names == list(kernels)
    for (name, kernel), got in zip(kernels.items(), matrices.products(x, stored), strict=True):
      np.testing.assert_array_equal(stored[name], kernel)
      np.testing.assert_allclose(got, np.einsum('...d,dhe->...he', x, kernel), rtol=1e-5, atol=1e-5)


def test_only_complete_groups_of_arrays_are_joined():
  count = {'a/gate': 1, 'a/up': 1, 'b/gate': 1, 'c/gate': 1, 'd/gate': 1, 'd/up': 2}.get
  kernel = jnp.ones((3, 2))
  tree = dict(
      a=dict(gate=kernel, up=kernel), b=dict(gate=kernel), c=dict(gate=kernel, up=kernel),
      d=dict(gate=kernel, up=kernel), e=[dict(gate=kernel, up=kernel)])
  formed = matrices.by_outputs(tree, count)
  assert isinstance(formed['a'].pop('gate_up'), matrices.Joined) and not formed['a']
  is_form = [matrices.is_form(each) for each in (
      formed['b']['gate'], formed['c']['gate'], formed['c']['up'], formed['d']['up'])]
  assert is_form == [True, True, False, True] and formed['e'] == tree['e']
  again = matrices.by_outputs(matrices.by_outputs(tree, count), count)
  jax.tree.map(np.testing.assert_array_equal, matrices.plain(again), tree)
  jax.tree.map(np.testing.assert_array_equal, matrices.plain(matrices.like(tree, again)), tree)
  assert jax.tree.structure(matrices.like(tree, again)) == jax.tree.structure(again)


def test_trained_parameters_replace_those_by_outputs(folder):
  model = cspd_jax.load(folder)
  trained = jax.tree.map(lambda leaf: leaf * 2, matrices.plain(model.params))
  params = model.with_params(trained).params
  assert jax.tree.structure(params) == jax.tree.structure(model.params)
  jax.tree.map(np.testing.assert_array_equal, matrices.plain(params), trained)
  with pytest.raises(ValueError, match='pass parameters of its structure'):
    model.with_params(trained | {'more': jnp.zeros(3)})
  wrong = dict(trained['transformer'], output=jnp.zeros((3, 3)))
  with pytest.raises(ValueError, match="output.*is .*and that of model"):
    model.with_params(trained | {'transformer': wrong})


def test_a_mesh_and_int8_keep_their_own_forms(folder):
  small = cspd_jax.load(folder, quantize='int8')
  assert [form.shape for form in _output_majors(small.params)] == [(16, 12)]  # The output matrix.
  mesh = sharding.make_mesh(1, 1)
  assert len(_output_majors(cspd_jax.load(folder, sharding=mesh).params)) == 0


def _compiled(model, text, batch):
  """Compiles a decoder; returns the program's text, and the shapes of the caches in it."""
  decoder, condition = model.decoder(text), jnp.zeros(batch, int)
  arguments = model.params, condition, random.row_keys(jax.random.key(0), batch)
  options = warp.drop_inactive(model.sampling()), model.draft_params(text)
  cache = jax.eval_shape(lambda *args: decoder.start(*args, *options).cache, *arguments)
  keys = jax.random.split(jax.random.key(0), batch)
  program = programs.compiled(
      lambda *args: decoder(*args, *options), *arguments[:2], keys).run.as_text()
  return program, {leaf.shape for leaf in jax.tree.leaves(cache) if leaf.ndim == 4}


def test_a_round_copies_no_matrix(folder):
  """The compiled loop reads the matrices in the order that they are stored in."""
  model = cspd_jax.load(folder)
  decode = lambda params, condition, key: model.decoder('seed_exact(window=5)')(
      params, condition, key)
  text = programs.jit(decode).lower(
      model.params, jnp.array([1]), jax.random.key(0)).compile().as_text()
  for form in _output_majors(model.params):
    sides = [int(np.prod(form.shape[:form.num_inputs])), int(np.prod(form.shape[form.num_inputs:]))]
    for shape in (sides, sides[::-1]):
      assert not re.search(rf'= f32\[{shape[0]},{shape[1]}\]\S* (copy|transpose)\(', text), shape


@pytest.mark.parametrize('batch', representative([1, 2], 2))
@pytest.mark.parametrize('decoder, is_chain', [
    ('mc_sjd(window=5)', True), ('seed_exact(tree=default_tree, window=16)', False),
    ('corrected(corrector=layers, window=16)', True)])
def test_a_round_copies_no_keys_or_values(tmp_path, decoder, is_chain, batch):
  """Neither where they are written nor where those of an accepted path are moved."""
  config = dataclasses.replace(CONFIG, height=6, width=6)
  store.save(tmp_path / 'target', 'llamagen', config, published.params('llamagen', config, 3))
  model = cspd_jax.load(tmp_path / 'target')
  assert model.decoder(decoder).drafter.tree.is_chain == is_chain
  text, caches = _compiled(model, decoder, batch)
  assert caches
  for rows, *rest in caches:
    for shape in ((rows, *rest), (rows // batch, batch, *rest)):
      assert not re.search(rf'= f32\[{",".join(map(str, shape))}\]\S* copy\(', text), shape
