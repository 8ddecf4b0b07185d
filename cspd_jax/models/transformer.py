"""The decoder-only transformer that the autoregressive image models share.

Pre-norm blocks of RMSNorm, rotary attention with grouped key/value heads and a
SwiGLU feed-forward layer, without biases. The layers are unrolled and own one
set of leaves each, because XLA copies stacked or scanned weights on every
decoding step.

In the shape descriptions, `R` is the number of rows (images times guidance
streams), `L` the number of new tokens, `S` the number of cache slots, `H` and
`K` the numbers of query and of key/value heads, `E` the width of a head, `D`
the model width and `V` the vocabulary size.
"""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

# `(keys, values)` of every layer, each `[R, K, S, E]`.
KeyValues = tuple[tuple[jax.Array, jax.Array], ...]

# Up to here one update per row beats a batched scatter: every update is in place.
_MAX_UNROLLED_ROWS = 8
_MASKED = -1e30


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Sizes of a transformer.

  Attributes:
    vocab_size: `V`.
    dim: `D`.
    num_layers: number of blocks.
    num_heads: `H`.
    num_kv_heads: `K`, a divisor of `H`.
    head_dim: `E`, even.
    ffn_dim: hidden width of the feed-forward layers.
    norm_eps: added to the mean square in the norms.
  """

  vocab_size: int
  dim: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  ffn_dim: int
  norm_eps: float = 1e-5

  def __post_init__(self):
    for field in dataclasses.fields(self)[:-1]:
      if getattr(self, field.name) < 1:
        raise ValueError(f'{field.name} is {getattr(self, field.name)}; it must be at least 1.')
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
          f'num_kv_heads is {self.num_kv_heads}; it must divide num_heads ({self.num_heads}).')
    if self.head_dim % 2:
      raise ValueError(f'head_dim is {self.head_dim}; rotary embeddings need an even number.')


class Rope(NamedTuple):
  """Rotary tables, float32, for each new token (rows of zeros erase a token's keys).

  Attributes:
    cos: `[R or 1, L, E / 2]`.
    sin: `[R or 1, L, E / 2]`.
  """

  cos: jax.Array
  sin: jax.Array


def causal_mask(length: int) -> jax.Array:
  """`[1, L, L]` bool: a token sees itself and everything before it."""
  return jnp.tril(jnp.ones((1, length, length), bool))


def rotate(x: jax.Array, rope: Rope) -> jax.Array:
  """Rotates the pairs (0, 1), (2, 3), ... of `x` `[R, L, heads, E]`, in float32."""
  pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
  even, odd = pairs[..., 0], pairs[..., 1]
  cos, sin = rope.cos[:, :, None], rope.sin[:, :, None]
  turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
  return turned.reshape(x.shape).astype(x.dtype)


def write_slots(cache: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
  """Writes `new` `[R, K, L, E]` into slots `start .. start + L - 1` of every row.

  The caller provides enough slots: an update that would run past the end is
  shifted back onto older slots by XLA instead of failing.

  Args:
    cache: `[R, K, S, E]`.
    new: `[R, K, L, E]`.
    start: `[R]` int.

  Returns:
    The updated cache, `[R, K, S, E]`.
  """
  new = new.astype(cache.dtype)
  if cache.shape[0] <= _MAX_UNROLLED_ROWS:
    for row in range(cache.shape[0]):
      cache = jax.lax.dynamic_update_slice(cache, new[row:row + 1], (row, 0, start[row], 0))
    return cache
  return jax.vmap(lambda c, n, s: jax.lax.dynamic_update_slice(c, n, (0, s, 0)))(
      cache, new, start)


def attend(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
  """Grouped-query attention with the softmax in float32.

  Args:
    query: `[R, L, H, E]`.
    keys: `[R, K, S, E]`.
    values: `[R, K, S, E]`.
    mask: `[R or 1, L, S]` bool, with something visible for every token.

  Returns:
    `[R, L, H, E]`.
  """
  rows, length, heads, width = query.shape
  kv_heads = keys.shape[1]
  # Heads before tokens, so that both products come out as they are needed.
  query = query.reshape(rows, length, kv_heads, -1, width).transpose(0, 2, 3, 1, 4)
  query = query.reshape(rows, kv_heads, -1, width)
  scores = jnp.einsum('rkqe,rkse->rkqs', query, keys, preferred_element_type=jnp.float32)
  scores = scores.reshape(rows, kv_heads, -1, length, keys.shape[2]) * width**-0.5
  scores = jnp.where(mask[:, None, None], scores, _MASKED)
  weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
  weights = weights.reshape(rows, kv_heads, -1, keys.shape[2])
  out = jnp.einsum('rkqs,rkse->rkqe', weights, values)
  out = out.reshape(rows, kv_heads, -1, length, width).transpose(0, 3, 1, 2, 4)
  return out.reshape(rows, length, heads, width)


class RMSNorm(nn.Module):
  """Root-mean-square norm: float32 inside, cast back, then times the scale."""

  eps: float

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
    return wide.astype(x.dtype) * scale


class Block(nn.Module):
  """One layer: attention and feed-forward, each added to the stream."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, rope, mask, cache=None, start=None):
    """See `Transformer.__call__`; `cache` is this layer's `(keys, values)`."""
    config, init = self.config, nn.initializers.normal(0.02)
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim

    normed = RMSNorm(config.norm_eps, name='attention_norm')(x)
    # One kernel per projection, heads apart: a fused one cannot be split over devices by head.
    kernels = [self.param(name, init, (config.dim, count, width))
               for name, count in (('query', heads), ('key', kv_heads), ('value', kv_heads))]
    query, key, value = (jnp.einsum('rld,dhe->rlhe', normed, kernel) for kernel in kernels)
    new = rotate(key, rope).swapaxes(1, 2), value.swapaxes(1, 2)
    if cache is None:
      cache = new
    else:
      cache = tuple(write_slots(old, part, start) for old, part in zip(cache, new))
    attended = attend(rotate(query, rope), *cache, mask)
    x = x + jnp.einsum(
        'rlhe,hed->rld', attended, self.param('out', init, (heads, width, config.dim)))

    normed = RMSNorm(config.norm_eps, name='ffn_norm')(x)
    gate = normed @ self.param('gate', init, (config.dim, config.ffn_dim))
    up = normed @ self.param('up', init, (config.dim, config.ffn_dim))
    x = x + (jax.nn.silu(gate) * up) @ self.param('down', init, (config.ffn_dim, config.dim))
    return x, cache


class Transformer(nn.Module):
  """Token embedding, blocks, final norm and an output matrix of its own.

  Activations take the dtype of the parameters; logits are float32.
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    self.token_embedding = self.param(
        'token_embedding', nn.initializers.normal(0.02), (config.vocab_size, config.dim))
    self.layers = [Block(config) for _ in range(config.num_layers)]
    self.norm = RMSNorm(config.norm_eps)
    self.output = self.param('output', nn.initializers.zeros, (config.dim, config.vocab_size))

  def embed(self, tokens: jax.Array) -> jax.Array:
    """Embeddings `[R, L, D]` of tokens `[R, L]`."""
    return jnp.take(self.token_embedding, tokens, axis=0)

  def features(
      self,
      embeddings: jax.Array,
      rope: Rope,
      mask: jax.Array,
      cache: KeyValues | None = None,
      start: jax.Array | None = None,
  ) -> tuple[jax.Array, KeyValues]:
    """Runs the blocks and the final norm; see `__call__`."""
    x, new_cache = embeddings, []
    for index, layer in enumerate(self.layers):
      x, entry = layer(x, rope, mask, None if cache is None else cache[index], start)
      new_cache.append(entry)
    return self.norm(x), tuple(new_cache)

  def logits(self, features: jax.Array) -> jax.Array:
    """Float32 logits `[R, L, V]` of features `[R, L, D]`."""
    return jnp.einsum('rld,dv->rlv', features, self.output, preferred_element_type=jnp.float32)

  def __call__(
      self,
      embeddings: jax.Array,
      rope: Rope,
      mask: jax.Array,
      cache: KeyValues | None = None,
      start: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array, KeyValues]:
    """Scores new tokens, alone or on top of a cache.

    Args:
      embeddings: `[R, L, D]` of the new tokens.
      rope: tables for the new tokens.
      mask: bool, what every new token sees: `[R or 1, L, L]` without a cache,
        `[R or 1, L, S]` with one. Every token must see something.
      cache: None for a forward pass over a whole sequence, otherwise the keys
        and values to read and to write the new tokens' into.
      start: `[R]` first slot of the new tokens in the cache.

    Returns:
      logits `[R, L, V]` float32, features after the final norm `[R, L, D]`, and
      the cache; without one given, the new tokens' own keys and values.
    """
    features, cache = self.features(embeddings, rope, mask, cache, start)
    return self.logits(features), features, cache
