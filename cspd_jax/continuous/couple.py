"""The exactness kernel: accept a draft or replace it, so that the target's distribution is kept.

A draft `x` with density `q` is accepted with probability `min(1, eta p(x) / q(x))`, `p`
the target's density; otherwise the residual distribution, proportional to
`p (1 - min(eta, q / p))`, is drawn from. Accepted mass `min(q, eta p)` plus residual
mass `p - min(q, eta p)` is `p`: exact for every `eta` in (0, 1].

The residual is drawn by rejection: propose from `p`, take the proposal with
probability `1 - min(eta, q / p)`. This is at least `1 - eta`, so with `eta < 1` the
number of proposals is bounded in practice: none of `n` is taken with probability at
most `eta^n`. With `eta = 1`, the verifier of speculative sampling, there is no such bound:
a draft distribution very close to the target's is hardly ever rejected, but then the residual
is a sliver that almost every proposal misses. The price of `eta < 1` is a factor of at
least `eta` on acceptance. On average one proposal is drawn per test, whatever the distributions.

Continuous speculative decoding (CSpD, arXiv 2411.11925, equations 9 to 11) is the case
`eta = 1`; its released code stops after 100 proposals and emits zeros. Here, if
`max_trials` proposals fail, the last of them is emitted: a draw from the target.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import noise as noise_lib

# Proposals per pass.
TRIALS_PER_PASS = 8
# Proposals at most, by default. With eta = 0.98 all fail with probability 1e-9.
DEFAULT_TRIALS = 1024
# Less than this, and that residual draws may fail does not count.
_NEGLIGIBLE = 1e-6


def check_eta(eta: float) -> None:
  """Raises ValueError unless `0 < eta <= 1`."""
  if not 0 < eta <= 1:
    raise ValueError(f'eta is {eta}; it must be above 0 and at most 1.')


def check_max_trials(max_trials: int) -> None:
  """Raises ValueError unless there is at least one proposal, and each has noise of its own."""
  if not 1 <= max_trials <= noise_lib.MAX_TRIALS:
    raise ValueError(f'max_trials is {max_trials}; a residual draw needs at least 1 proposal, and '
                     f'there is noise for {noise_lib.MAX_TRIALS}.')


def guarantee(eta: float, max_trials: int) -> str:
  """How exact the verifier is, in words."""
  if eta**max_trials < _NEGLIGIBLE:
    return 'exact up to rounding'
  return (f'exact up to rounding and residual draws of which {max_trials} proposals fail, which '
          '`missed` counts')


def log_density(x: jax.Array, mean: jax.Array, std: jax.Array) -> jax.Array:
  """Returns the log density `[...]` of `x` `[..., C]` under a diagonal Gaussian, constant left out.

  Logarithms are a must: 16 standard deviations of 0.006 multiply to 5e-36, next to the
  smallest float32.
  """
  return -jnp.sum(0.5 * jnp.square((x - mean) / std) + jnp.log(std), axis=-1)


def accept(log_ratio: jax.Array, log_uniform: jax.Array, eta: float) -> jax.Array:
  """Whether a draft is accepted, `[...]`.

  Args:
    log_ratio: `[...]` `log p(x) - log q(x)` of the draft.
    log_uniform: `[...]` logarithm of an independent uniform number.
    eta: see the module.
  """
  return log_uniform < log_ratio + np.float32(np.log(eta))


def leading(passed: jax.Array) -> jax.Array:
  """Counts `[N]` the drafts of `passed` `[N, L]` that come before the first failure.

  The walk ends there: what was drafted after a replaced state continues another state.
  """
  return jnp.sum(jnp.cumprod(passed, axis=1), axis=1, dtype=jnp.int32)


def take(log_ratio: jax.Array, log_uniform: jax.Array, eta: float) -> jax.Array:
  """Whether a proposal from the target is taken for the residual; as for `accept`."""
  return jnp.exp(log_uniform) < jnp.maximum(np.float32(1 - eta), -jnp.expm1(-log_ratio))


def residual(propose: Callable[[jax.Array], tuple[Any, jax.Array, jax.Array]],
             pending: jax.Array, eta: float, max_trials: int,
             ) -> tuple[Any, jax.Array, jax.Array]:
  """Draws from the residual distribution where `pending` `[N]`.

  Args:
    propose: `trials [R] -> (proposals, log_ratio [N, R], log_uniform [N, R])`: draws
      number `trials` from the target, a pytree of leaves `[N, R, ...]`, with
      `log p - log q` of each and the uniform numbers of their tests.
    pending: the tokens that need a draw.
    eta: the one of the test that rejected the draft.
    max_trials: proposals at most; then the last of them is the draw.

  Returns:
    The draws, leaves `[N, ...]` (zero where not pending), the number of proposals looked
    at, `[N]`, and for which tokens `[N]` none of them was taken.
  """
  num = TRIALS_PER_PASS

  def one_pass(carry):
    index, pending, draws, trials = carry
    trial = index * num + jnp.arange(num)
    proposals, log_ratio, log_uniform = propose(trial)
    taken = take(log_ratio, log_uniform, eta) & (trial < max_trials)
    found = jnp.any(taken, axis=1)
    last = jnp.minimum(num, max_trials - index * num) - 1
    first = jnp.where(found, jnp.argmax(taken, axis=1), last)
    draws = jax.tree.map(
        lambda old, new: _where(pending, _pick(new, first), old), draws, proposals)
    trials = trials + jnp.where(pending, first + 1, 0)
    return index + 1, pending & ~found, draws, trials

  shapes = jax.eval_shape(propose, jax.ShapeDtypeStruct((num,), jnp.int32))[0]
  draws = jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[0], *leaf.shape[2:]), leaf.dtype), shapes)
  carry = jnp.int32(0), pending, draws, jnp.zeros(pending.shape, jnp.int32)
  carry = jax.lax.while_loop(
      lambda carry: jnp.any(carry[1]) & (carry[0] * num < max_trials), one_pass, carry)
  _, missed, draws, trials = carry
  return draws, trials, missed


def _pick(leaf, index):
  """`[N, ...]` entry `index` `[N]` of `leaf` `[N, R, ...]`."""
  return jax.vmap(lambda row, i: row[i])(leaf, index)


def _where(condition, new, old):
  return jnp.where(condition.reshape(condition.shape + (1,) * (new.ndim - 1)), new, old)
