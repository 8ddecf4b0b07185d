"""Emu3.5: every field of both settings files, and what cannot be converted."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy

from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import early_fusion, vq as vq_rules
from cspd_jax.models import vq
from tests.conversion import published_settings as published
from tests.families import published_files
from tests.models import published as weights

TARGET, VQ = rules.get('emu3_5'), rules.get('emu3_5_vq')
SMALL = dataclasses.replace(published_files.EMU3_5, num_layers=1)


def _save(folder, family, config, settings=None, change=lambda tensors: tensors):
  """Writes a published network; returns its file."""
  tensors = weights.weights(convert.published_shapes(rules.get(family), config), 0)
  safetensors.numpy.save_file(change(tensors), folder / 'model.safetensors')
  if settings is not None:
    (folder / 'config.json').write_text(json.dumps(settings))
  return folder / 'model.safetensors'


def _settings(**changes):
  return {**published_files.transformer_settings(published.EMU3_5, SMALL),
          'head_dim': SMALL.head_dim, 'layer_types': ['full_attention'], **changes}


def test_settings_are_those_of_the_published_model():
  config, = TARGET.presets.values()
  fields = TARGET.settings({'config.json': published.EMU3_5})
  assert fields == {name: getattr(config, name) for name in fields}
  assert {'dim', 'head_dim', 'num_kv_heads', 'norm_eps', 'rope_base', 'vocab_size'} <= fields.keys()
  sizes = VQ.settings({'config.json': published.EMU3_5_VQ})
  assert sizes == {name: getattr(vq.IBQ, name) for name in sizes}
  assert sizes.keys() == {'in_channels', 'ch', 'ch_mult', 'num_res_blocks', 'z_channels',
                          'codebook_size', 'codebook_dim', 'level_attention'}


def test_arguments_of_the_official_classes_are_on_the_lists():
  assert {'pretraining_tp', 'image_area', 'img_token_id', 'boi_token_id', 'eoi_token_id',
          'eol_token_id', 'eof_token_id', 'attention_dropout', 'rope_scaling'} <= (
              early_fusion.EMU3_5_FIELDS.keys())
  assert {'n_embed', 'beta', 'use_entropy_loss', 'cosine_similarity', 'entropy_temperature',
          'sample_minimization_weight', 'batch_maximization_weight', 'remap', 'l2_normalize',
          'resolution', 'dropout', 'resamp_with_conv'} <= vq_rules.IBQ_FIELDS.keys()


@pytest.mark.parametrize('change, message', [
    ({'rope_scaling': {'type': 'linear', 'factor': 2.0}}, "rope_scaling.type is 'linear'"),
    ({'hidden_act': 'gelu'}, "hidden_act is 'gelu'"),
    ({'attention_bias': True}, 'attention_bias is True; it must be False'),
    ({'use_sliding_window': True}, 'use_sliding_window is True; it must be False'),
    ({'layer_types': ['sliding_attention']}, 'layer_types is .*every layer must have full att'),
    ({'boi_token_id': 3}, 'boi_token_id is 3; it must be 151852'),
    ({'model_type': 'emu3_text_model'}, "model_type is 'emu3_text_model'; it must be 'Emu3'"),
    ({'text_config': {}}, 'text_config is {}; no published model has the field'),
    ({'window': 3}, 'window is 3; no published model has the field')])
def test_settings_that_are_refused(change, message):
  with pytest.raises(rules.ConversionError, match=message):
    TARGET.settings({'config.json': {**published.EMU3_5, **change}})


@pytest.mark.parametrize('change, message', [
    ({'model_type': 'Emu3VisionVQ'}, "model_type is 'Emu3VisionVQ'; it must be 'Emu3p5VisionVQ'"),
    ({'l2_normalize': True}, 'l2_normalize is True; it must be False'),
    ({'double_z': True}, 'double_z is True'), ({'out_ch': 4}, 'is 4, but another field is 3|is 3,'),
    ({'remap': 'used.npy'}, "remap is 'used.npy'; it must be left out"),
    ({'ddconfig': {}}, 'ddconfig is {}; no published model has the field')])
def test_settings_of_the_image_tokenizer_that_are_refused(change, message):
  with pytest.raises(rules.ConversionError, match=message):
    VQ.settings({'config.json': {**published.EMU3_5_VQ, **change}})


def test_sizes_follow_from_shapes_and_settings(tmp_path):
  source = convert.open_source(
      'emu3_5', _save(tmp_path, 'emu3_5', SMALL, _settings(rms_norm_eps=1e-6)),
      options={'height': 2, 'width': 3})
  assert source.network.config == dataclasses.replace(SMALL, norm_eps=1e-6)
  assert source.assumptions == ()
  source = convert.open_source('emu3_5', tmp_path / 'model.safetensors')
  assert source.assumptions == (
      'assumed images of 64x64 tokens (1024x1024 pixels); --height=ROWS --width=COLUMNS, or later '
      'cspd-generate --grid=ROWSxCOLUMNS, specify others',)


@pytest.mark.parametrize('settings, message', [
    (None, 'norm_eps, rope_base cannot be inferred .*a transformer like emu3_5_34b'),
    (_settings(head_dim=8), 'head_dim is 8, the model has 12'),
    (_settings(vocab_size=282928), 'vocab_size is 282928, the model has 282926')])
def test_settings_that_are_missing_or_of_other_weights(settings, message, tmp_path):
  with pytest.raises(rules.ConversionError, match=message):
    convert.open_source('emu3_5', _save(tmp_path, 'emu3_5', SMALL, settings))


def test_weights_of_emu3_are_refused(tmp_path):
  config = dataclasses.replace(published_files.EMU3, num_layers=1)
  with pytest.raises(ValueError, match='has 184622 tokens; a transformer like emu3_5_34b has'):
    convert.open_source('emu3_5', _save(tmp_path, 'emu3', config))


@pytest.mark.slow
def test_an_image_tokenizer_without_settings_has_the_sizes_of_its_shapes(tmp_path):
  """As with `config.yaml` alone, which is not read."""
  config = dataclasses.replace(published_files.EMU3_5_VQ, ch_mult=(1, 2), z_channels=8)
  source = convert.open_source('emu3_5_vq', _save(tmp_path, 'emu3_5_vq', config))
  assert source.network.config == config


@pytest.mark.slow
def test_attention_at_another_level_is_refused(tmp_path):
  def more(tensors):
    attention = {name.replace('.mid.attn_1.', '.down.0.attn.0.'): x for name, x in tensors.items()
                 if name.startswith('encoder.mid.attn_1.')}
    return tensors | attention

  config = published_files.EMU3_5_VQ
  with pytest.raises(ValueError, match=r'unexpected: encoder.down.0.attn.0.k.bias'):
    convert.open_source('emu3_5_vq', _save(tmp_path, 'emu3_5_vq', config, change=more))


def test_the_tokenizer_file_of_transformers_is_refused(tmp_path):
  (tmp_path / 'tokenizer.json').write_text('{}')
  with pytest.raises(ValueError, match='read from emu3.tiktoken, which src/tokenizer_emu3_ibq of'):
    convert.convert_file('emu3_5_text', tmp_path / 'tokenizer.json', tmp_path / 'out')


@pytest.mark.slow
def test_checkpoints_of_pytorch_are_read(tmp_path):
  torch = pytest.importorskip('torch')
  config = published_files.EMU3_5_VQ
  drawn = weights.weights(convert.published_shapes(VQ, config), 3)
  torch.save({'state_dict': {name: torch.from_numpy(x) for name, x in drawn.items()}},
             tmp_path / 'model.ckpt')
  source = convert.open_source('emu3_5_vq', tmp_path / 'model.ckpt')
  assert source.network.config == config
  np.testing.assert_array_equal(
      source.params()['codebook']['embedding'], drawn['quantize.embedding.weight'])
