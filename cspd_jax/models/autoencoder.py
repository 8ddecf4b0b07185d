"""The convolutional networks of image tokenizers; everything is NHWC."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class AutoencoderSizes:
  """The sizes of the networks, which the configs of tokenizers add to.

  Attributes:
    in_channels: image channels.
    ch: width at full resolution.
    ch_mult: width of each resolution as a multiple of `ch`; each level after the first halves
      height and width.
    num_res_blocks: residual blocks per level in the encoder; the decoder has one more.
  """

  in_channels: int = 3
  ch: int = 128
  ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
  num_res_blocks: int = 2

  def check(self, **ranges: fields.Range) -> None:
    """Checks the fields like `fields.check`, and how sizes are related, for `__post_init__`."""
    fields.check(self, num_res_blocks=(1, 64), ch_mult=(1, 1024), **ranges)
    fields.require(1 <= len(self.ch_mult) <= 8, 'ch_mult', self.ch_mult,
                   '1 to 8 numbers, one per resolution')
    for multiple in self.ch_mult:
      width = self.ch * multiple
      if width % _num_groups(width):
        raise ValueError(f'ch * ch_mult is {width} channels, which cannot be split into '
                         f'{_num_groups(width)} normalisation groups; use a multiple of 32 for 128 '
                         'channels or more, and a multiple of 4 for fewer.')

  @property
  def factor(self) -> int:
    """Pixels per token along each side of the image."""
    return 2 ** (len(self.ch_mult) - 1)


def _num_groups(channels: int) -> int:
  """Number of normalisation groups: 32 as published, or fewer so that each has 4 channels."""
  return min(32, max(1, channels // 4))


def norm(channels: int, name: str) -> nn.GroupNorm:
  """Returns the group norm of these networks."""
  return nn.GroupNorm(_num_groups(channels), epsilon=1e-6, use_fast_variance=False, name=name)


def conv(features: int, name: str) -> nn.Conv:
  """Returns the 3x3 convolution that maps `[B, H, W, C]` to `[B, H, W, features]`."""
  return nn.Conv(features, (3, 3), padding=1, name=name)


# Maps channels, of the input or of the result, and a name to a layer on `[B, H, W, C]`.
Layer = Callable[[int, str], Callable[[jax.Array], jax.Array]]


class SpatialNorm(nn.Module):
  """A group norm whose scale and shift depend on the vectors of the tokens `[B, h, w, Z]`."""

  @nn.compact
  def __call__(self, x, vectors):
    repeats = x.shape[1] // vectors.shape[1]
    vectors = jnp.repeat(jnp.repeat(vectors, repeats, axis=1), repeats, axis=2)
    width = x.shape[-1]
    scale, shift = (nn.Dense(width, name=name)(vectors) for name in ('scale', 'shift'))
    return norm(width, 'norm')(x) * scale + shift


class ResidualBlock(nn.Module):
  """Two pre-activation convolutions with a skip connection."""

  features: int
  norm: Layer = norm
  conv: Layer = conv

  @nn.compact
  def __call__(self, x):
    width = x.shape[-1]
    h = self.conv(self.features, 'conv_1')(nn.swish(self.norm(width, 'norm_1')(x)))
    h = self.conv(self.features, 'conv_2')(nn.swish(self.norm(self.features, 'norm_2')(h)))
    if width != self.features:
      x = nn.Dense(self.features, name='shortcut')(x)
    return x + h


class AttentionBlock(nn.Module):
  """Single-head self-attention over all pixels with a skip connection."""

  norm: Layer = norm

  @nn.compact
  def __call__(self, x):
    batch, height, width, channels = x.shape
    h = self.norm(channels, 'norm')(x).reshape(batch, height * width, channels)
    query, key, value = (nn.Dense(channels, name=n)(h) for n in ('query', 'key', 'value'))
    scores = jnp.einsum('bqc,bkc->bqk', query, key) * channels ** -0.5
    weights = nn.softmax(scores.astype(jnp.float32), axis=-1).astype(value.dtype)
    h = nn.Dense(channels, name='out')(jnp.einsum('bqk,bkc->bqc', weights, value))
    return x + h.reshape(x.shape)


class Middle(nn.Module):
  """Residual block, attention, residual block at the lowest resolution."""

  norm: Layer = norm

  @nn.compact
  def __call__(self, x):
    x = ResidualBlock(x.shape[-1], self.norm, name='res_0')(x)
    x = AttentionBlock(self.norm, name='attn_0')(x)
    return ResidualBlock(x.shape[-1], self.norm, name='res_1')(x)


class Level(nn.Module):
  """The blocks of one resolution, then `resample` to the next: 'down', 'up' or None."""

  features: int
  num_res_blocks: int
  attention: bool
  resample: str | None
  norm: Layer = norm

  @nn.compact
  def __call__(self, x):
    for j in range(self.num_res_blocks):
      x = ResidualBlock(self.features, self.norm, name=f'res_{j}')(x)
      if self.attention:
        x = AttentionBlock(self.norm, name=f'attn_{j}')(x)
    if self.resample == 'down':
      # One zero row at the bottom and one zero column on the right, as published.
      x = nn.Conv(self.features, (3, 3), strides=2, padding=((0, 1), (0, 1)), name='downsample')(x)
    elif self.resample == 'up':
      x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
      x = conv(self.features, 'upsample')(x)
    return x


class Encoder(nn.Module):
  """Maps images `[B, H, W, C]` to `[B, H / f, W / f, features]`.

  If `attention`, the level of the lowest resolution has attention, besides the middle.
  """

  config: AutoencoderSizes
  features: int
  attention: bool

  @nn.compact
  def __call__(self, x):
    c = self.config
    x = conv(c.ch, 'conv_in')(x)
    last = len(c.ch_mult) - 1
    for i, multiple in enumerate(c.ch_mult):
      x = Level(c.ch * multiple, c.num_res_blocks, attention=self.attention and i == last,
                resample=None if i == last else 'down', name=f'down_{i}')(x)
    x = Middle(name='mid')(x)
    return conv(self.features, 'conv_out')(nn.swish(norm(x.shape[-1], 'norm_out')(x)))


class Decoder(nn.Module):
  """Maps features `[B, h, w, Z]` to images `[B, h * f, w * f, C]`, not clipped."""

  config: AutoencoderSizes
  attention: bool
  norm: Layer = norm

  @nn.compact
  def __call__(self, x):
    c = self.config
    x = conv(c.ch * c.ch_mult[-1], 'conv_in')(x)
    x = Middle(self.norm, name='mid')(x)
    last = len(c.ch_mult) - 1
    for i, multiple in enumerate(reversed(c.ch_mult)):
      x = Level(c.ch * multiple, c.num_res_blocks + 1, attention=self.attention and i == 0,
                resample=None if i == last else 'up', norm=self.norm, name=f'up_{i}')(x)
    return conv(c.in_channels, 'conv_out')(nn.swish(self.norm(x.shape[-1], 'norm_out')(x)))


# Emu3's tokenizer is for video: it encodes an image as four equal frames, and of the four that it
# decodes, the first is the image. Convolutions over time are causal, so for a frame without earlier
# frames only the last tap of a kernel counts, for equal frames the sum of its taps.


class TimeConv(nn.Module):
  """A causal convolution over time and space, evaluated at the last frame.

  Its kernel is `[time, height, width, in, out]`.

  Attributes:
    features: channels of the output.
    taps: length of the kernel in time.
    space: side of the kernel in space, 3 or 1.
  """

  features: int
  taps: int
  space: int = 3

  @nn.compact
  def __call__(self, *frames):
    """Convolves frames `[B, H, W, C]` with the last taps of the kernel; earlier frames are zero."""
    width = frames[0].shape[-1]
    kernel = self.param('kernel', nn.initializers.lecun_normal(),
                        (self.taps, self.space, self.space, width, self.features))
    bias = self.param('bias', nn.initializers.zeros, (self.features,))
    out = bias
    for frame, tap in zip(reversed(frames), reversed(range(self.taps))):
      out = out + jax.lax.conv_general_dilated(
          frame, kernel[tap], (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))
    return out


class BatchNorm(nn.Module):
  """Normalises with the running statistics of the training."""

  @nn.compact
  def __call__(self, x):
    shape = (x.shape[-1],)
    scale, var = (self.param(name, nn.initializers.ones, shape) for name in ('scale', 'var'))
    bias, mean = (self.param(name, nn.initializers.zeros, shape) for name in ('bias', 'mean'))
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + bias


class TimeBlock(nn.Module):
  """Two convolutions over time with a skip connection, for a frame without earlier frames."""

  @nn.compact
  def __call__(self, x):
    h = x
    for number in (1, 2):
      h = nn.swish(BatchNorm(name=f'norm_{number}')(h))
      h = TimeConv(x.shape[-1], 3, name=f'conv_{number}')(h)
    return x + h


class EncoderOverTime(nn.Module):
  """Convolutions over time on features `[B, h, w, Z]` of four equal frames, with `num_blocks`."""

  num_blocks: int

  @nn.compact
  def __call__(self, frame):
    first, second = (TimeConv(frame.shape[-1], 4, name=f'time_{i}') for i in range(2))
    # The first convolution has stride 2 over four equal frames: its early output sees two of them
    # after two zero frames, its late output all four.
    early, late = nn.swish(first(frame, frame)), nn.swish(first(frame, frame, frame, frame))
    x = nn.swish(second(early, late))
    for i in range(self.num_blocks):
      x = TimeBlock(name=f'block_{i}')(x)
    return x


class DecoderOverTime(nn.Module):
  """Convolutions over time on features and vectors `[B, h, w, Z]`, without earlier frames."""

  num_blocks: int

  @nn.compact
  def __call__(self, features, vectors):
    both = jnp.concatenate([features, vectors])
    for i in range(self.num_blocks):
      both = TimeBlock(name=f'block_{i}')(both)
    for i in range(2):
      both = nn.swish(TimeConv(vectors.shape[-1], 3, name=f'time_{i}')(both))
    return jnp.split(both, 2)
