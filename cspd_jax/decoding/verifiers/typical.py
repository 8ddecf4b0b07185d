"""Typical acceptance (Medusa, arXiv 2401.10774): a threshold on the target's probability."""

import jax
import jax.numpy as jnp

from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Verifier
from cspd_jax.decoding.verifiers.node_tests import NodeTest, rejection


def typical(epsilon: float = 0.09, delta: float = 0.3) -> Verifier:
  """Accepts candidate `x` if `p(x) > min(epsilon, delta exp(-H(p)))`, deterministically.

  `H` is the entropy in nats. Relaxed: no values make it exact. The test does not read the draft
  distribution, but the residual distribution with the smallest bound does: `[p - q f]+`,
  normalised, with `f` 1 for typical tokens and 0 for others (Cool-SD, arXiv 2601.09212, Equation
  10). Tokens that the test never accepts are therefore still generated, and a bound on total
  variation is available. `p` is the target's distribution after the rejections of earlier siblings.

  Args:
    epsilon: a token with a larger probability is always accepted; above 0, below 1. The defaults
      are those of Medusa's code.
    delta: factor of the threshold for flat distributions; above 0, at most 1, so that the most
      probable token is always typical.

  Raises:
    ValueError: for values outside their range.
  """
  if not 0 < epsilon < 1:
    raise ValueError(f'epsilon is {epsilon}; it must be above 0 and below 1.')
  if not 0 < delta <= 1:
    raise ValueError(f'delta is {delta}; it must be above 0 and at most 1.')

  def accepted(p: jax.Array, q: jax.Array) -> jax.Array:
    """`[..., V]`: `q f`."""
    entropy = jnp.sum(jax.scipy.special.entr(p), axis=-1, keepdims=True)
    return jnp.where(p > jnp.minimum(epsilon, delta * jnp.exp(-entropy)), q, 0)

  test = NodeTest(
      mass=lambda p, q, token, depth: accept.take(accepted(p, q), token),
      residual=lambda p, q, token, depth: accept.residual(p, accepted(p, q)),
      gap=lambda p, q, token, depth: jnp.sum(jnp.maximum(accepted(p, q) - p, 0), axis=-1))
  return rejection(lambda max_depth: test, exact=False, bounded=True)
