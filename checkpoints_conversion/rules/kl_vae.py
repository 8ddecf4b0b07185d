"""Variational autoencoders of latent diffusion (arXiv 2112.10752), such as MAR's KL-16."""

import functools
from collections.abc import Mapping

from checkpoints_conversion.rules import base, blocks, family
from checkpoints_conversion.rules.base import CONVOLUTION, POINTWISE
from cspd_jax.models.kl_vae import KLVAEConfig

_WHAT = 'a variational autoencoder'


def rules(config: KLVAEConfig) -> list[base.Rule]:
  """Returns the rule table of an autoencoder."""
  table = base.layer('quant_conv', 'quant_conv', POINTWISE)
  table += base.layer('post_quant_conv', 'post_quant_conv', POINTWISE)
  levels = range(len(config.ch_mult))
  # The published decoder numbers its levels like the encoder's, ours in execution order.
  for part, theirs, ours, resample in (
      ('encoder', 'down', [f'down_{level}' for level in levels], 'downsample'),
      ('decoder', 'up', [f'up_{level}' for level in reversed(levels)], 'upsample')):
    table += base.layer(f'{part}.conv_in', f'{part}/conv_in', CONVOLUTION)
    for level in levels:
      source, destination = f'{part}.{theirs}.{level}', f'{part}/{ours[level]}'
      table += blocks.residual(f'{source}.block.{{j}}', f'{destination}/res_{{j}}')
      table += blocks.attention(f'{source}.attn.{{j}}', f'{destination}/attn_{{j}}')
      table += base.layer(f'{source}.{resample}.conv', f'{destination}/{resample}', CONVOLUTION)
    table += blocks.residual(f'{part}.mid.block_1', f'{part}/mid/res_0')
    table += blocks.attention(f'{part}.mid.attn_1', f'{part}/mid/attn_0')
    table += blocks.residual(f'{part}.mid.block_2', f'{part}/mid/res_1')
    table += base.norm(f'{part}.norm_out', f'{part}/norm_out')
    table += base.layer(f'{part}.conv_out', f'{part}/conv_out', CONVOLUTION)
  return table


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> KLVAEConfig:
  """Infers the sizes of an autoencoder; the scale of its latents is taken to be KL-16's.

  Raises:
    ConversionError: if the shapes are not those of such an autoencoder.
  """
  del options
  shape = functools.partial(family.shape, _WHAT, shapes)
  ch, in_channels = shape('encoder.conv_in.weight', 4)[:2]
  levels = family.count(shapes, r'encoder\.down\.(\d+)\.block\.0\.conv1\.weight')
  widths = [shape(f'encoder.down.{i}.block.0.conv1.weight', 4)[0] for i in range(levels)]
  blocks.refuse_narrow(widths)
  return KLVAEConfig(
      in_channels=in_channels, ch=ch, ch_mult=tuple(width // ch for width in widths),
      num_res_blocks=family.count(shapes, r'encoder\.down\.0\.block\.(\d+)\.conv1\.weight'),
      z_channels=shape('post_quant_conv.weight', 4)[0])


FAMILY = family.FileFamily(
    name='kl_vae', what=_WHAT, kind='kl_vae', rules=rules, infer=infer,
    presets={'kl_16': KLVAEConfig()}, leftovers=r'loss\..*', model='mar')
