"""GLM-Image: the tensors of the published size, every field of config.json, folders and copies."""

import copy
import dataclasses
import functools
import json
import re

import numpy as np
import pytest
import safetensors.numpy

from checkpoints_conversion import convert, folder as folder_lib, rules
from checkpoints_conversion.rules import family as family_lib, glm_image as glm_rules
from tests.conversion import published_settings as published
from tests.families import glm_image_files

TARGET = rules.get('glm_image')
CONFIG = glm_image_files.CONFIG


def _changed(path, value):
  """The published settings with one field changed; `path` has its names, separated by dots."""
  content = copy.deepcopy(published.GLM_IMAGE)
  *parts, name = path.split('.')
  functools.reduce(lambda inside, part: inside[part], parts, content)[name] = value
  return {'config.json': content}


def test_the_published_settings_are_those_of_the_preset():
  config, = TARGET.presets.values()
  fields = TARGET.settings({'config.json': published.GLM_IMAGE})
  assert fields == {name: getattr(config, name) for name in fields}
  assert {'dim', 'num_kv_heads', 'num_codes', 'image_start', 'image_end', 'output_size', 'sections',
          'rotary_factor', 'qkv_bias', 'rope_base', 'norm_eps'} <= fields.keys()
  shapes = convert.published_shapes(TARGET, config)
  assert family_lib.infer(TARGET, shapes, {}, fields) == config
  assert TARGET.sampling(config) == {'pictures': {'temperature': 0.9, 'top_p': 0.75}}


@pytest.mark.slow
@pytest.mark.verifies('shapes', 'glm_image')
@pytest.mark.parametrize('has_biases', [True, False])
def test_tensors_of_the_published_size_are_those_of_transformers(has_biases):
  pytest.importorskip('transformers.models.glm_image')
  torch = pytest.importorskip('torch')
  from transformers.models import glm_image

  from tests.models import glm_image_reference  # It requires both.
  config = dataclasses.replace(TARGET.presets['glm_image_9b'], qkv_bias=has_biases)
  with torch.device('meta'):
    network = glm_image.GlmImageForConditionalGeneration(glm_image_reference.settings(config))
  shapes = {name: tuple(x.shape) for name, x in network.state_dict().items()}
  assert convert.published_shapes(TARGET, config) == {
      name: shape for name, shape in shapes.items() if not re.fullmatch(TARGET.leftovers, name)}
  # The networks that read images, and nothing else.
  assert {name.split('.')[1] for name in shapes if re.fullmatch(TARGET.leftovers, name)} == {
      'visual', 'vqmodel'}


@pytest.mark.slow
def test_every_field_of_the_installed_version_is_on_the_list():
  module = pytest.importorskip('transformers.models.glm_image.configuration_glm_image')
  fields = lambda kind: {name for name in {field.name for field in dataclasses.fields(kind)} |
                         kind().to_dict().keys() if not name.startswith('_')}
  assert fields(module.GlmImageConfig) <= glm_rules.FIELDS.keys()
  assert fields(module.GlmImageTextConfig) <= glm_rules.FIELDS['text_config'].fields.keys()
  assert fields(module.GlmImageVQVAEConfig) <= glm_rules.FIELDS['vq_config'].fields.keys()


@pytest.mark.parametrize('path, value, message', [
    ('text_config.rope_parameters.partial_rotary_factor', 1.0, 'rotary_factor is 1.0, the model'),
    ('text_config.rope_parameters.partial_rotary_factor', None, 'rotary_factor is 1.0, the model'),
    ('text_config.rope_parameters.mrope_section', [16, 8, 8], 'sections is .16, 8, 8., the model'),
    ('text_config.attention_bias', False, 'qkv_bias is False, the model has True'),
    ('text_config.num_key_value_heads', 4, 'num_kv_heads is 4, the model has 2'),
    ('vq_config.num_embeddings', 8192, 'num_codes is 8192, the model has 16384'),
    ('image_start_token_id', 16386, 'image_start is 16386, the model has 16384')])
def test_settings_that_contradict_the_model_are_refused(path, value, message):
  with pytest.raises(rules.ConversionError, match=message):
    convert.of_tensors('glm_image', _published(), _changed(path, value), model='glm_image_9b',
                       metadata=dict)


@functools.cache  # Their shapes take seconds.
def _published():
  shapes = convert.published_shapes(TARGET, TARGET.presets['glm_image_9b'])
  return {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}


@pytest.mark.parametrize('path, value, message', [
    ('model_type', 'glm4v', "model_type is 'glm4v'; it must be 'glm_image'"),
    ('text_config.model_type', 'glm4', "model_type is 'glm4'; it must be 'glm_image_text'"),
    ('text_config.hidden_act', 'gelu', "hidden_act is 'gelu'"),
    ('text_config.rope_parameters.rope_type', 'yarn', "rope_type is 'yarn'; it must be 'default'"),
    ('text_config.rope_parameters.factor', 2.0, 'factor is 2.0; no published model has the field'),
    ('text_config.rope_scaling', {'type': 'linear'}, 'rope_scaling is .*it must be left out'),
    ('text_config.partial_rotary_factor', 0.5, 'partial_rotary_factor is 0.5; it must be left out'),
    ('text_config.mlp_bias', True, 'mlp_bias is True; no published model has the field'),
    ('vision_config.model_type', 'siglip', "model_type is 'siglip'"),
    ('vq_config.beta', 0.5, 'beta is 0.5; no published model has the field'),
    ('quantization_config', {'quant_method': 'fp8'}, 'convert the weights before they were quant'),
    ('text_config.quantization_config', {'load_in_4bit': True}, 'quantization_config is .*4bit'),
    ('draft', {}, 'draft is {}; no published model has the field')])
