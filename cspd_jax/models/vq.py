"""Vector-quantised image tokenizers of LlamaGen, Chameleon, MoVQGAN and Emu3.5, any size.

A convolutional encoder maps an image to a grid of small vectors; each is replaced by the nearest
of `codebook_size` vectors, whose index is the token; a mirrored decoder maps the tokens back to
an image. With the default configuration this is LlamaGen's VQ-16 (one token per 16x16 pixels),
whose vectors have length one; `CHAMELEON` is the tokenizer of Chameleon, Lumina-mGPT and Anole,
`MOVQGAN` that of Lumina-mGPT 2.0, and `IBQ` that of Emu3.5, whose tokens have the largest inner
product instead of the smallest distance.
Everything is NHWC and a pure function of `(params, config)`.

  config = VQConfig()
  params = init(config, jax.random.key(0))
  indices = encode(params, config, images)   # [B, H / 16, W / 16] int32
  images = decode(params, config, indices)   # [B, H, W, 3] in [-1, 1]

Parameter tree, `i` from high to low resolution in the encoder and in execution order (low to high
resolution) in the decoder; 1x1 convolutions are dense layers with `[in, out]` kernels:

  encoder / conv_in, down_i / {res_j, attn_j, downsample}, mid / {res_0, attn_0, res_1},
            norm_out, conv_out
  decoder / conv_in, mid / {res_0, attn_0, res_1}, up_i / {res_j, attn_j, upsample},
            norm_out, conv_out
  quant_conv, post_quant_conv, codebook / embedding `[codebook_size, codebook_dim]`

with `res` = {norm_1, conv_1, norm_2, conv_2, shortcut (only where the width changes)} and
`attn` = {norm, query, key, value, out}; a norm of `SpatialNorm` is {norm, scale, shift}.

References: Sun et al., Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation,
2024 (arXiv:2406.06525), section 3.1; Esser et al., Taming Transformers for High-Resolution Image
Synthesis, 2021 (arXiv:2012.09841); Zheng et al., MoVQ, 2022 (arXiv:2209.09002), section 3.2; Shi
et al., Scalable Image Tokenization with Index Backpropagation Quantization, 2024
(arXiv:2412.02692), section 3.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.core import fields

Params = Any


@dataclasses.dataclass(frozen=True)
class VQConfig:
  """Sizes of a tokenizer; the defaults are LlamaGen's VQ-16.

  Attributes:
    in_channels: image channels.
    ch: width at full resolution.
    ch_mult: width of each resolution as a multiple of `ch`; each level after the first halves
      height and width, so one token covers `2 ** (len(ch_mult) - 1)` pixels on a side.
    num_res_blocks: residual blocks per level in the encoder; the decoder has one more.
    z_channels: width between the networks and the quantiser's projections.
    codebook_size: number of different tokens.
    codebook_dim: length of a codebook vector.
    level_attention: whether the level of the lowest resolution has attention, besides the middle.
    normalized: whether vectors of the encoder and the codebook are scaled to norm one.
    spatial_norm: whether the vectors of the tokens scale and shift the decoder's norms.
    by_product: whether a vector becomes the token with the largest inner product, instead of the
      smallest distance; without a difference for vectors of norm one.
  """

  in_channels: int = 3
  ch: int = 128
  ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
  num_res_blocks: int = 2
  z_channels: int = 256
  codebook_size: int = 16384
  codebook_dim: int = 8
  level_attention: bool = True
  normalized: bool = True
  spatial_norm: bool = False
  by_product: bool = False

  def __post_init__(self):
    fields.check(self, num_res_blocks=(1, 64), ch_mult=(1, 1024))
    if not 1 <= len(self.ch_mult) <= 8:
      raise ValueError(
          f'ch_mult is {self.ch_mult}; it must have one number per resolution, 1 to 8 of them.')
    for multiple in self.ch_mult:
      width = self.ch * multiple
      if width % _num_groups(width):
        raise ValueError(
            f'VQConfig.ch * ch_mult = {width} channels cannot be split into '
            f'{_num_groups(width)} normalisation groups; use a multiple of 32 for 128 channels or '
            'more, and a multiple of 4 for fewer.')

  @property
  def factor(self) -> int:
    """Pixels per token along each side of the image."""
    return 2 ** (len(self.ch_mult) - 1)

  @property
  def tokenizer(self) -> 'Tokenizer':
    """The networks that the functions of this module run; `Emu3VQConfig` has its own."""
    return Tokenizer(self)


def _num_groups(channels: int) -> int:
  """Number of normalisation groups: 32 as published, or fewer so that each has 4 channels."""
  return min(32, max(1, channels // 4))


CHAMELEON = VQConfig(
    codebook_size=8192, codebook_dim=256, level_attention=False, normalized=False)
MOVQGAN = VQConfig(
    ch=256, ch_mult=(1, 2, 2, 4), z_channels=4, codebook_dim=4, normalized=False,
    spatial_norm=True)
IBQ = VQConfig(
    ch=256, num_res_blocks=4, codebook_size=131072, codebook_dim=256, normalized=False,
    by_product=True)


def norm(channels: int, name: str) -> nn.GroupNorm:
  """Returns the group norm of these networks."""
  return nn.GroupNorm(_num_groups(channels), epsilon=1e-6, use_fast_variance=False, name=name)


# Maps `(channels, name)` to a module or function that normalises `[B, H, W, channels]`.
Norm = Callable[[int, str], Callable[[jax.Array], jax.Array]]


class SpatialNorm(nn.Module):
  """A group norm whose scale and shift depend on the vectors of the tokens `[B, h, w, Z]`."""

  @nn.compact
  def __call__(self, x, vectors):
    repeats = x.shape[1] // vectors.shape[1]
    vectors = jnp.repeat(jnp.repeat(vectors, repeats, axis=1), repeats, axis=2)
    width = x.shape[-1]
    scale, shift = (nn.Dense(width, name=name)(vectors) for name in ('scale', 'shift'))
    return norm(width, 'norm')(x) * scale + shift


def spatial_norms(vectors: jax.Array) -> Norm:
  """Returns the norms that depend on the vectors `[B, h, w, Z]` of the tokens."""
  return lambda channels, name: lambda x: SpatialNorm(name=name)(x, vectors)


class ResidualBlock(nn.Module):
  """Two pre-activation 3x3 convolutions with a skip connection."""

  features: int
  norm: Norm = norm

  @nn.compact
  def __call__(self, x):
    width = x.shape[-1]
    h = conv(self.features, 'conv_1')(nn.swish(self.norm(width, 'norm_1')(x)))
    h = conv(self.features, 'conv_2')(nn.swish(self.norm(self.features, 'norm_2')(h)))
    if width != self.features:
      x = nn.Dense(self.features, name='shortcut')(x)
    return x + h


class AttentionBlock(nn.Module):
  """Single-head self-attention over all pixels with a skip connection."""

  norm: Norm = norm

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

  norm: Norm = norm

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
  norm: Norm = norm

  @nn.compact
  def __call__(self, x):
    for j in range(self.num_res_blocks):
      x = ResidualBlock(self.features, self.norm, name=f'res_{j}')(x)
      if self.attention:
        x = AttentionBlock(self.norm, name=f'attn_{j}')(x)
    if self.resample == 'down':
      # One zero row at the bottom and one zero column on the right, as published.
      x = nn.Conv(self.features, (3, 3), strides=2, padding=((0, 1), (0, 1)),
                  name='downsample')(x)
    elif self.resample == 'up':
      x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
      x = conv(self.features, 'upsample')(x)
    return x


class Encoder(nn.Module):
  """Maps images `[B, H, W, C]` to features `[B, H / f, W / f, z_channels]`."""

  config: VQConfig

  @nn.compact
  def __call__(self, x):
    c = self.config
    x = conv(c.ch, 'conv_in')(x)
    last = len(c.ch_mult) - 1
    for i, multiple in enumerate(c.ch_mult):
      x = Level(c.ch * multiple, c.num_res_blocks, attention=c.level_attention and i == last,
                resample=None if i == last else 'down', name=f'down_{i}')(x)
    x = Middle(name='mid')(x)
    return conv(c.z_channels, 'conv_out')(nn.swish(norm(x.shape[-1], 'norm_out')(x)))


class Decoder(nn.Module):
  """Maps features `[B, h, w, z_channels]` to images `[B, h * f, w * f, C]`, not clipped."""

  config: VQConfig
  norm: Norm = norm

  @nn.compact
  def __call__(self, x):
    c = self.config
    x = conv(c.ch * c.ch_mult[-1], 'conv_in')(x)
    x = Middle(self.norm, name='mid')(x)
    last = len(c.ch_mult) - 1
    for i, multiple in enumerate(reversed(c.ch_mult)):
      x = Level(c.ch * multiple, c.num_res_blocks + 1, attention=c.level_attention and i == 0,
                resample=None if i == last else 'up', norm=self.norm, name=f'up_{i}')(x)
    return conv(c.in_channels, 'conv_out')(nn.swish(self.norm(x.shape[-1], 'norm_out')(x)))


class Tokenizer(nn.Module):
  """All parameters of a tokenizer; use the functions of this module to run it."""

  config: VQConfig

  def setup(self):
    c = self.config
    self.encoder = Encoder(c)
    self.quant_conv = nn.Dense(c.codebook_dim)
    self.post_quant_conv = nn.Dense(c.z_channels)
    self.codebook = nn.Embed(c.codebook_size, c.codebook_dim)

  def latents(self, images):
    """Encodes images into unquantized vectors."""
    return self.quant_conv(self.encoder(images))

  @nn.compact
  def images(self, vectors):
    """Decodes codebook vectors."""
    norms = spatial_norms(vectors) if self.config.spatial_norm else norm
    return Decoder(self.config, norms, name='decoder')(self.post_quant_conv(vectors))

  def __call__(self, images):
    self.codebook(jnp.zeros((1,), jnp.int32))  # Creates the parameter.
    return self.images(self.latents(images))


def features(params: Params, config: VQConfig, images: jax.Array) -> jax.Array:
  """Returns the pooled latents of images, for the Frechet distance of `metrics.image_scores`.

  Returns:
    `[B, 2 codebook_dim]` float32: means, then standard deviations over the grid.
  """
  values = latents(params, config, images)
  return jnp.concatenate([jnp.mean(values, axis=(1, 2)), jnp.std(values, axis=(1, 2))], axis=-1)


def init(config: VQConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters."""
  side = config.factor
  images = jnp.zeros((1, side, side, config.in_channels), jnp.float32)
  return Tokenizer(config).init(key, images)['params']


