"""CLIP networks, with the names of OpenAI's state dict (also OpenCLIP's), or of transformers."""

import functools
import math
import re
from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import base, family, settings
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule
from checkpoints_conversion.rules.settings import Free, Must, Size
from cspd_jax.metrics.clip import CLIPConfig
from cspd_jax.models import clip

_TITLE = 'a CLIP network with a vision transformer'
# Width of an attention head in all networks of OpenAI.
_HEAD = 64


def _encoder_fields(name: str, heads: int) -> settings.Table:
  return {
      **settings.COMMON,
      'hidden_size': Size(f'{name}_dim'), 'intermediate_size': Size(f'{name}_ffn'),
      'num_hidden_layers': Size(f'{name}_layers'),
      'num_attention_heads': Size(f'{name}_heads', int, heads),
      'hidden_act': Size('activation', str, 'quick_gelu'),
      'layer_norm_eps': Size('norm_eps', float, 1e-5),
      'projection_dim': Free('both encoders have the one of the whole network')}


_TEXT_FIELDS: settings.Table = {
    **_encoder_fields('text', 8), 'model_type': Must(('clip_text_model',)),
    'vocab_size': Size('vocab_size'), 'max_position_embeddings': Size('context')}
_IMAGE_FIELDS: settings.Table = {
    **_encoder_fields('image', 12), 'model_type': Must(('clip_vision_model',)),
    'image_size': Size('image_size'), 'patch_size': Size('patch_size'),
    'num_channels': Must((3,))}
FIELDS: settings.Table = {
    **settings.COMMON, 'model_type': Must(('clip',)), 'projection_dim': Size('feature_dim'),
    'logit_scale_init_value': Free('scores are cosines, without the scale'),
    'text_config': settings.Part(_TEXT_FIELDS), 'text_config_dict': settings.Part(_TEXT_FIELDS),
    'vision_config': settings.Part(_IMAGE_FIELDS),
    'vision_config_dict': settings.Part(_IMAGE_FIELDS)}


# Parts of OpenAI's names and what transformers calls them, replaced in this order.
_NAMES = {
    'visual.conv1.': 'vision_model.embeddings.patch_embedding.',
    'visual.class_embedding': 'vision_model.embeddings.class_embedding',
    'visual.positional_embedding': 'vision_model.embeddings.position_embedding.weight',
    'visual.ln_pre': 'vision_model.pre_layrnorm', 'visual.ln_post': 'vision_model.post_layernorm',
    'visual.proj': 'visual_projection.weight', 'visual.transformer.': 'vision_model.encoder.',
    'token_embedding.': 'text_model.embeddings.token_embedding.',
    'positional_embedding': 'text_model.embeddings.position_embedding.weight',
    'ln_final': 'text_model.final_layer_norm', 'text_projection': 'text_projection.weight',
    'transformer.': 'text_model.encoder.'}
_NAMES_OF_LAYERS = {
    'resblocks.': 'layers.', '.ln_': '.layer_norm', '.attn.': '.self_attn.', '.c_fc.': '.fc1.',
    '.c_proj.': '.fc2.'}


def _of_transformers(name: str) -> str:
  """Returns the name of a tensor in the format of transformers, from OpenAI's."""
  part = next((part for part in _NAMES if name.startswith(part)), '')
  name = _NAMES.get(part, '') + name.removeprefix(part)
  for part, replacement in _NAMES_OF_LAYERS.items():
    name = name.replace(part, replacement)
  return name


def rules(config: CLIPConfig, is_transformers: bool = False) -> list[Rule]:
  """Returns the rule table of a network, with names of transformers or OpenAI's."""
  projection = MATRIX if is_transformers else KEEP
  table = [
      Rule('visual.conv1.weight', ('image/patch',), base.CONVOLUTION),
      Rule('visual.class_embedding', ('image/class_token',), KEEP),
      Rule('visual.positional_embedding', ('image/positions',), KEEP),
      *base.norm('visual.ln_pre', 'image/first_norm'),
      *_layer('visual.transformer.', 'image/', config.image_heads, config.image_dim,
              is_transformers),
      *base.norm('visual.ln_post', 'image/norm'),
      Rule('visual.proj', ('image/projection',), projection),
      Rule('token_embedding.weight', ('text/tokens',), KEEP),
      Rule('positional_embedding', ('text/positions',), KEEP),
      *_layer('transformer.', 'text/', config.text_heads, config.text_dim, is_transformers),
      *base.norm('ln_final', 'text/norm'),
      Rule('text_projection', ('text/projection',), projection)]
  if not is_transformers:
    return table
  return [rule._replace(source=_of_transformers(rule.sources[0])) for rule in table]


