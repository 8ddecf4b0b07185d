"""What this machine's device reaches: bytes of its memory and products per second."""

import jax
import jax.numpy as jnp

from cspd_jax.evaluation import timing

# Turns of a timed run, so that starting it costs nothing beside it.
_TURNS = 16


def copy_bandwidth(size: int, repeats: int = 5) -> float:
  """Bytes per second, read and written, of a copy.

  Args:
    size: bytes of the array; more than the device's caches hold.
    repeats: timed runs; the median counts.
  """
  array = jnp.zeros((size // 4,), jnp.float32)
  # Every element is read and written in every turn, and none can be left out.
  run = jax.jit(lambda x: jax.lax.fori_loop(0, _TURNS, lambda i, x: x + i, x))
  return 2 * array.nbytes * _TURNS / _seconds(run, array, repeats=repeats)


def matrix_rate(size: int, dtype: str = 'bfloat16', repeats: int = 5) -> float:
  """Multiplications and additions per second of square matrix products.

  Args:
    size: rows of the matrices.
    dtype: of their numbers.
    repeats: timed runs; the median counts.
  """
  left = jnp.full((size, size), 1 / size, dtype)
  run = jax.jit(lambda x: jax.lax.fori_loop(0, _TURNS, lambda i, y: y @ x, x))
  return 2 * size**3 * _TURNS / _seconds(run, left, repeats=repeats)


def _seconds(run, array, *, repeats: int) -> float:
  found = timing.measure({'run': lambda: run(array)}, repeats, warmup=2)
  return found['run'].median
