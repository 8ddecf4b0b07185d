"""Janus-Pro: the tensors of the published sizes in both formats, and every field of config.json."""

import copy
import dataclasses
import functools
import re

import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import family as family_lib, janus as janus_rules
from cspd_jax.models import vq
from tests.conversion import published_settings as published
from tests.models import published as weights

TARGET, VQ = rules.get('janus_pro'), rules.get('janus_pro_vq')
SETTINGS = {'1b': (published.JANUS_PRO_1B, 'janus_pro_1b'),
            '7b': (published.JANUS_PRO_7B, 'janus_pro_7b'),
            'transformers': (published.JANUS_PRO_HF, 'janus_pro_1b')}
SMALL = dataclasses.replace(
    TARGET.presets['janus_pro_1b'], num_codes=12, text_size=20, dim=16, num_layers=2, num_heads=2,
    num_kv_heads=1, output_dim=16, ffn_dim=24)


def _changed(content, path, value):
  """A copy of settings with one field changed; `path` has its names, separated by dots."""
  content = copy.deepcopy(content)
  *parts, name = path.split('.')
  functools.reduce(lambda inside, part: inside[part], parts, content)[name] = value
  return content


def _read(family, release, path=None, value=None):
  content = SETTINGS[release][0]
  return family.settings(
      {'config.json': content if path is None else _changed(content, path, value)})


@pytest.mark.slow
@pytest.mark.parametrize('release', SETTINGS)
def test_the_published_settings_are_those_of_a_preset(release):
  config = TARGET.presets[SETTINGS[release][1]]
  fields = _read(TARGET, release)
  assert fields == {name: getattr(config, name) for name in fields}
  assert {'num_heads', 'norm_eps', 'rope_base', 'num_codes', 'text_size', 'dim'} <= fields.keys()
  variant = TARGET._replace(rules=functools.partial(
      janus_rules.rules, is_transformers=release == 'transformers'))
  shapes = convert.published_shapes(variant, config)
  assert family_lib.infer(TARGET, shapes, {}, fields) == config
  sizes = _read(VQ, release)
  assert sizes == {name: getattr(vq.VQConfig(), name) for name in sizes}
  assert {'codebook_size', 'codebook_dim'} <= sizes.keys()


@pytest.mark.parametrize('release, path, value, message', [
    ('7b', 'language_config.attention_bias', True, 'attention_bias is True; it must be False'),
    ('7b', 'language_config.rope_scaling', {'type': 'linear', 'factor': 2.0}, "type is 'linear'"),
    ('7b', 'language_config.hidden_act', 'gelu', "hidden_act is 'gelu'"),
    ('7b', 'language_config.model_type', 'qwen2', "model_type is 'qwen2'; it must be 'llama'"),
    ('7b', 'language_config.layers', 3, 'layers is 3; no published model has the field'),
    ('7b', 'gen_aligner_config.params.projector_type', 'linear', "projector_type is 'linear'"),
    ('7b', 'gen_aligner_config.params.depth', 3, 'depth is 3; it must be 2'),
    ('1b', 'gen_aligner_config.params.depth', None, 'depth is absent, which means 1; it must be 2'),
    ('7b', 'gen_aligner_config.params.n_embed', 2048, 'another field is 2048|n_embed is 2048'),
    ('7b', 'gen_head_config.cls', 'linear_head', "gen_head_config.cls is 'linear_head'"),
    ('7b', 'gen_head_config.params.bias', False, 'bias is False; no published model has the field'),
    ('7b', 'gen_vision_config.cls', 'VQ-8', "cls is 'VQ-8'; it must be 'VQ-16'"),
    ('7b', 'gen_vision_config.params.image_token_size', 8192, 'another field is'),
    ('7b', 'model_type', 'janus_flow', "model_type is 'janus_flow'"),
    ('7b', 'flow_config', {}, 'flow_config is {}; no published model has the field'),
    ('transformers', 'vision_config.image_size', 512, 'image_size is 512; it must be 384'),
    ('transformers', 'vision_config.num_image_tokens', 1024, 'num_image_tokens is 1024'),
    ('transformers', 'vq_config.num_patches', 32, 'num_patches is 32; it must be 24'),
    ('transformers', 'vq_config.num_patches', None, 'num_patches is absent, which means 32;'),
    ('transformers', 'vq_config.hidden_act', 'silu', "hidden_act is 'silu'; it must be 'gelu'"),
    ('transformers', 'vq_config.num_hidden_layers', 3, 'num_hidden_layers is 3; it must be 2'),
    ('transformers', 'vq_config.norm', 'x', "vq_config.norm is 'x'; no published model"),
    ('transformers', 'text_config.quantization_config', {'bits': 4}, 'it must be left out')])
def test_other_settings_are_refused_by_name(release, path, value, message):
  with pytest.raises(rules.ConversionError, match=message):
    _read(TARGET, release, path, value)


