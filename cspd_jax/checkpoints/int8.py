"""Matrices of 8 bits: whole numbers, and a scale for every output that multiplies the products."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

_LARGEST = 127


class Int8(NamedTuple):
  """A matrix `[*inputs, *outputs]` that is about `values * scale`.

  Attributes:
    values: int8, of its shape.
    scale: `[*outputs]` float32.
  """

  values: jax.Array
  scale: jax.Array


def check(quantize: str | None, kind: str, matrices: Mapping[str, int],
          ) -> Callable[[str], int | None]:
  """How many axes of a parameter are inputs, by its name; None if it stays as it is.

  Args:
    quantize: 'int8', or None for networks that stay as they are.
    kind: what the network is.
    matrices: see `kinds.Kind`.

  Raises:
    ValueError: if `quantize` is something else, or the network has no such matrices.
  """
  if quantize is None:
    return lambda name: None
  if quantize != 'int8':
    raise ValueError(f"quantize is {quantize!r}; it must be 'int8', or None for parameters as they "
                     'are stored.')
  if not matrices:
    raise ValueError(f"quantize is 'int8', but a {kind!r} network has no matrices of 8 bits; leave "
                     'it out.')
  patterns = [(re.compile(pattern), count) for pattern, count in matrices.items()]
  return lambda name: next((count for pattern, count in patterns if pattern.fullmatch(name)), None)


def quantized(kernel: Any, num_inputs: int) -> Int8:
  """The nearest whole numbers of a host array whose first so many axes are inputs.

  The largest number of an output becomes 127 or -127; an output of zeros stays one.
  """
  wide = np.asarray(kernel, np.float32)
  scale = np.abs(wide).max(axis=tuple(range(num_inputs))) / np.float32(_LARGEST)
  values = np.rint(wide / np.where(scale > 0, scale, 1))
  return Int8(values.astype(np.int8), scale)


def put(kernel: Int8, num_inputs: int, place: Any) -> Int8:
  """The matrix on the devices that a sharding, or a device, says; scales are where outputs are."""
  outputs = place
  if isinstance(place, NamedSharding):
    outputs = NamedSharding(place.mesh, PartitionSpec(*tuple(place.spec)[num_inputs:]))
  return Int8(jax.device_put(kernel.values, place), jax.device_put(kernel.scale, outputs))


def einsum(equation: str, x: jax.Array, kernel: jax.Array | Int8) -> jax.Array:
  """Does what `jnp.einsum` does, also with an `Int8` matrix.

  The outputs of the matrix must be the last axes of the result.

  Products are summed in float32 and scaled before they take the dtype of `x`.
  """
  if not isinstance(kernel, Int8):
    return jnp.einsum(equation, x, kernel)
  sums = jnp.einsum(
      equation, x, kernel.values.astype(x.dtype), preferred_element_type=jnp.float32)
  return (sums * kernel.scale).astype(x.dtype)
