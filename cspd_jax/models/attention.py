"""Grouped-query attention on cached keys and values, with the fastest kernel of the platform.

NVIDIA GPUs use cuDNN's fused attention for bfloat16 and float16: no score leaves the chip, and
slots after the last one that a row attends to are not read. Elsewhere, and for float32, XLA
compiles the two products and the softmax between them; on CPUs in the order of `keys_first`.

In the shape descriptions, `R` is the number of rows, `L` the number of new tokens, `S` the number
of cache slots, `H` and `K` the numbers of query heads and of key/value heads and `E` the width of
an attention head. A cache may hold its keys and values as int8, see `Int8Slots`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import kernels, row_tiles

# The value 'plain' disables fused attention. Read once, because compiled programs do not change.
_VARIABLE = 'CSPD_JAX_ATTENTION'
_MASKED = -1e30
# Widths of an attention head that every GPU with fused attention supports: multiples of the first
# number, up to the second.
_WIDTH_MULTIPLE, _MAX_WIDTH = 8, 128
# Largest accepted difference from `plain`, for values of standard deviation 1 in bfloat16: a few
# times the rounding error, far below the effect of a wrong mask or scale.
_TOLERANCE = 2e-2
# The largest number of an int8 cache.
_LARGEST = 127


class Int8Slots(NamedTuple):
  """Keys or values that are approximately `values * scale`.

  These are int8 `[R, K, S, E]`, and a float32 scale per slot and head, `[R, K, S, 1]`. A target
  with such a cache is another target: every key and value that a token attends to is rounded first,
  whichever pass computed it. So the distribution of a token depends on the tokens before it only,
  and exact decoders are exact with respect to this target.
  """

  values: jax.Array
  scale: jax.Array

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the keys or values, `(R, K, S, E)`."""
    return self.values.shape


def quantized(x: jax.Array) -> Int8Slots:
  """Rounds keys or values `[R, K, S, E]`; the largest number of a slot becomes 127 or -127."""
  wide = x.astype(jnp.float32)
  scale = jnp.max(jnp.abs(wide), axis=-1, keepdims=True) / _LARGEST
  return Int8Slots(jnp.rint(wide / jnp.where(scale > 0, scale, 1)).astype(jnp.int8), scale)


def like(cache: Any, x: jax.Array) -> Any:
  """Returns new keys or values in the format of a cache: rounded if it is, else unchanged."""
  return quantized(x) if isinstance(cache, Int8Slots) else x


def split(slots: Any, dtype: Any) -> tuple[jax.Array, jax.Array | None]:
  """Returns the numbers of a cache in a dtype, and scales that multiply them, or None."""
  if isinstance(slots, Int8Slots):
    # Every int8 is a number of bfloat16.
    return slots.values.astype(dtype), slots.scale
  return slots, None


def attend(query: jax.Array, keys: jax.Array | Int8Slots, values: jax.Array | Int8Slots,
           mask: jax.Array, live: jax.Array | None = None) -> jax.Array:
  """Attends from new tokens to the visible slots of a cache, with the softmax in float32.

  Args:
    query: `[R, L, H, E]`, as the result.
    keys: `[R, K, S, E]`, as the values; fused attention does not support `Int8Slots`.
    mask: `[R or 1, L, S]` bool; every token must see at least one slot.
    live: `[R]` int32, the number of leading slots that a row may attend to; the mask must hide the
      later ones. None if this number is not available.
  """
  width = query.shape[-1]
  narrow = (query.dtype in (jnp.bfloat16, jnp.float16) and not isinstance(keys, Int8Slots)
            and keys.dtype == query.dtype)
  if narrow and width % _WIDTH_MULTIPLE == 0 and width <= _MAX_WIDTH and is_available():
    return jax.lax.platform_dependent(
        query, keys, values, mask, live, cuda=fused,
        cpu=lambda query, keys, values, mask, live: keys_first(query, keys, values, mask),
        default=lambda query, keys, values, mask, live: plain(query, keys, values, mask))
  return jax.lax.platform_dependent(query, keys, values, mask, cpu=keys_first, default=plain)


def keys_first(query: jax.Array, keys: jax.Array | Int8Slots, values: jax.Array | Int8Slots,
               mask: jax.Array) -> jax.Array:
  """Like `plain`, for CPUs, where the first factor of a product is read fastest, the keys here.

  The scores are transposed before the softmax: the weights, as the first factor of the second
  product, must have the queries first. YNNPACK does not compute a product with a transposed first
  factor, and XLA's own rounds a row by its place; see `core.row_tiles`.
  """
  kv_heads, dtype = keys.shape[1], query.dtype
  keys, key_scale = split(keys, dtype)
  queries = _by_head(query, kv_heads)
  # XLA exchanges the factors of a product that is transposed, but for the barrier.
  scores = jax.lax.optimization_barrier(jnp.einsum(
      'rkse,rkqe->rksq', keys, row_tiles.padded(queries, 2, 1),
      preferred_element_type=jnp.float32))
  scores = scores.swapaxes(2, 3)[:, :, :queries.shape[2]]
  return _attended(query, scores, key_scale, values, mask)


