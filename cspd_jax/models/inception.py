"""The Inception network of the Frechet inception distance.

It is the network of TensorFlow's `inception-2015-12-05`, which pytorch-fid, torch-fidelity and
ADM's evaluator share: Inception-v3 (Szegedy et al., arXiv:1512.00567) with average pools that do
not count padding, a maximum in place of the last of them, and 1008 classes.

Parameter tree: `NAME/{kernel, scale, bias, mean, variance}` for every convolution, and
`fc/kernel`; names are the published ones in lower case.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.core import fields

Params = Any

SIDE = 299
# The features of sFID: the first channels of one layer, whose grid is 17 x 17.
SPATIAL_CHANNELS = 7
_SPATIAL_GRID = 17, 17
_POOL_UNITS = 128

_EPSILON = 1e-3
# Rounding to fewer bits, as accelerators do by default, would change a FID.
_PRECISION = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class InceptionConfig:
  """Sizes of the network, whose widths are multiples of `unit`; the defaults are published ones."""

  unit: int = 16
  num_classes: int = 1008

  def __post_init__(self):
    fields.check(self)


class Features(NamedTuple):
  """Features of images, or their numbers for `widths`.

  Attributes:
    pool: `[B, 128 unit]` float32, of FID, precision and recall.
    spatial: `[B, 17 * 17 * 7]` float32, of sFID.
    logits: `[B, num_classes]` float32 without the bias, of the inception score.
  """

  pool: Any
  spatial: Any
  logits: Any


class _Conv(NamedTuple):
  """A convolution with normalisation: width in units, kernel, stride; strided ones do not pad."""

  width: int
  size: tuple[int, int]
  stride: int = 1
  pads: bool = True


# A chain of convolutions by name; a tuple of names is a fork, whose results are joined.
_Chain = Mapping[str, _Conv]


class _Block(NamedTuple):
  """Branches whose results are joined, and the branch behind a pool.

  Attributes:
    branches: chains of convolutions by name; names that end in `a` and `b` fork.
    pool: 'mean' or 'max', followed by a convolution of `pool_width`; 'stride' is a maximum with
      stride 2, followed by nothing.
    pool_width: width in units.
  """

  branches: tuple[_Chain, ...]
  pool: str
  pool_width: int = 0


def _conv(width: int, height: int = 1, breadth: int | None = None) -> _Conv:
  return _Conv(width, (height, height if breadth is None else breadth))


def _down(width: int) -> _Conv:
  return _Conv(width, (3, 3), stride=2, pads=False)


_STEM: tuple[tuple[str, _Conv | None], ...] = (
    ('conv2d_1a_3x3', _down(2)),
    ('conv2d_2a_3x3', _Conv(2, (3, 3), pads=False)),
    ('conv2d_2b_3x3', _conv(4, 3)),
    ('', None),  # A maximum with stride 2.
    ('conv2d_3b_1x1', _conv(5)),
    ('conv2d_4a_3x3', _Conv(12, (3, 3), pads=False)),
    ('', None))


def _block_a(pool_width: int) -> _Block:
  return _Block((
      {'branch1x1': _conv(4)},
      {'branch5x5_1': _conv(3), 'branch5x5_2': _conv(4, 5)},
      {'branch3x3dbl_1': _conv(4), 'branch3x3dbl_2': _conv(6, 3), 'branch3x3dbl_3': _conv(6, 3)}),
      'mean', pool_width)


def _block_c(width: int) -> _Block:
  return _Block((
      {'branch1x1': _conv(12)},
      {'branch7x7_1': _conv(width), 'branch7x7_2': _conv(width, 1, 7),
       'branch7x7_3': _conv(12, 7, 1)},
      {'branch7x7dbl_1': _conv(width), 'branch7x7dbl_2': _conv(width, 7, 1),
       'branch7x7dbl_3': _conv(width, 1, 7), 'branch7x7dbl_4': _conv(width, 7, 1),
       'branch7x7dbl_5': _conv(12, 1, 7)}), 'mean', 12)


def _block_e(pool: str) -> _Block:
  return _Block((
      {'branch1x1': _conv(20)},
      {'branch3x3_1': _conv(24), 'branch3x3_2a': _conv(24, 1, 3), 'branch3x3_2b': _conv(24, 3, 1)},
      {'branch3x3dbl_1': _conv(28), 'branch3x3dbl_2': _conv(24, 3),
       'branch3x3dbl_3a': _conv(24, 1, 3), 'branch3x3dbl_3b': _conv(24, 3, 1)}), pool, 12)


_BLOCKS = {
    'mixed_5b': _block_a(2), 'mixed_5c': _block_a(4), 'mixed_5d': _block_a(4),
    'mixed_6a': _Block((
        {'branch3x3': _down(24)},
        {'branch3x3dbl_1': _conv(4), 'branch3x3dbl_2': _conv(6, 3), 'branch3x3dbl_3': _down(6)}),
        'stride'),
    'mixed_6b': _block_c(8), 'mixed_6c': _block_c(10), 'mixed_6d': _block_c(10),
    'mixed_6e': _block_c(12),
    'mixed_7a': _Block((
        {'branch3x3_1': _conv(12), 'branch3x3_2': _down(20)},
        {'branch7x7x3_1': _conv(12), 'branch7x7x3_2': _conv(12, 1, 7),
         'branch7x7x3_3': _conv(12, 7, 1), 'branch7x7x3_4': _down(12)}), 'stride'),
    'mixed_7b': _block_e('mean'), 'mixed_7c': _block_e('max')}
# The branch whose first channels are the features of sFID.
_SPATIAL = 'mixed_6d', 'branch1x1'


class _Layer(nn.Module):
  conv: _Conv
  unit: int

  @nn.compact
  def __call__(self, x):
    conv, width = self.conv, (self.conv.width * self.unit,)
    kernel = self.param('kernel', nn.initializers.variance_scaling(2, 'fan_in', 'normal'),
                        (*conv.size, x.shape[-1], *width))
    scale, variance = (
        self.param(name, nn.initializers.ones, width) for name in ('scale', 'variance'))
    bias, mean = (self.param(name, nn.initializers.zeros, width) for name in ('bias', 'mean'))
    x = jax.lax.conv_general_dilated(
        x, kernel.astype(jnp.float32), (conv.stride, conv.stride),
        'SAME' if conv.pads else 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
        precision=_PRECISION)
    return jax.nn.relu(scale * jax.lax.rsqrt(variance + _EPSILON) * (x - mean) + bias)


class _Branches(nn.Module):
  """Returns the results that a block joins, by the name of the last convolution."""

  block: _Block
  unit: int

  @nn.compact
  def __call__(self, x):
    results, layer = {}, lambda name, conv, y: _Layer(conv, self.unit, name=name)(y)
    for chain in self.block.branches:
      y = x
      for name, conv in chain.items():
        if name[-1] in 'ab':
          results[name] = layer(name, conv, y)
        else:
          y = layer(name, conv, y)
      if name[-1] not in 'ab':
        results[name] = y
    if self.block.pool == 'stride':
      return results | {'pool': nn.max_pool(x, (3, 3), (2, 2))}
    pooled = (nn.max_pool(x, (3, 3), padding='SAME') if self.block.pool == 'max'
              else nn.avg_pool(x, (3, 3), padding='SAME', count_include_pad=False))
    return results | {'pool': layer('branch_pool', _conv(self.block.pool_width), pooled)}


class Inception(nn.Module):
  """The network on images `[B, 299, 299, 3]`."""

  config: InceptionConfig

  @nn.compact
  def __call__(self, x):
    for name, conv in _STEM:
      x = (nn.max_pool(x, (3, 3), (2, 2)) if conv is None
           else _Layer(conv, self.config.unit, name=name)(x))
    spatial = x
    for name, block in _BLOCKS.items():
      branches = _Branches(block, self.config.unit, name=name)(x)
      if name == _SPATIAL[0]:
        spatial = branches[_SPATIAL[1]][..., :SPATIAL_CHANNELS]
      x = jnp.concatenate(list(branches.values()), axis=-1)
    pool = jnp.mean(x, axis=(1, 2))
    logits = nn.Dense(self.config.num_classes, use_bias=False, precision=_PRECISION,
                      kernel_init=nn.initializers.normal(.02), name='fc')(pool)
    return Features(pool, spatial.reshape(len(x), -1), logits)


def init(config: InceptionConfig, rng: jax.Array) -> Params:
  """Returns random parameters."""
  return jax.jit(Inception(config).init)(rng, jnp.zeros((1, SIDE, SIDE, 3)))['params']


def widths(config: InceptionConfig) -> Features:
  """Returns the numbers of features of an image."""
  rows, columns = _SPATIAL_GRID
  return Features(_POOL_UNITS * config.unit, rows * columns * SPATIAL_CHANNELS, config.num_classes)


def apply(params: Params, config: InceptionConfig, images: jax.Array) -> Features:
  """Returns the features of images `[B, 299, 299, 3]`, resized and scaled by `metrics.inception`.
  """
  assert images.shape[1:] == (SIDE, SIDE, 3), images.shape
  return Inception(config).apply({'params': params}, images.astype(jnp.float32))