@pytest.mark.parametrize('release, path, value, message', [
    ('1b', 'gen_vision_config.cls', 'VQ-8', "cls is 'VQ-8'"),
    ('1b', 'gen_vision_config.params.image_token_size', '8192', 'must be a whole number'),
    ('1b', 'flow_config', {}, 'flow_config is {}; no published model has the field'),
    ('transformers', 'vq_config.double_latent', True, 'double_latent is True; it must be False'),
    ('transformers', 'vq_config.out_channels', 4, 'another field is'),
    ('transformers', 'vq_config.norm', 'x', "vq_config.norm is 'x'; no published model")])
def test_other_settings_of_the_image_tokenizer_are_refused_by_name(release, path, value, message):
  with pytest.raises(rules.ConversionError, match=message):
    _read(VQ, release, path, value)


@pytest.mark.slow
def test_every_field_of_the_installed_version_is_on_the_list():
  transformers = pytest.importorskip('transformers', '5')
  module = transformers.models.janus.configuration_janus
  fields = lambda kind: {name for name in {field.name for field in dataclasses.fields(kind)} |
                         kind().to_dict().keys() if not name.startswith('_')}
  for table in (janus_rules.FIELDS, janus_rules.VQ_FIELDS):
    assert fields(module.JanusConfig) <= table.keys()
    assert fields(module.JanusVQVAEConfig) <= table['vq_config'].fields.keys()
  assert fields(transformers.LlamaConfig) <= janus_rules.FIELDS['text_config'].fields.keys()


@pytest.mark.slow
@pytest.mark.verifies('shapes', 'janus_pro')
@pytest.mark.parametrize('name', TARGET.presets)
def test_tensors_of_the_published_sizes_are_those_of_transformers(name):
  transformers, torch = pytest.importorskip('transformers', '5'), pytest.importorskip('torch')
  config = TARGET.presets[name]
  sizes = dict(projection_dim=config.dim)
  with torch.device('meta'):
    network = transformers.JanusForConditionalGeneration(transformers.JanusConfig(
        text_config=dict(
            model_type='llama', vocab_size=config.text_size, hidden_size=config.dim,
            intermediate_size=config.ffn_dim, num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads),
        vision_config=dict(num_hidden_layers=1, **sizes),
        vq_config=dict(image_token_embed_dim=config.dim, **sizes)))
  shapes = {name: tuple(x.shape) for name, x in network.state_dict().items()}
  for family, preset in ((TARGET, config), (VQ, VQ.presets['vq_16'])):
    whole = family._replace(**family.variant(shapes))
    assert convert.published_shapes(whole, preset) == {
        name: shape for name, shape in shapes.items()
        if not re.fullmatch(family.leftovers, name)}


@pytest.mark.slow
def test_the_image_tokenizer_has_the_tensors_of_llamagen():
  prefix = 'gen_vision_model.'
  assert convert.published_shapes(VQ, VQ.presets['vq_16']) == {
      prefix + name: shape for name, shape in convert.published_shapes(
          rules.get('llamagen_vq'), vq.VQConfig()).items()}


def test_anything_else_in_a_file_is_refused():
  tensors = weights.weights(convert.published_shapes(TARGET, SMALL), 3)
  others = ('language_model.lm_head.weight', 'vision_model.vision_tower.norm.weight',
            'aligner.layers.0.weight', 'gen_vision_model.quantize.codebook_used')
  convert.convert(TARGET, SMALL, {**tensors, **{name: np.zeros(3) for name in others}})
  with pytest.raises(rules.ConversionError, match='unexpected: gen_head.extra.weight'):
    convert.convert(TARGET, SMALL, {**tensors, 'gen_head.extra.weight': np.zeros(3)})
  del tensors['gen_aligner.layers.2.bias']
  with pytest.raises(rules.ConversionError, match='missing: gen_aligner.layers.2.bias'):
    convert.convert(TARGET, SMALL, tensors)


@pytest.mark.slow
def test_sizes_that_cannot_be_inferred_are_explained():
  shapes = convert.published_shapes(TARGET, SMALL)
  with pytest.raises(rules.ConversionError, match='num_heads, norm_eps, rope_base cannot be'):
    family_lib.infer(TARGET, shapes, {})
  with pytest.raises(rules.ConversionError, match='norm_eps, rope_base cannot be inferred'):
    family_lib.infer(TARGET, shapes, {'num_heads': 2})
  with pytest.raises(rules.ConversionError, match='image_size: not an option'):
    family_lib.infer(TARGET, shapes, {'image_size': 512})
  with pytest.raises(rules.ConversionError, match='not a Janus-Pro model.*gen_embed.weight'):
    family_lib.infer(TARGET, {'language_model.model.embed_tokens.weight': (20, 16)},
                     {'num_heads': 2})
