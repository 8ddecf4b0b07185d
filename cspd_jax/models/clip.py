"""CLIP (Radford et al., arXiv:2103.00020) with a vision transformer, as pure functions.

  config = PRESETS['vit_b_32']
  params = init(config, jax.random.key(0))
  image = image_features(params, config, pixels)    # pixels [B, 224, 224, 3], see `metrics.clip`
  text = text_features(params, config, tokens, ends)

In the shape descriptions, `B` is the number of images or texts, `L` of tokens, `D` the width of an
encoder, `H` the number of its attention heads, `E` the width of one and `F` that of the features.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from cspd_jax.core import fields

Params = Any

# Scores are means of similarities that differ by per cents, so nothing is rounded to fewer bits.
_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


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
    activation: 'quick_gelu' is `x sigmoid(1.702 x)`.
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
      if dim % heads:
        raise ValueError(f'{name}_heads is {heads}; it must divide {name}_dim, which is {dim}.')
    if self.image_size % self.patch_size:
      raise ValueError(f'image_size is {self.image_size}; it must be a multiple of patch_size, '
                       f'which is {self.patch_size}.')


# The published networks.
PRESETS: dict[str, CLIPConfig] = {
    'vit_b_32': CLIPConfig(),
    'vit_b_16': CLIPConfig(patch_size=16),
    'vit_l_14': CLIPConfig(
        patch_size=14, image_dim=1024, image_layers=24, image_heads=16, image_ffn=4096,
        text_dim=768, text_heads=12, text_ffn=3072, feature_dim=768)}


def init(config: CLIPConfig, rng: jax.Array) -> Params:
  """Returns random float32 parameters."""
  is_shape = lambda node: isinstance(node, tuple)
  leaves, tree = jax.tree_util.tree_flatten_with_path(_shapes(config), is_leaf=is_shape)
  params = []
  for (path, shape), key in zip(leaves, jax.random.split(rng, len(leaves)), strict=True):
    name = path[-1].key
    params.append(jnp.ones(shape) if name == 'scale' else jnp.zeros(shape) if 'bias' in name
                  else .02 * jax.random.normal(key, shape))
  return jax.tree.unflatten(tree, params)


def _shapes(config: CLIPConfig) -> Params:
  """The shapes of all parameters."""
  patch, num_patches = config.patch_size, (config.image_size // config.patch_size)**2
  image = dict(
      patch=(patch, patch, 3, config.image_dim), class_token=(config.image_dim,),
      positions=(num_patches + 1, config.image_dim), first_norm=_norm_shapes(config.image_dim))
  text = dict(tokens=(config.vocab_size, config.text_dim),
              positions=(config.context, config.text_dim))
  return dict(
      image=image | _encoder_shapes(config.image_dim, config.image_layers, config.image_heads,
                                    config.image_ffn, config.feature_dim),
      text=text | _encoder_shapes(config.text_dim, config.text_layers, config.text_heads,
                                  config.text_ffn, config.feature_dim))


def _encoder_shapes(dim: int, layers: int, heads: int, ffn: int, features: int) -> Params:
  projection = (dim, heads, dim // heads)
  block = dict(attention_norm=_norm_shapes(dim), out=(heads, dim // heads, dim), out_bias=(dim,),
               ffn_norm=_norm_shapes(dim), up=dict(kernel=(dim, ffn), bias=(ffn,)),
               down=dict(kernel=(ffn, dim), bias=(dim,)))
  for name in ('query', 'key', 'value'):
    block |= {name: projection, f'{name}_bias': projection[1:]}
  return {f'layers_{i}': block for i in range(layers)} | dict(
      norm=_norm_shapes(dim), projection=(dim, features))


def _norm_shapes(dim: int) -> Params:
  return dict(scale=(dim,), bias=(dim,))


def image_features(params: Params, config: CLIPConfig, pixels: jax.Array) -> jax.Array:
  """Returns the features of images, `[B, F]` float32, which are not normalised.

  Pixels are `[B, image_size, image_size, 3]`, as `metrics.clip.prepared` returns them; other sizes
  raise ValueError.
  """
  side, params = config.image_size, params['image']
  if pixels.shape[1:] != (side, side, 3):
    raise ValueError(f'pixels have shape {pixels.shape}; it must be [B, {side}, {side}, 3].')
  count, size = side // config.patch_size, config.patch_size
  patches = pixels.reshape(-1, count, size, count, size, 3)
  x = _einsum('brpcqk,pqkd->brcd', patches, params['patch']).reshape(
      len(pixels), count * count, -1)
  first = jnp.broadcast_to(params['class_token'], (len(x), 1, x.shape[-1]))
  x = jnp.concatenate([first, x], axis=1) + params['positions']
  x = _norm(params['first_norm'], config, x)
  for index in range(config.image_layers):
    x = _block(params[f'layers_{index}'], config, x, None)
  return _einsum('bd,df->bf', _norm(params['norm'], config, x[:, 0]), params['projection'])


def text_features(params: Params, config: CLIPConfig, tokens: jax.Array, ends: jax.Array
                  ) -> jax.Array:
  """Returns the features of texts, `[B, F]` float32, which are not normalised.

  Tokens `[B, L]` are those from the start token to the end token, `[B]` the index of the end token;
  those behind have no effect. More than `context` raise ValueError.
  """
  length, params = tokens.shape[1], params['text']
  if length > config.context:
    raise ValueError(f'tokens have shape {tokens.shape}; a text has at most {config.context}.')
  x = jnp.take(params['tokens'], tokens, axis=0) + params['positions'][:length]
  visible = jnp.tril(jnp.ones((length, length), bool))
  for index in range(config.text_layers):
    x = _block(params[f'layers_{index}'], config, x, visible)
  last = jnp.take_along_axis(x, ends[:, None, None], axis=1)[:, 0]
  return _einsum('bd,df->bf', _norm(params['norm'], config, last), params['projection'])


def _block(params: Params, config: CLIPConfig, x: jax.Array, visible: jax.Array | None
           ) -> jax.Array:
  """One layer: attention and feed-forward, each with a residual connection."""
  normed = _norm(params['attention_norm'], config, x)
  query, key, value = (
      _einsum('bld,dhe->blhe', normed, params[name]) + params[f'{name}_bias']
      for name in ('query', 'key', 'value'))
  scores = _einsum('bqhe,bkhe->bhqk', query, key) * query.shape[-1]**-.5
  if visible is not None:
    scores = jnp.where(visible, scores, -jnp.inf)
  mixed = _einsum('bhqk,bkhe->bqhe', jax.nn.softmax(scores, axis=-1), value)
  x = x + _einsum('bqhe,hed->bqd', mixed, params['out']) + params['out_bias']
  hidden = _linear(params['up'], _norm(params['ffn_norm'], config, x))
  hidden = (hidden * jax.nn.sigmoid(1.702 * hidden) if config.activation == 'quick_gelu'
            else jax.nn.gelu(hidden, approximate=False))
  return x + _linear(params['down'], hidden)


def _linear(params: Params, x: jax.Array) -> jax.Array:
  return _einsum('bld,df->blf', x, params['kernel']) + params['bias']


def _norm(params: Params, config: CLIPConfig, x: jax.Array) -> jax.Array:
  centered = x - jnp.mean(x, axis=-1, keepdims=True)
  variance = jnp.mean(centered**2, axis=-1, keepdims=True)
  return centered * jax.lax.rsqrt(variance + config.norm_eps) * params['scale'] + params['bias']
