"""The forms of a network's matrices, other than an array `[*inputs, *outputs]`, and their product.

`Int8` holds whole numbers, and a scale for every output that multiplies the products.

`OutputMajor` has the order in memory that CPUs read fastest. A pass over a few tokens is bound by
reading the matrices, and XLA's products of 2 to 64 rows read `[inputs, outputs]` at a third to two
thirds of the memory's rate. If instead the matrix is the first factor, `w.T @ x.T`, they read the
numbers of every output contiguously, at close to that rate. So models that are loaded onto a CPU
hold the matrices of their decoders this way. `Joined` stacks those that multiply the same input, so
that one product replaces several; on GPUs, XLA merges these products itself.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from cspd_jax.core import row_tiles

_LARGEST = 127
# The matrices of a layer that multiply the same input.
_GROUPS = ('query', 'key', 'value'), ('gate', 'up'), ('image_gate', 'image_up')
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
    """The axes of `values`, the inputs' first."""
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Joined:
  """Matrices `[inputs, *outputs]` of a layer, stacked: one entry in place of theirs.

  Attributes:
    matrix: `[inputs, outputs of all]`.
    outputs: the names of the matrices and their output axes.
  """

  matrix: OutputMajor
  outputs: tuple[tuple[str, tuple[int, ...]], ...] = dataclasses.field(metadata=dict(static=True))

  @property
  def names(self) -> list[str]:
    """The names of the matrices."""
    return [name for name, _ in self.outputs]

  def divided(self, numbers: jax.Array) -> dict[str, jax.Array]:
    """Divides the last axis of an array, the outputs of all matrices, by name."""
    ends = itertools.accumulate(math.prod(axes) for _, axes in self.outputs)
    return {name: numbers[..., end - math.prod(axes):end].reshape(*numbers.shape[:-1], *axes)
            for (name, axes), end in zip(self.outputs, ends)}

  def __getitem__(self, name: str) -> jax.Array:
    """Returns one of the matrices as an array."""
    return self.divided(jnp.asarray(self.matrix))[name]


def joined(kernels: Mapping[str, Any]) -> Joined:
  """Joins arrays `[inputs, *outputs]`, all of the host or all of JAX, by name."""
  numpy = np if all(isinstance(kernel, np.ndarray) for kernel in kernels.values()) else jnp
  flat = [kernel.reshape(len(kernel), -1).T for kernel in kernels.values()]
  return Joined(OutputMajor(numpy.concatenate(flat), 1), tuple(
      (name, kernel.shape[1:]) for name, kernel in kernels.items()))


def joined_name(names: Iterable[str]) -> str:
  """Returns the name of the entry that joins matrices of these names."""
  return '_'.join(names)


def by_outputs(params: Any, num_inputs: Callable[[str], int | None]) -> Any:
  """Returns arrays in the forms of a CPU: those by whose path `num_inputs` returns a number.

  They become `Joined` where a dict has all matrices of a group, and `OutputMajor` elsewhere.
  """
  def placed(path, leaf):
    is_array = isinstance(leaf, jax.Array | np.ndarray)
    count = num_inputs(_name(path)) if is_array else None
    return output_major(leaf, count) if count else leaf

  return jax.tree_util.tree_map_with_path(
      placed, _join('', params, num_inputs), is_leaf=is_form)


def _join(layer: str, node: Any, num_inputs: Callable[[str], int | None]) -> Any:
  if not isinstance(node, Mapping):
    return node
  entries = {name: _join(f'{layer}{name}/', entry, num_inputs) for name, entry in node.items()}
  for group in _GROUPS:
    if all(num_inputs(layer + name) == 1 and isinstance(node.get(name), jax.Array | np.ndarray)
           for name in group):
      entries[joined_name(group)] = joined({name: entries.pop(name) for name in group})
  return entries


def is_output_major(leaf: Any) -> bool:
  """Whether a node of a tree of parameters is an `OutputMajor`."""
  return isinstance(leaf, OutputMajor)


def is_form(leaf: Any) -> bool:
  """Whether a node of a tree of parameters is an `OutputMajor` or a `Joined`."""
  return isinstance(leaf, OutputMajor | Joined)


