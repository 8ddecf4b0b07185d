"""NVIDIA's Cosmos-Tokenizer DV, the image tokenizer of SimpleAR, as its two TorchScript files.

`encoder.jit` and `decoder.jit` name their tensors like the module of the whole tokenizer.
"""

from collections.abc import Mapping

from checkpoints_conversion.rules import base, family
from checkpoints_conversion.rules.base import CONVOLUTION, POINTWISE, Rule, Transform
from cspd_jax.models.cosmos import CosmosConfig

_TITLE = 'a Cosmos-Tokenizer DV'
# [out, in, time, height, width] to convolutions over space, over time, and matrices.
_SPACE = Transform(lambda x: CONVOLUTION.forward(x[:, :, 0]),
                   lambda x: CONVOLUTION.inverse(x)[:, :, None])
_TIME = Transform(lambda x: (x[:, :, :, 0, 0].transpose(2, 1, 0),),
                  lambda x: x.transpose(2, 1, 0)[..., None, None])
_MATRIX = Transform(lambda x: POINTWISE.forward(x[:, :, 0]),
                    lambda x: POINTWISE.inverse(x)[:, :, None])
# Weights without effect on a single frame, and constants.
_LEFTOVERS = (
    r'(encoder|decoder)\.mid\.attn_1\.1\.[qk]\..*|encoder\.down\.\d+\.downsample\..*|'
    r'decoder\.up\.\d+\.upsample\..*|.*\.(wavelets|_arange|patch_size_buffer|_levels|_basis|'
    r'implicit_codebook)')


def _rules(config: CosmosConfig) -> list[Rule]:
  count = len(config.ch_mult)
  table = [*_layer('quant_conv', 'encoder/quant_conv', _MATRIX),
           *_layer('post_quant_conv', 'decoder/post_quant_conv', _MATRIX)]
  for part in ('encoder', 'decoder'):
    table += _factorized(f'{part}.conv_in', f'{part}/conv_in')
    table += _factorized(f'{part}.conv_out', f'{part}/conv_out')
    table += base.norm(f'{part}.norm_out.norm', f'{part}/norm_out')
    table += _middle(f'{part}.mid', f'{part}/mid')
  for level in range(count):
    # The published decoder numbers its levels like the encoder, ours in execution order.
    for source, destination, resample in (
        (f'encoder.down.{level}', f'encoder/down_{level}', 'downsample'),
        (f'decoder.up.{level}', f'decoder/up_{count - 1 - level}', 'upsample')):
      table += _residual(f'{source}.block.{{j}}', f'{destination}_res_{{j}}')
      # The encoder convolves over space first, the decoder over time.
      space, time = ('conv1', 'conv2') if resample == 'downsample' else ('conv2', 'conv1')
      for name, ours, transform in ((space, 'space', _SPACE), (time, 'time', _TIME),
                                    ('conv3', 'out', _MATRIX)):
        table += _layer(f'{source}.{resample}.{name}', f'{destination}_resample/{ours}', transform)
  return table


def _layer(source: str, destination: str, transform: Transform) -> list[Rule]:
  return base.layer(f'{source}.conv3d', destination, transform)


def _factorized(source: str, destination: str) -> list[Rule]:
  return [*_layer(f'{source}.0', f'{destination}/space', _SPACE),
          *_layer(f'{source}.1', f'{destination}/time', _TIME)]


def _residual(source: str, destination: str) -> list[Rule]:
  table = _layer(f'{source}.nin_shortcut', f'{destination}/shortcut', _MATRIX)
  for number in (1, 2):
    table += base.norm(f'{source}.norm{number}.norm', f'{destination}/norm_{number}')
    table += _factorized(f'{source}.conv{number}', f'{destination}/conv_{number}')
  return table


def _middle(source: str, destination: str) -> list[Rule]:
  table = [*_residual(f'{source}.block_1', f'{destination}/res_0'),
           *_residual(f'{source}.block_2', f'{destination}/res_1')]
  names = {'q': 'query', 'k': 'key', 'v': 'value', 'proj_out': 'out'}
  for number, ours in enumerate(('attn_0', 'time_0')):
    table += base.norm(f'{source}.attn_1.{number}.norm.norm', f'{destination}/{ours}/norm')
    for published, name in names.items():
      if ours == 'attn_0' or name in ('value', 'out'):
        table += _layer(
            f'{source}.attn_1.{number}.{published}', f'{destination}/{ours}/{name}', _MATRIX)
  return table


def _infer(shapes: family.Shapes, options: Mapping[str, int]) -> CosmosConfig:
  del options
  published = CosmosConfig()
  shape = lambda name: family.shape(_TITLE, shapes, f'{name}.conv3d.weight', 5)
  ch, inputs = shape('encoder.conv_in.0')[:2]
  patch_size = round((inputs / published.in_channels) ** (1 / 3))
  count = family.count(shapes, r'encoder\.down\.(\d+)\.block\..*')
  widths = [shape(f'encoder.down.{level}.block.0.conv1.0')[0] for level in range(count)]
  dim = shape('quant_conv')[0]
  shape('decoder.conv_in.0')
  if (patch_size ** 3 * published.in_channels != inputs or dim != len(published.levels)
      or any(width % ch for width in widths)):
    raise family.ConversionError(
        f'The file is not {_TITLE}: it has {inputs} inputs, vectors of {dim} numbers and levels of '
        f'widths {widths}; inputs must be {published.in_channels} times a cube, vectors have '
        f'{len(published.levels)} numbers, and widths are multiples of {ch}.')
  return CosmosConfig(
      ch=ch, ch_mult=tuple(width // ch for width in widths), patch_size=patch_size,
      num_res_blocks=family.count(shapes, r'encoder\.down\.0\.block\.(\d+)\..*'),
      z_channels=shape('post_quant_conv')[0])


FAMILY = family.FileFamily(
    name='cosmos_dv', title=_TITLE, kind='cosmos', rules=_rules, infer=_infer,
    presets={'dv8x16x16': CosmosConfig()}, leftovers=_LEFTOVERS, model='early_fusion',
    licence='NVIDIA Open Model License', assumed=lambda config, specified: [
        f'assumed {config.factor}x{config.factor} pixels and {config.time_factor} frames per token '
        f'and {", ".join(map(str, config.levels))} levels, as in Cosmos-1.0-Tokenizer-DV8x16x16, '
        'which SimpleAR uses'])
