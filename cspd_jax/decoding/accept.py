"""The distributions of exact rejection sampling: the residual after a rejected candidate.

A candidate `x ~ q` is accepted with probability `min(1, p(x) / q(x))`. After a rejection the next
candidate or the final token follows `residual(p, q)`. The resulting token has distribution `p`
(Leviathan et al., arXiv 2211.17192, Theorem A.1; Chen et al., arXiv 2302.01318). With several
candidates drawn without replacement, the test is repeated with the updated distributions
(SpecInfer, arXiv 2305.09781; SJD-PAC, arXiv 2603.18599, Theorem 2).
"""

import jax
import jax.numpy as jnp


def residual(p: jax.Array, q: jax.Array) -> jax.Array:
  """Returns the residual distribution, `[p - q]+` normalised; shapes `[..., V]`.

  If no mass remains, which only rounding can cause after a rejection, the result is `p`.
  """
  return normalised(p - q, p)


def normalised(weights: jax.Array, otherwise: jax.typing.ArrayLike) -> jax.Array:
  """Returns the positive part of `weights` `[..., V]` as a distribution; another if it is zero."""
  weights = jnp.maximum(weights, 0)
  mass = jnp.sum(weights, axis=-1, keepdims=True)
  return jnp.where(mass > 0, weights / jnp.where(mass > 0, mass, 1), otherwise)


def without(q: jax.Array, token: jax.Array) -> jax.Array:
  """Returns the distribution `[..., V]` of the next draw without replacement: `q` without `token`.

  It is all zero if no other token than `token` `[...]`, which was drawn from `q`, has mass.
  """
  return normalised(jnp.where(jnp.arange(q.shape[-1]) == token[..., None], 0, q), 0)


def take(distribution: jax.Array, token: jax.Array) -> jax.Array:
  """Returns the probability of `token` `[...]` under `distribution` `[..., V]`."""
  return jnp.take_along_axis(distribution, token[..., None], axis=-1)[..., 0]
