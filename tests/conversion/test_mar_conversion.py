"""Conversion of MAR and its image tokenizer: every published tensor, and the files' forms."""

import argparse
import dataclasses
import gzip
import json
import math
import pathlib

import jax
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

import cspd_jax
from checkpoints_conversion import command, convert, read, rules
from checkpoints_conversion.rules import family as family_lib
from cspd_jax.commands import generate as generate_command
from cspd_jax.files import store, weights
from cspd_jax.models import kl_vae, mar
from tests.marks import representative

_MANIFESTS = pathlib.Path(__file__).parent.parent / 'data' / 'manifests'
MODELS = {
    'mar': mar.MARConfig(
        height=3, width=3, token_dim=4, dim=8, num_layers=1, num_heads=2, head_width=12,
        head_layers=1, num_classes=3, buffer_size=2),
    'kl_vae': kl_vae.KLVAEConfig(ch_mult=(1, 2), num_res_blocks=1, z_channels=2),
}
OPTIONS = {'mar': {'num_heads': 2}, 'kl_vae': {}}
_FULL_SIZES = [('mar', name) for name in mar.PRESETS] + [('kl_vae', 'kl_16')]


def _published(name, seed=0, config=None):
  rng = np.random.default_rng(seed)
  shapes = convert.published_shapes(rules.FAMILIES[name], config or MODELS[name])
  return {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}


def _assert_same(result, expected):
  assert result.keys() == expected.keys()
  for name, tensor in expected.items():
    np.testing.assert_array_equal(result[name], tensor)


def test_every_preset_is_compared():
  assert set(_FULL_SIZES) == {
      (family, name) for family in MODELS for name in rules.FAMILIES[family].presets}


@pytest.mark.slow
@pytest.mark.verifies('shapes', 'mar')
@pytest.mark.parametrize('family, name', representative(
    _FULL_SIZES, _FULL_SIZES[0], _FULL_SIZES[-1]))
def test_published_tensors_are_exactly_those_of_the_model(family, name):
  manifest = json.loads(gzip.decompress((_MANIFESTS / f'{name}.json.gz').read_bytes()))
  shapes = {name: tuple(shape) for name, shape in manifest['tensors'].items()}
  family = rules.FAMILIES[family]
  assert convert.published_shapes(family, family.presets[name]) == shapes
  assert family.infer(shapes, {}) == family.presets[name]
  assert sum(map(math.prod, shapes.values())) == manifest['parameters']


def test_parameter_counts_are_the_published_ones():
  parts = {'mar_b': (207_924_768, 35_749_920), 'mar_l': (478_326_304, 72_230_432),
           'mar_h': (942_403_104, 151_206_944)}
  for name, (total, head) in parts.items():
    shapes = json.loads(gzip.decompress((_MANIFESTS / f'{name}.json.gz').read_bytes()))['tensors']
    assert sum(map(math.prod, shapes.values())) == total
    assert sum(math.prod(shape) for key, shape in shapes.items()
               if key.startswith('diffloss.')) == head


@pytest.mark.slow
@pytest.mark.parametrize('name', MODELS)
def test_there_and_back_is_exact(name, tmp_path):
  tensors = _published(name)
  safetensors.numpy.save_file(tensors, tmp_path / 'model.safetensors')
  made = convert.convert_file(
      name, tmp_path / 'model.safetensors', tmp_path / 'out', options=OPTIONS[name])
  assert made == MODELS[name]
  loaded = store.load(tmp_path / 'out')
  assert loaded.kind == name and loaded.config == made
  _assert_same(convert.publish(rules.FAMILIES[name], made, loaded.params), tensors)


def test_anything_else_in_a_file_is_refused():
  tensors = {**_published('mar'), 'rope.freqs': np.zeros(3, np.float32)}
  del tensors['diffloss.net.res_blocks.0.in_ln.bias']
  with pytest.raises(rules.ConversionError) as caught:
    convert.convert(rules.FAMILIES['mar'], MODELS['mar'], tensors)
  assert 'unexpected: rope.freqs (3,)' in str(caught.value)
  assert 'missing: diffloss.net.res_blocks.0.in_ln.bias (12,)' in str(caught.value)
  # Attention in the decoder's levels is another autoencoder of the same family.
  tensors = {**_published('kl_vae'), 'decoder.up.1.attn.0.q.bias': np.zeros(128, np.float32)}
  with pytest.raises(rules.ConversionError, match='unexpected: decoder.up.1.attn.0.q.bias'):
    convert.convert(rules.FAMILIES['kl_vae'], MODELS['kl_vae'], tensors)


def test_the_training_losses_of_an_autoencoder_are_left_out():
  tensors = {**_published('kl_vae'), 'loss.discriminator.main.0.weight': np.zeros(3)}
  convert.convert(rules.FAMILIES['kl_vae'], MODELS['kl_vae'], tensors)


