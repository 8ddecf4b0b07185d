"""Checkpoints: a saved network is loaded unchanged, and one error lists all problems."""

import dataclasses
import gc
import json
import shutil
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.checkpoints import store, weights
from cspd_jax.models import llamagen, vq

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


def _assert_same(found, expected):
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_what_is_saved_comes_back(folder, params):
  loaded = store.load(folder)
  assert (loaded.kind, loaded.config, loaded.metadata) == ('llamagen', CONFIG, {'steps': 5})
  assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(loaded.params))
  _assert_same(loaded.params, params)
  assert [path.name for path in folder.parent.iterdir()] == ['model']


def test_tokenizers_come_back(tmp_path):
  config = vq.VQConfig(ch=8, ch_mult=(1, 2), num_res_blocks=1, z_channels=4, codebook_size=8,
                       codebook_dim=2)
  params = _random(vq.init, config)
  store.save(tmp_path / 'new' / 'vq', 'vq', config, params)
  loaded = store.load(str(tmp_path / 'new' / 'vq'))
  assert loaded.config == config
  _assert_same(loaded.params, params)


def test_parameters_are_stored_and_loaded_in_the_dtype_asked_for(tmp_path, params):
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  store.save(tmp_path / 'm', 'llamagen', CONFIG, params, dtype='bfloat16')
  _assert_same(store.load(tmp_path / 'm').params, half)
  wide = store.load(tmp_path / 'm', dtype=jnp.float32).params
  assert {leaf.dtype for leaf in jax.tree.leaves(wide)} == {jnp.dtype('float32')}
  _assert_same(wide, jax.tree.map(lambda x: x.astype(jnp.float32), half))


def test_parameters_go_where_the_sharding_says(folder):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('model',))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  loaded = store.load(folder, sharding=sharding)
  assert all(leaf.sharding == sharding for leaf in jax.tree.leaves(loaded.params))


def test_saving_again_replaces_a_checkpoint_and_nothing_else(folder, params):
  doubled = jax.tree.map(lambda x: 2 * x, params)
  store.save(folder, 'llamagen', CONFIG, doubled)
  _assert_same(store.load(folder).params, doubled)
  assert [path.name for path in folder.parent.iterdir()] == ['model']
  other = folder.parent / 'photos'
  other.mkdir()
  (other / 'photo').write_text('mine')
  with pytest.raises(store.CheckpointError, match='not a checkpoint; choose another folder'):
    store.save(other, 'llamagen', CONFIG, params)
  assert (other / 'photo').read_text() == 'mine'


def test_a_save_that_fails_leaves_the_old_checkpoint(folder, params, monkeypatch):
  def fail(*args, **kwargs):
    raise OSError('disk full')
  monkeypatch.setattr(weights.ocp, 'save_checkpointables', fail)
  with pytest.raises(OSError, match='disk full'):
    store.save(folder, 'llamagen', CONFIG, jax.tree.map(jnp.zeros_like, params))
  _assert_same(store.load(folder).params, params)
  assert [path.name for path in folder.parent.iterdir()] == ['model']


def test_a_checkpoint_does_not_remember_where_it_was_made(folder):
  place = str(folder.parent).encode()
  for file in folder.rglob('*'):
    assert file.is_dir() or place not in file.read_bytes(), file


def test_parameters_of_another_size_are_all_listed(tmp_path, params):
  wrong = {**params, 'extra': jnp.zeros(3), 'label_embedding': jnp.zeros((2, 16))}
  wrong['transformer'] = {
      name: leaf for name, leaf in params['transformer'].items() if name != 'norm'}
  with pytest.raises(store.CheckpointError) as caught:
    store.save(tmp_path / 'm', 'llamagen', CONFIG, wrong)
  for line in ('missing: transformer/norm/scale (16,)', 'unexpected: extra (3,)',
               'mis-shaped: label_embedding is (2, 16), the config requires (4, 16)'):
    assert line in str(caught.value)


def test_a_config_that_does_not_fit_the_stored_parameters_is_refused(folder):
  description = json.loads((folder / 'model.json').read_text())
  description['config']['vocab_size'] = 13
  (folder / 'model.json').write_text(json.dumps(description))
  with pytest.raises(store.CheckpointError) as caught:
    store.load(folder)
  assert 'token_embedding is (12, 16), the config requires (13, 16)' in str(caught.value)
  assert 'transformer/output is (16, 12)' in str(caught.value)


@pytest.mark.parametrize('change, message', [
    ({'kind': 'mar2'}, "kind is 'mar2'; it must be one of: .*llamagen"),
    ({'format': 99}, 'has format 99'),
    ({'config': {'dims': 3, 'depth': 4}}, 'fields that LlamaGenConfig does not have: depth, dims'),
    ({'config': {'dim': 3}}, 'its config is not valid: dim is 3'),
    ({'files': None}, 'damaged'),
])
def test_wrong_descriptions_are_explained(folder, change, message):
  description = json.loads((folder / 'model.json').read_text())
  (folder / 'model.json').write_text(json.dumps({**description, **change}))
  with pytest.raises(store.CheckpointError, match=message):
    store.load(folder)


