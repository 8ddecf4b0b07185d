"""Vector-quantised image tokenizers of LlamaGen, Chameleon, MoVQGAN, Emu3 and Emu3.5, any size.

A convolutional encoder maps an image to a grid of small vectors; each is replaced by the nearest
of `codebook_size` vectors, whose index is the token; a mirrored decoder maps the tokens back to
an image. With the default configuration this is LlamaGen's VQ-16 (one token per 16x16 pixels),
whose vectors have length one; `CHAMELEON` is the tokenizer of Chameleon, Lumina-mGPT and Anole,
`MOVQGAN` Lumina-mGPT 2.0's, `EMU3` Emu3's for still images, and `IBQ` Emu3.5's,
whose tokens have the largest inner product instead of the smallest distance.
Everything is NHWC and a pure function of `(params, config)`. The functions of this module run the
networks `config.tokenizer`, also for a `cosmos.CosmosConfig`.

Parameter tree, `i` from high to low resolution in the encoder and in execution order (low to high
resolution) in the decoder; 1x1 convolutions are dense layers with `[in, out]` kernels:

  encoder, decoder / conv_in, down_i or up_i / {res_j, attn_j, downsample or upsample},
                     mid / {res_0, attn_0, res_1}, norm_out, conv_out
  quant_conv, post_quant_conv, codebook / embedding `[codebook_size, codebook_dim]`,
  encoder_over_time, decoder_over_time (only with `over_time`)

with `res` = {norm_1, conv_1, norm_2, conv_2, shortcut (only where the width changes)} and
`attn` = {norm, query, key, value, out}; a norm of `spatial_norm` is {norm, scale, shift}.

References: Sun et al., Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation,
2024 (arXiv:2406.06525), section 3.1; Esser et al., Taming Transformers for High-Resolution Image
Synthesis, 2021 (arXiv:2012.09841); Zheng et al., MoVQ, 2022 (arXiv:2209.09002), section 3.2; Shi
et al., Scalable Image Tokenization with Index Backpropagation Quantization, 2024
(arXiv:2412.02692), section 3; Emu3 Team, 2024 (arXiv:2409.18869), section 2.2.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.models import autoencoder

Params = Any


@dataclasses.dataclass(frozen=True)
class VQConfig(autoencoder.AutoencoderSizes):
  """Sizes of a tokenizer; the defaults are LlamaGen's VQ-16.

  Attributes:
    z_channels: width between the networks and the quantiser's projections.
    codebook_size: number of different tokens.
    codebook_dim: length of a codebook vector.
    level_attention: whether the level of the lowest resolution has attention, besides the middle.
    normalized: whether vectors of the encoder and the codebook are scaled to norm one.
    spatial_norm: whether the vectors of the tokens scale and shift the decoder's norms.
    by_product: whether a vector becomes the token with the largest inner product, instead of the
      smallest distance; without a difference for vectors of norm one.
    over_time: whether encoder and decoder have `num_res_blocks` blocks over time, at the resolution
      of the tokens, for which `z_channels` is `codebook_dim`.
  """

  z_channels: int = 256
  codebook_size: int = 16384
  codebook_dim: int = 8
  level_attention: bool = True
  normalized: bool = True
  spatial_norm: bool = False
  by_product: bool = False
  over_time: bool = False

  def __post_init__(self):
    self.check()
    if self.over_time and self.z_channels != self.codebook_dim:
      raise ValueError(f'z_channels is {self.z_channels}; with over_time it must be codebook_dim, '
                       f'which is {self.codebook_dim}.')

  @property
  def tokenizer(self) -> 'Tokenizer':
    """The networks that the functions of this module run."""
    return Tokenizer(self)

  @property
  def attention_levels(self) -> tuple[int, ...]:
    """Levels whose blocks have attention, besides the middle."""
    return (len(self.ch_mult) - 1,) if self.level_attention else ()


CHAMELEON = VQConfig(codebook_size=8192, codebook_dim=256, level_attention=False, normalized=False)
MOVQGAN = VQConfig(
    ch=256, ch_mult=(1, 2, 2, 4), z_channels=4, codebook_dim=4, normalized=False,
    spatial_norm=True)
EMU3 = VQConfig(
    ch=256, ch_mult=(1, 2, 2, 4), z_channels=4, codebook_size=32768, codebook_dim=4,
    normalized=False, spatial_norm=True, over_time=True)
IBQ = VQConfig(
    ch=256, num_res_blocks=4, codebook_size=131072, codebook_dim=256, normalized=False,
    by_product=True)


class Tokenizer(nn.Module):
  """All parameters of a tokenizer; use the functions of this module to run it."""

  config: VQConfig

  def setup(self):
    c = self.config
    project = nn.Dense
    if c.over_time:
      project = lambda features: autoencoder.TimeConv(features, 3, space=1)
      self.encoder_over_time = autoencoder.EncoderOverTime(c.num_res_blocks)
      self.decoder_over_time = autoencoder.DecoderOverTime(c.num_res_blocks)
    self.encoder = autoencoder.Encoder(c, c.z_channels, c.level_attention)
    self.quant_conv, self.post_quant_conv = project(c.codebook_dim), project(c.z_channels)
    self.codebook = nn.Embed(c.codebook_size, c.codebook_dim)

  def latents(self, images):
    """Encodes images into unquantized vectors."""
    features = self.encoder(images)
    return self.quant_conv(self.encoder_over_time(features) if self.config.over_time else features)

  @nn.compact
  def images(self, vectors):
    """Decodes codebook vectors."""
    c, features = self.config, self.post_quant_conv(vectors)
    if c.over_time:
      features, vectors = self.decoder_over_time(features, vectors)
    norm = autoencoder.norm
    if c.spatial_norm:
      norm = lambda channels, name: lambda x: autoencoder.SpatialNorm(name=name)(x, vectors)
    return autoencoder.Decoder(c, c.level_attention, norm, name='decoder')(features)

  def vectors(self):
    """Returns the vectors of all tokens."""
    return _scaled(self.codebook.embedding, self.config)

  def tokens(self, z):
    """Returns the tokens of unquantized vectors."""
    vectors = self.vectors()
    scores = jnp.einsum('...d,nd->...n', z, vectors, precision=jax.lax.Precision.HIGHEST)
    # Between unit vectors the smallest distance is the largest inner product.
    if not (self.config.normalized or self.config.by_product):
      scores = scores - 0.5 * jnp.sum(jnp.square(vectors), axis=-1)
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)

  def __call__(self, images):
    self.codebook(jnp.zeros((1,), jnp.int32))  # Creates the parameter.
    return self.images(self.latents(images))


def features(params: Params, config: Any, images: jax.Array) -> jax.Array:
  """Returns the pooled latents of images, for the Frechet distance of `metrics.image_scores`.

  They are `[B, 2 codebook_dim]` float32: means, then standard deviations over the grid.
  """
  values = latents(params, config, images)
  return jnp.concatenate([jnp.mean(values, axis=(1, 2)), jnp.std(values, axis=(1, 2))], axis=-1)


def init(config: Any, key: jax.Array) -> Params:
  """Initialises float32 parameters."""
  images = jnp.zeros((1, config.factor, config.factor, config.in_channels), jnp.float32)
  return jax.jit(config.tokenizer.init)(key, images)['params']


def latents(params: Params, config: Any, images: jax.Array) -> jax.Array:
  """Encodes images `[B, H, W, C]` in [-1, 1] as vectors before quantisation.

  They are `[B, H / factor, W / factor, codebook_dim]` float32, of norm one if `config.normalized`.
  Raises ValueError if `H` or `W` is no multiple of `config.factor`.
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
    raise ValueError(f'Height and width of images must be multiples of {config.factor}, got '
                     f'{images.shape[1]}x{images.shape[2]}; crop or resize them first.')


