"""CLIP (Radford et al., arXiv:2103.00020) with a vision transformer.

In the shape descriptions, `B` is the number of images or texts, `L` of tokens, `D` the width of an
encoder, `H` the number of its attention heads and `F` the width of the features.
"""

import dataclasses
import functools
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.core import fields
from cspd_jax.models import layers
from cspd_jax.models.transformer import causal_mask

Params = Any

_TABLE = nn.initializers.normal(0.02)
# Scores are means of similarities that differ by per cents, so nothing is rounded to fewer bits.
_precise = functools.partial(jax.default_matmul_precision, 'highest')


@dataclasses.dataclass(frozen=True)
class CLIPConfig:
  """Sizes of the two encoders.

  Attributes:
    image_size: side of the images in pixels, a multiple of `patch_size`.
    patch_size: side of a patch in pixels.
    image_dim: `D` of the image encoder.
    image_layers: its number of blocks.
    image_heads: its `H`.
    image_ffn: hidden width of its feed-forward layers.
    vocab_size: number of text tokens.
    context: largest number of tokens of a text.
    text_dim: `D` of the text encoder.
    text_layers: its number of blocks.
    text_heads: its `H`.
    text_ffn: hidden width of its feed-forward layers.
    feature_dim: `F`.
    activation: of the feed-forward layers, see `layers.ACTIVATIONS`.
    norm_eps: added to the variance in the norms.
  """

  image_size: int = 224
  patch_size: int = 32
  image_dim: int = 768
  image_layers: int = 12
  image_heads: int = 12
  image_ffn: int = 3072
  vocab_size: int = 49408
  context: int = 77
  text_dim: int = 512
  text_layers: int = 12
  text_heads: int = 8
  text_ffn: int = 2048
  feature_dim: int = 512
  activation: Literal['quick_gelu', 'gelu'] = 'quick_gelu'
  norm_eps: float = 1e-5

  def __post_init__(self):
    layers = (1, fields.MOST_LAYERS)
    fields.check(self, image_layers=layers, text_layers=layers, context=(2, 2**20))
    for name in ('image', 'text'):
      dim, heads = getattr(self, f'{name}_dim'), getattr(self, f'{name}_heads')
      fields.require(dim % heads == 0, f'{name}_heads', heads, f'a divisor of {name}_dim, {dim}')
    fields.require(self.image_size % self.patch_size == 0, 'image_size', self.image_size,
                   f'a multiple of patch_size, which is {self.patch_size}')


PRESETS: dict[str, CLIPConfig] = {
    'vit_b_32': CLIPConfig(),
    'vit_b_16': CLIPConfig(patch_size=16),
    'vit_l_14': CLIPConfig(
        patch_size=14, image_dim=1024, image_layers=24, image_heads=16, image_ffn=4096,
        text_dim=768, text_heads=12, text_ffn=3072, feature_dim=768)}


class _Image(nn.Module):
  config: CLIPConfig

  @nn.compact
  def __call__(self, pixels):
    c, size = self.config, self.config.patch_size
    x = nn.Conv(c.image_dim, (size, size), size, 'VALID', use_bias=False, name='patch')(pixels)
    x = x.reshape(len(x), -1, c.image_dim)
    first = jnp.broadcast_to(
        self.param('class_token', _TABLE, (c.image_dim,)), (len(x), 1, c.image_dim))
    x = jnp.concatenate([first, x], axis=1)
    x = x + self.param('positions', _TABLE, x.shape[1:])
    x = layers.layer_norm(c.norm_eps, 'first_norm')(x)
    for index in range(c.image_layers):
      x = layers.VisionLayer(c.image_heads, c.image_ffn, c.norm_eps, c.activation,
                             name=f'layers_{index}')(x, jnp.ones((1, 1, 1, 1), bool))
    return _projected(c, x[:, 0])


class _Text(nn.Module):
  config: CLIPConfig

  @nn.compact
  def __call__(self, tokens, ends):
    c, length = self.config, tokens.shape[1]
    table = self.param('tokens', _TABLE, (c.vocab_size, c.text_dim))
    x = jnp.take(table, tokens, axis=0)
    x = x + self.param('positions', _TABLE, (c.context, c.text_dim))[:length]
    for index in range(c.text_layers):
      x = layers.VisionLayer(c.text_heads, c.text_ffn, c.norm_eps, c.activation,
                             name=f'layers_{index}')(x, causal_mask(length)[None])
    return _projected(c, jnp.take_along_axis(x, ends[:, None, None], axis=1)[:, 0])


def _projected(config: CLIPConfig, x: jax.Array) -> jax.Array:
  x = layers.layer_norm(config.norm_eps, 'norm')(x)
  return nn.Dense(config.feature_dim, use_bias=False, name='projection')(x)


def init(config: CLIPConfig, rng: jax.Array) -> Params:
  """Returns random float32 parameters."""
  def run(rng):
    image, text = jax.random.split(rng)
    pixels = jnp.zeros((1, config.image_size, config.image_size, 3))
    tokens = jnp.zeros((1, 1), jnp.int32)
    return {'image': _Image(config).init(image, pixels)['params'],
            'text': _Text(config).init(text, tokens, tokens[0])['params']}

  return jax.jit(run)(rng)


def image_features(params: Params, config: CLIPConfig, pixels: jax.Array) -> jax.Array:
  """Returns the features of images, `[B, F]` float32, which are not normalised.

  Pixels are `[B, image_size, image_size, 3]`, as `metrics.clip.prepared` returns them.
  """
  assert pixels.shape[1:] == (config.image_size, config.image_size, 3), pixels.shape
  with _precise():
    return _Image(config).apply({'params': params['image']}, pixels)


def text_features(params: Params, config: CLIPConfig, tokens: jax.Array, ends: jax.Array
                  ) -> jax.Array:
  """Returns the features of texts, `[B, F]` float32, which are not normalised.

  Tokens `[B, L]`, at most `context`, begin with the start token; those behind the end token, whose
  index is `ends` `[B]`, have no effect.
  """
  assert tokens.shape[1] <= config.context, tokens.shape
  with _precise():
    return _Text(config).apply({'params': params['text']}, tokens, ends)