def test_damaged_files_are_named(folder):
  files = [file for file in folder.rglob('*') if file.is_file() and file.stat().st_size]
  assert len(files) > 5
  for file in files:
    copy = folder.parent / 'copy'
    for damage in ('cut', 'removed'):
      shutil.copytree(folder, copy)
      victim = copy / file.relative_to(folder)
      if damage == 'cut':
        victim.write_bytes(file.read_bytes()[:file.stat().st_size // 2])
      else:
        victim.unlink()
      with pytest.raises(store.CheckpointError, match=file.name):
        store.load(copy)
      shutil.rmtree(copy)


def test_a_changed_byte_is_found_and_named(folder, params):
  files = [file for file in (folder / 'arrays').rglob('*')
           if file.is_file() and file.stat().st_size]
  assert len(files) > 5
  for file in files:
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(store.CheckpointError,
                       match=f'{file.name}: other bytes .* copy or convert the model again'):
      store.load(folder)
    file.write_bytes(data)
  _assert_same(store.load(folder, verify=False).params, params)


def test_shipped_networks_have_digests():
  for name in store.shipped():
    description = json.loads((store.ASSETS / name / 'model.json').read_text())
    assert description['blake2b'] == weights.digests(
        store.ASSETS / name, description['files'])


def test_verification_can_be_left_out(folder, params):
  metadata = max((folder / 'arrays').rglob('_CHECKPOINT_METADATA'))
  metadata.write_bytes(metadata.read_bytes().replace(b'init', b'inid'))
  with pytest.raises(store.CheckpointError, match='_CHECKPOINT_METADATA: other bytes'):
    store.load(folder)
  _assert_same(store.load(folder, verify=False).params, params)


def test_folders_of_earlier_versions_load_and_are_replaced(tmp_path, params):
  # One group, no digests.
  description = dict(format=1, kind='llamagen', config=dataclasses.asdict(CONFIG), metadata={})
  weights.ocp.save_checkpointables(tmp_path / 'm' / 'arrays', {'params': jax.device_get(params)})
  (tmp_path / 'm' / 'arrays' / 'commit_success.txt').unlink(missing_ok=True)
  description['files'] = {
      path.relative_to(tmp_path / 'm').as_posix(): path.stat().st_size
      for path in (tmp_path / 'm' / 'arrays').rglob('*') if path.is_file()}
  (tmp_path / 'm' / 'model.json').write_text(json.dumps(description))
  _assert_same(store.load(tmp_path / 'm').params, params)
  store.save(tmp_path / 'm', 'llamagen', CONFIG, params)
  assert 'blake2b' in json.loads((tmp_path / 'm' / 'model.json').read_text())
  _assert_same(store.load(tmp_path / 'm').params, params)


@pytest.mark.parametrize('number', [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_with_their_place(tmp_path, params, number):
  wrong = jax.tree.map(np.array, params)
  wrong['transformer']['output'][-1, -1] = number
  message = f'transformer/output of shape .16, 12. holds .* not finite, such as {number}'
  with pytest.raises(store.CheckpointError, match=message):
    store.save(tmp_path / 'm', 'llamagen', CONFIG, wrong)
  assert not any(tmp_path.iterdir())
  store.save(tmp_path / 'm', 'llamagen', CONFIG, wrong, allow_nonfinite=True)
  with pytest.raises(store.CheckpointError, match=message):
    store.load(tmp_path / 'm')
  _assert_same(store.load(tmp_path / 'm', allow_nonfinite=True).params, wrong)


def test_numbers_that_overflow_in_the_dtype_asked_for_are_refused(folder, params):
  large = jax.tree.map(lambda x: np.full(x.shape, 1e5, x.dtype), params)
  with pytest.raises(store.CheckpointError, match='such as inf'):
    store.save(folder, 'llamagen', CONFIG, large, dtype='float16')
  _assert_same(store.load(folder).params, params)


@pytest.mark.slow
def test_the_host_has_one_group_of_arrays_at_a_time(tmp_path, params, monkeypatch):
  """Files of any number of groups come back; what was read is let go of before the next group."""
  monkeypatch.setattr(weights, '_GROUP', 1000)
  store.save(tmp_path / 'm', 'llamagen', CONFIG, params)
  assert len(list((tmp_path / 'm' / 'arrays').iterdir())) > 3
  read, alive, most = weights.read, [], 0

  def watched(*arguments):
    nonlocal most
    gc.collect()
    most = max(most, sum(one() is not None for one in alive))
    found = read(*arguments)
    alive.extend(map(weakref.ref, found.values()))
    return found

  monkeypatch.setattr(weights, 'read', watched)
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


def test_unknown_names_and_foreign_folders_are_explained(tmp_path, monkeypatch):
  monkeypatch.setattr(store, 'ASSETS', tmp_path / 'assets')
  with pytest.raises(store.CheckpointError, match='no such folder.*shipped models: none'):
    store.load('no-such-model')
  with pytest.raises(store.CheckpointError, match='no model.json.*cspd-convert'):
    store.load(tmp_path)
  (tmp_path / 'model.pt').write_bytes(b'')
  with pytest.raises(store.CheckpointError, match='not a checkpoint folder'):
    store.load(tmp_path / 'model.pt')


def test_shipped_models_are_found_by_name(tmp_path, params, monkeypatch):
  monkeypatch.setattr(store, 'ASSETS', tmp_path)
  store.save(tmp_path / 'small' / 'target', 'llamagen', CONFIG, params)
  assert store.shipped() == ['small/target']
  assert store.load('small/target').config == CONFIG
  with pytest.raises(store.CheckpointError, match='shipped models: small/target'):
    store.load('small/targ')


def test_what_cannot_be_saved_is_explained(tmp_path, params):
  for arguments, message in [
      (('gpt', CONFIG), "kind is 'gpt'"), (('vq', CONFIG), 'config is a LlamaGenConfig')]:
    with pytest.raises(store.CheckpointError, match=message):
      store.save(tmp_path / 'm', *arguments, params)
  with pytest.raises(store.CheckpointError, match='extra must hold JSON values only'):
    store.save(tmp_path / 'm', 'llamagen', CONFIG, params, extra={'a': object()})
  assert not any(tmp_path.iterdir())