def codebook(params: Params, config: Any) -> jax.Array:
  """Returns the vectors of all tokens `[codebook_size, codebook_dim]`, float32."""
  return config.tokenizer.apply({'params': params}, method='vectors')


def quantize(params: Params, config: Any, z: jax.Array) -> jax.Array:
  """Returns the tokens `[...]` int32 nearest to `z` `[..., codebook_dim]`, the result of `latents`.

  See `VQConfig.by_product` for what is near.
  """
  return config.tokenizer.apply({'params': params}, z, method='tokens')


def decode_vectors(params: Params, config: Any, vectors: jax.Array) -> jax.Array:
  """Decodes vectors `[B, h, w, codebook_dim]` to float32 images `[B, H, W, C]`, not clipped."""
  images = config.tokenizer.apply(
      {'params': params}, vectors.astype(dtype(params)), method='images')
  return images.astype(jnp.float32)


def dtype(params: Params) -> jnp.dtype:
  """Returns the dtype of a tokenizer's parameters, in which it computes."""
  return jax.tree.leaves(params)[0].dtype


def encode(params: Params, config: Any, images: jax.Array) -> jax.Array:
  """Encodes images `[B, H, W, C]` in [-1, 1] as tokens `[B, H / factor, W / factor]` int32."""
  return quantize(params, config, latents(params, config, images))


def decode(params: Params, config: Any, indices: jax.Array) -> jax.Array:
  """Decodes tokens `[B, h, w]` to float32 images `[B, h * factor, w * factor, C]` in [-1, 1].

  Raises ValueError for numbers that are no integers, or of another shape.
  """
  if indices.ndim != 3 or not jnp.issubdtype(indices.dtype, jnp.integer):
    raise ValueError('indices must be integers [batch, height, width], got '
                     f'{indices.dtype} {indices.shape}; reshape flat sequences to the grid.')
  return jnp.clip(decode_vectors(params, config, codebook(params, config)[indices]), -1.0, 1.0)


def _scaled(x: jax.Array, config: VQConfig) -> jax.Array:
  """Casts vectors `[..., codebook_dim]` to float32, and scales them to norm one if configured."""
  x = x.astype(jnp.float32)
  if not config.normalized:
    return x
  return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
