"""What this machine's device reaches: bytes of its memory and products per second."""

import jax
import jax.numpy as jnp

from cspd_jax.measure import timing

# Turns of a timed run, so that starting it costs nothing beside it.
_TURNS = 16
# A size that takes so many seconds is large enough; the caches of no device hold the largest.
_ENOUGH = 0.05
_SMALLEST_COPY, _LARGEST_COPY = 1 << 26, 1 << 31
_SMALLEST_MATRIX, _LARGEST_MATRIX = 512, 8192


def copy_bandwidth(repeats: int = 5) -> float:
  """Bytes per second, read and written, of a copy of an array that fills no cache.

  Args:
    repeats: timed runs; the median counts.
  """
  # Every element is read and written in every turn, and none can be left out.
  run = jax.jit(lambda x: jax.lax.fori_loop(0, _TURNS, lambda i, x: x + i, x))
  size = _SMALLEST_COPY
  while True:
    array = jnp.zeros((size // 4,), jnp.float32)
    seconds = _seconds(run, array, repeats)
    if seconds > _ENOUGH or size >= _LARGEST_COPY:
      return 2 * array.nbytes * _TURNS / seconds
    size *= 2


def matrix_rate(dtype: str = 'bfloat16', repeats: int = 5) -> float:
  """Multiplications and additions per second of square matrix products.

  Args:
    dtype: of the numbers.
    repeats: timed runs; the median counts.
  """
  run = jax.jit(lambda x: jax.lax.fori_loop(0, _TURNS, lambda i, y: y @ x, x))
  size = _SMALLEST_MATRIX
  while True:
    seconds = _seconds(run, jnp.full((size, size), 1 / size, dtype), repeats)
    if seconds > _ENOUGH or size >= _LARGEST_MATRIX:
      return 2 * size**3 * _TURNS / seconds
    size *= 2


def _seconds(run, array, repeats: int) -> float:
  found = timing.measure({'run': lambda: run(array)}, repeats, warmup=2)
  return found['run'].median
