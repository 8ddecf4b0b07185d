"""A simple test of tokens with a bound on the error."""

import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import coupling, noise as noise_lib
from cspd_jax.continuous.base import Verifier
from cspd_jax.continuous.result import Errors
from cspd_jax.continuous.verifiers.token_test import (
  TokenVerdict,
  check_kappa,
  half_squared_distance,
  token_test,
)


def relaxed(kappa: float, keep_after_reject: bool = True) -> Verifier:
  """Accepts a draft that is close to the target's own token, else emits that token.

  A draft at the distance `d`, in units of the last kernel's standard deviation `s`, is accepted
  with probability `exp(-d^2 / (2 kappa^2))`; so the expected squared distance is at most
  `(2 / e) kappa^2 s^2`.

  Args:
    kappa: tolerance.
    keep_after_reject: see `token_test`.

  Raises:
    ValueError: if `kappa` is out of range.
  """
  check_kappa(kappa)

  def test(batch, draft, target, pending) -> TokenVerdict:
    del pending
    accepted = coupling.accept(
        -half_squared_distance(draft, target, kappa),
        noise_lib.log_uniform(batch.keys, noise_lib.ACCEPT, 0), 1.0)
    tokens = jnp.where(accepted[:, None], draft.mean, target.mean)
    no_trials = jnp.zeros(accepted.shape, jnp.int32)
    bound = 2 / np.e * kappa**2 * jnp.max(jnp.square(target.std), axis=-1)
    return TokenVerdict(tokens, accepted, no_trials, no_trials,
                        Errors(jnp.sum(jnp.square(tokens - target.mean), axis=-1), bound))

  return token_test(
      test, "mean squared distance to the target's own token at most (2 / e) kappa^2 s^2, which "
      'is in `errors.bound`', keep_after_reject=keep_after_reject, bounded=True)
