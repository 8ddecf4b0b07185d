"""Emu3's image tokenizer (arXiv 2409.18869), as BAAI publishes it."""

from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import base, blocks, family
from checkpoints_conversion.rules.base import KEEP, POINTWISE, Rule
from cspd_jax.models.emu3_vq import Emu3VQConfig

_WHAT = "Emu3's image tokenizer"
# [out, in, time, height, width] to [time, height, width, in, out].
_OVER_TIME = base.Transform(
    lambda x: (x.transpose(2, 3, 4, 1, 0),), lambda x: x.transpose(4, 3, 0, 1, 2))


def rules(config: Emu3VQConfig) -> list[Rule]:
  """Returns the rule table of a tokenizer."""
  table = [Rule('quantize.embedding.weight', ('codebook/embedding',), KEEP)]
  table += base.layer('quant_conv.conv', 'encoder/quant_conv', _OVER_TIME)
  table += base.layer('post_quant_conv.conv', 'decoder/post_quant_conv', _OVER_TIME)
  for part in ('encoder', 'decoder'):
    table += base.layer(f'{part}.time_conv.{{i}}.conv.conv', f'{part}/time_{{i}}', _OVER_TIME)
    table += _time_block(f'{part}.time_res_stack.{{i}}', f'{part}/block_{{i}}')
  table += blocks.encoder(len(config.ch_mult), 'encoder/network')
  table += blocks.decoder(len(config.ch_mult), 'decoder/network', norm=_spatial_norm)
  return table


def _time_block(source: str, destination: str) -> list[Rule]:
  table = []
  for number in (1, 2):
    theirs, ours = f'{source}.norm{number}', f'{destination}/norm_{number}'
    table += base.norm(theirs, ours)
    table += [Rule(f'{theirs}.running_{name}', (f'{ours}/{name}',), KEEP)
              for name in ('mean', 'var')]
    table += base.layer(
        f'{source}.conv{number}.conv', f'{destination}/conv_{number}', _OVER_TIME)
  return table


def _spatial_norm(source: str, destination: str) -> list[Rule]:
  """Rules of a norm that the tokens' vectors scale and shift."""
  return (base.norm(f'{source}.norm_layer', f'{destination}/norm') +
          base.layer(f'{source}.conv_y', f'{destination}/scale', POINTWISE) +
          base.layer(f'{source}.conv_b', f'{destination}/shift', POINTWISE))


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> Emu3VQConfig:
  """Infers the sizes of a tokenizer from its shapes, which tell everything.

  Raises:
    ConversionError: if the shapes are not those of such a tokenizer.
  """
  del options
  sizes: dict[str, Any] = blocks.taming_sizes(_WHAT, shapes)
  codebook_size, z_channels = family.shape(_WHAT, shapes, 'quantize.embedding.weight', 2)
  return Emu3VQConfig(z_channels=z_channels, codebook_size=codebook_size, **sizes)


FAMILY = family.FileFamily(
    name='emu3_vq', what=_WHAT, kind='emu3_vq', rules=rules, infer=infer,
    presets={'vision_tokenizer': Emu3VQConfig()}, leftovers=r'.*\.num_batches_tracked',
    model='early_fusion')
