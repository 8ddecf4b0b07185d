"""Checkpoints: a saved network is loaded unchanged, and one error lists all problems."""

import gc
import json
import shutil
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file

from cspd_jax.files import store, weights
from cspd_jax.models import llamagen

CONFIG = llamagen.LlamaGenConfig(
    height=2, width=2, dim=16, num_layers=1, num_heads=2, ffn_dim=24, vocab_size=12, num_classes=3)


def _random(init, config):
  shapes = jax.eval_shape(lambda: init(config, jax.random.key(0)))
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype), shapes)


@pytest.fixture(scope='module')
def params():
  return _random(llamagen.init, CONFIG)


@pytest.fixture
def folder(tmp_path, params):
  store.save(tmp_path / 'model', 'llamagen', CONFIG, params, extra={'steps': 5})
  return tmp_path / 'model'


def _assert_same(result, expected):
  jax.tree.map(np.testing.assert_array_equal, result, expected)


def test_saved_networks_load_unchanged(folder, params):
  loaded = store.load(folder)
  assert (loaded.kind, loaded.config, loaded.metadata) == ('llamagen', CONFIG, {'steps': 5})
  assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(loaded.params))
  _assert_same(loaded.params, params)
  assert [path.name for path in folder.parent.iterdir()] == ['model']


def test_parameters_are_stored_and_loaded_in_the_dtype_asked_for(tmp_path, params):
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  store.save(tmp_path / 'm', 'llamagen', CONFIG, params, dtype='bfloat16')
  _assert_same(store.load(tmp_path / 'm').params, half)
  wide = store.load(tmp_path / 'm', dtype=jnp.float32).params
  assert {leaf.dtype for leaf in jax.tree.leaves(wide)} == {jnp.dtype('float32')}
  _assert_same(wide, jax.tree.map(lambda x: x.astype(jnp.float32), half))


def test_saving_again_replaces_a_checkpoint_and_nothing_else(folder, params):
  doubled = jax.tree.map(lambda x: 2 * x, params)
  store.save(folder, 'llamagen', CONFIG, doubled)
  _assert_same(store.load(folder).params, doubled)
  assert [path.name for path in folder.parent.iterdir()] == ['model']
  other = folder.parent / 'photos'
  other.mkdir()
  (other / 'photo').write_text('mine')
  store.save(other, 'llamagen', CONFIG, params)
  _assert_same(store.load(other).params, params)
  assert (other / 'photo').read_text() == 'mine'


def test_a_checkpoint_does_not_remember_where_it_was_made(folder):
  place = str(folder.parent).encode()
  for file in folder.rglob('*'):
    assert file.is_dir() or place not in file.read_bytes(), file


