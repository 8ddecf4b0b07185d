"""The decoder-only transformer that the autoregressive image models share.

Blocks of RMSNorm, rotary attention with grouped key/value heads and a SwiGLU
feed-forward layer, without biases. The layers are unrolled and own one set of
leaves each, because XLA copies stacked or scanned weights on every decoding step.

A head rotates neighbouring numbers together. Models that rotate number `i` with
number `i + E / 2` have the same attention once the columns of their query and key
kernels, and the norms of queries and keys, are put in that order.

In the shape descriptions, `R` is the number of rows (images times guidance
streams), `L` the number of new tokens, `S` the number of cache slots, `H` and
`K` the numbers of query and of key/value heads, `E` the width of a head, `D`
the model width and `V` the number of tokens that can be predicted.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from cspd_jax.checkpoints import int8
from cspd_jax.core import fields
from cspd_jax.models import attention

# `(keys, values)` of every layer, each `[R, K, S, E]`.
KeyValues = tuple[tuple[jax.Array, jax.Array], ...]

# Numbers in a row of a TPU's tiles.
_LANES = 128
# Added to the variance in the norms of heads, in all published models.
_HEAD_EPS = 1e-5

# What of the parameters is divided over devices, see `sharding.split`: heads, and the hidden width
# of the feed-forward layers. Two sums per layer join the parts. Every device has the tables of
# tokens: to read the columns of the image tokens takes less time than to gather logits.
SPLIT = {
    '.*/(query|key|value)': 1, '.*/(query|key)_norm/(scale|bias)': 0, '.*/out': 0,
    '.*/(gate|up)': 1, '.*/down': 0}

# In which order XLA reads the axes of what on TPUs; see `checkpoints.kinds.placement`.
ORDERS = {'.*/(query|key|value)': (1, 0, 2)}

# `einsum` contracts axes in the order of their letters, and CPUs transpose a matrix that lies in
# another one in every round. Matrices of fewer numbers are contracted so all the same: it costs
# them little, and keeps the last bits of their sums what they were.
_LARGE_MATRIX = 2**18

# The matrices of the layers, and how many axes of theirs are inputs; see `checkpoints.int8`.
MATRICES = {r'.*/layers_\d+/(query|key|value|gate|up|down)': 1, r'.*/layers_\d+/out': 2}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Sizes of a transformer.

  Attributes:
    vocab_size: number of rows of the table of token embeddings, the tokens that can be read; 0 for
      no table, where the model embeds all its tokens itself (`causal.Causal.embed`).
    dim: `D`.
    num_layers: number of blocks.
    num_heads: `H`.
    num_kv_heads: `K`, a divisor of `H`.
    head_dim: `E`, even.
    ffn_dim: hidden width of the feed-forward layers.
    norm_eps: added to the mean square in the norms.
    num_outputs: `V`, columns of the output matrix, which predicts the first so many tokens of the
      vocabulary; None means all of it, and 0 no matrix, where the model has a head of its own
      (`causal.Causal.logits`).
    attention_norm: whether there is a norm before the attention.
    qk_norm: whether queries and keys are normalised head by head before they rotate.
    swin_norm: whether the norms stand after attention and feed-forward, on what these add
      to the stream (Swin v2, arXiv 2111.09883, as in Chameleon 30B), and not before them.
  """

  vocab_size: int
  dim: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  ffn_dim: int
  norm_eps: float = 1e-5
  num_outputs: int | None = None
  attention_norm: bool = True
  qk_norm: bool = False
  swin_norm: bool = False

  def __post_init__(self):
    size = (0, fields.MOST)
    fields.check(self, vocab_size=size, num_layers=(1, fields.MOST_LAYERS), num_outputs=size)
    if self.num_outputs is None:
      object.__setattr__(self, 'num_outputs', self.vocab_size)
    if self.vocab_size and self.num_outputs > self.vocab_size:
      raise ValueError(f'num_outputs is {self.num_outputs}; it must be at most vocab_size '
                       f'({self.vocab_size}), because predicted tokens are read.')
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
  """Lets every token see itself and everything before it, `[1, L, L]` bool."""
  return jnp.tril(jnp.ones((1, length, length), bool))


def rotate(x: jax.Array, rope: Rope) -> jax.Array:
  """Rotates the pairs (0, 1), (2, 3), ... of `x` `[R, L, heads, E]`, in float32."""
  return jax.lax.platform_dependent(x, rope, tpu=_rotate_swapped, default=_rotate_pairs)


def _rotate_pairs(x: jax.Array, rope: Rope) -> jax.Array:
  pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
  even, odd = pairs[..., 0], pairs[..., 1]
  cos, sin = rope.cos[:, :, None], rope.sin[:, :, None]
  turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
  return turned.reshape(x.shape).astype(x.dtype)


