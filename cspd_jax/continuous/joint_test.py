"""Keeps the last states of a denoising chain by one joint test.

`coupling.move` keeps the state of every kernel with the largest probability. Where chains that have
parted meet again, nothing is lost by that. At the last kernels they do not: the noise falls faster
than the distance. There a token is lost by the first state that is not kept, and the test of all
kernels together, with their joint density ratio, keeps the chain more often: for `m` kernels that
are apart by `d` deviations each, with a probability of the order of `1 - sqrt(m) d` instead of
`1 - m d`.

The test is block verification for Gaussian kernels. With the ratios `r_i` of the new to the old
density of the states, `p_0 = 1` and `p_i = min(1, p_{i-1} r_i)`. The chain is kept up to the last
`i` at which a uniform number is at most `h_i`, where `h_m = p_m` and else `h_i = S_i / (S_i + 1 -
p_i)` with the mass `S_i` of the residual, `max(p_i p(x) - q(x), 0)` for the kernels `p` and `q`
that come next. The next state is a draw from the residual, and those after it from the new kernels,
with fresh noise.

Reference: Sun et al., Block Verification Accelerates Speculative Decoding, 2024 (arXiv:2403.10444),
Algorithm 2, for tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous.coupling import Compared

# Halvings of the interval of a residual draw: to the precision of float32.
_HALVINGS = 26
# The residual reaches this many deviations beyond its lower end, or beyond the new mean.
_REACH = 7.0


class Outcome(NamedTuple):
  """The outcome of a test of `m` kernels.

  Attributes:
    length: `[N]` how many states are kept, 0 to `m`.
    x: `[N, C]` the state after them; meaningless if all are kept.
  """

  length: jax.Array
  x: jax.Array


def keep(compared: Compared, log_uniform: jax.Array, noise: jax.Array, position: jax.Array
         ) -> Outcome:
  """Tests the states of chains, drawn from old kernels, under the new kernels.

  Args:
    compared: the old states with the old and the new kernels, `[N, m, C]`; see `coupling.compare`.
    log_uniform: `[N, m]` logarithms of independent uniform numbers.
    noise: `[N, m, C]` independent standard normal noise, for the state that replaces the first one
      that is not kept.
    position: `[N, m]` independent uniform numbers, for its position on the line between the means.
  """
  log_ratio = compared.log_ratio
  distance = jnp.sqrt(compared.square)
  total = jnp.cumsum(log_ratio, axis=1)
  # `p_i = min(1, p_{i-1} r_i)` in closed form.
  log_p = total - jnp.maximum(jax.lax.cummax(total, axis=1), 0)
  # That of every state before a kernel, for its residual.
  log_before = jnp.pad(log_p[:, :-1], ((0, 0), (1, 0)))
  mass = _tail(_start(distance, log_before), distance, log_before)
  missing = -jnp.expm1(log_p[:, :-1])
  inner = mass[:, 1:] / jnp.maximum(mass[:, 1:] + missing, jnp.finfo(mass.dtype).tiny)
  share = jnp.concatenate([inner, jnp.exp(log_p[:, -1:])], axis=1)
  passed = jnp.exp(log_uniform) <= share
  count = passed.shape[1]
  length = jnp.max(jnp.where(passed, jnp.arange(1, count + 1), 0), axis=1)
  at = lambda leaf: jax.vmap(lambda row, i: row[i])(leaf, jnp.minimum(length, count - 1))
  distance, log_before, mass = map(at, (distance, log_before, mass))
  return Outcome(length, _residual(
      jax.tree.map(at, compared), distance, log_before, mass, at(noise), at(position)))


def _start(distance: jax.Array, log_p: jax.Array) -> jax.Array:
  """Where `p N(x; distance, 1)` begins to exceed `N(x; 0, 1)`."""
  return 0.5 * distance - log_p / jnp.maximum(distance, 1e-12)


def _tail(x: jax.Array, distance: jax.Array, log_p: jax.Array) -> jax.Array:
  """The mass of the residual beyond `x`."""
  upper = lambda x: 0.5 * jax.scipy.special.erfc(x / jnp.sqrt(jnp.float32(2)))
  return jnp.maximum(jnp.exp(log_p) * upper(x - distance) - upper(x), 0)


def _residual(compared: Compared, distance: jax.Array, log_p: jax.Array, mass: jax.Array,
              noise: jax.Array, position: jax.Array) -> jax.Array:
  """Draws states `[N, C]` from the residual of one kernel each.

  It differs from the new kernel along the line between the means only, where the draw is at the
  quantile `position` of the residual.
  """
  low = _start(distance, log_p)
  high = jnp.maximum(low, distance) + _REACH

  def halve(_, interval):
    low, high = interval
    middle = 0.5 * (low + high)
    beyond = _tail(middle, distance, log_p) > position * mass
    return jnp.where(beyond, middle, low), jnp.where(beyond, high, middle)

  low, high = jax.lax.fori_loop(0, _HALVINGS, halve, (low, high))
  # From the old to the new mean.
  direction = -compared.shift / jnp.maximum(distance, 1e-12)[:, None]
  along = 0.5 * (low + high) - distance - jnp.sum(noise * direction, axis=-1)
  return compared.mean + compared.base * (noise + along[:, None] * direction)
