"""The test and the residual of CSpD's released code (arXiv 2411.11925)."""

import jax
import jax.numpy as jnp

from cspd_jax.continuous import couple, noise as noise_lib
from cspd_jax.continuous.parts import Verifier
from cspd_jax.continuous.verifiers.token_test import Judged, Test, check_kappa, softened, token_test

SIGMA = ('off', 'paper', 'inverted')


def released(kappa: float, sigma: str, max_trials: int, zero_fallback: bool,
             keep_after_reject: bool = True) -> Verifier:
  """Makes a verifier of `released_test`; the arguments are those of `cspd.cspd_released`.

  Raises:
    ValueError: for options out of range.
  """
  return token_test(
      released_test(kappa, sigma, max_trials, zero_fallback),
      'none: behaves as the released code, which keeps no distribution',
      keep_after_reject=keep_after_reject)


def released_test(kappa: float, sigma: str, max_trials: int, zero_fallback: bool) -> Test:
  """Keeps a draft by a softened test with Sigma; arguments as for `released`."""
  check_kappa(kappa)
  if sigma not in SIGMA:
    raise ValueError(f'sigma is {sigma!r}; it must be one of: {", ".join(SIGMA)}.')
  couple.check_max_trials(max_trials)
  sign = {'off': 0, 'paper': 1, 'inverted': -1}[sigma]

  def test(batch, theirs, own, pending) -> Judged:
    log_sigma = sign * (theirs.log_std - own.log_std)
    log_ratio = (log_sigma + jnp.sum(jnp.log(theirs.std) - jnp.log(own.std), axis=-1) -
                 softened(theirs, own, kappa))
    accepted = couple.accept(
        log_ratio, noise_lib.log_uniform(batch.keys, noise_lib.ACCEPT, 0), 1.0)
    failed = pending & ~accepted
    keys = jax.tree.map(lambda leaf: leaf[:, None], batch.keys)
    theirs_wide, own_wide = (jax.tree.map(lambda leaf: leaf[:, None], end) for end in (theirs, own))

    def propose(trials):
      noise = noise_lib.normal(keys, noise_lib.PROPOSE, 0, own.mean.shape[-1], trials[None])
      y = own_wide.mean + own_wide.std * noise
      log_ratio = (log_sigma[:, None] + couple.log_density(y, own_wide.mean, own_wide.std) -
                   couple.log_density(y, theirs_wide.mean, theirs_wide.std))
      return y, log_ratio, noise_lib.log_uniform(keys, noise_lib.RESIDUAL, 0, trials[None])

    drawn, trials, missed = couple.residual(propose, failed, 1.0, max_trials)
    last = jnp.zeros_like(own.mean) if zero_fallback else own.mean
    replaced = jnp.where(missed[:, None], last, drawn)
    return Judged(jnp.where(accepted[:, None], theirs.mean, replaced), accepted, trials, missed)

  return test
