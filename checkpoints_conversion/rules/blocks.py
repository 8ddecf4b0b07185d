"""Rules of blocks of several networks: of convolutions, vision transformers and diffusion heads."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from checkpoints_conversion.rules import base, family
from checkpoints_conversion.rules.base import CONVOLUTION, MATRIX, POINTWISE, Rule
from cspd_jax.models.vq import VQConfig

# `(source, destination) -> rules` of a normalisation.
Norm = Callable[[str, str], list[base.Rule]]


def spatial_norm(source: str, destination: str) -> list[base.Rule]:
  """Returns the rules of a norm that the tokens' vectors scale and shift."""
  return (base.norm(f'{source}.norm_layer', f'{destination}/norm') +
          base.layer(f'{source}.conv_y', f'{destination}/scale', POINTWISE) +
          base.layer(f'{source}.conv_b', f'{destination}/shift', POINTWISE))


def residual(source: str, destination: str, norm: Norm = base.norm) -> list[base.Rule]:
  """Returns the rules of a residual block of two convolutions, with or without a shortcut."""
  rules = []
  for number in (1, 2):
    rules += norm(f'{source}.norm{number}', f'{destination}/norm_{number}')
    rules += base.layer(f'{source}.conv{number}', f'{destination}/conv_{number}', CONVOLUTION)
  return rules + base.layer(f'{source}.nin_shortcut', f'{destination}/shortcut', POINTWISE)


def attention(source: str, destination: str, norm: Norm = base.norm) -> list[base.Rule]:
  """Returns the rules of attention over all positions, with one head."""
  rules = norm(f'{source}.norm', f'{destination}/norm')
  for published, ours in (('q', 'query'), ('k', 'key'), ('v', 'value'), ('proj_out', 'out')):
    rules += base.layer(f'{source}.{published}', f'{destination}/{ours}', POINTWISE)
  return rules


def networks(num_levels: int, decoder_norm: Norm = base.norm, in_order: bool = False
             ) -> list[base.Rule]:
  """Returns the rules of an encoder and a decoder with names of taming-transformers.

  These are the programs of arXiv 2012.09841. Their decoder numbers its levels like the encoder, in
  the order of execution only if `in_order`; ours are numbered in this order.
  """
  levels, first = range(num_levels), 0 if in_order else num_levels - 1
  table = []
  for part, resample, norm, names in (
      ('encoder', 'downsample', base.norm, [(f'down.{i}', f'down_{i}') for i in levels]),
      ('decoder', 'upsample', decoder_norm,
       [(f'up.{abs(first - i)}', f'up_{i}') for i in levels])):
    for name in ('conv_in', 'conv_out'):
      table += base.layer(f'{part}.{name}', f'{part}/{name}', CONVOLUTION)
    for level, our_level in names:
      published, ours = f'{part}.{level}', f'{part}/{our_level}'
      table += residual(f'{published}.block.{{j}}', f'{ours}/res_{{j}}', norm)
      table += attention(f'{published}.attn.{{j}}', f'{ours}/attn_{{j}}', norm)
      table += base.layer(f'{published}.{resample}.conv', f'{ours}/{resample}', CONVOLUTION)
    for number in (1, 2):
      table += residual(f'{part}.mid.block_{number}', f'{part}/mid/res_{number - 1}', norm)
    table += attention(f'{part}.mid.attn_1', f'{part}/mid/attn_0', norm)
    table += norm(f'{part}.norm_out', f'{part}/norm_out')
  return table


def taming(num_levels: int, norm: Norm = base.norm, in_order: bool = False) -> list[base.Rule]:
  """Returns the rules of an autoencoder with these names; arguments as for `networks`."""
  return (base.layer('quant_conv', 'quant_conv', POINTWISE) +
          base.layer('post_quant_conv', 'post_quant_conv', POINTWISE) +
          networks(num_levels, norm, in_order))


