"""CLIP networks, with the names of OpenAI's state dict (also OpenCLIP's), or of transformers."""

import functools
import math
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
  """The fields that both encoders have."""
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


def rules(config: CLIPConfig) -> list[Rule]:
  """Returns the rule table of OpenAI's names."""
  return [
      Rule('visual.conv1.weight', ('image/patch',), base.CONVOLUTION),
      Rule('visual.class_embedding', ('image/class_token',), KEEP),
      Rule('visual.positional_embedding', ('image/positions',), KEEP),
      *base.norm('visual.ln_pre', 'image/first_norm'),
      *_block('visual.transformer.', 'image/', config.image_heads, config.image_dim),
      *base.norm('visual.ln_post', 'image/norm'),
      Rule('visual.proj', ('image/projection',), KEEP),
      Rule('token_embedding.weight', ('text/tokens',), KEEP),
      Rule('positional_embedding', ('text/positions',), KEEP),
      *_block('transformer.', 'text/', config.text_heads, config.text_dim),
      *base.norm('ln_final', 'text/norm'),
      Rule('text_projection', ('text/projection',), KEEP)]


def _block(source: str, destination: str, heads: int, dim: int) -> list[Rule]:
  """A layer with OpenAI's names."""
  source, destination = source + 'resblocks.{i}.', destination + 'layers_{i}/'
  names = ('query', 'key', 'value')
  return [
      *base.norm(source + 'ln_1', destination + 'attention_norm'),
      Rule(source + 'attn.in_proj_weight', tuple(destination + name for name in names),
           base.split_heads(heads, heads, dim // heads)),
      Rule(source + 'attn.in_proj_bias', tuple(f'{destination}{name}_bias' for name in names),
           base.split_head_biases(heads)),
      Rule(source + 'attn.out_proj.weight', (destination + 'out',),
           base.join_heads(heads, dim // heads)),
      Rule(source + 'attn.out_proj.bias', (destination + 'out_bias',), KEEP),
      *base.norm(source + 'ln_2', destination + 'ffn_norm'),
      *base.layer(source + 'mlp.c_fc', destination + 'up', MATRIX),
      *base.layer(source + 'mlp.c_proj', destination + 'down', MATRIX)]


def rules_of_transformers(config: CLIPConfig) -> list[Rule]:
  """Returns the rule table of transformers' names."""
  image, text = 'vision_model.embeddings.', 'text_model.embeddings.'
  return [
      Rule(image + 'patch_embedding.weight', ('image/patch',), base.CONVOLUTION),
      Rule(image + 'class_embedding', ('image/class_token',), KEEP),
      Rule(image + 'position_embedding.weight', ('image/positions',), KEEP),
      *base.norm('vision_model.pre_layrnorm', 'image/first_norm'),
      *_block_of_transformers('vision_model.', 'image/', config.image_heads, config.image_dim),
      *base.norm('vision_model.post_layernorm', 'image/norm'),
      Rule('visual_projection.weight', ('image/projection',), MATRIX),
      Rule(text + 'token_embedding.weight', ('text/tokens',), KEEP),
      Rule(text + 'position_embedding.weight', ('text/positions',), KEEP),
      *_block_of_transformers('text_model.', 'text/', config.text_heads, config.text_dim),
      *base.norm('text_model.final_layer_norm', 'text/norm'),
      Rule('text_projection.weight', ('text/projection',), MATRIX)]


def _block_of_transformers(source: str, destination: str, heads: int, dim: int) -> list[Rule]:
  """A layer with transformers' names."""
  source, destination = source + 'encoder.layers.{i}.', destination + 'layers_{i}/'
  result = [
      *base.norm(source + 'layer_norm1', destination + 'attention_norm'),
      Rule(source + 'self_attn.out_proj.weight', (destination + 'out',),
           base.join_heads(heads, dim // heads)),
      Rule(source + 'self_attn.out_proj.bias', (destination + 'out_bias',), KEEP),
      *base.norm(source + 'layer_norm2', destination + 'ffn_norm'),
      *base.layer(source + 'mlp.fc1', destination + 'up', MATRIX),
      *base.layer(source + 'mlp.fc2', destination + 'down', MATRIX)]
  for name in ('query', 'key', 'value'):
    published = f'{source}self_attn.{name[0]}_proj.'
    result += [Rule(published + 'weight', (destination + name,),
                    base.separate_heads(heads, dim // heads, False)),
               Rule(published + 'bias', (f'{destination}{name}_bias',),
                    base.separate_head_biases(heads, False))]
  return result


def _is_of_transformers(shapes: family.Shapes) -> bool:
  return any(name.startswith('vision_model.') for name in shapes)


def infer(shapes: family.Shapes, options: Mapping[str, Any]) -> CLIPConfig:
  """Infers the sizes of a network from its shapes.

  Args:
    shapes: shapes of its published tensors, with either names.
    options: fields of settings files, which determine heads, activation and `norm_eps`.

  Raises:
    ConversionError: if the shapes are not those of such a network.
  """
  shape = functools.partial(family.shape, _TITLE, shapes)
  if _is_of_transformers(shapes):
    image, text = 'vision_model.encoder.layers.', 'text_model.encoder.layers.'
    patch, up = 'vision_model.embeddings.patch_embedding.weight', 'mlp.fc1.weight'
    positions = '{}_model.embeddings.position_embedding.weight'
    places = positions.format('vision'), positions.format('text')
    tokens = 'text_model.embeddings.token_embedding.weight'
    feature_dim = shape('visual_projection.weight', 2)[0]
  else:
    image, text = 'visual.transformer.resblocks.', 'transformer.resblocks.'
    patch, up = 'visual.conv1.weight', 'mlp.c_fc.weight'
    places = 'visual.positional_embedding', 'positional_embedding'
    tokens = 'token_embedding.weight'
    feature_dim = shape('visual.proj', 2)[1]
  image_dim, _, patch_size, _ = shape(patch, 4)
  vocab_size, text_dim = shape(tokens, 2)
  layers = lambda prefix: family.count(
      shapes, rf'{prefix.replace(".", "[.]")}(\d+)[.]{up.replace(".", "[.]")}')
  return CLIPConfig(
      image_size=patch_size * math.isqrt(shape(places[0], 2)[0] - 1), patch_size=patch_size,
      image_dim=image_dim, image_layers=layers(image),
      image_heads=options.get('image_heads', max(image_dim // _HEAD, 1)),
      image_ffn=shape(f'{image}0.{up}', 2)[0], vocab_size=vocab_size,
      context=shape(places[1], 2)[0], text_dim=text_dim, text_layers=layers(text),
      text_heads=options.get('text_heads', max(text_dim // _HEAD, 1)),
      text_ffn=shape(f'{text}0.{up}', 2)[0], feature_dim=feature_dim,
      activation=options.get('activation', 'quick_gelu'),
      norm_eps=options.get('norm_eps', 1e-5))


FAMILY = family.FileFamily(
    name='clip', title=_TITLE, kind='clip', rules=rules, infer=infer, presets=clip.PRESETS,
    variant=lambda shapes: (
        {'rules': rules_of_transformers} if _is_of_transformers(shapes) else {}),
    settings=lambda contents: settings.read({'config.json': FIELDS}, contents),
    # OpenCLIP's networks of the same shapes have another activation.
    needed={'activation': '"text_config": {"hidden_act": "quick_gelu"}'},
    # Buffers, and the scale of logits: scores are cosines.
    leftovers=r'logit_scale|input_resolution|context_length|vocab_size|attn_mask|'
    r'(text|vision)_model\.embeddings\.position_ids')
