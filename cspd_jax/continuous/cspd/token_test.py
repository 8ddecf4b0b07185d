"""Acceptance token by token, by what both models would emit under the same noise.

This is the control flow of CSpD's released code: drafts are verified in whole blocks. The target
decodes the first tokens alone (the prefix). Then the draft model decodes token by token, and at
every step whose number is divisible by `gamma`, and at the last, one pass of the target verifies
all tokens since the last verification. That pass does not see the drafts: it scores the target's
parallel distribution of the block. Every draft is accepted or replaced separately, none is
discarded, so the number of passes, and with it the speed, does not depend on acceptance. With a
valid test the distribution would be that of `parallel`, which needs no draft model; the tests here
are not valid. Two options change this: true contexts, and an end of the round at the
first rejection.

Tests compare the means of the two heads at kernel 0, the tokens that each would emit under the
shared noise of the position.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import coupling, head as head_lib, noise as noise_lib
from cspd_jax.continuous.base import Cost, Draft, Env, Params, Target, Verdict, Verifier
from cspd_jax.continuous.path import denoising_path as path_lib
from cspd_jax.continuous.result import Errors
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import Span, TokenBatch


class LastKernel(NamedTuple):
  """The last kernel of a model's chains, leaves `[N, ...]` or `[B, W, ...]`.

  Attributes:
    mean: `[..., C]` mean of kernel 0: the token that the model would emit.
    std: `[..., C]` standard deviation of kernel 0.
    log_std: `[...]` sum of the logarithms of the standard deviations of all kernels above.
  """

  mean: jax.Array
  std: jax.Array
  log_std: jax.Array


class TokenVerdict(NamedTuple):
  """A test's decisions about drafts.

  Attributes:
    tokens: `[N, C]` the drafts, or the tokens that replace them.
    accepted: `[N]` bool.
    trials: `[N]` int32.
    missed: `[N]` bool or int32.
    errors: leaves `[N]`; None if the test has no bound.
  """

  tokens: jax.Array
  accepted: jax.Array
  trials: jax.Array
  missed: jax.Array
  errors: Errors | None = None


# `(batch [N], draft model's last kernel, target's last kernel, pending [N]) -> TokenVerdict`:
# accepts or replaces drafts; the result is ignored for those that are not pending.
TokenTest = Callable[[TokenBatch, LastKernel, LastKernel, jax.Array], TokenVerdict]


def last_kernel(target: Target, schedule: Schedule, params: Params, batch: TokenBatch,
                aligned: bool = True) -> LastKernel:
  """Runs the whole chain, `num_levels` head calls; `aligned` as for `denoising_path.start`."""
  batch = head_lib.modulated(target, schedule, params, batch)
  start = path_lib.start(target, schedule, params, batch, 0, aligned)
  level = jnp.zeros(start.log_std.shape, jnp.int32)
  k = head_lib.kernel(target, schedule, params, batch, start.x, level)
  return LastKernel(k.mean, k.std, start.log_std)


def token_test(test: TokenTest, guarantee: str, *, keep_after_reject: bool = True,
               bounded: bool = False) -> Verifier:
  """Returns a verifier that accepts or replaces every draft separately.

  Args:
    test: decides about the drafts.
    guarantee: how close the samples are to the distribution, in words.
    keep_after_reject: whether drafts after a replaced one are accepted if they pass their own test;
      else the round ends there, and the next one drafts the rest of the block again.
    bounded: whether the test has a bound on its error.
  """
  def sample_draft(model: Target, schedule: Schedule, params: Params, batch: TokenBatch,
                   aligned: bool) -> tuple[jax.Array, LastKernel]:
    kernel = last_kernel(model, schedule, params, batch, aligned)
    return kernel.mean, kernel

  def verify(env: Env, span: Span, draft: Draft | None, z: jax.Array) -> Verdict:
    assert draft is not None, 'make_decoder requires a drafter'
    batch = span.batch(z)
    of_draft = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draft.record)
    of_target = last_kernel(env.target, env.schedule, env.params, batch)
    tested = test(batch, of_draft, of_target, batch.active)
    tested = jax.tree.map(lambda leaf: leaf.reshape(*span.ranks.shape, *leaf.shape[1:]), tested)
    length, levels = span.size, env.schedule.num_levels
    if not keep_after_reject:
      length = jnp.minimum(length, coupling.accepted_length(tested.accepted) + 1)
    committed = jnp.arange(span.ranks.shape[1]) < length[:, None]
    total = lambda leaf: jnp.sum(jnp.where(committed, leaf, 0), axis=1)
    return Verdict(
        tokens=tested.tokens, length=length, tested=committed, accepted=tested.accepted,
        trials=total(tested.trials), missed=total(tested.missed),
        cost=Cost(head_calls=jnp.where(span.active, levels, 0),
                  head_rows=env.target.num_streams * levels * span.size,
                  draft_head_calls=levels * span.size),
        errors=tested.errors)

  return Verifier(verify, sample_draft, guarantee, commits_all=keep_after_reject, bounded=bounded)


def half_squared_distance(draft: LastKernel, target: LastKernel, kappa: float) -> jax.Array:
  """Returns half the squared distance `[N]` of two tokens, in units of `kappa` deviations."""
  return 0.5 * jnp.sum(jnp.square((draft.mean - target.mean) / (kappa * target.std)), axis=-1)


def check_kappa(kappa: float) -> None:
  """Raises ValueError unless the tolerance is finite and above 0."""
  if not (np.isfinite(kappa) and kappa > 0):
    raise ValueError(f'kappa is {kappa}; it must be finite and above 0.')


def relaxed(kappa: float, keep_after_reject: bool = True) -> Verifier:
  """Accepts a draft that is close to the target's own token, else emits that token.

  A draft at the distance `d`, in units of the last kernel's standard deviation `s`, is accepted
  with probability `exp(-d^2 / (2 kappa^2))`; so the expected squared distance is at most
  `(2 / e) kappa^2 s^2`.

  Args:
    kappa: tolerance.
    keep_after_reject: whether drafts after a replaced one are accepted if they pass their own test;
      else the round ends there, and the next one drafts the rest of the block again.

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


SIGMA = ('off', 'paper', 'inverted')


def released(kappa: float, sigma: str, max_trials: int, zero_fallback: bool) -> Verifier:
  """Returns a verifier with the test of the released code.

  Args:
    kappa: multiplies both models' standard deviations in the test, but not in the residual.
    sigma: 'inverted' as released, 'paper', or 'off'.
    max_trials: the largest number of proposals for a rejected token.
    zero_fallback: whether a token becomes zero when all proposals fail; else it becomes the
      target's own token.

  Raises:
    ValueError: for options out of range.
  """
  return token_test(
      released_test(kappa, sigma, max_trials, zero_fallback),
      'none: behaves as the released code, which preserves no distribution')


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
