"""Random numbers of the rows of a batch: one state per row, counted instead of split."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class RowKeys(NamedTuple):
  """The random state of one row: two Threefry keys as plain words.

  Threefry is a function of its key that no two keys share, so counting in the key
  gives as many independent streams as hashing would, without the cost of a hash per
  stream, which is what a small model's round would mostly be made of on a CPU.

  Attributes:
    noise: `[2]` uint32; the noise of position `k` has key `noise + (k, 0)`.
    stream: `[2]` uint32; use `c` of the numbers in step `s` has key `stream + (s, c)`.
  """

  noise: jax.Array
  stream: jax.Array


def image_keys(numbered: Sequence[tuple[int, int]]) -> jax.Array:
  """Makes the keys `[B]` of images by seed and number; the same whatever else is generated."""
  seed, number = np.array(numbered, np.uint32).T
  return jax.vmap(lambda s, i: jax.random.fold_in(jax.random.key(s), i))(seed, number)


def row_keys(key: Any, batch_size: int) -> RowKeys:
  """One independent `RowKeys` per row.

  Args:
    key: a single key, from which row `b` gets `fold_in(key, b)` whatever the
      batch size; or one key per row, `[B]`. Keys of the old kind, `[..., 2]` uint32, will do, and
      a whole number as the seed of a key.
    batch_size: `B`.

  Raises:
    ValueError: if `key` is none of these.
  """
  key = _as_keys(key)
  if key.ndim == 0:
    key = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(batch_size))
  if key.shape != (batch_size,):
    raise ValueError(
        f'key has shape {key.shape}; give a single key, or one key per row, ({batch_size},).')
  words = jax.vmap(lambda key: jax.random.bits(key, (2, 2), jnp.uint32))(key)
  return RowKeys(words[:, 0], words[:, 1])


def _as_keys(key: Any) -> jax.Array:
  """Typed keys from typed keys, from words of the old kind, or from a seed."""
  dtype, shape = getattr(key, 'dtype', None), getattr(key, 'shape', ())
  if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
    return key
  if dtype == jnp.uint32 and shape and shape[-1] == jax.random.key_data(jax.random.key(0)).size:
    return jax.random.wrap_key_data(jnp.asarray(key))
  is_number = isinstance(key, (int, np.integer)) or (
      dtype is not None and shape == () and jnp.issubdtype(dtype, jnp.integer))
  if not is_number or isinstance(key, bool):
    shown = repr(key) if dtype is None else f'{dtype}{list(shape)}'
    raise ValueError(
        f'key is {shown:.80}; it must be a random key, such as jax.random.key(0), or one per row; '
        'or a whole number as its seed.')
  return jax.random.key(key)


def as_key(words: jax.Array, first: jax.typing.ArrayLike, second: int) -> jax.Array:
  """The key `words + (first, second)`."""
  counter = jnp.stack([jnp.asarray(first, jnp.uint32), jnp.uint32(second)])
  return jax.random.wrap_key_data(words + counter, impl='threefry2x32')


def exponential(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Standard exponential float32 numbers, finite and positive.

  All 32 random bits are used: the race is decided by the smallest numbers, and
  with the 23 bits of a usual uniform those of a large vocabulary would tie.
  """
  bits = jax.random.bits(key, shape, jnp.uint32).astype(jnp.float32)
  uniform = (bits + 0.5) * 2.0**-32
  return -jnp.log1p(-jnp.minimum(uniform, 1.0 - 2.0**-24))
