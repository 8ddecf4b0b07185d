"""LlamaGen's image tokenizers (arXiv 2406.06525)."""

import functools
from collections.abc import Mapping

from checkpoints_conversion.rules import base, blocks, family
from checkpoints_conversion.rules.base import CONVOLUTION, POINTWISE
from cspd_jax.models.vq import VQConfig

_TITLE = 'a LlamaGen image tokenizer'


def rules(config: VQConfig) -> list[base.Rule]:
  """Returns the rule table, which is the same for all sizes."""
  del config
  table = [base.Rule('quantize.embedding.weight', ('codebook/embedding',), base.KEEP)]
  table += base.layer('quant_conv', 'quant_conv', POINTWISE)
  table += base.layer('post_quant_conv', 'post_quant_conv', POINTWISE)
  for part, level, resample in (('encoder', 'down_{i}', 'downsample'),
                                ('decoder', 'up_{i}', 'upsample')):
    published, ours = f'{part}.conv_blocks.{{i}}', f'{part}/{level}'
    table += base.layer(f'{part}.conv_in', f'{part}/conv_in', CONVOLUTION)
    table += blocks.residual(f'{published}.res.{{j}}', f'{ours}/res_{{j}}')
    table += blocks.attention(f'{published}.attn.{{j}}', f'{ours}/attn_{{j}}')
    table += base.layer(f'{published}.{resample}.conv', f'{ours}/{resample}', CONVOLUTION)
    table += blocks.residual(f'{part}.mid.0', f'{part}/mid/res_0')
    table += blocks.attention(f'{part}.mid.1', f'{part}/mid/attn_0')
    table += blocks.residual(f'{part}.mid.2', f'{part}/mid/res_1')
    table += base.norm(f'{part}.norm_out', f'{part}/norm_out')
    table += base.layer(f'{part}.conv_out', f'{part}/conv_out', CONVOLUTION)
  return table


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  """Infers the sizes of a tokenizer from its shapes alone.

  Raises:
    ConversionError: if the shapes are not those of such a tokenizer.
  """
  del options
  shape = functools.partial(family.shape, _TITLE, shapes)
  ch, in_channels = shape('encoder.conv_in.weight', 4)[:2]
  levels = family.count(shapes, r'encoder\.conv_blocks\.(\d+)\.res\.0\.conv1\.weight')
  widths = [shape(f'encoder.conv_blocks.{i}.res.0.conv1.weight', 4)[0] for i in range(levels)]
  codebook_size, codebook_dim = shape('quantize.embedding.weight', 2)
  blocks.refuse_narrow(widths)
  return VQConfig(
      in_channels=in_channels, ch=ch, ch_mult=tuple(width // ch for width in widths),
      num_res_blocks=family.count(shapes, r'encoder\.conv_blocks\.0\.res\.(\d+)\.conv1\.weight'),
      z_channels=shape('quant_conv.weight', 4)[1],
      codebook_size=codebook_size, codebook_dim=codebook_dim)


FAMILY = family.FileFamily(
    name='llamagen_vq', title=_TITLE, kind='vq', rules=rules, infer=infer,
    presets={'vq_16': VQConfig(), 'vq_8': VQConfig(ch_mult=(1, 2, 2, 4))},
    leftovers=r'quantize\.codebook_used', model='llamagen')
