"""Emu3's image tokenizer for still images (arXiv 2409.18869).

The published tokenizer is for video: it encodes an image as four equal frames, and the decoded
image is the first of four frames. Convolutions over time are causal, so this implementation is
two-dimensional, with the same result: for a frame without earlier frames only the last tap of a
kernel counts, for equal frames the sum of its taps.

In addition to the networks of `vq` there are blocks over time, at the resolution of the tokens, and
the vectors of the tokens scale and shift the decoder's norms. Everything is NHWC and a pure
function of `(params, config)`; kernels over time are `[time, 3, 3, in, out]`.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.core import fields
from cspd_jax.models import vq

Params = Any
# They run the network of the config.
latents, codebook, encode = vq.latents, vq.codebook, vq.encode
decode_unclipped, decode = vq.decode_unclipped, vq.decode


@dataclasses.dataclass(frozen=True)
class Emu3VQConfig:
  """Sizes of a tokenizer; the defaults are the published ones.

  Attributes:
    in_channels: image channels.
    ch: width at full resolution.
    ch_mult: width of each resolution as a multiple of `ch`; each level after the first halves
      height and width.
    num_res_blocks: residual blocks per level in the encoder, and blocks over time in both encoder
      and decoder; the decoder has one more per level.
    z_channels: length of a codebook vector and width of the blocks over time.
    codebook_size: number of different tokens.
  """

  in_channels: int = 3
  ch: int = 256
  ch_mult: tuple[int, ...] = (1, 2, 2, 4)
  num_res_blocks: int = 2
  z_channels: int = 4
  codebook_size: int = 32768

  # As in `vq.VQConfig`.
  normalized = by_product = False

  def __post_init__(self):
    fields.check(self)
    _ = self.vq_config  # Checks the relations between the sizes.

  @property
  def factor(self) -> int:
    """Pixels per token along each side of the image."""
    return 2 ** (len(self.ch_mult) - 1)

  @property
  def attention_levels(self) -> tuple[int, ...]:
    """Levels whose blocks have attention, besides the middle: the one of the lowest resolution."""
    return (len(self.ch_mult) - 1,)

  @property
  def vq_config(self) -> vq.VQConfig:
    """Sizes of encoder, decoder and codebook."""
    return vq.VQConfig(
        in_channels=self.in_channels, ch=self.ch, ch_mult=self.ch_mult,
        num_res_blocks=self.num_res_blocks, z_channels=self.z_channels,
        codebook_size=self.codebook_size, codebook_dim=self.z_channels, normalized=False)

  @property
  def tokenizer(self) -> 'Tokenizer':
    """The networks that the functions of this module run; `Emu3VQConfig` has its own."""
    return Tokenizer(self)


class TimeConv(nn.Module):
  """A causal convolution over time and space, evaluated at the last frame.

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


class Encoder(nn.Module):
  """Maps images `[B, H, W, C]` to unquantized vectors `[B, H / f, W / f, z_channels]`."""

  config: Emu3VQConfig

  @nn.compact
  def __call__(self, images):
    c = self.config
    frame = vq.Encoder(c.vq_config, name='network')(images)
    first, second = (TimeConv(c.z_channels, 4, name=f'time_{i}') for i in range(2))
    # The first convolution has stride 2 over four equal frames: its early output sees two of them
    # after two zero frames, its late output all four.
    early, late = nn.swish(first(frame, frame)), nn.swish(first(frame, frame, frame, frame))
    x = nn.swish(second(early, late))
    for i in range(c.num_res_blocks):
      x = TimeBlock(name=f'block_{i}')(x)
    return TimeConv(c.z_channels, 3, space=1, name='quant_conv')(x)


class Decoder(nn.Module):
  """Maps codebook vectors `[B, h, w, z_channels]` to images `[B, h * f, w * f, C]`."""

  config: Emu3VQConfig

  @nn.compact
  def __call__(self, vectors):
    c = self.config
    x = TimeConv(c.z_channels, 3, space=1, name='post_quant_conv')(vectors)
    both = jnp.concatenate([x, vectors])
    for i in range(c.num_res_blocks):
      both = TimeBlock(name=f'block_{i}')(both)
    for i in range(2):
      both = nn.swish(TimeConv(c.z_channels, 3, name=f'time_{i}')(both))
    x, vectors = jnp.split(both, 2)
    return vq.Decoder(c.vq_config, vq.spatial_norms(vectors), name='network')(x)


class Tokenizer(nn.Module):
  """All parameters of a tokenizer; use the functions of this module to run it."""

  config: Emu3VQConfig

  def setup(self):
    self.encoder = Encoder(self.config)
    self.decoder = Decoder(self.config)
    self.codebook = nn.Embed(self.config.codebook_size, self.config.z_channels)

  def latents(self, images):
    """Maps images `[B, H, W, C]` to unquantised vectors `[B, H / f, W / f, z_channels]`."""
    return self.encoder(images)

  def images(self, vectors):
    """Maps vectors to images, not clipped."""
    return self.decoder(vectors)

  def __call__(self, images):
    self.codebook(jnp.zeros((1,), jnp.int32))  # Creates the parameter.
    return self.images(self.latents(images))


def init(config: Emu3VQConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters."""
  images = jnp.zeros((1, config.factor, config.factor, config.in_channels), jnp.float32)
  return jax.jit(Tokenizer(config).init)(key, images)['params']