def latents(params: Params, config: Any, images: jax.Array) -> jax.Array:
  """Encodes images `[B, H, W, C]` in [-1, 1] as vectors before quantisation.

  Returns:
    `[B, H / factor, W / factor, codebook_dim]`, float32; of norm one if `config.normalized`.

  Raises:
    ValueError: if `H` or `W` is no multiple of `config.factor`.
  """
  check_images(images, config)
  images = images.astype(dtype(params))
  z = config.tokenizer.apply({'params': params}, images, method='latents')
  return _scaled(z, config)


def check_images(images: jax.Array, config: Any) -> None:
  """Raises ValueError unless the shape of `images` fits a tokenizer of these sizes."""
  if images.ndim != 4 or images.shape[-1] != config.in_channels:
    raise ValueError(
        f'images must be [batch, height, width, {config.in_channels}], got {images.shape}.')
  if images.shape[1] % config.factor or images.shape[2] % config.factor:
    raise ValueError(
        f'Height and width of images must be multiples of {config.factor}, got '
        f'{images.shape[1]}x{images.shape[2]}; crop or resize them first.')


def codebook(params: Params, config: VQConfig) -> jax.Array:
  """Returns the codebook vectors `[codebook_size, codebook_dim]`, float32."""
  return _scaled(params['codebook']['embedding'], config)


