"""Matrix products on CPUs that compute every row alike, wherever it stands.

Seed-exact decoders rest on that: a token is scored in one place of a window or in another. XLA has
two ways on a CPU. YNNPACK sums every row in the same order. XLA's own product computes rows by the
tile (of 6 if they are those of the first factor, of 16 if of the second, with AVX2), and sums those
that are left over in another order, unless they are the only ones. It divides many rows into
blocks, and the tiles that are left over from a block can differ too (one of 6 rows does, two do
not); which block is cut depends on the sizes and the number of threads. `num_rows` returns to how
many rows a factor is padded then; the tiles of few and of many rows are measured once per process.
"""

import functools
import itertools
from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.core import programs, tracing

# The rows of a block, and the tiles that are tried: parts of a block.
_BLOCK = 48
_TILES = 1, 6, 12, 16, 24, 48
# The numbers of rows, up to a block and above, and the sizes of matrices, with which they are.
_FEW = 2, 3, 5, 7, 8, 9, 13, 15, 17, 20, 25, 31, 33, 40
_MANY = 49, 70, 78, 90, 100, 126, 138, 174, 198, 222, 270, 330
_SIZES = (72, 100), (192, 576)


def padded(x: jax.Array, axis: int, factor: int) -> jax.Array:
  """Pads an axis of the rows of the first or second factor of a product, `factor` 0 or 1."""
  more = num_rows(x.shape[axis], factor) - x.shape[axis]
  return x if not more else jnp.pad(
      x, [(0, more if i == axis % x.ndim else 0) for i in range(x.ndim)])


def num_rows(count: int, factor: int) -> int:
  """Returns how many rows are computed for `count` of them; as many but on some CPUs."""
  tile = _tile(factor, count > _BLOCK) if jax.default_backend() == 'cpu' else 1
  return _whole(count, tile)


def _whole(count: int, tile: int) -> int:
  """Rows that fit in one tile are all that there are, so none of them is left over."""
  return count if count <= tile else -(-count // tile) * tile


@functools.cache  # Once per process.
def _tile(factor: int, many: bool) -> int:
  """Returns the smallest tile that makes all rows of a product equal, for equal rows."""
  if programs.uses_ynnpack():
    return 1
  least = _tile(factor, False) if many else 1
  for tile in _TILES:
    if tile % least:
      continue
    sizes = {_whole(count, tile) for count in (_MANY if many else _FEW)}
    if tracing.untraced(are_alike, factor, sizes):
      return tile
  logging.warning('XLA rounds a row of a matrix product by its place on this CPU, so decoders are '
                  'seed-exact up to rounding; see docs/exactness.md.')
  return 1


def are_alike(factor: int, sizes: Collection[int]) -> bool:
  """Whether all rows of products with these numbers of equal rows in a factor are equal."""
  rng = np.random.default_rng(0)
  # The last row of each is repeated, and multiplied with all of it.
  matrices = [rng.standard_normal((outputs, inputs)).astype(np.float32)
              for inputs, outputs in _SIZES]
  pairs = [(np.tile(matrix[-1], (size, 1)), matrix)
           for matrix, size in itertools.product(matrices, sorted(sizes))]

  def products(pairs):
    return [jax.lax.dot_general(*(pair[::-1] if factor else pair), (((1,), (1,)), ((), ())))
            for pair in pairs]

  # Compiled as programs that decode, by which products are computed.
  run = jax.jit(products, compiler_options=programs.compiler_options(short_sums=True))
  results = (np.moveaxis(product, factor, 0) for product in jax.device_get(run(pairs)))
  return all((rows == rows[:1]).all() for rows in results)
