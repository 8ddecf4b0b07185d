"""The two kinds of randomness a decoder uses: accept tests and draws.

All randomness of a decoder goes through the few methods of `RowRandom`, for two
reasons. A row's stream depends on the row alone, so a row does not know
who else is in its batch. And a test can put an object with the same methods in
its place that runs through every outcome and multiplies the probabilities
(`cspd_jax.testing.enumerate`), which proves a decoder exact without sampling.

A draw from weights `w` is an exponential race: the token with the largest
`w / E`, `E` independent standard exponentials, is token `x` with probability
`w(x) / sum(w)`. It is the Gumbel-max trick (`g = -log E`) with one logarithm.
"""

import jax
import jax.numpy as jnp

from cspd_jax.core.random import RowKeys, as_key, exponential


class RowRandom:
  """Random numbers of one row for one step; read `state` when done."""

  def __init__(self, state: RowKeys):
    self._stream, self._uses = state.stream, 0
    self.state = state._replace(stream=state.stream + jnp.array([1, 0], jnp.uint32))

  def _next(self) -> jax.Array:
    self._uses += 1
    return as_key(self._stream, 0, self._uses)

  def accept(self, p: jax.Array, q: jax.Array) -> jax.Array:
    """True with probability `min(1, p / q)`; `p`, `q` of shape `[n]`.

    Tested as `u q < p`: no division, and a token outside the target's support
    (`p = 0`) is never accepted.
    """
    return jax.random.uniform(self._next(), p.shape, p.dtype) * q < p

  def integers(self, count: int, bound: int) -> jax.Array:
    """Draws independent integers `[count]`, uniform on `0 .. bound - 1`."""
    return jax.random.randint(self._next(), (count,), 0, bound, jnp.int32)

  def draw(self, weights: jax.Array) -> jax.Array:
    """One token from every row of `weights` `[n, V]` (non-negative, any sum)."""
    return winner(weights / exponential(self._next(), weights.shape))

  def draw_distinct(self, weights: jax.Array, count: int, greedy: jax.typing.ArrayLike = False
                    ) -> jax.Array:
    """Draws tokens `[n, count]` without replacement, in order of the draws.

    An entry is -1 where a row has fewer tokens of positive weight. With `greedy`, which may be
    known at run time only, these are the tokens of the largest weights: one search serves both.
    """
    noise = exponential(self._next(), weights.shape)
    return winners(weights / jnp.where(greedy, 1, noise), count)

  def draw_at(self, positions: jax.Array, weights: jax.Array) -> jax.Array:
    """Like `draw`, with the noise that belongs to `positions` `[n]`.

    The same position has the same noise in every round and every decoder, so
    equal weights give the same token.
    """
    return winner(weights / self._position_noise(positions, weights.shape[-1]))

  def best_at(self, positions: jax.Array, weights: jax.Array, count: int,
              greedy: jax.typing.ArrayLike = False) -> jax.Array:
    """Returns `[n, count]`: the token that `draw_at` gives, then the runners-up; -1 if none.

    With `greedy` as for `draw_distinct`.
    """
    noise = self._position_noise(positions, weights.shape[-1])
    return winners(weights / jnp.where(greedy, 1, noise), count)

  def _position_noise(self, positions, vocab_size):
    return jax.vmap(
        lambda position: exponential(as_key(self.state.noise, position, 0), (vocab_size,)))(
            positions)


def winner(scores: jax.Array) -> jax.Array:
  """Index of the largest entry of the last axis, the first one if several.

  As `argmax`, from two plain reductions: XLA:CPU vectorises these.
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
