"""The image tokenizers of MAR and NextStep-1: variational autoencoders with continuous latents.

They use the networks of `autoencoder`, with a grid of Gaussians instead of a codebook. With
the default configuration this is the published KL-16 (one latent of 16 channels per 16x16 pixels).
Latents outside of this module are scaled to a variance of about one. Everything is NHWC and a pure
function of `(params, config)`.

Parameter tree: `encoder`, `decoder`, `quant_conv` and `post_quant_conv` as in `vq`, without the
attention in `decoder/up_0`. NextStep-1's has neither these two matrices nor the attention in
`encoder/down_3`.

References: Rombach et al., High-Resolution Image Synthesis with Latent Diffusion Models, 2022
(arXiv:2112.10752), appendix G; Li et al., Autoregressive Image Generation without Vector
Quantization, 2024 (arXiv:2406.11838), section 4.1; NextStep Team, 2025 (arXiv:2508.10711), for
normalised latents.
"""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.core import fields
from cspd_jax.models import autoencoder, vq

Params = Any
init = vq.init
# Added to the variance of normalised latents and tokens.
_NORM_EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class KLVAEConfig(autoencoder.AutoencoderSizes):
  """Sizes of a tokenizer; the defaults are KL-16.

  Attributes:
    z_channels: channels of a latent.
    scale: multiplies latents after encoding and divides them before decoding, so that the latents
      of the training images have a variance of one.
    shift: subtracted from latents before they are scaled, and added after they were divided.
    quant_conv: whether there are matrices between the networks and the latents.
    level_attention: whether the encoder's blocks at the lowest resolution have attention.
    normalized: whether the means of encoded images are normalised over the channels of a latent.
  """

  z_channels: int = 16
  scale: float = 0.2325
  shift: float = 0.0
  quant_conv: bool = True
  level_attention: bool = True
  normalized: bool = False

  def __post_init__(self):
    self.check(shift=fields.FINITE)

  @property
  def tokenizer(self) -> 'Tokenizer':
    """The networks."""
    return Tokenizer(self)


class Posterior(NamedTuple):
  """Independent Gaussians over latents, before scaling: both `[B, h, w, z_channels]` float32.

  Logarithms of variances are from -30 to 20.
  """

  mean: jax.Array
  log_variance: jax.Array


class Tokenizer(nn.Module):
  """All parameters of a tokenizer; use the functions of this module to run it."""

  config: KLVAEConfig

  def setup(self):
    c = self.config
    self.encoder = autoencoder.Encoder(c, 2 * c.z_channels, c.level_attention)
    self.decoder = autoencoder.Decoder(c, attention=False)
    if c.quant_conv:
      self.quant_conv = nn.Dense(2 * c.z_channels)
      self.post_quant_conv = nn.Dense(c.z_channels)

  def moments(self, images):
    """Encodes images into means and log variances, concatenated along the last axis."""
    features = self.encoder(images)
    return self.quant_conv(features) if self.config.quant_conv else features

  def images(self, latents):
    """Decodes unscaled latents."""
    return self.decoder(self.post_quant_conv(latents) if self.config.quant_conv else latents)

  def __call__(self, images):
    return self.images(self.moments(images)[..., :self.config.z_channels])


def encode(params: Params, config: KLVAEConfig, images: jax.Array) -> Posterior:
  """Encodes images `[B, H, W, C]` in [-1, 1] as `[B, H / factor, W / factor, z_channels]`.

  Raises ValueError if `H` or `W` is no multiple of `config.factor`.
  """
  vq.check_images(images, config)
  moments = Tokenizer(config).apply(
      {'params': params}, images.astype(vq.dtype(params)), method='moments').astype(jnp.float32)
  mean, log_variance = jnp.split(moments, 2, axis=-1)
  if config.normalized:
    mean = normalize(mean)
  return Posterior(mean, jnp.clip(log_variance, -30.0, 20.0))


def sample(config: KLVAEConfig, posterior: Posterior, key: jax.Array) -> jax.Array:
  """Draws scaled latents `[B, h, w, z_channels]`, float32, from `posterior`."""
  noise = jax.random.normal(key, posterior.mean.shape)
  latents = posterior.mean + jnp.exp(0.5 * posterior.log_variance) * noise
  return (latents - config.shift) * config.scale


def decode_unclipped(params: Params, config: KLVAEConfig, latents: jax.Array) -> jax.Array:
  """Decodes scaled latents `[B, h, w, z_channels]` to images `[B, H, W, C]`, not clipped."""
  latents = (latents / config.scale + config.shift).astype(vq.dtype(params))
  images = Tokenizer(config).apply({'params': params}, latents, method='images')
  return images.astype(jnp.float32)


def decode(params: Params, config: KLVAEConfig, latents: jax.Array) -> jax.Array:
  """Decodes scaled latents to float32 images `[B, h * factor, w * factor, C]` in [-1, 1]."""
  return jnp.clip(decode_unclipped(params, config, latents), -1.0, 1.0)


def normalize(x: jax.Array) -> jax.Array:
  """Returns `x` `[..., C]` with mean 0 and variance 1 over its last axis, float32.

  NextStep-1 normalises latents over their channels, and its sampled tokens over their numbers.
  """
  x = x.astype(jnp.float32)
  x = x - jnp.mean(x, axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + _NORM_EPS)