def _layer(source: str, destination: str, heads: int, dim: int, is_transformers: bool
           ) -> list[Rule]:
  """A layer with OpenAI's names, or with the separate projections of transformers."""
  source, destination = source + 'resblocks.{i}.', destination + 'layers_{i}/'
  names, width = ('query', 'key', 'value'), dim // heads
  if is_transformers:
    projections = [rule for name in names for rule in (
        Rule(f'{source}attn.{name[0]}_proj.weight', (destination + name,),
             base.separate_heads(heads, width, False)),
        Rule(f'{source}attn.{name[0]}_proj.bias', (f'{destination}{name}_bias',),
             base.separate_head_biases(heads, False)))]
  else:
    projections = [
        Rule(source + 'attn.in_proj_weight', tuple(destination + name for name in names),
             base.split_heads(heads, heads, width)),
        Rule(source + 'attn.in_proj_bias', tuple(f'{destination}{name}_bias' for name in names),
             base.split_head_biases(heads))]
  return [
      *base.norm(source + 'ln_1', destination + 'attention_norm'), *projections,
      Rule(source + 'attn.out_proj.weight', (destination + 'out',), base.join_heads(heads, width)),
      Rule(source + 'attn.out_proj.bias', (destination + 'out_bias',), KEEP),
      *base.norm(source + 'ln_2', destination + 'ffn_norm'),
      *base.layer(source + 'mlp.c_fc', destination + 'up', MATRIX),
      *base.layer(source + 'mlp.c_proj', destination + 'down', MATRIX)]


def _is_of_transformers(shapes: family.Shapes) -> bool:
  return any(name.startswith('vision_model.') for name in shapes)


def infer(shapes: family.Shapes, options: Mapping[str, Any]) -> CLIPConfig:
  """Infers the sizes from shapes; settings determine heads, activation and `norm_eps`."""
  shape = functools.partial(family.shape, _TITLE, shapes)
  is_transformers = _is_of_transformers(shapes)
  named = _of_transformers if is_transformers else lambda name: name
  up = named('.mlp.c_fc.weight')
  image, text = named('visual.transformer.resblocks.'), named('transformer.resblocks.')
  image_dim, _, patch_size, _ = shape(named('visual.conv1.weight'), 4)
  vocab_size, text_dim = shape(named('token_embedding.weight'), 2)
  layers = lambda prefix: family.count(shapes, rf'{re.escape(prefix)}(\d+){re.escape(up)}')
  length = lambda name: shape(named(name), 2)[0]
  return CLIPConfig(
      image_size=patch_size * math.isqrt(length('visual.positional_embedding') - 1),
      patch_size=patch_size, image_dim=image_dim, image_layers=layers(image),
      image_heads=options.get('image_heads', max(image_dim // _HEAD, 1)),
      image_ffn=shape(f'{image}0{up}', 2)[0], vocab_size=vocab_size,
      context=length('positional_embedding'), text_dim=text_dim, text_layers=layers(text),
      text_heads=options.get('text_heads', max(text_dim // _HEAD, 1)),
      text_ffn=shape(f'{text}0{up}', 2)[0],
      feature_dim=shape(named('visual.proj'), 2)[0 if is_transformers else 1],
      activation=options.get('activation', 'quick_gelu'),
      norm_eps=options.get('norm_eps', 1e-5))


FAMILY = family.FileFamily(
    name='clip', title=_TITLE, kind='clip', rules=rules, infer=infer, presets=clip.PRESETS,
    variant=lambda shapes: {'rules': functools.partial(
        rules, is_transformers=_is_of_transformers(shapes))},
    settings=lambda contents: settings.read({'config.json': FIELDS}, contents),
    # OpenCLIP's networks of the same shapes have another activation.
    needed={'activation': '"text_config": {"hidden_act": "quick_gelu"}'},
    # Buffers, and the scale of logits: scores are cosines.
    leftovers=r'logit_scale|input_resolution|context_length|vocab_size|attn_mask|'
    r'(text|vision)_model\.embeddings\.position_ids')
