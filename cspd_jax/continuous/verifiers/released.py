"""The test and the residual of CSpD's released code (arXiv 2411.11925)."""

import jax
import jax.numpy as jnp

from cspd_jax.continuous import coupling, noise as noise_lib
from cspd_jax.continuous.base import Verifier
from cspd_jax.continuous.verifiers.token_test import (
  TokenTest,
  TokenVerdict,
  check_kappa,
  half_squared_distance,
  token_test,
)

SIGMA = ('off', 'paper', 'inverted')


def released(kappa: float, sigma: str, max_trials: int, zero_fallback: bool,
             keep_after_reject: bool = True) -> Verifier:
  """Returns a verifier with `released_test`; the arguments are those of `cspd.cspd_released`.

  Raises:
    ValueError: for options out of range.
  """
  return token_test(
      released_test(kappa, sigma, max_trials, zero_fallback),
      'none: behaves as the released code, which preserves no distribution',
      keep_after_reject=keep_after_reject)


def released_test(kappa: float, sigma: str, max_trials: int, zero_fallback: bool) -> TokenTest:
  """Accepts a draft by a softened test with Sigma; arguments as for `released`."""
  check_kappa(kappa)
  if sigma not in SIGMA:
    raise ValueError(f'sigma is {sigma!r}; it must be one of: {", ".join(SIGMA)}.')
  coupling.check_max_trials(max_trials)
  sign = {'off': 0, 'paper': 1, 'inverted': -1}[sigma]

  def test(batch, draft, target, pending) -> TokenVerdict:
    log_sigma = sign * (draft.log_std - target.log_std)
    log_ratio = (log_sigma + jnp.sum(jnp.log(draft.std) - jnp.log(target.std), axis=-1) -
                 half_squared_distance(draft, target, kappa))
    accepted = coupling.accept(
        log_ratio, noise_lib.log_uniform(batch.keys, noise_lib.ACCEPT, 0), 1.0)
    failed = pending & ~accepted
    wide = lambda tree: jax.tree.map(lambda leaf: leaf[:, None], tree)
    keys, p, q = wide(batch.keys), wide(target), wide(draft)

    def propose(trials):
      noise = noise_lib.normal(keys, noise_lib.PROPOSE, 0, target.mean.shape[-1], trials[None])
      y = p.mean + p.std * noise
      log_ratio = (log_sigma[:, None] + coupling.log_density_of_draw(y, p.mean, p.std) -
                   coupling.log_density(y, q.mean, q.std))
      return y, log_ratio, noise_lib.log_uniform(keys, noise_lib.RESIDUAL, 0, trials[None])

    draws, trials, missed = coupling.residual(propose, failed, 1.0, max_trials)
    fallback = jnp.zeros_like(target.mean) if zero_fallback else target.mean
    replaced = jnp.where(missed[:, None], fallback, draws)
    tokens = jnp.where(accepted[:, None], draft.mean, replaced)
    return TokenVerdict(tokens, accepted, trials, missed)

  return test
