"""The random decisions of a decoder: accept tests and draws.

All randomness of a decoder comes from the methods of `RowRandom`, for two reasons. The random
stream of a row depends on the row alone, and not on the rest of its batch. And a test can replace
the object by one that visits every outcome and multiplies the probabilities
(`cspd_jax.testing.enumerate`), which proves a decoder exact without sampling.

A draw from weights `w` is an exponential race: the token with the largest `w / E`, for independent
standard exponentials `E`, is token `x` with probability `w(x) / sum(w)`. This is the Gumbel-max
trick (`g = -log E`) with one logarithm instead of two.
"""

import jax
import jax.numpy as jnp

from cspd_jax.core.random import RowKeys, as_key, exponential


class RowRandom:
  """Random numbers of one row in one step; afterwards `state` is the state of the next step."""

  def __init__(self, state: RowKeys):
    self._stream, self._uses = state.stream, 0
    self.state = state._replace(stream=state.stream + jnp.array([1, 0], jnp.uint32))

  def _next(self) -> jax.Array:
    self._uses += 1
    return as_key(self._stream, 0, self._uses)

  def accept(self, p: jax.Array, q: jax.Array) -> jax.Array:
    """Returns bool `[n]`, each true with probability `min(1, p / q)`; `p`, `q` of shape `[n]`.

    Tests `u q < p`, without a division; a token with `p = 0` is never accepted.
    """
    return jax.random.uniform(self._next(), p.shape, p.dtype) * q < p

  def integers(self, count: int, bound: int) -> jax.Array:
    """Draws independent integers `[count]`, uniform on `0 .. bound - 1`."""
    return jax.random.randint(self._next(), (count,), 0, bound, jnp.int32)

  def draw(self, weights: jax.Array) -> jax.Array:
    """Draws one token from every row of `weights` `[n, V]` (non-negative, any sum)."""
    return winner(weights / exponential(self._next(), weights.shape))

  def draw_distinct(self, weights: jax.Array, count: int, greedy: jax.typing.ArrayLike = False
                    ) -> jax.Array:
    """Draws tokens `[n, count]` without replacement, in order of the draws.

    If a row has fewer tokens of positive weight, its last entries are -1. With `greedy`, which may
    be traced, the tokens of the largest weights are returned, in decreasing order.
    """
    noise = exponential(self._next(), weights.shape)
    return winners(weights / jnp.where(greedy, 1, noise), count)

  def draw_at(self, positions: jax.Array, weights: jax.Array) -> jax.Array:
    """Like `draw`, with the noise of the `positions` `[n]`.

    It is the same in every round and every decoder, so that equal weights yield the same token.
    """
    return winner(weights / self._position_noise(positions, weights.shape[-1]))

  def best_at(self, positions: jax.Array, weights: jax.Array, count: int,
              greedy: jax.typing.ArrayLike = False) -> jax.Array:
    """Returns `[n, count]`: the token that `draw_at` returns, then the runners-up, then -1.

    `greedy` is as for `draw_distinct`.
    """
    noise = self._position_noise(positions, weights.shape[-1])
    return winners(weights / jnp.where(greedy, 1, noise), count)

  def _position_noise(self, positions, vocab_size):
    return jax.vmap(
        lambda position: exponential(as_key(self.state.noise, position, 0), (vocab_size,)))(
            positions)


def winner(scores: jax.Array) -> jax.Array:
  """Returns the index of the largest entry of the last axis, the first one of equal entries.

  Equals `argmax`, with two plain reductions, which XLA:CPU vectorises.
  """
  size = scores.shape[-1]
  largest = scores == jnp.max(scores, axis=-1, keepdims=True)
  return jnp.min(jnp.where(largest, jnp.arange(size, dtype=jnp.int32), size - 1), axis=-1)


def winners(scores: jax.Array, count: int) -> jax.Array:
  """Returns the indices `[..., count]` of the largest positive entries in order, then -1."""
  values, indices = jax.lax.top_k(scores, min(count, scores.shape[-1]))
  indices = jnp.where(values > 0, indices, -1)
  missing = count - indices.shape[-1]
  return jnp.pad(indices, [(0, 0)] * (indices.ndim - 1) + [(0, missing)], constant_values=-1)
