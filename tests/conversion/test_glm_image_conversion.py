"""GLM-Image: settings that contradict weights, and folders."""

import dataclasses
import json

import pytest

from checkpoints_conversion import convert, folder as folder_lib, rules
from tests.builders import folders, sizes, writers
from tests.conversion import published_settings as published

TARGET = rules.get('glm_image')


def _converted(source, output):
  with folders.tiny():
    return folders.run(source, 'glm_image', output, '--model=glm_image_9b')


@pytest.mark.parametrize('path, value, message', [
    ('text_config.rope_parameters.partial_rotary_factor', 1.0, 'rotary_factor is 1.0, the model'),
    ('text_config.rope_parameters.partial_rotary_factor', None, 'rotary_factor is 1.0, the model'),
    ('text_config.attention_bias', False, 'qkv_bias is False, the model has True'),
    ('text_config.num_key_value_heads', 4, 'num_kv_heads is 4, the model has 1'),
    ('image_start_token_id', 50, 'image_start is 50, the model has 40')])
def test_settings_that_contradict_the_weights_are_refused(path, value, message):
  content = published.changed(writers.glm_settings(), path, value)
  with pytest.raises(rules.ConversionError, match=message):
    convert.of_tensors('glm_image', writers.glm_tensors(), {'config.json': content},
                       options={'num_heads': 2}, metadata=dict)


def test_sizes_follow_from_shapes_and_settings(tmp_path):
  source = writers.glm_image(tmp_path) / 'vision_language_encoder'
  opened = convert.open_source('glm_image', source, options={
      'height': 3, 'width': 4, 'num_heads': 2})
  # The side of the small grid is in no file, and the same in all published models.
  assert opened.network.config == dataclasses.replace(
      sizes.GLM_IMAGE, small_side=16)
  left_out = 'left out model.vqmodel.quant_conv.bias, which this network does not have'
  assert opened.assumptions == (left_out,)
  opened = convert.open_source('glm_image', source, options={'num_heads': 2})
  assert opened.assumptions == (
      'assumed images of 32x32 tokens (1024x1024 pixels); --height=ROWS --width=COLUMNS, or later '
      'cspd-generate --grid=ROWSxCOLUMNS, specify others', left_out)


@pytest.mark.parametrize('other, message', [
    ('transformer', 'from the folder transformer, the diffusion decoder, which draws no tokens; '
     'the source is the folder vision_language_encoder'),
    ('vae', 'from the folder vae, which draws no tokens'),
    ('text_encoder', 'from the folder text_encoder, which draws no tokens')])
def test_other_folders_of_a_repository_are_refused_by_name(other, message, tmp_path, capsys):
  source = writers.glm_image(tmp_path) / other
  assert _converted(source, tmp_path / 'model') == 2
  error = capsys.readouterr().err
  assert message in error and error.count('\n') == 1
  assert not (tmp_path / 'model').exists()


def test_a_missing_processor_is_named(tmp_path, capsys):
  source = writers.glm_image(tmp_path, has_processor=False)
  assert not _converted(source, tmp_path / 'model')
  assert ('Missing: a tokenizer file for glm_image (processor/tokenizer.json); next: cspd-convert '
          '--family=glm_image_text --source=FILE') in capsys.readouterr().out


@pytest.mark.parametrize('field, value', [
    ('grid_bos_token', '<grid>'), ('bos_token', {'content': '<s>'}),
    ('extra_special_tokens', {'grid_eos_token': '</grid>'})])
def test_a_processor_with_other_tokens_is_refused(field, value, tmp_path):
  file = writers.glm_image(tmp_path) / 'processor' / 'tokenizer.json'
  names = {name: token for name, token in writers.GLM_NAMES.items()
           if field != 'extra_special_tokens' or name != 'grid_eos_token'}
  file.with_name('tokenizer_config.json').write_text(json.dumps({**names, field: value}))
  with pytest.raises(rules.ConversionError, match=r'_token is .*; it must be .*as in the prompts'):
    convert.open_source('glm_image_text', file)


def test_a_download_leaves_the_decoder_out(hub, tmp_path):
  """The files of the hub that belong to the model, and none of the other networks of gigabytes."""
  folder = writers.glm_image(tmp_path)
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
