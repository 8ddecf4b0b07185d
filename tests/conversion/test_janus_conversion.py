"""Janus-Pro: the tensors of the published sizes in both formats."""

import functools
import re

import pytest

from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import family as family_lib, janus as janus_rules
from cspd_jax.models import vq
from tests.conversion import published_settings as published

TARGET, VQ = rules.get('janus_pro'), rules.get('janus_pro_vq')


@pytest.mark.slow
@pytest.mark.parametrize('settings, preset, is_transformers', [
    (published.JANUS_PRO_1B, 'janus_pro_1b', False),
    (published.JANUS_PRO_7B, 'janus_pro_7b', False),
    (published.JANUS_PRO_HF, 'janus_pro_1b', True)])
def test_shapes_and_settings_determine_the_published_models(settings, preset, is_transformers):
  config, fields = TARGET.presets[preset], TARGET.settings({'config.json': settings})
  variant = TARGET._replace(rules=functools.partial(
      janus_rules.rules, is_transformers=is_transformers))
  shapes = convert.published_shapes(variant, config)
  assert family_lib.infer(TARGET, shapes, {}, fields) == config


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
