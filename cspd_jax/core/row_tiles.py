"""Matrix products on CPUs that compute every row alike, wherever it stands.

Seed-exact decoders rest on that: a token is scored in one place of a window or in another. XLA has
two ways on a CPU. YNNPACK sums every row in the same order. XLA's own product computes rows by the
tile (of 6 if they are those of the first factor, of 16 if of the second, with AVX2), and sums those
that are left over in another order, unless they are the only ones. `num_rows` returns to how many
rows a factor is padded then; the tile is measured once per process.
"""

import functools
from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.core import programs, tracing

# The tiles that are tried, and the numbers of rows with which they are.
_TILES = 1, 6, 16, 32, 48, 96
_COUNTS = 2, 3, 5, 7, 8, 9, 13, 15, 17, 20, 25, 31, 33, 40, 49, 70, 100
_WIDTHS = 72, 100


def padded(x: jax.Array, axis: int, factor: int) -> jax.Array:
  """Pads an axis of the rows of the first or second factor of a product, `factor` 0 or 1."""
  more = num_rows(x.shape[axis], factor) - x.shape[axis]
  return x if not more else jnp.pad(
      x, [(0, more if i == axis % x.ndim else 0) for i in range(x.ndim)])


def num_rows(count: int, factor: int) -> int:
  """Returns how many rows are computed for `count` of them; as many but on some CPUs."""
  tile = _tile(factor) if jax.default_backend() == 'cpu' else 1
  return _whole(count, tile)


def _whole(count: int, tile: int) -> int:
  """Rows that fit in one tile are all that there are, so none of them is left over."""
  return count if count <= tile else -(-count // tile) * tile


@functools.cache  # Once per process.
def _tile(factor: int) -> int:
  """Returns the smallest tile that makes all rows of a product equal, for equal rows."""
  if programs.uses_ynnpack():
    return 1
  for tile in _TILES:
    if tracing.untraced(are_alike, factor, {_whole(count, tile) for count in _COUNTS}):
      return tile
  logging.warning('XLA rounds a row of a matrix product by its place on this CPU, so decoders are '
                  'seed-exact up to rounding; see docs/exactness.md.')
  return 1


def are_alike(factor: int, sizes: Collection[int]) -> bool:
  """Whether all rows of products with these numbers of equal rows in a factor are equal."""
  rng = np.random.default_rng(0)
  row, matrix = (rng.standard_normal(shape).astype(np.float32)
                 for shape in (_WIDTHS[:1], _WIDTHS[::-1]))

  def products(row, matrix):
    results = []
    for size in sorted(sizes):
      rows = jax.lax.optimization_barrier(jnp.broadcast_to(row, (size, len(row))))
      factors = (matrix, rows) if factor else (rows, matrix)
      product = jax.lax.optimization_barrier(
          jax.lax.dot_general(*factors, (((1,), (1,)), ((), ()))))
      results.append(product.T if factor else product)
    return results

  # Compiled as programs that decode, by which products are computed.
  run = jax.jit(products, compiler_options=programs.compiler_options(short_sums=True))
  return all((np.asarray(product) == np.asarray(product)[:1]).all() for product in run(row, matrix))
