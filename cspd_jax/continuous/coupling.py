"""Accepts a draft or replaces it such that the result follows the target's distribution.

A draft `x` with density `q` is accepted with probability `min(1, eta p(x) / q(x))`, where `p` is
the target's density; otherwise it is replaced by a draw from the residual distribution,
proportional to `p (1 - min(eta, q / p))`. Accepted mass `min(q, eta p)` plus residual mass
`p - min(q, eta p)` is `p`: exact for every `eta` in (0, 1].

The residual is drawn by rejection: propose from `p`, accept the proposal with probability
`1 - min(eta, q / p)`. This is at least `1 - eta`, so with `eta < 1` all of `n` proposals are
rejected with probability at most `eta^n`, for a factor of at least `eta` on acceptance. With
`eta = 1`, as in speculative sampling, there is no such bound: a draft distribution very close to
the target's is hardly ever rejected, but then almost every proposal misses the residual. On average
one proposal is drawn per test, whatever the distributions.

Continuous speculative decoding (CSpD, arXiv 2411.11925, equations 9 to 11) is the case `eta = 1`;
its released code stops after 100 proposals and emits zeros. Here, if `max_trials` proposals are
rejected, the last of them is emitted: a draw from the target.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import noise as noise_lib
from cspd_jax.core import fields, rows

TRIALS_PER_PASS = 8  # Proposals per pass.
# Default of the largest number of proposals. With eta = 0.98 all fail with probability 1e-9.
DEFAULT_TRIALS = 1024
# Kernels may be so narrow that the rounding error of a state is many deviations, and the next mean
# further away than float32 can square. These bounds are beyond all noise, and products of both are
# finite. The first is the smaller one, so that no rounding error explains a distance.
_NOISE, _FAR = 1e6, 1e15


def check(eta: float, max_trials: int) -> None:
  """Raises ValueError unless `0 < eta <= 1`, and each of the proposals has noise of its own."""
  fields.require(0 < eta <= 1, 'eta', eta, 'above 0 and at most 1')
  words = f'a whole number from 1 to {noise_lib.MAX_TRIALS}, the proposals that there is noise for'
  fields.check_whole('max_trials', max_trials, words, 1, noise_lib.MAX_TRIALS)


class Gaussian(NamedTuple):
  """Diagonal Gaussians, `[..., C]` each."""

  mean: jax.Array
  std: jax.Array


def log_density(x: jax.Array, mean: jax.Array, std: jax.Array) -> jax.Array:
  """Returns the log density `[...]` of `x` `[..., C]`, without the constant."""
  return -jnp.sum(0.5 * jnp.square((x - mean) / std) + jnp.log(std), axis=-1)


def log_density_of_draw(x: jax.Array, mean: jax.Array, std: jax.Array) -> jax.Array:
  """As `log_density` for a draw from the Gaussian, and finite for any deviation above 0."""
  return -jnp.sum(0.5 * jnp.square(_bounded((x - mean) / std, _NOISE)) + jnp.log(std), axis=-1)


def _bounded(quotient: jax.Array, limit: float) -> jax.Array:
  return jnp.maximum(jnp.minimum(quotient, limit), -limit)


def accept(log_ratio: jax.Array, log_uniform: jax.Array, eta: float) -> jax.Array:
  """Returns whether drafts are accepted, `[...]`, by `log p(x) - log q(x)` and a uniform number."""
  return log_uniform < log_ratio + np.float32(np.log(eta))


def accepted_length(passed: jax.Array) -> jax.Array:
  """Counts `[N]` the drafts of `passed` `[N, L]` before the first failure; others are discarded."""
  return jnp.sum(jnp.cumprod(passed, axis=1), axis=1, dtype=jnp.int32)


def accept_proposal(log_ratio: jax.Array, log_uniform: jax.Array, eta: float) -> jax.Array:
  """Returns whether proposals from the target are accepted as residual draws; as for `accept`."""
  return jnp.exp(log_uniform) < jnp.maximum(np.float32(1 - eta), -jnp.expm1(-log_ratio))


class Comparison(NamedTuple):
  """Draws from Gaussians, as draws from two Gaussians of one deviation."""

  mean: jax.Array  # `[..., C]` mean of the new Gaussian.
  base: jax.Array  # `[..., C]` deviation of both.
  coupled: jax.Array  # `[..., C]` standard normal noise of the draw, `x = old mean + base coupled`.
  shift: jax.Array  # `[..., C]` from the new mean to the old one, in units of `base`.


class Moved(NamedTuple):
  """States that were moved from one Gaussian to another."""

  x: jax.Array  # `[..., C]`.
  kept: jax.Array  # `[...]` whether the state is the old one, bit for bit.


def compare(x: jax.Array, old: Gaussian, new: Gaussian, noise: jax.Array | None) -> Comparison:
  """Splits the noise of a draw and of two Gaussians such that both have one deviation.

  With unequal deviations, the noise of either Gaussian is the sum of a part of a common deviation
  and of the rest, which both share. The rest shifts the two Gaussians against each other; the
  common deviation is that of the smallest expected squared shift. Given the rest, which is
  independent of the other part, the draw `x` `[..., C]` from `old` is one from the first of two
  Gaussians of the common deviation. `noise` `[..., C]` are independent standard normal numbers;
  None if all deviations are equal.
  """
  unit = _bounded((x - old.mean) / old.std, _NOISE)
  if noise is None:
    return Comparison(new.mean, new.std, unit, _bounded((old.mean - new.mean) / old.std, _FAR))
  base = jnp.minimum(old.std, new.std)
  gap = jnp.sum(jnp.square(_bounded((old.mean - new.mean) / base, _FAR)), axis=-1, keepdims=True)
  spread = jnp.sum(jnp.square((old.std - new.std) / base), axis=-1, keepdims=True)
  # The minimum over `q` of `(gap + spread / (1 - q)) / q`, the square of the shift in units of the
  # common deviation `sqrt(q) base`, to first order in the difference of deviations.
  tiny = jnp.finfo(spread.dtype).tiny
  removed = spread / (spread + jnp.sqrt(spread * (spread + gap)) + tiny)
  base = base * jnp.sqrt(1 - removed)
  # The rest of a deviation, as a part of it: squares of deviations may be no finite numbers.
  rest_of = lambda std: jnp.sqrt(jnp.maximum(1 - jnp.square(base / std), 0))
  share, rest = base / old.std, rest_of(old.std)
  # A rotation of (unit, noise): two independent standard normal numbers again, with
  # `unit = share coupled + rest shared`.
  coupled, shared = share * unit + rest * noise, rest * unit - share * noise
  old_rest, new_rest = old.std * rest, new.std * rest_of(new.std)
  shift = _bounded((old.mean - new.mean + (old_rest - new_rest) * shared) / base, _FAR)
  return Comparison(new.mean + new_rest * shared, base, coupled, shift)


def move(x: jax.Array, compared: Comparison, log_uniform: jax.Array) -> Moved:
  """Turns a draw `x` `[..., C]` from a diagonal Gaussian into one from another, equal if possible.

  If `x` follows the old Gaussian given everything that the new one depends on, the result follows
  the new one. For equal deviations this is the maximal coupling by reflection: a state is kept with
  probability `1 - TV(old, new)`, and one that is not kept is the mirror image of `x`, which is
  close. `log_uniform` `[...]` is the logarithm of an independent uniform number.

  Reference: Bou-Rabee, Eberle & Zimmer, Coupling and convergence for Hamiltonian Monte Carlo, 2020
  (arXiv:1805.00452), section 2.3, for the maximal coupling by reflection.
  """
  inner = jnp.sum(compared.shift * compared.coupled, axis=-1)
  square = jnp.sum(compared.shift * compared.shift, axis=-1)
  kept = log_uniform < -(inner + 0.5 * square)
  factor = 2 * inner / jnp.maximum(square, jnp.finfo(square.dtype).tiny)
  mirrored = compared.mean + compared.base * (compared.coupled - factor[..., None] * compared.shift)
  return Moved(jnp.where(kept[..., None], x, mirrored), kept)


def residual(propose: Callable[[jax.Array], tuple[Any, jax.Array, jax.Array]],
             pending: jax.Array, eta: float, max_trials: int,
             ) -> tuple[Any, jax.Array, jax.Array]:
  """Draws from the residual distribution where `pending` `[N]`.

  `propose` is `trials [R] -> (proposals, log_ratio [N, R], log_uniform [N, R])`: draws number
  `trials` from the target, a pytree of leaves `[N, R, ...]`, with `log p - log q` of each and the
  uniform numbers of their tests. `eta` is from the test which rejected the draft. Returns the
  draws, leaves `[N, ...]` (zero where not pending, the last proposal where all `max_trials` were
  rejected), the numbers of proposals evaluated, and where all were rejected, `[N]` each.
  """
  num = TRIALS_PER_PASS

  def one_pass(carry):
    index, pending, draws, trials = carry
    trial = index * num + jnp.arange(num)
    proposals, log_ratio, log_uniform = propose(trial)
    accepted = accept_proposal(log_ratio, log_uniform, eta) & (trial < max_trials)
    any_accepted = jnp.any(accepted, axis=1)
    last = jnp.minimum(num, max_trials - index * num) - 1
    chosen = jnp.where(any_accepted, jnp.argmax(accepted, axis=1), last)
    draws = jax.tree.map(
        lambda old, new: rows.where(pending, rows.take(new, chosen[:, None])[:, 0], old), draws,
        proposals)
    trials = trials + jnp.where(pending, chosen + 1, 0).astype(trials.dtype)
    return index + 1, pending & ~any_accepted, draws, trials

  shapes = jax.eval_shape(propose, jax.ShapeDtypeStruct((num,), jnp.int32))[0]
  draws = jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[0], *leaf.shape[2:]), leaf.dtype), shapes)
  carry = jnp.int32(0), pending, draws, jnp.zeros(pending.shape, jnp.int32)
  carry = jax.lax.while_loop(
      lambda carry: jnp.any(carry[1]) & (carry[0] * num < max_trials), one_pass, carry)
  _, missed, draws, trials = carry
  return draws, trials, missed
