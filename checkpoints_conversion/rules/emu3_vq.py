"""Emu3's image tokenizer (arXiv 2409.18869), as BAAI and transformers store it."""

import functools
import re
from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import base, blocks, family, settings
from checkpoints_conversion.rules.base import KEEP, MATRIX, POINTWISE, Rule
from checkpoints_conversion.rules.settings import Free, Must, Part, Size
from cspd_jax.models.emu3_vq import Emu3VQConfig

_TITLE = "Emu3's image tokenizer"
# [out, in, time, height, width] to [time, height, width, in, out].
_OVER_TIME = base.Transform(
    lambda x: (x.transpose(2, 3, 4, 1, 0),), lambda x: x.transpose(4, 3, 0, 1, 2))
# Parts of BAAI's names and what transformers calls them, replaced in this order.
_NAMES = (
    (r'\.mid\.attn_1\.norm\b', '.middle_block.attn_norm'), (r'\.mid\.', '.middle_block.'),
    (r'\.attn\.({j})\.norm\b', r'.attn_norms.\1'),
    (r'^encoder\.down\.', 'encoder.down_block.down.'), (r'^decoder\.up\.', 'decoder.up_block.up.'),
    (r'\.([qkv])\.(weight|bias)$', r'.\1_proj.\2'), (r'\.proj_out\.', '.out_proj.'))
# Prefix of all names in a file that also holds the transformer.
_PREFIX = 'vqmodel.'

_FIELDS: settings.Table = {
    **settings.COMMON,
    'model_type': Must(('Emu3VisionVQ', 'emu3_vqgan', 'emu3')),
    'codebook_size': Size('codebook_size'), 'embed_dim': Size('z_channels'),
    'z_channels': Size('z_channels'), 'latent_channels': Size('z_channels'),
    'double_z': Must((False,)), 'double_latent': Must((False,)),
    'in_channels': Size('in_channels'), 'out_channels': Size('in_channels'),
    'ch': Size('ch'), 'base_channels': Size('ch'), 'ch_mult': Size('ch_mult', tuple),
    'channel_multiplier': Size('ch_mult', tuple), 'num_res_blocks': Size('num_res_blocks'),
    'temporal_downsample_factor': Must((4,)), 'num_attention_heads': Must((1,)),
    'hidden_size': settings.OF_SHAPES,
    'attn_resolutions': Size('attention_levels', tuple, (3,)),
}
_OF_THE_TRANSFORMER = Free('the transformer is another network')
FIELDS: settings.Table = {
    **_FIELDS, 'vq_config': Part(_FIELDS), 'text_config': _OF_THE_TRANSFORMER,
    'vocabulary_map': _OF_THE_TRANSFORMER, 'tie_word_embeddings': _OF_THE_TRANSFORMER}


def rules(config: Emu3VQConfig) -> list[Rule]:
  """Returns the rule table of a tokenizer."""
  table = [Rule('quantize.embedding.weight', ('codebook/embedding',), KEEP)]
  table += base.layer('quant_conv.conv', 'encoder/quant_conv', _OVER_TIME)
  table += base.layer('post_quant_conv.conv', 'decoder/post_quant_conv', _OVER_TIME)
  for part in ('encoder', 'decoder'):
    table += base.layer(f'{part}.time_conv.{{i}}.conv.conv', f'{part}/time_{{i}}', _OVER_TIME)
    table += _time_block(f'{part}.time_res_stack.{{i}}', f'{part}/block_{{i}}')
  table += blocks.encoder(len(config.ch_mult), 'encoder/network')
  table += blocks.decoder(len(config.ch_mult), 'decoder/network', norm=blocks.spatial_norm)
  return table


def _time_block(source: str, destination: str) -> list[Rule]:
  table = []
  for number in (1, 2):
    published, ours = f'{source}.norm{number}', f'{destination}/norm_{number}'
    table += base.norm(published, ours)
    table += [Rule(f'{published}.running_{name}', (f'{ours}/{name}',), KEEP)
              for name in ('mean', 'var')]
    table += base.layer(
        f'{source}.conv{number}.conv', f'{destination}/conv_{number}', _OVER_TIME)
  return table


def _variant(shapes: family.Shapes) -> Mapping[str, Any]:
  prefix = _PREFIX if any(name.startswith(_PREFIX) for name in shapes) else ''
  if not prefix and not any(name.startswith('encoder.down_block.') for name in shapes):
    return {}
  return {'rules': functools.partial(_renamed, prefix),
          'infer': lambda shapes, options: infer({
              name.removeprefix(_PREFIX).replace('.down_block.', '.'): shape
              for name, shape in shapes.items()}, options)}


def _renamed(prefix: str, config: Emu3VQConfig) -> list[Rule]:
  """Returns the rules for the names of transformers, whose attention uses matrices."""
  table = []
  for rule in rules(config):
    name = str(rule.source)
    is_matrix = rule.transform is POINTWISE and re.search(r'\.([qkv]|proj_out)\.weight$', name)
    for pattern, replacement in _NAMES:
      name = re.sub(pattern, replacement, name)
    table.append(rule._replace(source=prefix + name,
                               transform=MATRIX if is_matrix else rule.transform))
  return table


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> Emu3VQConfig:
  """Infers the sizes of a tokenizer from its shapes alone."""
  del options
  sizes: dict[str, Any] = blocks.taming_sizes(_TITLE, shapes)
  codebook_size, z_channels = family.shape(_TITLE, shapes, 'quantize.embedding.weight', 2)
  return Emu3VQConfig(z_channels=z_channels, codebook_size=codebook_size, **sizes)


FAMILY = family.FileFamily(
    name='emu3_vq', title=_TITLE, kind='emu3_vq', rules=rules, infer=infer,
    presets={'vision_tokenizer': Emu3VQConfig()}, model='early_fusion',
    leftovers=r'.*\.num_batches_tracked|text_model\..*', variant=_variant,
    inside=rf'{re.escape(_PREFIX)}decoder\.conv_out\.weight',
    settings=functools.partial(settings.read, {'config.json': FIELDS}))