def quantize(params: Params, config: VQConfig, z: jax.Array) -> jax.Array:
  """Returns the indices `[...]` int32 of the codebook vectors nearest to `z` `[..., codebook_dim]`.

  `z` is the result of `latents`. See `VQConfig.by_product` for what is near.
  """
  vectors = codebook(params, config)
  scores = jnp.einsum('...d,nd->...n', z, vectors, precision=jax.lax.Precision.HIGHEST)
  # Between unit vectors the smallest distance is the largest inner product.
  if not (config.normalized or config.by_product):
    scores = scores - 0.5 * jnp.sum(jnp.square(vectors), axis=-1)
  return jnp.argmax(scores, axis=-1).astype(jnp.int32)


def decode_vectors(params: Params, config: Any, vectors: jax.Array) -> jax.Array:
  """Decodes vectors `[B, h, w, codebook_dim]` to float32 images `[B, H, W, C]`, not clipped."""
  images = config.tokenizer.apply(
      {'params': params}, vectors.astype(dtype(params)), method='images')
  return images.astype(jnp.float32)


def dtype(params: Params) -> jnp.dtype:
  """Returns the dtype of a tokenizer's parameters, in which it computes."""
  return jax.tree.leaves(params)[0].dtype


def encode(params: Params, config: VQConfig, images: jax.Array) -> jax.Array:
  """Encodes images `[B, H, W, C]` in [-1, 1] as tokens `[B, H / factor, W / factor]` int32."""
  return quantize(params, config, latents(params, config, images))