def test_other_settings_are_refused_by_name(path, value, message):
  with pytest.raises(rules.ConversionError, match=message):
    TARGET.settings(_changed(path, value))


def test_sizes_follow_from_shapes_and_settings(tmp_path):
  source = glm_image_files.folder(tmp_path) / 'vision_language_encoder'
  opened = convert.open_source('glm_image', source, options={
      'height': 3, 'width': 4, 'num_heads': 2})
  # The side of the small grid is in no file, and the same in all published models.
  assert opened.network.config == dataclasses.replace(CONFIG, small_side=16)
  assert opened.assumptions == ()
  opened = convert.open_source('glm_image', source, options={'num_heads': 2})
  assert opened.assumptions == (
      'assumed images of 32x32 tokens (1024x1024 pixels); --height=ROWS --width=COLUMNS, or later '
      'cspd-generate --grid=ROWSxCOLUMNS, specify others',)


@pytest.mark.parametrize('other, message', [
    ('transformer', 'from the folder transformer, the diffusion decoder, which draws no tokens; '
     'the source is the folder vision_language_encoder'),
    ('vae', 'from the folder vae, which draws no tokens'),
    ('text_encoder', 'from the folder text_encoder, which draws no tokens')])
def test_other_folders_of_a_repository_are_refused_by_name(other, message, tmp_path, capsys):
  source = glm_image_files.folder(tmp_path) / other
  assert glm_image_files.converted(source, tmp_path / 'model') == 2
  error = capsys.readouterr().err
  assert message in error and error.count('\n') == 1
  assert not (tmp_path / 'model').exists()


@pytest.mark.parametrize('dtype', ['float8_e4m3fn', 'int8'])
def test_quantised_copies_are_refused_by_name(dtype, tmp_path):
  """Float8, and the bytes that hold two numbers of four bits each."""
  tensors = glm_image_files.tensors()
  name = 'model.language_model.layers.0.mlp.down_proj.weight'
  number = np.dtype(getattr(__import__('ml_dtypes'), dtype, dtype))
  changed = tensors[name].astype(number)
  header = safetensors.numpy.save({**tensors, name: np.zeros(changed.shape, np.int8)})
  if dtype.startswith('float8'):
    header = header.replace(b'"I8"', b'"F8_E4M3"', 1)
    length = int.from_bytes(header[:8], 'little') + len(b'F8_E4M3') - len(b'I8')
    header = length.to_bytes(8, 'little') + header[8:]
  (tmp_path / 'model.safetensors').write_bytes(header)
  (tmp_path / 'config.json').write_text(json.dumps(glm_image_files.settings()))
  with pytest.raises(ValueError, match=rf'{name} is .*; save weights as float16, bfloat16'):
    convert.open_source('glm_image', tmp_path, options={'num_heads': 2})


def test_a_missing_processor_is_named(tmp_path, capsys):
  source = glm_image_files.folder(tmp_path, has_processor=False)
  assert not glm_image_files.converted(source, tmp_path / 'model')
  assert ('Missing: a tokenizer file for glm_image (processor/tokenizer.json); next: cspd-convert '
          '--family=glm_image_text --source=FILE') in capsys.readouterr().out


@pytest.mark.parametrize('field, value', [
    ('grid_bos_token', '<grid>'), ('bos_token', {'content': '<s>'}),
    ('extra_special_tokens', {'grid_eos_token': '</grid>'})])
def test_a_processor_with_other_tokens_is_refused(field, value, tmp_path):
  file = glm_image_files.folder(tmp_path) / 'processor' / 'tokenizer.json'
  names = {name: token for name, token in glm_image_files.NAMES.items()
           if field != 'extra_special_tokens' or name != 'grid_eos_token'}
  file.with_name('tokenizer_config.json').write_text(json.dumps({**names, field: value}))
  with pytest.raises(rules.ConversionError, match=r'_token is .*; it must be .*as in the prompts'):
    convert.open_source('glm_image_text', file)


def test_a_download_leaves_the_decoder_out(hub, tmp_path):
  """The files of the hub that belong to the model, and none of the other networks of gigabytes."""
  folder = glm_image_files.folder(tmp_path)
  hub.repositories['zai-org/GLM-Image'] = files = {
      path.relative_to(folder).as_posix(): path.read_bytes()
      for path in folder.rglob('*') if path.is_file()}
  assert {'transformer', 'vae', 'text_encoder'} <= {name.partition('/')[0] for name in files}
  sources = folder_lib.find_model('glm_image', 'zai-org/GLM-Image')
  assert sources['glm_image'].name == 'vision_language_encoder'
  assert sources['glm_image_text'].name == 'tokenizer.json'
  # Files of equal content are fetched once.
  assert {path.partition('/')[0] for path, _ in hub.fetched} == {
      'vision_language_encoder', 'processor'}
  assert (sources['glm_image'] / 'config.json').is_file()
  assert sources['glm_image_text'].with_name('tokenizer_config.json').is_file()
