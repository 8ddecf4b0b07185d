"""The encoder of T5 (arXiv 1910.10683) with the gated feed-forward layers of Flan-T5.

It encodes prompts for text-conditional image models. Attention logits are not scaled; each has a
learned bias that depends on the distance of the two tokens and is the same in all layers.

In the shape descriptions, `B` is the number of texts, `L` of tokens, `D` the width of the encoder,
`H` the number of attention heads and `E` the width of one.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.models import layers

Params = Any
_MASKED = -1e30


@dataclasses.dataclass(frozen=True)
class T5Config:
  """Sizes of an encoder.

  Attributes:
    vocab_size: number of tokens in the vocabulary.
    dim: `D`.
    num_layers: number of blocks.
    num_heads: `H`.
    head_dim: `E`, independent of `D`.
    ffn_dim: hidden width of the feed-forward layers.
    num_distances: number of distance buckets, half of them for each direction; a multiple of 4.
    max_distance: all distances from this one on share the last bucket.
    norm_eps: added to the mean square in the norms.
  """

  vocab_size: int = 32128
  dim: int = 2048
  num_layers: int = 24
  num_heads: int = 32
  head_dim: int = 64
  ffn_dim: int = 5120
  num_distances: int = 32
  max_distance: int = 128
  norm_eps: float = 1e-6

  def __post_init__(self):
    fields.check(self, num_layers=(1, fields.MOST_LAYERS))
    most = 4 * self.max_distance
    fields.require(self.num_distances % 4 == 0 and self.num_distances < most, 'num_distances',
                   self.num_distances, f'a multiple of 4 below {most}, which is 4 * max_distance')


PRESETS: dict[str, T5Config] = {'flan_t5_xl': T5Config()}


class Block(nn.Module):
  """One layer: attention and feed-forward, each with a residual connection."""

  config: T5Config

  @nn.compact
  def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
    """Runs the layer on `x` `[B, L, D]`; `bias` `[B, H, L, L]` is added to attention logits."""
    config, init = self.config, nn.initializers.normal(0.02)
    normed = layers.RMSNorm(config.norm_eps, name='attention_norm')(x)
    query, key, value = (
        jnp.einsum('bld,dhe->blhe', normed, self.param(
            name, init, (config.dim, config.num_heads, config.head_dim)))
        for name in ('query', 'key', 'value'))
    scores = jnp.einsum('bqhe,bkhe->bhqk', query, key, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores + bias, axis=-1).astype(value.dtype)
    out = self.param('out', init, (config.num_heads, config.head_dim, config.dim))
    x = x + jnp.einsum('bqhe,hed->bqd', jnp.einsum('bhqk,bkhe->bqhe', weights, value), out)

    normed = layers.RMSNorm(config.norm_eps, name='ffn_norm')(x)
    gate, up = (normed @ self.param(name, init, (config.dim, config.ffn_dim))
                for name in ('gate', 'up'))
    branch = layers.ACTIVATIONS['gelu_tanh'](gate) * up
    return x + branch @ self.param('down', init, (config.ffn_dim, config.dim))


class T5Encoder(nn.Module):
  """Token embedding, blocks and a final norm. Activations have the dtype of the parameters."""

  config: T5Config

  @nn.compact
  def __call__(self, tokens: jax.Array, visible: jax.Array) -> jax.Array:
    """Returns the features of tokens."""
    config = self.config
    table = self.param(
        'token_embedding', nn.initializers.normal(1.0), (config.vocab_size, config.dim))
    biases = self.param(
        'distance_bias', nn.initializers.normal(0.02), (config.num_distances, config.num_heads))
    bias = biases[_distance_buckets(tokens.shape[1], config)].astype(jnp.float32)
    bias = jnp.where(visible[:, None, None], bias.transpose(2, 0, 1), _MASKED)
    x = jnp.take(table, tokens, axis=0)
    for index in range(config.num_layers):
      x = Block(config, name=f'layers_{index}')(x, bias)
    return layers.RMSNorm(config.norm_eps, name='norm')(x)


def init(config: T5Config, key: jax.Array) -> Params:
  """Initialises random float32 parameters."""
  tokens = jnp.zeros((1, 1), jnp.int32)
  run = lambda key: T5Encoder(config).init(key, tokens, jnp.ones((1, 1), bool))
  return jax.jit(run)(key)['params']


def encode(params: Params, config: T5Config, tokens: jax.Array, visible: jax.Array) -> jax.Array:
  """Encodes texts `[B, L]`, padded on the right, as features `[B, L, D]`, undefined for padding.

  `visible` `[B, L]` is False for padding, to which no token attends; a text has at least one token.
  """
  return T5Encoder(config).apply({'params': params}, tokens, visible)


def _distance_buckets(length: int, config: T5Config) -> np.ndarray:
  """Returns the bucket of the distance from each query to each key, `[L, L]`.

  Each direction has half of the buckets. Half of these hold one distance each, the others
  logarithmically growing ranges. The published code computes in float32, whose rounding decides
  the bucket of a distance at the end of a range.
  """
  difference = np.arange(length) - np.arange(length)[:, None]
  per_side = config.num_distances // 2
  single = per_side // 2
  distance = np.abs(difference)
  ranges = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(single))
  ranges /= np.float32(np.log(config.max_distance / single))
  bucket = np.minimum(single + (ranges * np.float32(per_side - single)).astype(int), per_side - 1)
  return per_side * (difference > 0) + np.where(distance < single, distance, bucket)
