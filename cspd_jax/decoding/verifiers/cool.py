"""Acceptance relaxed by a factor per depth, with the best residual distribution (Cool-SD).

Candidate `x` at depth `d` is accepted with probability `f = min(1, w_d p(x) / q(x))`, and the
residual distribution is `[p - q f]+`, normalised: the one that minimises the bound on total
variation (Cool-SD, arXiv 2601.09212, Algorithm 1, Equation 10 and Theorem 2).
The printed schedules fall below 1 at larger depths. There `f` accepts less than the exact test
without any gain in fidelity; `clamp` raises such factors to 1, which accepts more and does not
change the distribution of a round.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Drafter, Verifier
from cspd_jax.decoding.verifiers.rejection import AcceptanceRule, tree_rejection


def uniform(delta: float = 1.1) -> Verifier:
  """The same factor `delta` at every depth, at least 1, which is exact (UniformRSD of Cool-SD)."""
  fields.require(1 <= delta < np.inf, 'delta', delta, 'a factor of at least 1 (1 is exact)')
  return _relaxed(lambda depths: np.full(depths, float(delta)), clamp=True, length=None)


def cool(delta: float = 1.1, nu: float = 0.7, *, clamp: bool = True,
         length: int | None = None) -> Verifier:
  """Factors that fall exponentially with depth (Cool-SD, Section 4.3).

  `w_d = delta L exp(-nu d) / sum_j exp(-nu j)` for depths `1 .. L`, so that their sum is `delta L`.
  Raises ValueError for values outside their range.

  Args:
    delta: mean factor, above 0.
    nu: decay rate, at least 0; 0 is `uniform`.
    clamp: raise factors below 1 to 1. False is the schedule as printed.
    length: `L`, the depth of the drafts by default. In a long Jacobi window set it to the few
      depths that matter, because the first factor grows with `L`. Deeper factors are 1.
  """
  _check(delta, length)
  fields.require(0 <= nu < np.inf, 'nu', nu, 'a rate of at least 0 (at 0 all factors are equal)')

  def schedule(depths: int) -> np.ndarray:
    weights = np.exp(-nu * np.arange(depths))
    return delta * depths * weights / weights.sum()

  return _relaxed(schedule, clamp, length)


def cool_linear(delta: float = 1.1, l: int = 8, *, clamp: bool = True,
                length: int | None = None) -> Verifier:
  """Factors that fall linearly with depth: `w_d` in proportion to `l - d`.

  Raises ValueError for values outside their range, or if `l` is not larger than `L`; without
  `length` the latter is detected when the decoder is built.

  Args:
    delta: mean factor, above 0.
    l: the depth at which the factor would reach 0, larger than `L`.
    clamp: raise factors below 1 to 1. False is the schedule as printed.
    length: `L`, the depth of the drafts by default. Deeper factors are 1.
  """
  _check(delta, length)
  fields.check_whole('l', l)

  def schedule(depths: int) -> np.ndarray:
    if l <= depths:
      raise ValueError(
          f'l is {l}, but the factors are for depths 1 to {depths}: l must be larger, or length '
          'smaller.')
    weights = l - 1.0 - np.arange(depths)
    return delta * depths * weights / weights.sum()

  if length is not None:
    schedule(length)
  return _relaxed(schedule, clamp, length)


def _check(delta: float, length: int | None) -> None:
  fields.require(0 < delta < np.inf, 'delta', delta, 'a mean factor above 0 (1 or more relaxes)')
  if length is not None:
    fields.check_whole('length', length, 'a whole number of at least 1 depth', 1)


def _relaxed(schedule: Callable[[int], np.ndarray], clamp: bool, length: int | None) -> Verifier:
  """A verifier with the factors `schedule(L)` `[L]`."""

  def factors(max_depth: int) -> np.ndarray:
    """The factor of every depth, `[max_depth + 1]`; entry 0 is the root, which is not tested."""
    depths = max_depth if length is None else min(length, max_depth)
    table = np.ones(max_depth + 1)
    if max_depth:
      table[1:depths + 1] = schedule(max_depth if length is None else length)[:depths]
    return np.maximum(table, 1) if clamp else table

  def check(drafter: Drafter, vocab_size: int) -> None:
    factors(drafter.tree.max_depth)

  def test_for(max_depth: int) -> AcceptanceRule:
    table = factors(max_depth)
    factor = lambda p, depth: jnp.asarray(table, p.dtype)[depth]
    scaled = lambda p, depth: factor(p, depth)[..., None] * p
    return AcceptanceRule(
        mass=lambda p, q, token, depth: factor(p, depth) * accept.take(p, token),
        residual=lambda p, q, token, depth: accept.residual(p, jnp.minimum(q, scaled(p, depth))),
        gap=lambda p, q, token, depth: jnp.sum(
            jnp.maximum(jnp.minimum(q, scaled(p, depth)) - p, 0), axis=-1))

  return tree_rejection(test_for, exact=False, bounded=True, check=check)