def test_files_that_are_cut_or_removed_are_named(folder):
  for file in (folder / 'model.safetensors', folder / 'model.json'):
    data = file.read_bytes()
    for content in (data[:len(data) // 2], None):
      file.unlink() if content is None else file.write_bytes(content)
      with pytest.raises(store.CheckpointError, match=file.name):
        store.load(folder)
      file.write_bytes(data)


def test_a_changed_byte_is_found_and_named_unless_verification_is_left_out(folder, params):
  file = folder / 'model.safetensors'
  data = file.read_bytes()
  file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
  with pytest.raises(store.CheckpointError,
                     match=f'{file.name}: other bytes .* copy or convert the model again'):
    store.load(folder)
  loaded = store.load(folder, verify=False).params
  changed = [name for name, leaf in weights.named(loaded).items()
             if not np.array_equal(leaf, weights.named(params)[name])]
  assert len(changed) == 1
  file.write_bytes(data.replace(b'"F32"', b'"F99"', 1))
  with pytest.raises(store.CheckpointError, match='is damaged or incomplete'):
    store.load(folder, verify=False)


def test_shipped_networks_have_digests():
  for name in store.shipped():
    description = json.loads((store.ASSETS / name / 'model.json').read_text())
    assert description['blake2b'] == weights.digests(
        store.ASSETS / name, description['files'])


def _sharded(folder, params, monkeypatch):
  """Saves parameters in several files of several groups."""
  monkeypatch.setattr(weights, '_GROUP', 1000)
  monkeypatch.setattr(weights, '_LARGEST', 3000)
  store.save(folder, 'llamagen', CONFIG, params)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_other_programs_read_the_files(tmp_path, params, monkeypatch, dtype):
  expected = weights.named(jax.tree.map(lambda x: x.astype(dtype), params))
  store.save(tmp_path / 'one', 'llamagen', CONFIG, params, dtype=dtype)
  _assert_same(load_file(tmp_path / 'one' / 'model.safetensors'), expected)
  _sharded(tmp_path / 'many', jax.tree.map(lambda x: x.astype(dtype), params), monkeypatch)
  index = json.loads((tmp_path / 'many' / 'model.safetensors.index.json').read_text())
  names = sorted(set(index['weight_map'].values()))
  assert names == [f'model-{number + 1:05d}-of-{len(names):05d}.safetensors'
                   for number in range(len(names))] and len(names) > 1
  loaded = {name: load_file(tmp_path / 'many' / file)[name]
            for name, file in index['weight_map'].items()}
  _assert_same(loaded, expected)
  assert index['metadata']['total_size'] == sum(leaf.nbytes for leaf in expected.values())
  assert sorted(path.name for path in (tmp_path / 'many').iterdir()) == sorted(
      [*names, 'model.json', 'model.safetensors.index.json'])


def test_a_parameter_in_two_files_and_other_formats_are_refused(tmp_path, params, monkeypatch):
  _sharded(tmp_path / 'm', params, monkeypatch)
  path = tmp_path / 'm' / 'model.json'
  description = json.loads(path.read_text())
  (first, *_, second) = [name for name in description['files'] if name.startswith('model-')]
  shutil.copy(tmp_path / 'm' / first, tmp_path / 'm' / second)
  description['files'][second] = description['files'][first]
  path.write_text(json.dumps(description))
  with pytest.raises(store.CheckpointError, match='which is in two files'):
    store.load(tmp_path / 'm', verify=False)
  path.write_text(json.dumps(description | {'format': 2}))
  with pytest.raises(store.CheckpointError, match='has format 2; .* convert the model again'):
    store.load(tmp_path / 'm')


@pytest.mark.parametrize('groups', ['one too few', 'one twice', 'another shape'])
def test_groups_are_the_parameters_of_the_config(tmp_path, params, groups):
  parts = weights.divided(params)
  whole = traverse_util.flatten_dict(params, sep='/')
  name, leaf = next(iter(whole.items()))
  parts = {'one too few': [lambda: {key: leaf for key, leaf in whole.items() if key != name}],
           'one twice': [*parts, lambda: {name: leaf}],
           'another shape': [lambda: whole | {name: leaf[:1]}]}[groups]
  with pytest.raises(store.CheckpointError, match=f'groups and config differ in {name}'):
    store.save_groups(tmp_path / 'm', 'llamagen', CONFIG, parts)
  assert not any(tmp_path.iterdir())


def test_numbers_that_overflow_in_the_dtype_asked_for_are_refused(folder, params):
  large = jax.tree.map(lambda x: np.full(x.shape, 1e5, x.dtype), params)
  message = ("dtype is 'float16', whose largest number is 65504, and .* holds 100000; it must be "
             'one of: float64, float32, bfloat16')
  with pytest.raises(store.CheckpointError, match=message):
    store.save(folder, 'llamagen', CONFIG, large, dtype='float16')
  _assert_same(store.load(folder).params, params)
  store.save(folder, 'llamagen', CONFIG, large)
  for for_decoding in (False, True):
    with pytest.raises(store.CheckpointError, match=f'{folder}: {message}'):
      store.load(folder, dtype='float16', for_decoding=for_decoding)
  # The largest numbers of float32 are rounded to infinity.
  largest = jax.tree.map(lambda x: np.full(x.shape, 3.4e38, x.dtype), params)
  with pytest.raises(store.CheckpointError, match="'bfloat16', .* holds 3.4e.38; .* float32[.]"):
    store.save(folder, 'llamagen', CONFIG, largest, dtype='bfloat16')


@pytest.mark.slow
def test_the_host_has_one_parameter_at_a_time(tmp_path, params, monkeypatch):
  """Files of any number of groups come back; what was read is let go of before the next leaf."""
  _sharded(tmp_path / 'm', params, monkeypatch)
  read, alive, most = weights.Leaf.read, [], 0

  def watched(*arguments):
    nonlocal most
    gc.collect()
    most = max(most, sum(one() is not None for one in alive))
    result = read(*arguments)
    alive.append(weakref.ref(result))
    return result

  monkeypatch.setattr(weights.Leaf, 'read', watched)
  loaded = store.load(tmp_path / 'm', dtype='bfloat16')
  assert most == 0 and len(alive) == len(jax.tree.leaves(params))
  _assert_same(loaded.params, jax.tree.map(lambda x: x.astype(jnp.bfloat16), params))


@pytest.mark.parametrize('shape, place', [
    ((), ()), ((3,), (2,)), ((5, 1 << 19), (4, 7)), ((2, 3, 4), (1, 2, 3)), ((0, 2), None)])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float8_e5m2'])
def test_every_number_is_looked_at(shape, place, dtype):
  array = np.zeros(shape, jnp.dtype(dtype))
  weights.check_finite({'a': array, 'b': np.ones(3, int)})
  if place is not None:
    array[place] = np.nan
    with pytest.raises(ValueError, match='a of shape'):
      weights.check_finite({'b': np.ones(3), 'a': array.T})


def test_shipped_models_are_found_by_name(tmp_path, params, monkeypatch):
  monkeypatch.setattr(store, 'ASSETS', tmp_path)
  store.save(tmp_path / 'small' / 'target', 'llamagen', CONFIG, params)
  assert store.shipped() == ['small/target']
  assert store.load('small/target').config == CONFIG
  with pytest.raises(store.CheckpointError, match='shipped models: small/target'):
    store.load('small/targ')