def _by_head(query: jax.Array, kv_heads: int) -> jax.Array:
  """Arranges queries `[R, L, H, E]` as `[R, K, H / K * L, E]`, the queries of every key."""
  rows, length, _, width = query.shape
  query = query.reshape(rows, length, kv_heads, -1, width).transpose(0, 2, 3, 1, 4)
  return query.reshape(rows, kv_heads, -1, width)


def _by_token(out: jax.Array, length: int) -> jax.Array:
  """Arranges `[R, K, H / K * L, E]` as `[R, L, H, E]`."""
  rows, kv_heads, _, width = out.shape
  out = out.reshape(rows, kv_heads, -1, length, width).transpose(0, 3, 1, 2, 4)
  return out.reshape(rows, length, -1, width)


def plain(query: jax.Array, keys: jax.Array | Int8Slots, values: jax.Array | Int8Slots,
          mask: jax.Array) -> jax.Array:
  """Attention as two products and a softmax; arguments and result as for `attend`."""
  kv_heads, dtype = keys.shape[1], query.dtype
  keys, key_scale = split(keys, dtype)
  # Heads before tokens, so that neither product needs a transposition.
  scores = jnp.einsum('rkqe,rkse->rkqs', _by_head(query, kv_heads), keys,
                      preferred_element_type=jnp.float32)
  return _attended(query, scores, key_scale, values, mask)


def _attended(query: jax.Array, scores: jax.Array, key_scale: jax.Array | None,
              values: jax.Array | Int8Slots, mask: jax.Array) -> jax.Array:
  """Attends with the products of queries and keys, `[R, K, H / K * L, S]`."""
  rows, length, _, width = query.shape
  kv_heads, num_queries, slots = scores.shape[1:]
  # The scales of keys multiply scores, the scales of values weights: arrays without the axis `E`.
  if key_scale is not None:
    scores = scores * key_scale.swapaxes(2, 3)
  scores = scores.reshape(rows, kv_heads, -1, length, slots) * width**-0.5
  scores = jnp.where(mask[:, None, None], scores, _MASKED)
  weights = jax.nn.softmax(scores, axis=-1).reshape(rows, kv_heads, num_queries, slots)
  values, value_scale = split(values, query.dtype)
  if value_scale is not None:
    weights = weights * value_scale.swapaxes(2, 3)
  weights = row_tiles.padded(weights.astype(values.dtype), 2, 0)
  out = jnp.einsum('rkqs,rkse->rkqe', weights, values)
  return _by_token(out[:, :, :num_queries], length)


def fused(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array,
          live: jax.Array | None = None, implementation: str = 'cudnn') -> jax.Array:
  """Attention as one cuDNN kernel; arguments and result as for `attend`, without `Int8Slots`.

  XLA stores the cache in the layout that the kernel reads, slots before heads, so that nothing is
  transposed.
  """
  mask = jnp.broadcast_to(mask, (query.shape[0], *mask.shape[1:]))
  return jax.nn.dot_product_attention(
      query, keys.swapaxes(1, 2), values.swapaxes(1, 2), mask=mask[:, None],
      key_value_seq_lengths=live, implementation=implementation)


@functools.cache
def is_available() -> bool:
  """Whether this process has a GPU on which `fused` returns the same as `plain` on an example.

  If not, a warning is logged. CSPD_JAX_ATTENTION other than 'auto' and 'plain' raises ValueError.
  """
  return kernels.work(
      'Fused attention', _VARIABLE, lambda device: difference(device), _TOLERANCE)


def difference(device: jax.Device, implementation: str = 'cudnn') -> float:
  """Largest difference between `fused` and `plain` on a small example, run on a device.

  Two rows see different numbers of slots, starting at different slots; the slots after them hold
  large values that must not be read.
  """
  rng = np.random.default_rng(0)
  normal = lambda *shape: np.asarray(rng.standard_normal(shape), jnp.bfloat16)
  query, keys, values = normal(2, 16, 8, 64), normal(2, 2, 128, 64), normal(2, 2, 128, 64)
  first, last = np.array([3, 0])[:, None, None], np.array([70, 30])[:, None, None]
  slot, token = np.arange(128), np.arange(16)[:, None]
  mask = (slot >= first) & (slot <= last + token) & (rng.random((2, 16, 128)) < 0.8)
  mask |= slot == last + token
  hidden = np.arange(128)[None, None, :, None] > last[..., None] + 15
  keys, values = (np.where(hidden, np.float32(99), part.astype(np.float32)).astype(jnp.bfloat16)
                  for part in (keys, values))
  live = (last[:, 0, 0] + 16).astype(np.int32)
  run = lambda function, *args: np.asarray(
      jax.jit(function)(query, keys, values, mask, *args).astype(jnp.float32))
  with jax.default_device(device):
    error = run(functools.partial(fused, implementation=implementation), live) - run(plain)
  return float(np.abs(error).max())
