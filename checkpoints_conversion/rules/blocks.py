"""Blocks that convolutional image tokenizers are built from."""

import functools
from typing import Any

from checkpoints_conversion.rules import base, family
from checkpoints_conversion.rules.base import CONVOLUTION, POINTWISE


def residual(source: str, destination: str) -> list[base.Rule]:
  """Rules of a residual block of two convolutions, with or without a shortcut."""
  rules = []
  for number in (1, 2):
    rules += base.norm(f'{source}.norm{number}', f'{destination}/norm_{number}')
    rules += base.layer(f'{source}.conv{number}', f'{destination}/conv_{number}', CONVOLUTION)
  return rules + base.layer(f'{source}.nin_shortcut', f'{destination}/shortcut', POINTWISE)


def attention(source: str, destination: str) -> list[base.Rule]:
  """Rules of attention over all positions, with one head."""
  rules = base.norm(f'{source}.norm', f'{destination}/norm')
  for theirs, ours in (('q', 'query'), ('k', 'key'), ('v', 'value'), ('proj_out', 'out')):
    rules += base.layer(f'{source}.{theirs}', f'{destination}/{ours}', POINTWISE)
  return rules


def taming(num_levels: int) -> list[base.Rule]:
  """Rules of an autoencoder with the names of taming-transformers (arXiv 2012.09841)."""
  table = base.layer('quant_conv', 'quant_conv', POINTWISE)
  table += base.layer('post_quant_conv', 'post_quant_conv', POINTWISE)
  levels = range(num_levels)
  # The published decoder numbers its levels like the encoder's, ours in execution order.
  for part, theirs, ours, resample in (
      ('encoder', 'down', [f'down_{level}' for level in levels], 'downsample'),
      ('decoder', 'up', [f'up_{level}' for level in reversed(levels)], 'upsample')):
    table += base.layer(f'{part}.conv_in', f'{part}/conv_in', CONVOLUTION)
    for level in levels:
      source, destination = f'{part}.{theirs}.{level}', f'{part}/{ours[level]}'
      table += residual(f'{source}.block.{{j}}', f'{destination}/res_{{j}}')
      table += attention(f'{source}.attn.{{j}}', f'{destination}/attn_{{j}}')
      table += base.layer(f'{source}.{resample}.conv', f'{destination}/{resample}', CONVOLUTION)
    table += residual(f'{part}.mid.block_1', f'{part}/mid/res_0')
    table += attention(f'{part}.mid.attn_1', f'{part}/mid/attn_0')
    table += residual(f'{part}.mid.block_2', f'{part}/mid/res_1')
    table += base.norm(f'{part}.norm_out', f'{part}/norm_out')
    table += base.layer(f'{part}.conv_out', f'{part}/conv_out', CONVOLUTION)
  return table


def taming_sizes(what: str, shapes: family.Shapes) -> dict[str, Any]:
  """Sizes that all autoencoders with such names have, by the fields of our configs.

  Args:
    what: the network that the file should hold, in words.
    shapes: of the tensors of the file.

  Raises:
    ConversionError: if the shapes are not those of such an autoencoder.
  """
  shape = functools.partial(family.shape, what, shapes)
  ch, in_channels = shape('encoder.conv_in.weight', 4)[:2]
  levels = family.count(shapes, r'encoder\.down\.(\d+)\.block\.0\.conv1\.weight')
  widths = [shape(f'encoder.down.{i}.block.0.conv1.weight', 4)[0] for i in range(levels)]
  refuse_narrow(widths)
  return dict(
      in_channels=in_channels, ch=ch, ch_mult=tuple(width // ch for width in widths),
      num_res_blocks=family.count(shapes, r'encoder\.down\.0\.block\.(\d+)\.conv1\.weight'))


def refuse_narrow(widths: list[int]) -> None:
  """Refuses tokenizers that the networks here would run differently.

  Args:
    widths: channels of every level.

  Raises:
    ConversionError: if a level is too narrow.
  """
  if min(widths, default=0) < 128:
    # The published architectures normalise in 32 groups whatever the width is.
    raise family.ConversionError(
        f'The levels of the tokenizer are {widths} channels wide; below 128 channels its '
        'normalisation groups differ from those of cspd_jax, and it cannot be converted.')
