"""Grouped-query attention on cached keys and values, by the best that a platform has.

NVIDIA GPUs have cuDNN's fused attention for bfloat16 and float16: no score leaves the chip, and
slots behind the last one that a row sees are not read. Elsewhere, and for float32, XLA compiles the
two products and the softmax between them.

In the shape descriptions, `R` is the number of rows, `L` the number of new tokens, `S` the number
of cache slots, `H` and `K` the numbers of query and of key/value heads and `E` the width of a head.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.models import tried

# Set to 'plain', it keeps fused attention out. Read once, for compiled programs keep their choice.
_VARIABLE = 'CSPD_JAX_ATTENTION'
_MASKED = -1e30
# What every GPU that has fused attention takes.
_WIDTHS, _MOST_WIDTH = 8, 128
# Largest difference to `plain` of attention that works, for values of deviation 1 in bfloat16: a
# few times what rounding makes, far below what a wrong mask or a wrong scale does.
_TOLERANCE = 2e-2


def attend(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array,
           live: jax.Array | None = None) -> jax.Array:
  """Attention of new tokens to what they see of a cache, with the softmax in float32.

  Args:
    query: `[R, L, H, E]`.
    keys: `[R, K, S, E]`.
    values: `[R, K, S, E]`.
    mask: `[R or 1, L, S]` bool, with something visible for every token.
    live: `[R]` int32, how many slots there are to see in a row; the mask hides those behind. None
      if that is nothing to go by.

  Returns:
    `[R, L, H, E]`.
  """
  width = query.shape[-1]
  narrow = query.dtype in (jnp.bfloat16, jnp.float16) and keys.dtype == query.dtype
  if narrow and width % _WIDTHS == 0 and width <= _MOST_WIDTH and is_available():
    return jax.lax.platform_dependent(
        query, keys, values, mask, live, cuda=fused,
        default=lambda query, keys, values, mask, live: plain(query, keys, values, mask))
  return plain(query, keys, values, mask)


def plain(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
  """Two products and a softmax; arguments and result as for `attend`."""
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


def fused(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array,
          live: jax.Array | None = None, implementation: str = 'cudnn') -> jax.Array:
  """Attention in one kernel, cuDNN's; arguments and result as for `attend`.

  XLA lays the cache out as the kernel reads it, slots before heads, so that nothing is transposed.

  Args:
    query: see `attend`; the next three too.
    keys: see there.
    values: see there.
    mask: see there.
    live: see there.
    implementation: what `jax.nn.dot_product_attention` calls it.
  """
  mask = jnp.broadcast_to(mask, (query.shape[0], *mask.shape[1:]))
  return jax.nn.dot_product_attention(
      query, keys.swapaxes(1, 2), values.swapaxes(1, 2), mask=mask[:, None],
      key_value_seq_lengths=live, implementation=implementation)


@functools.cache
def is_available() -> bool:
  """Whether this process has a GPU on which `fused` gives what `plain` gives.

  It is tried once, on a few numbers; if it fails there, that is logged and `plain` serves.

  Raises:
    ValueError: if the environment variable CSPD_JAX_ATTENTION is neither 'auto' nor 'plain'.
  """
  return tried.works(
      'Fused attention', _VARIABLE, lambda device: difference(device), _TOLERANCE)


def difference(device: jax.Device, implementation: str = 'cudnn') -> float:
  """Largest difference of `fused` to `plain` on a small example, run on a device.

  Two rows see different numbers of slots, from different ones on; behind these lies what must not
  be read.
  """
  rng = np.random.default_rng(0)
  normal = lambda *shape: np.asarray(rng.standard_normal(shape), jnp.bfloat16)
  query, keys, values = normal(2, 16, 8, 64), normal(2, 2, 128, 64), normal(2, 2, 128, 64)
  first, last = np.array([3, 0])[:, None, None], np.array([70, 30])[:, None, None]
  slot, token = np.arange(128), np.arange(16)[:, None]
  mask = (slot >= first) & (slot <= last + token) & (rng.random((2, 16, 128)) < 0.8)
  mask |= slot == last + token
  behind = np.arange(128)[None, None, :, None] > last[..., None] + 15
  keys, values = (np.where(behind, np.float32(99), part.astype(np.float32)).astype(jnp.bfloat16)
                  for part in (keys, values))
  live = (last[:, 0, 0] + 16).astype(np.int32)
  run = lambda function, *args: np.asarray(
      jax.jit(function)(query, keys, values, mask, *args).astype(jnp.float32))
  with jax.default_device(device):
    found = run(functools.partial(fused, implementation=implementation), live) - run(plain)
  return float(np.abs(found).max())
