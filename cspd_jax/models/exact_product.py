"""Products of float32 arrays and bfloat16 matrices at full precision, in bfloat16.

At full precision, float32 products do not use the tensor cores of a GPU, which multiply an order of
magnitude faster, and require six passes on a TPU. If the matrix is stored in bfloat16, three
products in bfloat16 are enough: a float32 number is the sum of three bfloat16 numbers, and the
products of two bfloat16 numbers are exact in float32, in which they are summed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# The sign, exponent and first bits of the mantissa of float32 numbers, which are a bfloat16 number.
_FIRST_BITS = np.uint32(0xffff0000)


def parts(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Splits float32 numbers into bfloat16 numbers whose sum they are, the smallest first.

  Numbers below 1e-33 lose their last bits.
  """
  def first_bits(x: jax.Array) -> jax.Array:
    # XLA may omit a conversion to bfloat16 and back.
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) & _FIRST_BITS
    return jax.lax.bitcast_convert_type(bits, jnp.float32)

  high = first_bits(x)
  middle = first_bits(x - high)
  low, middle, high = (part.astype(jnp.bfloat16) for part in (x - high - middle, middle, high))
  return low, middle, high


def promote_dtype(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, *, dtype: Any,
                  inexact: bool = True) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Promotes the inputs of a layer except for the kernel; for `promote_dtype` of Flax layers."""
  del inexact
  return x.astype(dtype), kernel, None if bias is None else bias.astype(dtype)


def dot_general(x: jax.Array, kernel: jax.Array, dimension_numbers: Any, precision: Any = None
                ) -> jax.Array:
  """Multiplies `x` `[..., K]` float32 and a matrix `[K, ...]`; for `dot_general` of Flax layers.

  A bfloat16 matrix is multiplied in bfloat16 on GPUs and TPUs, every other as float32, at
  `precision`.
  """
  def plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.dot_general(x, kernel.astype(x.dtype), dimension_numbers, precision)

  if kernel.dtype != jnp.bfloat16:
    return plain(x, kernel)
  return jax.lax.platform_dependent(x, kernel, cuda=_split, tpu=_split, default=plain)


def _split(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Multiplies the three parts of `x`, and adds the results."""
  product = lambda x: jax.lax.dot_general(
      x, kernel, (((x.ndim - 1,), (0,)), ((), ())),
      precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32)
  if kernel.ndim == 2:  # One kernel for all parts.
    low, middle, high = product(jnp.stack(parts(x)))
  else:  # Results larger than their inputs: one of them is added as it is computed.
    low, middle, high = map(product, parts(x))
  return low + middle + high
