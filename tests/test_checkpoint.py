"""Checkpoints: what is saved comes back, and what is wrong is said at once."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core import checkpoint
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
  checkpoint.save(tmp_path / 'model', 'llamagen', CONFIG, params, extra={'steps': 5})
  return tmp_path / 'model'


def _assert_same(found, expected):
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_what_is_saved_comes_back(folder, params):
  loaded = checkpoint.load(folder)
  assert (loaded.kind, loaded.config, loaded.metadata) == ('llamagen', CONFIG, {'steps': 5})
  assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(loaded.params))
  _assert_same(loaded.params, params)
  assert [path.name for path in folder.parent.iterdir()] == ['model']


def test_tokenizers_come_back(tmp_path):
  config = vq.VQConfig(ch=8, ch_mult=(1, 2), num_res_blocks=1, z_channels=4, codebook_size=8,
                       codebook_dim=2)
  params = _random(vq.init, config)
  checkpoint.save(tmp_path / 'new' / 'vq', 'vq', config, params)
  loaded = checkpoint.load(str(tmp_path / 'new' / 'vq'))
  assert loaded.config == config
  _assert_same(loaded.params, params)


def test_parameters_are_stored_and_loaded_in_the_dtype_asked_for(tmp_path, params):
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  checkpoint.save(tmp_path / 'm', 'llamagen', CONFIG, params, dtype='bfloat16')
  _assert_same(checkpoint.load(tmp_path / 'm').params, half)
  wide = checkpoint.load(tmp_path / 'm', dtype=jnp.float32).params
  assert {leaf.dtype for leaf in jax.tree.leaves(wide)} == {jnp.dtype('float32')}
  _assert_same(wide, jax.tree.map(lambda x: x.astype(jnp.float32), half))


def test_parameters_go_where_the_sharding_says(folder):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('model',))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  loaded = checkpoint.load(folder, sharding=sharding)
  assert all(leaf.sharding == sharding for leaf in jax.tree.leaves(loaded.params))


def test_saving_again_replaces_a_checkpoint_and_nothing_else(folder, params):
  doubled = jax.tree.map(lambda x: 2 * x, params)
  checkpoint.save(folder, 'llamagen', CONFIG, doubled)
  _assert_same(checkpoint.load(folder).params, doubled)
  assert [path.name for path in folder.parent.iterdir()] == ['model']
  other = folder.parent / 'photos'
  other.mkdir()
  (other / 'photo').write_text('mine')
  with pytest.raises(checkpoint.CheckpointError, match='not a checkpoint; give another folder'):
    checkpoint.save(other, 'llamagen', CONFIG, params)
  assert (other / 'photo').read_text() == 'mine'


def test_a_save_that_fails_leaves_the_old_checkpoint(folder, params, monkeypatch):
  def fail(*args, **kwargs):
    raise OSError('disk full')
  monkeypatch.setattr(checkpoint.ocp, 'save_checkpointables', fail)
  with pytest.raises(OSError, match='disk full'):
    checkpoint.save(folder, 'llamagen', CONFIG, jax.tree.map(jnp.zeros_like, params))
  _assert_same(checkpoint.load(folder).params, params)
  assert [path.name for path in folder.parent.iterdir()] == ['model']


def test_a_checkpoint_does_not_remember_where_it_was_made(folder):
  place = str(folder.parent).encode()
  for file in folder.rglob('*'):
    assert file.is_dir() or place not in file.read_bytes(), file


def test_parameters_of_another_size_are_all_listed(tmp_path, params):
  wrong = {**params, 'extra': jnp.zeros(3), 'label_embedding': jnp.zeros((2, 16))}
  wrong['transformer'] = {
      name: leaf for name, leaf in params['transformer'].items() if name != 'norm'}
  with pytest.raises(checkpoint.CheckpointError) as caught:
    checkpoint.save(tmp_path / 'm', 'llamagen', CONFIG, wrong)
  for line in ('missing: transformer/norm/scale (16,)', 'unexpected: extra (3,)',
               'mis-shaped: label_embedding is (2, 16), the config asks for (4, 16)'):
    assert line in str(caught.value)


def test_a_config_that_does_not_fit_the_stored_parameters_is_refused(folder):
  description = json.loads((folder / 'model.json').read_text())
  description['config']['vocab_size'] = 13
  (folder / 'model.json').write_text(json.dumps(description))
  with pytest.raises(checkpoint.CheckpointError) as caught:
    checkpoint.load(folder)
  assert 'token_embedding is (12, 16), the config asks for (13, 16)' in str(caught.value)
  assert 'transformer/output is (16, 12)' in str(caught.value)


@pytest.mark.parametrize('change, message', [
    ({'kind': 'mar2'}, "kind is 'mar2'; it must be one of: .*llamagen"),
    ({'format': 99}, 'has format 99'),
    ({'config': {'dims': 3, 'depth': 4}}, 'fields that LlamaGenConfig does not: depth, dims'),
    ({'config': {'dim': 3}}, 'its config is not valid: dim is 3'),
    ({'files': None}, 'damaged'),
])
def test_wrong_descriptions_are_explained(folder, change, message):
  description = json.loads((folder / 'model.json').read_text())
  (folder / 'model.json').write_text(json.dumps({**description, **change}))
  with pytest.raises(checkpoint.CheckpointError, match=message):
    checkpoint.load(folder)


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
      with pytest.raises(checkpoint.CheckpointError, match=file.name):
        checkpoint.load(copy)
      shutil.rmtree(copy)


def test_unknown_names_and_foreign_folders_are_explained(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint, 'ASSETS', tmp_path / 'assets')
  with pytest.raises(checkpoint.CheckpointError, match='no such folder.*shipped: none'):
    checkpoint.load('no-such-model')
  with pytest.raises(checkpoint.CheckpointError, match='no model.json.*cspd-convert'):
    checkpoint.load(tmp_path)
  (tmp_path / 'model.pt').write_bytes(b'')
  with pytest.raises(checkpoint.CheckpointError, match='not a checkpoint folder'):
    checkpoint.load(tmp_path / 'model.pt')


def test_shipped_models_are_found_by_name(tmp_path, params, monkeypatch):
  monkeypatch.setattr(checkpoint, 'ASSETS', tmp_path)
  checkpoint.save(tmp_path / 'small' / 'target', 'llamagen', CONFIG, params)
  assert checkpoint.shipped() == ['small/target']
  assert checkpoint.load('small/target').config == CONFIG
  with pytest.raises(checkpoint.CheckpointError, match='shipped: small/target'):
    checkpoint.load('small/targ')


def test_what_cannot_be_saved_is_explained(tmp_path, params):
  for arguments, message in [
      (('gpt', CONFIG), "kind is 'gpt'"), (('vq', CONFIG), 'config is a LlamaGenConfig')]:
    with pytest.raises(checkpoint.CheckpointError, match=message):
      checkpoint.save(tmp_path / 'm', *arguments, params)
  with pytest.raises(checkpoint.CheckpointError, match='extra must hold only what JSON can'):
    checkpoint.save(tmp_path / 'm', 'llamagen', CONFIG, params, extra={'a': object()})
  assert not any(tmp_path.iterdir())