def arrays(params: Any) -> Iterator[tuple[str, jax.Array]]:
  """Yields paths and arrays of what `plain` returns, and copies one matrix at a time."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(_opened(params)):
    yield jax.tree_util.keystr(path), _array(leaf)


def plain(params: Any) -> Any:
  """Returns parameters, for training and for files, with arrays in place of a CPU's forms."""
  return jax.tree.map(_array, _opened(params))


def _array(leaf: Any) -> Any:
  return leaf() if callable(leaf) else leaf


def _opened(params: Any) -> Any:
  """Returns parameters with functions that return an array each, in place of a CPU's forms."""
  def is_layer(node):
    return isinstance(node, Mapping) and any(isinstance(part, Joined) for part in node.values())

  def opened(node):
    if is_output_major(node):
      return node.__jax_array__
    if not is_layer(node):
      return node
    entries = {}
    for name, entry in node.items():
      entries |= ({each: functools.partial(entry.__getitem__, each) for each in entry.names}
                  if isinstance(entry, Joined) else {name: entry})
    return _opened(entries)

  return jax.tree.map(
      opened, params, is_leaf=lambda node: is_layer(node) or is_output_major(node))


def like(params: Any, others: Any) -> Any:
  """Returns parameters in the forms of others, which have the same shapes if both are `plain`."""
  if jax.tree.structure(params) == jax.tree.structure(others):
    return params
  counts: dict[str, int] = {}
  for path, form in jax.tree_util.tree_leaves_with_path(others, is_leaf=is_form):
    name = _name(path)
    if isinstance(form, Joined):
      layer = name.removesuffix(joined_name(form.names))
      counts |= {layer + each: 1 for each in form.names}
    elif is_output_major(form):
      counts[name] = form.num_inputs
  return by_outputs(jax.tree.map(jnp.asarray, plain(params)), counts.get)


def _name(path: Any) -> str:
  return jax.tree_util.keystr(path, simple=True, separator='/')


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
    return _einsum(equation, x, kernel, **options)
  sums = _einsum(equation, x, kernel.values.astype(x.dtype), preferred_element_type=jnp.float32)
  return (sums * kernel.scale).astype(x.dtype)


def _einsum(equation: str, x: jax.Array, kernel: jax.Array, **options: Any) -> jax.Array:
  """Computes `jnp.einsum`; on some CPUs of more rows, so that all are computed alike."""
  of_x, of_kernel = equation.partition('->')[0].split(',')
  axes = x.shape[:x.ndim - len(set(of_x) & set(of_kernel))]
  count = math.prod(axes)
  if row_tiles.num_rows(count, 0) == count:
    return jnp.einsum(equation, x, kernel, **options)
  flat = row_tiles.padded(x.reshape(count, -1), 0, 0)
  result = jnp.einsum('rd,df->rf', flat, kernel.reshape(flat.shape[1], -1), **options)
  return result[:count].reshape(*axes, *kernel.shape[x.ndim - len(axes):])


def products(x: jax.Array, kernels: Joined) -> list[jax.Array]:
  """Multiplies the last axis of `x` with each of several matrices, in one product."""
  return list(kernels.divided(einsum('...d,df->...f', x, kernels.matrix)).values())


def _product(x: jax.Array, kernel: OutputMajor, preferred_element_type: Any = None) -> jax.Array:
  """Contracts the last axes of `x` with the inputs of the matrix."""
  count = kernel.num_inputs
  rows, outputs = x.shape[:x.ndim - count], kernel.shape[count:]
  dtype = jnp.result_type(x, kernel.values)
  flat = x.reshape(math.prod(rows), -1).astype(dtype)
  matrix = kernel.values.reshape(math.prod(outputs), -1).astype(dtype)
  by_inputs = (((1,), (1,)), ((), ()))
  if len(flat) > _FEW_ROWS:
    result = jax.lax.dot_general(row_tiles.padded(flat, 0, 0), matrix, by_inputs,
                                 preferred_element_type=preferred_element_type)
  else:
    # XLA exchanges the factors of a product that is transposed, but for the barrier.
    result = jax.lax.optimization_barrier(jax.lax.dot_general(
        matrix, row_tiles.padded(flat, 0, 1), by_inputs,
        preferred_element_type=preferred_element_type))
    # Transposed once, because every program that reads it would read it across.
    result = jax.lax.optimization_barrier(result.T)
  return result[:len(flat)].reshape(*rows, *outputs)