def _rotate_swapped(x: jax.Array, rope: Rope) -> jax.Array:
  """The same for TPUs, which take no pairs apart: a product swaps the two numbers of each.

  It is exact: every sum has one number, times 1, and all of its bits are multiplied.
  """
  number = np.arange(x.shape[-1])
  swap = jnp.asarray(number[:, None] == number ^ 1, x.dtype)
  swapped = jnp.einsum('rlhe,ef->rlhf', x, swap, precision=jax.lax.Precision.HIGHEST,
                       preferred_element_type=jnp.float32)
  both = lambda table: jnp.repeat(table, 2, axis=-1)[:, :, None]
  sign = jnp.asarray(np.where(number % 2, 1, -1), jnp.float32)
  turned = x.astype(jnp.float32) * both(rope.cos) + swapped * (both(rope.sin) * sign)
  return turned.astype(x.dtype)


def write_slots(cache: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
  """Writes `new` `[R, K, L, E]` into slots `start .. start + L - 1` of every row.

  Rows of all guidance streams of an image are written together. The caller provides enough slots:
  an update that would run past the end is shifted back onto older slots by XLA instead of failing.

  Args:
    cache: `[R, K, S, E]`.
    new: `[R, K, L, E]`.
    start: `[B]` int, of the images; row `s B + b` is image `b` in stream `s`.

  Returns:
    The updated cache, `[R, K, S, E]`.
  """
  images = start.shape[0]
  new = new.astype(cache.dtype)
  if images == 1:
    return _by_image(_write_one_by_one)(cache, new, start)
  # On GPUs a batched scatter is in place too, and one kernel. TPUs make a loop over images of it
  # and transpose the whole cache for that, and back. CPUs copy the cache before an update of all
  # streams of an image, and after it.
  return jax.lax.platform_dependent(
      cache, new, start, cuda=_by_image(_write_together), tpu=_by_image(_write_in_order),
      default=_write_rows)


def _write_rows(cache: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
  """Writes `new` `[R, K, L, E]` into `[R, K, slots, E]`, an update per row."""
  def write(row, cache):
    one = jax.lax.dynamic_slice_in_dim(new, row, 1, axis=0)
    return jax.lax.dynamic_update_slice(cache, one, (row, 0, start[row % start.shape[0]], 0))

  return jax.lax.fori_loop(0, cache.shape[0], write, cache)


def _by_image(write: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  """A way to write by stream and image, of caches and entries `[S, B, ...]`, as one by rows."""
  def run(cache, new, start):
    split = lambda x: x.reshape(-1, start.shape[0], *x.shape[1:])
    return write(split(cache), split(new), start).reshape(cache.shape)

  return run


def _write_one_by_one(cache: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
  """Writes `new` `[S, B, K, L, E]` into `[S, B, K, slots, E]`, an update per image."""
  for image in range(start.shape[0]):
    cache = jax.lax.dynamic_update_slice(
        cache, new[:, image:image + 1], (0, image, 0, start[image], 0))
  return cache


def _write_in_order(cache: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
  """The same for TPUs, which would transpose the cache for updates of many images of one slot.

  The cache follows the order of what is written: whole tiles of a head's numbers go as they are,
  narrower heads are padded unless slots are minor. To order the cache itself would gather it where
  heads are divided over devices; so only the new entries are gathered, which are few.
  """
  order = (0, 1, 2, 3, 4) if cache.shape[-1] % _LANES == 0 else (0, 1, 2, 4, 3)
  return _write_one_by_one(cache, with_layout_constraint(new, Layout(order)), start)


def _write_together(cache: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
  """The same in one batched update."""
  return jax.vmap(
      lambda slots, part, first: jax.lax.dynamic_update_slice(slots, part, (0, 0, first, 0)),
      in_axes=(1, 1, 0), out_axes=1)(cache, new, start)


class RMSNorm(nn.Module):
  """Root-mean-square norm: float32 inside, cast back, then times the scale."""

  eps: float

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
    return wide.astype(x.dtype) * scale


class HeadNorm(nn.Module):
  """Layer norm of every head on its own, with scales and biases for each; float32 inside."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises `x` `[R, L, heads, E]`."""
    scale = self.param('scale', nn.initializers.ones, x.shape[-2:])
    bias = self.param('bias', nn.initializers.zeros, x.shape[-2:])
    # The variance from what is centred: on GPUs mean, variance and quotient are one kernel.
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + _HEAD_EPS)
    return wide.astype(x.dtype) * scale + bias


class Block(nn.Module):
  """One layer: attention and feed-forward, each added to the stream.

  Attributes:
    config: the sizes; the norms that it leaves out have no parameters.
    scaled_init: whether kernels start with variance 1 / inputs instead of deviation 0.02.
  """

  config: TransformerConfig
  scaled_init: bool = False

  @nn.compact
  def __call__(self, x, rope, mask, cache=None, start=None):
    """See `Transformer.__call__`; `cache` is this layer's `(keys, values)`."""
    config, swin = self.config, self.config.swin_norm
    branch = self._norm('attention_norm', x) if config.attention_norm and not swin else x
    branch, cache = self._attention(branch, rope, mask, cache, start)
    x = x + (self._norm('attention_norm', branch) if config.attention_norm and swin else branch)

    branch = self._feed_forward(x if swin else self._norm('ffn_norm', x))
    return x + (self._norm('ffn_norm', branch) if swin else branch), cache

  def _norm(self, name, x):
    return RMSNorm(self.config.norm_eps, name=name)(x)

  def _kernel(self, name, inputs, outputs):
    """A parameter `[*inputs, *outputs]`, which may be an `int8.Int8`."""
    axes = range(len(inputs) + len(outputs))
    init = nn.initializers.normal(0.02)
    if self.scaled_init:
      init = nn.initializers.lecun_normal(tuple(axes[:len(inputs)]), tuple(axes[len(inputs):]))
    return self.param(name, init, (*inputs, *outputs))

  def _attention(self, x, rope, mask, cache, start):
    config = self.config
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    # One kernel per projection, heads apart: a fused one cannot be split over devices by head.
    query, key, value = (
        int8.einsum('rld,dhe->rlhe', x, self._kernel(name, (config.dim,), (count, width)))
        for name, count in (('query', heads), ('key', kv_heads), ('value', kv_heads)))
    if config.qk_norm:
      query, key = HeadNorm(name='query_norm')(query), HeadNorm(name='key_norm')(key)
    new = rotate(key, rope).swapaxes(1, 2), value.swapaxes(1, 2)
    if cache is None:
      cache, live = new, None
    else:
      cache = tuple(write_slots(old, part, start) for old, part in zip(cache, new))
      # A token sees itself and nothing that is written behind it.
      live = jnp.tile(start + x.shape[1], x.shape[0] // start.shape[0])
    attended = attention.attend(rotate(query, rope), *cache, mask, live)
    out = self._kernel('out', (heads, width), (config.dim,))
    is_large = heads * width * config.dim >= _LARGE_MATRIX
    return int8.einsum('rlhw,hwd->rld' if is_large else 'rlhe,hed->rld', attended, out), cache

  def _feed_forward(self, x):
    config = self.config
    gate, up = (int8.einsum('rld,df->rlf', x, self._kernel(name, (config.dim,), (config.ffn_dim,)))
                for name in ('gate', 'up'))
    down = self._kernel('down', (config.ffn_dim,), (config.dim,))
    return int8.einsum('rlf,fd->rld', jax.nn.silu(gate) * up, down)


class Transformer(nn.Module):
  """Token embedding, blocks, final norm and an output matrix of its own.

  Activations take the dtype of the parameters; logits are float32. A config without a table or an
  output matrix has no parameter for it, and `embed` or `logits` raises ValueError.
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    if config.vocab_size:
      self.token_embedding = self.param(
          'token_embedding', nn.initializers.normal(0.02), (config.vocab_size, config.dim))
    self.layers = [Block(config) for _ in range(config.num_layers)]
    self.norm = RMSNorm(config.norm_eps)
    if config.num_outputs:
      self.output = self.param('output', nn.initializers.zeros, (config.dim, config.num_outputs))

  def embed(self, tokens: jax.Array) -> jax.Array:
    """Embeddings `[..., D]` of tokens `[...]`."""
    if not self.config.vocab_size:
      raise ValueError('the transformer has no table of tokens (vocab_size is 0); give '
                       'causal.Causal an embed.')
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
    """Float32 logits `[..., V]` of features `[..., D]`."""
    if not self.config.num_outputs:
      raise ValueError('the transformer has no output matrix (num_outputs is 0); give '
                       'causal.Causal the logits of the model\'s own head.')
    return jnp.einsum('...d,dv->...v', features, self.output, preferred_element_type=jnp.float32)

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
      start: `[B]` first slot of the new tokens of every image in the cache; see `write_slots`.

    Returns:
      logits `[R, L, V]` float32 (None without an output matrix), features after the final norm
      `[R, L, D]`, and the cache; without one given, the new tokens' own keys and values.
    """
    features, cache = self.features(embeddings, rope, mask, cache, start)
    return self.logits(features) if self.config.num_outputs else None, features, cache
