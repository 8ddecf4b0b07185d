"""The decoder-only transformer that the autoregressive image models share.

Blocks of RMSNorm, rotary attention with grouped key/value heads and a gated feed-forward layer,
without biases except with `qkv_bias`. The layers are unrolled, each with its own leaves,
because XLA copies stacked or scanned weights on every decoding step. Layers may have two
feed-forward networks, one for text and one for images; a pass over image tokens alone reads one.

Rotary embeddings rotate the pairs (0, 1), (2, 3), ... of an attention head. Models that rotate
number `i` with number `i + E / 2` have the same attention once the columns of their query and key
kernels and biases, and the norms of queries and keys, are reordered accordingly.

In the shape descriptions, `R` is the number of rows (images times guidance streams), `L` the number
of new tokens, `S` the number of cache slots, `H` and `K` the numbers of query heads and of
key/value heads, `E` the width of an attention head, `D` the model width and `V` the number of
tokens that can be predicted.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from cspd_jax.core import fields, matrices
from cspd_jax.models import attention
from cspd_jax.models.layers import ACTIVATIONS, HeadNorm, RMSNorm

# `(keys, values)` of every layer, each `[R, K, S, E]`, arrays or `attention.Int8Slots`.
KeyValues = tuple[tuple[Any, Any], ...]

Activation = Literal['silu', 'gelu_tanh']

# Width of a TPU tile.
_LANES = 128

# The axis along which each parameter is split over devices, see `sharding.split`: attention heads,
# and the hidden width of the feed-forward layers. Two all-reduces per layer combine the results.
# Token tables are replicated: reading all columns of the output matrix is faster than gathering
# logits.
SPLIT = {
    '.*/(query|key|value)': 1, '.*/(query|key|value)_bias': 0,
    '.*/(query|key)_norm/(scale|bias)': 0, '.*/out': 0,
    '.*/(image_)?(gate|up)': 1, '.*/(image_)?down': 0}

# The order in which XLA reads the axes of parameters on TPUs; see `files.placement`.
ORDERS = {'.*/(query|key|value)': (1, 0, 2)}

# `einsum` contracts axes in the alphabetical order of their letters, and CPUs transpose a matrix
# with another memory layout in every round. Smaller matrices than this are still contracted that
# way: the cost is low, and the last bits of their sums do not change.
_LARGE_MATRIX = 2**18

# The matrices of the layers and their numbers of input axes; see `core.matrices`.
MATRICES = {r'.*/layers_\d+/(query|key|value|(image_)?(gate|up|down))': 1,
            r'.*/layers_\d+/out': 2}

# The matrices of the layers and of output heads that every round multiplies, and their numbers of
# input axes; see `core.matrices.OutputMajor`.
PRODUCTS = {r'(.*/)?layers?(_\d+)?/(query|key|value|(image_)?(gate|up|down))': 1,
            r'(.*/)?layers?(_\d+)?/out': 2, r'(.*/)?output': 1, 'head/(hidden/)?kernel': 1}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Sizes of a transformer.

  Attributes:
    vocab_size: number of rows of the table of token embeddings; 0 for no table, for models that
      supply their own embedding (`causal.Causal.embed`).
    dim: `D`.
    num_layers: number of blocks.
    num_heads: `H`.
    num_kv_heads: `K`, a divisor of `H`.
    head_dim: `E`, even.
    ffn_dim: hidden width of the feed-forward layers.
    norm_eps: added to the mean square in the norms.
    num_outputs: `V`, columns of the output matrix, which predicts the first `V` tokens of the
      vocabulary; None means all of them, and 0 no matrix, for models that supply their own output
      head (`causal.Causal.logits`).
    attention_norm: whether there is a norm before the attention.
    qk_norm: whether queries and keys are normalised before the rotation, by a layer norm of every
      attention head with its own scales and biases.
    qk_rms_norm: the same by an RMSNorm whose scales all heads share.
    swin_norm: whether the norms are applied to the outputs of attention and feed-forward (Swin v2,
      arXiv 2111.09883, as in Chameleon 30B) instead of their inputs.
    post_norm: whether the outputs have norms of their own, besides the norms of the inputs (GLM-4).
    qkv_bias: whether queries, keys and values have biases.
    activation: of the gate in the feed-forward layers; 'gelu_tanh' is GELU's approximation by tanh.
    image_layers: the first layer with a second feed-forward network, for the tokens of images, and
      the one behind the last; they may lie beyond `num_layers`.
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
  qk_rms_norm: bool = False
  swin_norm: bool = False
  post_norm: bool = False
  qkv_bias: bool = False
  activation: Activation = 'silu'
  image_layers: tuple[int, ...] = (0, 0)

  def __post_init__(self):
    size = (0, fields.MOST)
    fields.check(self, vocab_size=size, num_layers=(1, fields.MOST_LAYERS), num_outputs=size,
                 image_layers=(0, fields.MOST_LAYERS))
    fields.require(len(self.image_layers) == 2, 'image_layers', self.image_layers, 'two numbers')
    if self.num_outputs is None:
      object.__setattr__(self, 'num_outputs', self.vocab_size)
    if self.vocab_size and self.num_outputs > self.vocab_size:
      raise ValueError(f'num_outputs is {self.num_outputs}; it must be at most vocab_size '
                       f'({self.vocab_size}), because predicted tokens are embedded.')
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
          f'num_kv_heads is {self.num_kv_heads}; it must divide num_heads ({self.num_heads}).')
    if self.head_dim % 2:
      raise ValueError(f'head_dim is {self.head_dim}; rotary embeddings require an even number.')
    if self.swin_norm and self.post_norm:
      raise ValueError('swin_norm and post_norm are True; the output of a layer has one norm at '
                       'most.')
    if self.qk_norm and self.qk_rms_norm:
      raise ValueError('qk_norm and qk_rms_norm are True; queries and keys have one norm at most.')


def complete_heads(config: Any, name: str = 'dim', axes: int = 1) -> None:
  """Sets `num_kv_heads` of a config to `num_heads` if it is None, in its `__post_init__`.

  Raises ValueError unless the field `name`, the width of all attention heads, is a multiple of the
  numbers that rotate together along `axes`.
  """
  if config.num_kv_heads is None:
    object.__setattr__(config, 'num_kv_heads', config.num_heads)
  if getattr(config, name) % (2 * axes * config.num_heads):
    raise ValueError(
        f'{name} is {getattr(config, name)} with num_heads {config.num_heads}; it must be a '
        f'multiple of {2 * axes} * num_heads ({2 * axes * config.num_heads}), because pairs of '
        f'numbers rotate{" by row and by column" if axes == 2 else ""}.')


class Rope(NamedTuple):
  """Rotary tables `[R or 1, L, E / 2]`, float32; rows of zeros set queries and keys to zero."""

  cos: jax.Array
  sin: jax.Array


# Maps positions `[R or 1, L]` int to rotary tables, which must be finite past the end of the image;
# or to None, for models whose queries and keys do not rotate.
RopeFunction = Callable[[jax.Array], Rope | None]


def frequencies(count: int, base: float) -> np.ndarray:
  """Returns the rotary frequencies `1 / base**(i / count)`, `[count]` float32.

  The formula of the published code, `1.0 / base**(torch.arange(0, 2 * count, 2).float() /
  (2 * count))`, with rounding to float32 at the same steps. The last bit matters: it rotates
  position 9300 by 1e-3.
  """
  exponents = np.arange(count, dtype=np.float32) / np.float32(count)
  # NumPy's float32 power errs in the last bit more often than PyTorch's, which rounds correctly for
  # all but one number in a hundred; a float64 power achieves this on every processor.
  powers = np.float64(np.float32(base)) ** exponents.astype(np.float64)
  return np.float32(1) / powers.astype(np.float32)


def no_rope(positions: jax.Array) -> None:
  """Returns no rotation, for models with other embeddings of positions."""


def sequence_rope(head_dim: int, base: float) -> RopeFunction:
  """Returns a rotation by the position in the sequence; negative positions are treated as 0."""
  turns = frequencies(head_dim // 2, base)

  def rope(positions: jax.Array) -> Rope:
    angles = jnp.maximum(positions, 0)[..., None] * turns
    return Rope(jnp.cos(angles), jnp.sin(angles))

  return rope


def grid_rope(num_tokens: int, row_width: int, head_dim: int, base: float) -> RopeFunction:
  """Returns a rotation by row and column of an image token, half of the pairs each, from a table.

  It is zero at negative positions, which sets queries and keys to zero; tokens past the end use the
  last cell.
  """
  # Computed by NumPy, which reproduces the published values; a device differs in the last bit.
  turns = frequencies(head_dim // 4, base)
  cells = np.divmod(np.arange(num_tokens, dtype=np.float32), row_width)
  angles = np.concatenate([np.outer(cell, turns) for cell in cells], axis=1, dtype=np.float32)
  table = [np.pad(part, ((1, 0), (0, 0))) for part in (np.cos(angles), np.sin(angles))]

  def rope(positions: jax.Array) -> Rope:
    row = jnp.clip(positions + 1, 0, num_tokens)
    return Rope(*(jnp.asarray(part)[row] for part in table))

  return rope


def causal_mask(length: int) -> jax.Array:
  """Returns the mask with which every token sees itself and all earlier ones, `[1, L, L]` bool."""
  return jnp.tril(jnp.ones((1, length, length), bool))


def rotate(x: jax.Array, rope: Rope | None) -> jax.Array:
  """Rotates the pairs (0, 1), (2, 3), ... of `x` `[R, L, heads, E]`, in float32; not with None."""
  if rope is None:
    return x
  return jax.lax.platform_dependent(x, rope, tpu=_rotate_swapped, default=_rotate_pairs)


def _rotate_pairs(x: jax.Array, rope: Rope) -> jax.Array:
  pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
  even, odd = pairs[..., 0], pairs[..., 1]
  cos, sin = rope.cos[:, :, None], rope.sin[:, :, None]
  turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
  return turned.reshape(x.shape).astype(x.dtype)


def _rotate_swapped(x: jax.Array, rope: Rope) -> jax.Array:
  """Like `_rotate_pairs`, for TPUs, where a matrix product swaps the two numbers of each pair.

  Separating the pairs is inefficient on TPUs. The product is exact: every sum has one nonzero term,
  a number times 1 at full precision.
  """
  index = np.arange(x.shape[-1])
  swap = jnp.asarray(index[:, None] == index ^ 1, x.dtype)
  swapped = jnp.einsum('rlhe,ef->rlhf', x, swap, precision=jax.lax.Precision.HIGHEST,
                       preferred_element_type=jnp.float32)
  both = lambda table: jnp.repeat(table, 2, axis=-1)[:, :, None]
  sign = jnp.asarray(np.where(index % 2, 1, -1), jnp.float32)
  turned = x.astype(jnp.float32) * both(rope.cos) + swapped * (both(rope.sin) * sign)
  return turned.astype(x.dtype)


def write_slots(cache: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
  """Writes `new` `[R, K, L, E]` into slots `start .. start + L - 1` of every row.

  The cache is `[R, K, S, E]`, as the result; `start` `[B]` int is the first slot of each image. Row
  `s B + b` is image `b` in stream `s`, and all streams of an image are written together. The caller
  must provide enough slots: XLA does not fail on an update past the end but shifts it back.
  """
  images = start.shape[0]
  new = new.astype(cache.dtype)
  start = start.astype(int)  # Indices are of one dtype, and numbers are int64 under x64.
  if images == 1:
    return jax.lax.dynamic_update_slice(cache, new, (0, 0, start[0], 0))
  # On GPUs a batched scatter is also in place, and one kernel. TPUs turn it into a loop over images
  # and transpose the whole cache before and after. CPUs copy the cache before and after an update
  # of all streams of an image.
  return jax.lax.platform_dependent(
      cache, new, start, cuda=_by_image(_write_together), tpu=_by_image(_write_in_order),
      default=_write_rows)


def _write_rows(cache: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
  """Writes `new` `[R, K, L, E]` into `[R, K, slots, E]`, an update per row."""
  def write(row, cache):
    entries = jax.lax.dynamic_slice_in_dim(new, row, 1, axis=0)
    return jax.lax.dynamic_update_slice(cache, entries, (row, 0, start[row % start.shape[0]], 0))

  return jax.lax.fori_loop(0, cache.shape[0], write, cache)


def _by_image(write: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  """Adapts a function that writes arrays `[S, B, ...]` to arrays `[R, ...]`."""
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
  """Like `_write_one_by_one`, for TPUs, with a memory layout for which XLA does not transpose.

  XLA uses the layout of the new entries for the cache. Attention heads of whole tiles have the
  default layout; narrower heads would be padded unless slots are the minor axis. A constraint on
  the cache itself would gather it where heads are split over devices; the new entries are few.
  """
  order = (0, 1, 2, 3, 4) if cache.shape[-1] % _LANES == 0 else (0, 1, 2, 4, 3)
  return _write_one_by_one(cache, with_layout_constraint(new, Layout(order)), start)


def _write_together(cache: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
  """Like `_write_one_by_one`, as one batched update."""
  return jax.vmap(
      lambda slots, part, first: jax.lax.dynamic_update_slice(slots, part, (0, 0, first, 0)),
      in_axes=(1, 1, 0), out_axes=1)(cache, new, start)


class Block(nn.Module):
  """One layer: attention and feed-forward, each with a residual connection.

  Disabled norms have no parameters. Kernels start with deviation 0.02, or with variance 1 / inputs
  if `scaled_init`.
  """

  config: TransformerConfig
  scaled_init: bool = False
  has_image_ffn: bool = False

  @nn.compact
  def __call__(self, x, rope, mask, cache=None, start=None, is_text=None):
    """See `Transformer.features`; `cache` is this layer's `(keys, values)`."""
    config, swin = self.config, self.config.swin_norm
    branch = self._norm('attention_norm', x) if config.attention_norm and not swin else x
    branch, cache = self._attention(branch, rope, mask, cache, start)
    branch = self._norm('attention_norm', branch) if config.attention_norm and swin else branch
    x = x + (self._norm('attention_post_norm', branch) if config.post_norm else branch)

    branch = self._feed_forward(x if swin else self._norm('ffn_norm', x), is_text)
    branch = self._norm('ffn_norm', branch) if swin else branch
    return x + (self._norm('ffn_post_norm', branch) if config.post_norm else branch), cache

  def _norm(self, name, x):
    return RMSNorm(self.config.norm_eps, name=name)(x)

  def _kernel(self, name, inputs, outputs):
    """Returns a parameter `[*inputs, *outputs]`, which may have a form of `core.matrices`."""
    axes = range(len(inputs) + len(outputs))
    init = nn.initializers.normal(0.02)
    if self.scaled_init:
      init = nn.initializers.lecun_normal(tuple(axes[:len(inputs)]), tuple(axes[len(inputs):]))
    return matrices.parameter(self, name, init, (*inputs, *outputs))

  def _products(self, x, **outputs):
    """Returns the products of `x` `[R, L, D]` with matrices by name, which may be joined.

    They are separate where devices divide them: joined ones cannot be divided by head.
    """
    joined = self.get_variable('params', matrices.joined_name(outputs))
    if joined is not None:
      return matrices.products(x, joined)
    equations = {1: 'rld,df->rlf', 2: 'rld,dhe->rlhe'}
    return [matrices.einsum(equations[len(axes)], x, self._kernel(name, x.shape[-1:], axes))
            for name, axes in outputs.items()]

  def _attention(self, x, rope, mask, cache, start):
    config = self.config
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    query, key, value = self._products(
        x, query=(heads, width), key=(kv_heads, width), value=(kv_heads, width))
    if config.qkv_bias:
      query, key, value = (
          x + self.param(f'{name}_bias', nn.initializers.zeros, x.shape[-2:])
          for name, x in (('query', query), ('key', key), ('value', value)))
    if config.qk_norm:
      query, key = HeadNorm(name='query_norm')(query), HeadNorm(name='key_norm')(key)
    if config.qk_rms_norm:
      query, key = self._norm('query_rms', query), self._norm('key_rms', key)
    new = rotate(key, rope).swapaxes(1, 2), value.swapaxes(1, 2)
    if cache is None:
      cache, live = new, None
    else:
      new = tuple(map(attention.like, cache, new))
      cache = jax.tree.map(lambda old, part: write_slots(old, part, start), cache, new)
      # No token sees slots after the last new token.
      live = jnp.tile(start + x.shape[1], x.shape[0] // start.shape[0])
    attended = attention.attend(rotate(query, rope), *cache, mask, live)
    out = self._kernel('out', (heads, width), (config.dim,))
    is_large = heads * width * config.dim >= _LARGE_MATRIX
    return matrices.einsum('rlhw,hwd->rld' if is_large else 'rlhe,hed->rld', attended, out), cache

  def _feed_forward(self, x, is_text):
    if not self.has_image_ffn:
      return self._network(x)
    of_images = self._network(x, 'image_')
    # A window holds image tokens alone, so that a round reads one of the two networks.
    return of_images if is_text is None else jnp.where(
        is_text[..., None], self._network(x), of_images)

  def _network(self, x, prefix=''):
    width = (self.config.ffn_dim,)
    gate, up = self._products(x, **{f'{prefix}gate': width, f'{prefix}up': width})
    down = self._kernel(f'{prefix}down', width, (self.config.dim,))
    return matrices.einsum('rlf,fd->rld', ACTIVATIONS[self.config.activation](gate) * up, down)


class Transformer(nn.Module):
  """Token embedding, blocks, final norm and an output matrix, not tied to the embedding.

  Activations have the dtype of the parameters; logits are float32. Without a token table or output
  matrix in the config there is no parameter for it, and `embed` or `logits` raises ValueError.
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    if config.vocab_size:
      self.token_embedding = self.param(
          'token_embedding', nn.initializers.normal(0.02), (config.vocab_size, config.dim))
    first, stop = config.image_layers
    self.layers = [Block(config, has_image_ffn=first <= index < stop)
                   for index in range(config.num_layers)]
    self.norm = RMSNorm(config.norm_eps)
    if config.num_outputs:
      self.output = matrices.parameter(
          self, 'output', nn.initializers.zeros, (config.dim, config.num_outputs))

  def embed(self, tokens: jax.Array) -> jax.Array:
    """Returns embeddings `[..., D]` of tokens `[...]`."""
    if not self.config.vocab_size:
      raise ValueError('the transformer has no table of tokens (vocab_size is 0); pass embed to '
                       'causal.Causal.')
    return jnp.take(self.token_embedding, tokens, axis=0)

  def features(self, embeddings: jax.Array, rope: Rope | None, mask: jax.Array,
               cache: KeyValues | None = None, start: jax.Array | None = None,
               is_text: jax.Array | None = None) -> tuple[jax.Array, KeyValues]:
    """Runs the blocks and the final norm on new tokens, without or with a cache.

    Args:
      embeddings: `[R, L, D]` of the new tokens.
      rope: tables for the new tokens; None without a rotation.
      mask: bool, the slots that every new token sees: `[R or 1, L, L]` without a cache,
        `[R or 1, L, S]` with one. Every token must see at least one slot.
      cache: None for a forward pass over a whole sequence, otherwise the keys and values to read,
        into which the new tokens' are written.
      start: `[B]` first slot of the new tokens of every image in the cache.
      is_text: `[R, L]` bool, the new tokens that take the first feed-forward network of
        `image_layers`; None if all are tokens of images, and where no layer has two.

    Returns:
      Features `[R, L, D]`, and the updated cache, or the new tokens' keys and values without one.
    """
    x, new_cache = embeddings, []
    # XLA's CPU compiler would compute the sines of every position once per head and layer.
    if rope is not None:
      rope = jax.lax.platform_dependent(
          rope, cpu=jax.lax.optimization_barrier, default=lambda rope: rope)
    for index, layer in enumerate(self.layers):
      x, entry = layer(x, rope, mask, None if cache is None else cache[index], start, is_text)
      new_cache.append(entry)
    return self.norm(x), tuple(new_cache)

  def logits(self, features: jax.Array) -> jax.Array:
    """Returns float32 logits `[..., V]` of features `[..., D]`."""
    if not self.config.num_outputs:
      raise ValueError('the transformer has no output matrix (num_outputs is 0); pass logits to '
                       'causal.Causal.')
    return matrices.einsum(
        '...d,dv->...v', features, self.output, preferred_element_type=jnp.float32)

  def __call__(self, *args: Any) -> tuple[jax.Array | None, jax.Array, KeyValues]:
    """Returns logits `[R, L, V]`, None without an output matrix, and the results of `features`."""
    features, cache = self.features(*args)
    return self.logits(features) if self.config.num_outputs else None, features, cache