def decode_unclipped(params: Params, config: VQConfig, indices: jax.Array) -> jax.Array:
  """Decodes tokens to images `[B, h * factor, w * factor, C]`, float32, without clipping."""
  check_indices(indices)
  return decode_vectors(params, config, codebook(params, config)[indices])


def decode(params: Params, config: VQConfig, indices: jax.Array) -> jax.Array:
  """Decodes tokens `[B, h, w]` to float32 images `[B, h * factor, w * factor, C]` in [-1, 1]."""
  return jnp.clip(decode_unclipped(params, config, indices), -1.0, 1.0)


def check_indices(indices: jax.Array) -> None:
  """Raises ValueError unless `indices` is a batch of grids of integers."""
  if indices.ndim != 3 or not jnp.issubdtype(indices.dtype, jnp.integer):
    raise ValueError('indices must be integers [batch, height, width], got '
                     f'{indices.dtype} {indices.shape}; reshape flat sequences to the grid.')


def _scaled(x: jax.Array, config: VQConfig) -> jax.Array:
  """Casts vectors `[..., codebook_dim]` to float32, and scales them to norm one if configured."""
  x = x.astype(jnp.float32)
  if not config.normalized:
    return x
  return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def conv(features: int, name: str) -> nn.Conv:
  """Returns the 3x3 convolution that maps `[B, H, W, C]` to `[B, H, W, features]`."""
  return nn.Conv(features, (3, 3), padding=1, name=name, conv_general_dilated=_same_conv)


def _same_conv(x, kernel, *unused_args, **unused_kwargs):
  """The convolution of `conv`, with the signature that `nn.Conv` calls."""
  # XLA's kernel gradient is two to four times slower than a matrix product on CPUs, and faster on
  # accelerators.
  run = _conv_for_cpu if jax.default_backend() == 'cpu' else _plain_conv
  return run(x, kernel)


def _plain_conv(x, kernel):
  return jax.lax.conv_general_dilated(
      x, kernel, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))


def _conv_for_cpu_forward(x, kernel):
  return _plain_conv(x, kernel), (x, kernel)


def _conv_for_cpu_backward(residuals, grad):
  """Gradients of `_plain_conv`; the kernel's is one matrix product per image, to fit CPU caches."""
  x, kernel = residuals
  grad_x = _plain_conv(grad, jnp.flip(kernel, (0, 1)).swapaxes(2, 3))
  height, width = x.shape[1:3]
  padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))

  def add_image(total, image_and_grad):
    image, image_grad = image_and_grad
    patches = jnp.concatenate(
        [image[i:i + height, j:j + width] for i in range(3) for j in range(3)], axis=-1)
    return total + jnp.einsum('hwp,hwf->pf', patches, image_grad), None

  zeros = jnp.zeros((kernel[..., 0].size, kernel.shape[-1]), kernel.dtype)
  grad_kernel, _ = jax.lax.scan(add_image, zeros, (padded, grad))
  return grad_x, grad_kernel.reshape(kernel.shape)


_conv_for_cpu = jax.custom_vjp(_plain_conv)
_conv_for_cpu.defvjp(_conv_for_cpu_forward, _conv_for_cpu_backward)
