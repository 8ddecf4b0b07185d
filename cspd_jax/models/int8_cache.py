"""Keys and values of a cache as int8: whole numbers, and a scale for every slot of every head.

A target with such a cache is another target: every key and value that a token attends to is rounded
first, whichever pass computed it. So the distribution of a token depends on the tokens before it
only, and exact decoders are exact with respect to this target.

In the shape descriptions, `R` is the number of rows, `K` of key/value heads, `S` of slots and `E`
the width of an attention head.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_LARGEST = 127


class Int8Slots(NamedTuple):
  """Keys or values that are approximately `values * scale`.

  Attributes:
    values: int8 `[R, K, S, E]`.
    scale: float32 `[R, K, S, 1]`.
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