def taming_sizes(title: str, shapes: family.Shapes) -> dict[str, Any]:
  """Returns the sizes that all autoencoders with these names share, by the fields of our configs.

  Raises ConversionError if the shapes are not those of such an autoencoder, which `title` names, or
  a level has less than 128 channels.
  """
  shape = functools.partial(family.shape, title, shapes)
  ch, in_channels = shape('encoder.conv_in.weight', 4)[:2]
  levels = family.count(shapes, r'encoder\.down\.(\d+)\.block\.0\.conv1\.weight')
  widths = [shape(f'encoder.down.{i}.block.0.conv1.weight', 4)[0] for i in range(levels)]
  if min(widths, default=0) < 128:
    # The published architectures normalise in 32 groups at any width.
    raise family.ConversionError(
        f'The levels of the tokenizer are {widths} channels wide; below 128 channels its '
        'normalisation groups differ from those of cspd_jax, and it cannot be converted.')
  return dict(
      in_channels=in_channels, ch=ch, ch_mult=tuple(width // ch for width in widths),
      num_res_blocks=family.count(shapes, r'encoder\.down\.0\.block\.(\d+)\.conv1\.weight'))


def taming_vq(config: VQConfig, norm: Norm = base.norm, in_order: bool = False
              ) -> list[base.Rule]:
  """Returns the rules of a tokenizer with these names and a codebook."""
  return taming(len(config.ch_mult), norm, in_order) + [
      base.Rule('quantize.embedding.weight', ('codebook/embedding',), base.KEEP)]


def taming_vq_config(title: str, shapes: family.Shapes, published: VQConfig) -> VQConfig:
  """Infers the sizes of a tokenizer with these names and a codebook, like `taming_sizes`.

  Attention, norms and quantisation are those of the `published` tokenizer.
  """
  sizes = taming_sizes(title, shapes)
  codebook_size, codebook_dim = family.shape(title, shapes, 'quantize.embedding.weight', 2)
  return dataclasses.replace(
      published, z_channels=family.shape(title, shapes, 'quant_conv.weight', 4)[1],
      codebook_size=codebook_size, codebook_dim=codebook_dim, **sizes)


def fused(source: str, destination: str, num_heads: int) -> list[Rule]:
  """Returns the rules of queries, keys and values of a `layers.VisionLayer`, published as one."""
  split = base.split_heads(num_heads, num_heads)
  return [Rule(f'{source}{leaf}',
               tuple(f'{destination}/{name}/{ours}' for name in ('query', 'key', 'value')), split)
          for leaf, ours in (('weight', 'kernel'), ('bias', 'bias'))]


def vision_layer(source: str, destination: str, num_heads: int, names: Sequence[str]
                 ) -> list[Rule]:
  """Returns the other rules of a `layers.VisionLayer`.

  `names` are the published ones of the norm and the output of the attention, and of the norm and
  both matrices of the network.
  """
  norm, out, second_norm, inward, outward = (source + name for name in names)
  return [*base.norm(norm, f'{destination}/attention_norm'),
          *base.layer(out, f'{destination}/out', base.join_heads(num_heads)),
          *base.norm(second_norm, f'{destination}/mlp_norm'),
          *base.layer(inward, f'{destination}/mlp_in', MATRIX),
          *base.layer(outward, f'{destination}/mlp_out', MATRIX)]


_LAYERS = {
    'time_embed.mlp.0': 'time_in', 'time_embed.mlp.2': 'time_out', 'cond_embed': 'condition',
    'input_proj': 'state', 'res_blocks.{i}.mlp.0': 'mlp_in_{i}',
    'res_blocks.{i}.mlp.2': 'mlp_out_{i}', 'final_layer.linear': 'out'}


def rules(prefix: str, width: int, num_blocks: int) -> list[Rule]:
  """Returns the rule table of a diffusion or flow head; `prefix` ends with a point."""
  # The modulations of all blocks and the output are one layer here.
  names = [f'{prefix}{part}.adaLN_modulation.1' for part in (
      *(f'res_blocks.{i}' for i in range(num_blocks)), 'final_layer')]
  bounds = [3 * i for i in range(num_blocks + 1)] + [3 * num_blocks + 2]
  spans = list(zip(bounds, bounds[1:]))

  def forward(*parts):
    # NumPy has no common dtype of float16 and bfloat16.
    dtypes = sorted({part.dtype for part in parts}, key=lambda dtype: dtype.itemsize)
    dtype = dtypes[0] if len(dtypes) == 1 else np.promote_types(np.float32, dtypes[-1])
    whole = np.concatenate([part.astype(dtype, copy=False) for part in parts]).T
    return (whole.reshape(*whole.shape[:-1], -1, width),)

  def inverse(whole):
    return tuple(whole[..., first:stop, :].reshape(*whole.shape[:-2], -1).T
                 for first, stop in spans)

  table = [Rule(tuple(f'{name}.{published}' for name in names), (f'head/modulation/{ours}',),
                base.Transform(forward, inverse))
           for published, ours in (('weight', 'kernel'), ('bias', 'bias'))]
  for published, ours in _LAYERS.items():
    table += base.layer(f'{prefix}{published}', f'head/{ours}', MATRIX)
  return table + base.norm(f'{prefix}res_blocks.{{i}}.in_ln', 'head/norm_{i}')
