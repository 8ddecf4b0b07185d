"""Int8 matrices: whole numbers, and a scale for every output that multiplies the products."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

_LARGEST = 127


class Int8(NamedTuple):
  """A matrix `[*inputs, *outputs]` that is approximately `values * scale`."""

  values: jax.Array  # Int8 `[*inputs, *outputs]`.
  scale: jax.Array  # Float32 `[*outputs]`.


def check(quantize: str | None, kind: str, matrices: Mapping[str, int],
          ) -> Callable[[str], int | None]:
  """Returns a function from a parameter's name to the number of input axes, None to leave it.

  `matrices` are those of `store.Kind`. Raises ValueError unless `quantize` is 'int8' or None,
  and if the network of this kind has no such matrices.
  """
  if quantize is None:
    return lambda name: None
  if quantize != 'int8':
    raise ValueError(f"quantize is {quantize!r}; it must be 'int8', or None for parameters in "
                     'their stored dtype.')
  if not matrices:
    raise ValueError(f"quantize is 'int8', but a {kind!r} network has no int8 matrices; leave it "
                     'out.')
  patterns = [(re.compile(pattern), count) for pattern, count in matrices.items()]
  return lambda name: next((count for pattern, count in patterns if pattern.fullmatch(name)), None)


def quantized(kernel: Any, num_inputs: int) -> Int8:
  """Rounds a host array, whose first `num_inputs` axes are inputs.

  The largest number of an output becomes 127 or -127; an output of zeros stays zero.
  """
  wide = np.asarray(kernel, np.float32)
  scale = np.abs(wide).max(axis=tuple(range(num_inputs))) / np.float32(_LARGEST)
  values = np.rint(wide / np.where(scale > 0, scale, 1))
  return Int8(values.astype(np.int8), scale)


def put(kernel: Int8, num_inputs: int, where: Any) -> Int8:
  """Moves a matrix to a device or a sharding, and its scales to the devices of the outputs."""
  outputs = where
  if isinstance(where, NamedSharding):
    outputs = NamedSharding(where.mesh, PartitionSpec(*tuple(where.spec)[num_inputs:]))
  return Int8(jax.device_put(kernel.values, where), jax.device_put(kernel.scale, outputs))


def einsum(equation: str, x: jax.Array, kernel: jax.Array | Int8) -> jax.Array:
  """Computes `jnp.einsum`, also with an `Int8` matrix, whose outputs are last in the result.

  Products are summed in float32 and scaled before they are cast to the dtype of `x`.
  """
  if not isinstance(kernel, Int8):
    return jnp.einsum(equation, x, kernel)
  sums = jnp.einsum(equation, x, kernel.values.astype(x.dtype), preferred_element_type=jnp.float32)
  return (sums * kernel.scale).astype(x.dtype)
