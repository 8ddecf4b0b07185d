"""The forms of a network's matrices, other than an array `[*inputs, *outputs]`, and their product.

`Int8` holds whole numbers, and a scale for every output that multiplies the products.

`OutputMajor` has the order in memory that CPUs read fastest. A pass over a few tokens is bound by
reading the matrices, and XLA's products of 2 to 64 rows read `[inputs, outputs]` at a third to two
thirds of the memory's rate. If instead the matrix is the first factor, `w.T @ x.T`, they read the
numbers of every output contiguously, at close to that rate. So models that are loaded onto a CPU
hold the matrices of their decoders this way.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

_LARGEST = 127
# The most rows of a product whose first factor is the matrix; longer ones read `x` first.
_FEW_ROWS = 64


class Int8(NamedTuple):
  """A matrix `[*inputs, *outputs]` that is approximately `values * scale`."""

  values: jax.Array  # Int8 `[*inputs, *outputs]`.
  scale: jax.Array  # Float32 `[*outputs]`.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class OutputMajor:
  """A matrix `[*inputs, *outputs]` that stores the numbers of every output contiguously.

  Functions of NumPy and JAX accept it as this matrix, which they transpose first.

  Attributes:
    values: `[*outputs, *inputs]`, the only leaf of the pytree.
    num_inputs: the number of input axes.
  """

  values: jax.Array
  num_inputs: int = dataclasses.field(metadata=dict(static=True))

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the matrix, `(*inputs, *outputs)`."""
    return tuple(self.values.shape[axis] for axis in self._axes)

  @property
  def ndim(self) -> int:
    """The number of axes."""
    return self.values.ndim

  @property
  def dtype(self) -> Any:
    """The dtype of the numbers."""
    return self.values.dtype

  @property
  def size(self) -> int:
    """The number of numbers."""
    return self.values.size

  @property
  def nbytes(self) -> int:
    """The bytes that they take."""
    return self.values.nbytes

  @property
  def _axes(self) -> tuple[int, ...]:
    """The axes of `values`, those of the inputs first."""
    count = self.values.ndim
    return (*range(count - self.num_inputs, count), *range(count - self.num_inputs))

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    return np.array(np.asarray(self.values).transpose(self._axes), dtype, copy=copy)

  def __jax_array__(self) -> jax.Array:
    return jnp.transpose(self.values, self._axes)


def output_major(kernel: Any, num_inputs: int) -> OutputMajor:
  """Transposes an array of the host or of JAX, whose first `num_inputs` axes are inputs."""
  axes = (*range(num_inputs, kernel.ndim), *range(num_inputs))
  return OutputMajor(kernel.transpose(axes), num_inputs)


def is_output_major(leaf: Any) -> bool:
  """Whether a node of a tree of parameters is an `OutputMajor`."""
  return isinstance(leaf, OutputMajor)


def plain(params: Any) -> Any:
  """Returns parameters, for training and for files, with arrays in place of `OutputMajor`s."""
  return jax.tree.map(
      lambda leaf: leaf.__jax_array__() if is_output_major(leaf) else leaf,
      params, is_leaf=is_output_major)


def like(params: Any, others: Any) -> Any:
  """Returns parameters whose arrays become `OutputMajor` where other parameters are.

  Trees of other structures are returned as they are.
  """
  leaves, structure = jax.tree.flatten(params, is_leaf=is_output_major)
  forms, other_structure = jax.tree.flatten(others, is_leaf=is_output_major)
  if structure != other_structure:
    return params

  def converted(leaf, other):
    is_array = is_output_major(other) and not is_output_major(leaf)
    return output_major(jnp.asarray(leaf), other.num_inputs) if is_array else leaf

  return jax.tree.unflatten(structure, map(converted, leaves, forms))


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
  return inputs(matrices)


def inputs(matrices: Mapping[str, int]) -> Callable[[str], int | None]:
  """Returns a function from a parameter's name to the number of its input axes.

  `matrices` has these numbers by pattern of names; the result is None for other names.
  """
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


def parameter(module: Any, name: str, init: Any, shape: tuple[int, ...]) -> Any:
  """Returns `module.param(name, init, shape)`, or the parameter if it is an `OutputMajor`."""
  if isinstance(stored := module.get_variable('params', name), OutputMajor):
    return stored
  return module.param(name, init, shape)


def einsum(equation: str, x: jax.Array, kernel: Any, **options: Any) -> jax.Array:
  """Computes `jnp.einsum`, also of a matrix in a form above, whose outputs are last in the result.

  The last axes of `x` are the inputs of the matrix, in its order; `options` are those of
  `jnp.einsum`. Products with an `Int8` are summed in float32 and scaled before they are cast to the
  dtype of `x`.
  """
  if isinstance(kernel, OutputMajor):
    return _product(x, kernel, **options)
  if not isinstance(kernel, Int8):
    return jnp.einsum(equation, x, kernel, **options)
  sums = jnp.einsum(equation, x, kernel.values.astype(x.dtype), preferred_element_type=jnp.float32)
  return (sums * kernel.scale).astype(x.dtype)


def _product(x: jax.Array, kernel: OutputMajor, preferred_element_type: Any = None) -> jax.Array:
  """Contracts the last axes of `x` with the inputs of the matrix."""
  count = kernel.num_inputs
  rows, outputs = x.shape[:x.ndim - count], kernel.shape[count:]
  dtype = jnp.result_type(x, kernel.values)
  flat = x.reshape(math.prod(rows), -1).astype(dtype)
  matrix = kernel.values.reshape(math.prod(outputs), -1).astype(dtype)
  by_inputs = (((1,), (1,)), ((), ()))
  if len(flat) > _FEW_ROWS:
    result = jax.lax.dot_general(
        flat, matrix, by_inputs, preferred_element_type=preferred_element_type)
  else:
    # XLA exchanges the factors of a product that is transposed, but for the barrier.
    result = jax.lax.optimization_barrier(jax.lax.dot_general(
        matrix, flat, by_inputs, preferred_element_type=preferred_element_type))
    # Transposed once, because every program that reads it would read it across.
    result = jax.lax.optimization_barrier(result.T)
  return result.reshape(*rows, *outputs)
