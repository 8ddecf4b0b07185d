"""A plain test of tokens that bounds the error."""

import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import couple, noise as noise_lib
from cspd_jax.continuous.parts import Verifier
from cspd_jax.continuous.result import Errors
from cspd_jax.continuous.verifiers.token_test import Judged, check_kappa, softened, token_test


def relaxed(kappa: float, keep_after_reject: bool = True) -> Verifier:
  """Keeps a draft that is near to the target's own token, else emits that one.

  A draft at the distance `d` stays with probability `exp(-d^2 / (2 kappa^2))`, in units of the
  last kernel's standard deviation `s`; so the expected squared distance is at most
  `(2 / e) kappa^2 s^2`.

  Args:
    kappa: tolerance.
    keep_after_reject: see `token_test`.

  Raises:
    ValueError: if `kappa` is out of range.
  """
  check_kappa(kappa)

  def test(batch, theirs, own, pending) -> Judged:
    del pending
    accepted = couple.accept(
        -softened(theirs, own, kappa),
        noise_lib.log_uniform(batch.keys, noise_lib.ACCEPT, 0), 1.0)
    tokens = jnp.where(accepted[:, None], theirs.mean, own.mean)
    none = jnp.zeros(accepted.shape, jnp.int32)
    bound = 2 / np.e * kappa**2 * jnp.max(jnp.square(own.std), axis=-1)
    return Judged(tokens, accepted, none, none,
                  Errors(jnp.sum(jnp.square(tokens - own.mean), axis=-1), bound))

  return token_test(
      test, "mean squared distance to the target's own token at most (2 / e) kappa^2 s^2, which "
      '`errors.bound` gives', keep_after_reject=keep_after_reject, bounded=True)
