"""The noise of continuous tokens: a function of row, position, purpose and kernel.

Every number that a decoder draws for a token has a key that depends on the row's key, the token's
position in the image, the purpose of the number, and the denoising kernel that uses it: neither on
the other rows of the batch, nor on the draft length, nor on the round. `windows` is the exception:
its rounds move a chain again and again, with keys that depend also on what is committed.

The noise of a discarded draft may be used again: a decision about a token never depends on the
noise of later tokens, and a decision at a kernel never depends on the noise of later kernels, so
noise that no decision depends on is as good as new.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.core.random import RowKeys, as_key, exponential

# Purposes; `chain_walk.draw_noise` has others, for `windows`.
START = 0  # The first state of the chain, x_T.
STEP = 1  # The noise of the target's own kernels; shared by the draft model.
DRAFT = 2  # The noise of a drafter's kernels.
ACCEPT = 3  # The tests of drafts.
PROPOSE = 4  # Proposals for a residual draw, or the noise that a move splits.
RESIDUAL = 5  # The tests of the proposals.

MAX_LEVELS = 2**10
MAX_TRIALS = 2**16


class TokenKeys(NamedTuple):
  """The random state of tokens."""

  words: jax.Array  # `[..., 2]` uint32, the key of the token's row.
  position: jax.Array  # `[...]` the token's position in the image.


def token_keys(rows: RowKeys, positions: jax.Array) -> TokenKeys:
  """Returns keys of the tokens at `positions` `[B, ...]` of the rows `[B]`."""
  words = rows.noise.reshape(rows.noise.shape[:1] + (1,) * (positions.ndim - 1) + (2,))
  return TokenKeys(jnp.broadcast_to(words, (*positions.shape, 2)), positions)


def normal(keys: TokenKeys, purpose: int, level: jax.typing.ArrayLike, size: int,
           trial: jax.typing.ArrayLike = 0) -> jax.Array:
  """Draws standard normal noise, `[..., size]` float32, for a purpose of this module.

  `level`, below `MAX_LEVELS`, is the kernel that the noise is for, `trial`, below `MAX_TRIALS`,
  which of several draws for one purpose it is; both broadcast against the tokens `[...]`.
  """
  # In float64 the numbers of a key would be others.
  return _map(lambda key: jax.random.normal(key, (size,), jnp.float32), keys, purpose, level, trial)


def log_uniform(keys: TokenKeys, purpose: int, level: jax.typing.ArrayLike,
                trial: jax.typing.ArrayLike = 0) -> jax.Array:
  """Draws finite logarithms of uniform numbers, `[...]`. Arguments as for `normal`."""
  return _map(lambda key: -exponential(key, ()), keys, purpose, level, trial)


def chain_normal(keys: TokenKeys, purpose: int, num_levels: int, size: int,
                 trial: jax.typing.ArrayLike = 0) -> jax.Array:
  """Draws the `normal` noise `[N, num_levels, size]` of all kernels of the tokens `[N]` at once.

  Drawing it kernel by kernel in a loop takes as long as a small head; `trial` is a number or `[N]`.
  """
  keys, trial = _wide(keys, trial)
  return normal(keys, purpose, jnp.arange(num_levels), size, trial)


def chain_log_uniform(keys: TokenKeys, purpose: int, num_levels: int,
                      trial: jax.typing.ArrayLike = 0) -> jax.Array:
  """Draws the `log_uniform` `[N, num_levels]` of all kernels at once."""
  keys, trial = _wide(keys, trial)
  return log_uniform(keys, purpose, jnp.arange(num_levels), trial)


def _wide(*leaves: Any) -> Any:
  """Adds an axis of kernels to leaves `[N]`, or numbers."""
  return jax.tree.map(lambda leaf: jnp.atleast_1d(leaf)[:, None], leaves)


def random_orders(rows: RowKeys, num_tokens: int) -> jax.Array:
  """Draws an independent random order of the positions per row, `[B, T]`."""
  order = lambda stream: jax.random.permutation(as_key(stream, 0, 0), num_tokens)
  return jax.vmap(order)(rows.stream).astype(jnp.int32)


def raster_orders(rows: RowKeys, num_tokens: int) -> jax.Array:
  """Returns the raster order of the positions for every row, `[B, T]`, for causal models."""
  return jnp.broadcast_to(jnp.arange(num_tokens, dtype=jnp.int32),
                          (rows.stream.shape[0], num_tokens))


def _map(draw: Callable[[jax.Array], jax.Array], keys: TokenKeys, purpose: int,
         level: jax.typing.ArrayLike, trial: jax.typing.ArrayLike) -> jax.Array:
  """Calls `draw` with one key per token, level and trial."""
  code = (purpose << 26) | (jnp.asarray(level, jnp.int32) << 16) | jnp.asarray(trial, jnp.int32)
  position, code = jnp.broadcast_arrays(keys.position, code)
  counter = jnp.stack([position, code], axis=-1).astype(jnp.uint32)
  shape = position.shape
  single = jax.random.wrap_key_data((keys.words + counter).reshape(-1, 2), impl='threefry2x32')
  noise = jax.vmap(draw)(single)
  return noise.reshape(shape + noise.shape[1:])