@pytest.mark.parametrize('changes, options, message', [
    ({}, {}, 'num_heads cannot be inferred.*width 8 with 1 layers'),
    ({}, {'num_heads': 3}, 'num_heads is 3'),
    ({}, {'image_size': 256}, 'image_size: not an option for a MAR model'),
    ({'diffusion_pos_embed_learned': (1, 8, 8)}, {'num_heads': 2}, '8 tokens; it must have'),
    ({'class_emb.weight': (3,)}, {'num_heads': 2}, 'not a MAR model: class_emb.weight is'),
])
def test_sizes_that_cannot_be_inferred_are_explained(changes, options, message):
  shapes = {key: tensor.shape for key, tensor in _published('mar').items()} | changes
  with pytest.raises(ValueError, match=message):
    family_lib.infer(rules.FAMILIES['mar'], shapes, options)


def test_narrow_autoencoders_are_refused():
  shapes = {key: tensor.shape for key, tensor in _published('kl_vae').items()}
  narrow = {**shapes, 'encoder.down.0.block.0.conv1.weight': (64, 64, 3, 3)}
  with pytest.raises(rules.ConversionError, match='64, 256'):
    family_lib.infer(rules.FAMILIES['kl_vae'], narrow, {})
  with pytest.raises(rules.ConversionError, match='num_heads: not an option for'):
    family_lib.infer(rules.FAMILIES['kl_vae'], shapes, {'num_heads': 2})


class TestTrainingFiles:
  """Needs torch: files as the official training script and download hold them."""

  @pytest.fixture
  def save(self, tmp_path):
    torch = pytest.importorskip('torch')

    def save(**parts):
      state = lambda seed: {key: torch.tensor(x) for key, x in _published('mar', seed).items()}
      torch.save({name: state(part) if isinstance(part, int) else part
                  for name, part in parts.items()}, tmp_path / 'last.pth')
      return tmp_path / 'last.pth'

    return save

  def test_the_averaged_weights_are_taken_unless_asked_otherwise(self, save, tmp_path):
    source = save(model=0, model_ema=1, optimizer={'state': {}}, epoch=3, scaler={},
                  args=argparse.Namespace(lr=1e-4, output_dir='x'))
    config = convert.convert_file('mar', source, tmp_path / 'out', options={'num_heads': 2})
    loaded = store.load(tmp_path / 'out')
    _assert_same(convert.publish(rules.FAMILIES['mar'], config, loaded.params),
                 _published('mar', 1))
    assert loaded.metadata['key'] == 'model_ema'
    _assert_same(read.read(source, key='model', prefer='model_ema').tensors, _published('mar', 0))

  def test_files_without_averaged_weights_are_taken_as_they_are(self, save):
    weights = read.read(save(model=2, epoch=3), prefer='model_ema')
    assert weights.key == 'model'
    _assert_same(weights.tensors, _published('mar', 2))


@pytest.mark.slow
@pytest.mark.verifies('folder to pictures', 'mar')
def test_a_folder_becomes_pictures_by_two_commands(tmp_path, capsys):
  torch = pytest.importorskip('torch')
  published, folder = tmp_path / 'pretrained_models', tmp_path / 'model'
  tokenizer = dataclasses.replace(MODELS['kl_vae'], z_channels=MODELS['mar'].token_dim)
  # Wide random networks overflow.
  state = lambda *which, **config: {
      name: torch.tensor(.1 * x) for name, x in _published(*which, **config).items()}
  for path, content in (
      ('mar/mar_tiny/checkpoint-last.pth', dict(
          model=state('mar'), model_ema=state('mar', 1), optimizer={'state': {}}, epoch=3,
          args=argparse.Namespace(lr=1e-4))),
      ('vae/kl16.ckpt', dict(model=state('kl_vae', config=tokenizer)))):
    (published / path).parent.mkdir(parents=True)
    torch.save(content, published / path)
  assert command.main(['convert', '--family=mar', f'--source={published}/mar/mar_tiny',
                       '--num_heads=2', f'--output={folder}']) == 0
  assert f'Next: cspd-generate --model={folder} --prompt=' in capsys.readouterr().out
  assert generate_command.main(
      ['cspd-generate', f'--model={folder}', '--prompt=0,2', f'--output={tmp_path}/out']) == 0
  pictures = [np.asarray(Image.open(path)) for path in sorted((tmp_path / 'out').glob('*.png'))]
  assert [picture.shape for picture in pictures] == [(6, 6, 3)] * 2
  assert not np.array_equal(*pictures) and all(picture.std() > 0 for picture in pictures)
  model = cspd_jax.load(folder)
  assert (model.config, model.tokenizer.config) == (MODELS['mar'], tokenizer)
  assert model.defaults['guidance_scale'] == 4.0


@pytest.mark.slow
def test_folders_with_modulations_by_block_are_refused(tmp_path):
  config = MODELS['mar']
  params = mar.init(config, jax.random.key(0))
  head, width = dict(params['head']), config.head_width
  whole = head.pop('modulation')
  for name, rows in (('modulation_0', slice(0, 3)), ('out_modulation', slice(3, 5))):
    head[name] = {'kernel': whole['kernel'][:, rows].reshape(width, -1),
                  'bias': whole['bias'][rows].reshape(-1)}
  with pytest.raises(store.CheckpointError, match='differ in head/modulation_0/bias'):
    store.save_groups(tmp_path / 'old', 'mar', config, weights.divided(params | {'head': head}))
