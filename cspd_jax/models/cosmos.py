"""The image tokenizer of SimpleAR: NVIDIA's Cosmos-Tokenizer DV for a single frame.

The published tokenizer is for video: convolutions over time are causal, and frames before the first
one repeat it. A single frame therefore stays constant in time, so this implementation is
two-dimensional, with the same result: of a kernel over time only the sum of its taps counts, of
attention over time only the values, and of the first wavelet over time only the low band.

Haar wavelets map a square of pixels to channels, and finite scalar quantisation (arXiv 2309.15505)
rounds every number of a token's vector to one of a few levels, so there is no table of vectors. The
functions of `vq` run these networks. Everything is NHWC; kernels over time are `[time, in, out]`.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.models import autoencoder

# Finite scalar quantisation scales by this much more than the levels, so that rounding reaches all.
_FSQ_EPS = 1e-3


@dataclasses.dataclass(frozen=True)
class CosmosConfig(autoencoder.AutoencoderSizes):
  """Sizes of a tokenizer; the defaults are for Cosmos-1.0-Tokenizer-DV8x16x16.

  Attributes:
    ch_mult: width of each level as a multiple of `ch`.
    patch_size: pixels along each side of a square that the wavelets map to channels, a power of 2.
    factor: pixels per token along each side of the image.
    time_factor: frames per token; it selects the layers over time that are used.
    z_channels: width between the networks and the quantiser's projections.
    levels: levels of every number of a token's vector.
  """

  ch_mult: tuple[int, ...] = (2, 4, 4)
  patch_size: int = 4
  factor: int = 16
  time_factor: int = 8
  z_channels: int = 16
  levels: tuple[int, ...] = (8, 8, 8, 5, 5, 5)

  # As in `vq.VQConfig`.
  normalized = False

  def __post_init__(self):
    fields.check(self, levels=(2, 1024))
    for name in ('patch_size', 'factor', 'time_factor'):
      value, least = getattr(self, name), 1 if name == 'patch_size' else self.patch_size
      fields.require(value >= least and not value & (value - 1), name, value,
                     f'a power of 2 of at least {least}')
    if self.num_halvings >= len(self.ch_mult):
      raise ValueError(
          f'factor is {self.factor} with patch_size {self.patch_size} and {len(self.ch_mult)} '
          'levels in ch_mult; every level but the last halves the sides at most once.')

  @property
  def codebook_size(self) -> int:
    """Number of different tokens."""
    return math.prod(self.levels)

  @property
  def num_halvings(self) -> int:
    """Levels that halve height and width."""
    return int(math.log2(self.factor // self.patch_size))

  @property
  def num_time_halvings(self) -> int:
    """Levels that halve the number of frames."""
    return int(math.log2(self.time_factor // self.patch_size))

  @property
  def tokenizer(self) -> 'Tokenizer':
    """The networks that the functions of `vq` run."""
    return Tokenizer(self)

  def down(self, level: int) -> tuple[bool, bool]:
    """Whether the encoder halves the sides and the time after a level."""
    is_last = level == len(self.ch_mult) - 1
    return (not is_last and level < self.num_halvings,
            not is_last and level < self.num_time_halvings)

  def up(self, level: int) -> tuple[bool, bool]:
    """Whether the decoder doubles the sides and the time after its `level`th level."""
    is_last = level == len(self.ch_mult) - 1
    time = not is_last and 0 < level <= self.num_time_halvings
    space = level < self.num_halvings and self.num_halvings > self.num_time_halvings
    return time or (not is_last and space), time


def _norm(channels: int, name: str) -> nn.GroupNorm:
  """Returns the norm over all positions and channels of an image."""
  return nn.GroupNorm(1, epsilon=1e-6, use_fast_variance=False, name=name)


class OverTime(nn.Module):
  """A causal convolution over time with three taps, for equal frames."""

  features: int

  @nn.compact
  def __call__(self, x):
    kernel = self.param('kernel', nn.initializers.lecun_normal(), (3, x.shape[-1], self.features))
    bias = self.param('bias', nn.initializers.zeros, (self.features,))
    return x @ jnp.sum(kernel, axis=0) + bias


class Convolution(nn.Module):
  """A 3x3 convolution over space, then one over time."""

  features: int

  @nn.compact
  def __call__(self, x):
    return OverTime(self.features, name='time')(
        nn.Conv(self.features, (3, 3), padding=1, name='space')(x))


_residual = functools.partial(
    autoencoder.ResidualBlock, norm=_norm,
    conv=lambda features, name: Convolution(features, name=name))


class OneFrameAttention(nn.Module):
  """Attention over time with a skip connection; a single frame attends to itself alone."""

  @nn.compact
  def __call__(self, x):
    width = x.shape[-1]
    value = nn.Dense(width, name='value')(_norm(width, 'norm')(x))
    return x + nn.Dense(width, name='out')(value)


class Middle(nn.Module):
  """Residual block, attention over space and over time, residual block."""

  @nn.compact
  def __call__(self, x):
    x = _residual(x.shape[-1], name='res_0')(x)
    x = autoencoder.AttentionBlock(_norm, name='attn_0')(x)
    x = OneFrameAttention(name='time_0')(x)
    return _residual(x.shape[-1], name='res_1')(x)


class Down(nn.Module):
  """Halves the sides, and the time if `time`."""

  time: bool

  @nn.compact
  def __call__(self, x):
    width = x.shape[-1]
    pooled = nn.avg_pool(x, (2, 2), (2, 2))
    # One zero row at the bottom and one zero column on the right, as published.
    x = pooled + nn.Conv(width, (3, 3), strides=2, padding=((0, 1), (0, 1)), name='space')(x)
    if self.time:
      x = x + OverTime(width, name='time')(x)
    return nn.Dense(width, name='out')(x)


class Up(nn.Module):
  """Doubles the sides, and the time if `time`."""

  time: bool

  @nn.compact
  def __call__(self, x):
    width = x.shape[-1]
    if self.time:
      x = x + OverTime(width, name='time')(x)
    x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
    x = x + nn.Conv(width, (3, 3), padding=1, name='space')(x)
    return nn.Dense(width, name='out')(x)


class Encoder(nn.Module):
  """Maps images `[B, H, W, C]` to unquantised vectors `[B, H / f, W / f, len(levels)]`."""

  config: CosmosConfig

  @nn.compact
  def __call__(self, images):
    c = self.config
    x = Convolution(c.ch, name='conv_in')(_wavelets(images, c.patch_size))
    for i, multiple in enumerate(c.ch_mult):
      for j in range(c.num_res_blocks):
        x = _residual(c.ch * multiple, name=f'down_{i}_res_{j}')(x)
      space, time = c.down(i)
      if space:
        x = Down(time, name=f'down_{i}_resample')(x)
    x = nn.swish(_norm(x.shape[-1], 'norm_out')(Middle(name='mid')(x)))
    x = Convolution(c.z_channels, name='conv_out')(x)
    return nn.Dense(len(c.levels), name='quant_conv')(x)


class Decoder(nn.Module):
  """Maps vectors `[B, h, w, len(levels)]` to images `[B, h * f, w * f, C]`, not clipped."""

  config: CosmosConfig

  @nn.compact
  def __call__(self, vectors):
    c = self.config
    x = nn.Dense(c.z_channels, name='post_quant_conv')(vectors)
    x = Middle(name='mid')(Convolution(c.ch * c.ch_mult[-1], name='conv_in')(x))
    for i, multiple in enumerate(reversed(c.ch_mult)):
      for j in range(c.num_res_blocks + 1):
        x = _residual(c.ch * multiple, name=f'up_{i}_res_{j}')(x)
      space, time = c.up(i)
      if space:
        x = Up(time, name=f'up_{i}_resample')(x)
    x = nn.swish(_norm(x.shape[-1], 'norm_out')(x))
    x = Convolution(c.in_channels * c.patch_size ** 3, name='conv_out')(x)
    return _pixels(x, c.patch_size)


class Tokenizer(nn.Module):
  """All parameters of a tokenizer; use the functions of this module to run it."""

  config: CosmosConfig

  def setup(self):
    self.encoder = Encoder(self.config)
    self.decoder = Decoder(self.config)

  def latents(self, images):
    """Maps images `[B, H, W, C]` to unquantised vectors `[B, H / f, W / f, len(levels)]`."""
    return self.encoder(images)

  def images(self, vectors):
    """Maps vectors to images, not clipped."""
    return self.decoder(vectors)

  def vectors(self):
    """Returns the vectors of all tokens."""
    levels = np.asarray(self.config.levels)
    halves, tokens = levels // 2, jnp.arange(self.config.codebook_size)[:, None]
    return (tokens // _places(self.config) % levels - halves) / halves.astype(np.float32)

  def tokens(self, z):
    """Returns the tokens of unquantised vectors."""
    levels = np.asarray(self.config.levels)
    half = ((levels - 1) * (1 + _FSQ_EPS) / 2).astype(np.float32)
    offset = np.where(levels % 2, 0, 0.5).astype(np.float32)
    rounded = jnp.round(jnp.tanh(z + np.arctanh(offset / half)) * half - offset)
    return jnp.sum((rounded.astype(jnp.int32) + levels // 2) * _places(self.config), axis=-1)

  def __call__(self, images):
    return self.images(self.latents(images))


def _places(config: CosmosConfig) -> np.ndarray:
  """Returns the place value of every number of a vector."""
  return np.cumprod([1, *config.levels[:-1]])


def _wavelets(x: jax.Array, patch_size: int) -> jax.Array:
  """Maps images `[B, H, W, C]` to `[B, H / p, W / p, p^3 C]` by Haar wavelets.

  The last half of the channels of every step are differences in time, which are zero.
  """
  while patch_size > 1:
    low, high = _pairs(x, 1)
    bands = [band for part in (low, high) for band in _pairs(part, 2)]
    x = jnp.concatenate([*bands, *[jnp.zeros_like(band) for band in bands]], axis=-1)
    patch_size //= 2
  return x


def _pairs(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
  """Returns half the sums and half the differences of neighbours along an axis."""
  even, odd = (jax.lax.slice_in_dim(x, start, None, 2, axis) for start in (0, 1))
  return (even + odd) / 2, (even - odd) / 2


def _pixels(x: jax.Array, patch_size: int) -> jax.Array:
  """Inverts `_wavelets` for the last of the `patch_size` frames, the only one of an image."""
  while patch_size > 1:
    low, high = jnp.split(x, 2, axis=-1)
    even, odd = jnp.split(low - high, 2, axis=-1)
    lows, highs = (_interleaved(jnp.split(part, 2, axis=-1), 2) for part in (even, odd))
    x = _interleaved((lows, highs), 1)
    patch_size //= 2
  return x


def _interleaved(bands: Sequence[jax.Array], axis: int) -> jax.Array:
  """Returns sums and differences of two bands alternately along an axis."""
  low, high = bands
  pairs = jnp.stack([low + high, low - high], axis=axis + 1)
  shape = list(low.shape)
  shape[axis] *= 2
  return pairs.reshape(shape)
