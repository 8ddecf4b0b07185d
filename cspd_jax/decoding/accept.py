"""The exactness kernel: what remains of a distribution after a candidate was refused.

A candidate `x ~ q` is accepted with probability `min(1, p(x) / q(x))`; if it is
refused, the next candidate or the final token follows `residual(p, q)`. The
token that comes out has distribution `p` (Leviathan et al., arXiv 2211.17192, Theorem
A.1; Chen et al., arXiv 2302.01318). With several candidates drawn without
replacement the rule is repeated on the running distributions (SpecInfer, arXiv
2305.09781; SJD-PAC, arXiv 2603.18599, Theorem 2).
"""

import jax
import jax.numpy as jnp


def residual(p: jax.Array, q: jax.Array) -> jax.Array:
  """Returns the residual distribution, `[p - q]+` normalised; shapes `[..., V]`.

  Where no mass remains, which only rounding can bring about after a refusal,
  the result is `p`.
  """
  excess = jnp.maximum(p - q, 0)
  mass = jnp.sum(excess, axis=-1, keepdims=True)
  return jnp.where(mass > 0, excess / jnp.where(mass > 0, mass, 1), p)


def without(q: jax.Array, token: jax.Array) -> jax.Array:
  """The distribution of the next draw without replacement: `q` given that it is not `token`.

  Args:
    q: `[..., V]` distribution of the draw that gave `token`.
    token: `[...]` the token drawn.

  Returns:
    `[..., V]`; all zero if `token` was the only one left.
  """
  left = jnp.where(jnp.arange(q.shape[-1]) == token[..., None], 0, q)
  mass = jnp.sum(left, axis=-1, keepdims=True)
  return jnp.where(mass > 0, left / jnp.where(mass > 0, mass, 1), 0)


def take(distribution: jax.Array, token: jax.Array) -> jax.Array:
  """The probability of `token` `[...]` under `distribution` `[..., V]`."""
  return jnp.take_along_axis(distribution, token[..., None], axis=-1)[..., 0]
