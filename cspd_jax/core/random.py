"""Random numbers of the rows of a batch: one counter-based state per row."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields

_IMPLEMENTATION = 'threefry2x32'
# Threefry's rotations of the second word, in turn, and the number that completes its key.
_ROTATIONS, _PARITY = ((13, 15, 26, 6), (17, 29, 16, 24)), 0x1BD11BDA


class RowKeys(NamedTuple):
  """The random state of one row: two Threefry keys as plain words.

  Different Threefry keys yield independent streams, so a counter in the key yields as many of them
  as `jax.random.split` would, without the cost of a hash per stream.

  Attributes:
    noise: `[2]` uint32; the noise of position `k` has key `noise + (k, 0)`.
    stream: `[2]` uint32; the `c`-th draw of step `s` has key `stream + (s, c)`.
  """

  noise: jax.Array
  stream: jax.Array


def seed_key(seed: Any) -> jax.Array:
  """Returns the key of a seed, as for `checked_seeds`, whatever JAX's settings are."""
  return _seed_key(jnp.asarray(checked_seeds(seed)))


def _seed_key(seed: jax.Array) -> jax.Array:
  """Returns `jax.random.key(seed)`, to which JAX would add `jax_random_seed_offset`."""
  words = jnp.stack([jnp.zeros_like(seed), seed], axis=-1)
  return jax.random.wrap_key_data(words, impl=_IMPLEMENTATION)


def image_keys(numbered: Sequence[tuple[int, int]]) -> jax.Array:
  """Returns the keys `[B]` of images, each from its own checked seed and number only."""
  return _image_keys(checked_seeds(numbered))


@jax.jit  # Op by op it takes milliseconds, as long as a server needs for all else of a request.
def _image_keys(numbered: jax.Array) -> jax.Array:
  return jax.vmap(jax.random.fold_in)(_seed_key(numbered[:, 0]), numbered[:, 1])


def stage_keys(keys: jax.Array, stage: int) -> jax.Array:
  """Returns the keys `[B]` of the model that is `stage` >= 1 models before the one with `keys`."""
  return jax.vmap(lambda key: jax.random.fold_in(key, np.uint32(2**32 - stage)))(keys)


def checked_seeds(seeds: Any) -> np.ndarray:
  """Converts whole numbers to uint32; raises ValueError for others and where bits would be lost."""
  values = np.asarray(seeds)
  is_whole = np.issubdtype(values.dtype, np.integer)
  fields.require(is_whole and not np.any(values < 0) and not np.any(values >= 2**32), 'seed', seeds,
                 f'a whole number from 0 to {2**32 - 1}, or several')
  return values.astype(np.uint32)


def row_keys(key: Any, batch_size: int) -> RowKeys:
  """Returns one independent `RowKeys` per row.

  From a single key, row `b` derives `fold_in(key, b)` whatever the batch size; or there is one key
  per row, `[B]`. Raw keys, `[..., 2]` uint32, are accepted as well. Keys of other implementations
  than Threefry are hashed to Threefry keys. Other types and shapes raise ValueError.
  """
  key = _as_threefry(_as_keys(key))
  if key.ndim == 0:
    key = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(batch_size))
  if key.shape != (batch_size,):
    raise ValueError(
        f'key has shape {key.shape}; pass a single key, or one key per row, ({batch_size},).')
  words = jax.vmap(lambda key: jax.random.bits(key, (2, 2), jnp.uint32))(key)
  return RowKeys(words[:, 0], words[:, 1])


def as_row_keys(key: Any, batch_size: int) -> Any:
  """Returns the `row_keys` of a key, or the random state of rows unchanged."""
  is_state = isinstance(key, tuple)  # `RowKeys`, or the state of what a test draws from.
  return key if is_state else row_keys(key, batch_size)


def _as_keys(key: Any) -> jax.Array:
  """Converts typed or raw keys to typed keys; refuses numbers, which lose high bits if traced."""
  dtype, shape = getattr(key, 'dtype', None), getattr(key, 'shape', ())
  if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
    return key
  if dtype == jnp.uint32 and shape and shape[-1] == jax.random.key_data(jax.random.key(0)).size:
    return jax.random.wrap_key_data(jnp.asarray(key))
  is_array = isinstance(key, (jax.Array, np.ndarray))
  description = f'{dtype}{list(shape)}' if is_array else repr(key)
  raise ValueError(
      f'key is {description:.80}; it must be a random key, or one per row; pass '
      'jax.random.key(seed) of a seed.')


def _as_threefry(key: jax.Array) -> jax.Array:
  """Hashes keys of other implementations; `jax.vmap` would give all the numbers of the first."""
  if key.dtype == seed_key(0).dtype:
    return key
  words = jax.random.key_data(key)
  hashed = jax.random.wrap_key_data(jnp.zeros((*key.shape, 2), jnp.uint32), impl=_IMPLEMENTATION)
  fold_in = jnp.vectorize(jax.random.fold_in)
  for index in range(words.shape[-1]):
    hashed = fold_in(hashed, words[..., index])
  return hashed


def as_key(words: jax.Array, first: jax.typing.ArrayLike, second: int) -> jax.Array:
  """Returns the key `words + (first, second)`."""
  counter = jnp.stack([jnp.asarray(first, jnp.uint32), jnp.uint32(second)])
  return jax.random.wrap_key_data(words + counter, impl=_IMPLEMENTATION)


def exponential(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Draws standard exponential float32 numbers, finite and positive.

  Uses all 32 random bits: the smallest numbers decide an exponential race, and with the 23 bits of
  `jax.random.uniform` some of a large vocabulary would tie.
  """
  uniform = (_bits(key, shape).astype(jnp.float32) + 0.5) * 2.0**-32
  return -jnp.log1p(-jnp.minimum(uniform, 1.0 - 2.0**-24))


def _bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Returns `jax.random.bits(key, shape)`: Threefry-2x32 (Salmon et al., 2011) of all entries.

  JAX computes them on a CPU in a loop over the rounds, whose steps read and write every word.
  Without the loop, as on accelerators, they take a fifth of the time.
  """
  if not jax.config.jax_threefry_partitionable:  # Then the words hash other numbers.
    return jax.random.bits(key, shape, jnp.uint32)
  key = jax.random.key_data(key)
  keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)
  # There are fewer than 2^32 entries, so the first word of their numbers is 0.
  first = jnp.broadcast_to(keys[0], shape)
  second = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape) + keys[1]
  for number in range(5):
    for rotation in _ROTATIONS[number % 2]:
      first += second
      second = first ^ (second << rotation | second >> (32 - rotation))
    first += keys[(number + 1) % 3]
    second += keys[(number + 2) % 3] + jnp.uint32(number + 1)
  return first ^ second
