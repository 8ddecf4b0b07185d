"""Acceptance token by token, by what both models would emit under the same noise.

This is the control flow of CSpD's released code: drafts are verified in whole blocks. The target
decodes the first tokens alone (the prefix). Then the draft model decodes token by token, and at
every step whose number is divisible by `gamma`, and at the last, one pass of the target verifies
all tokens since the last verification. That pass does not see the drafts: it scores the target's
parallel distribution of the block. Every draft is accepted or replaced separately, none is
discarded, so the number of passes, and with it the speed, does not depend on acceptance. With a
valid test the distribution would be that of `parallel`, which needs no draft model; the tests here
are not valid, see `cspd`. Two options change this: true contexts, and an end of the round at the
first rejection.

Tests compare the means of the two heads at kernel 0, the tokens that each would emit under the
shared noise of the position.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import coupling, denoising_path as path_lib, head as head_lib
from cspd_jax.continuous.base import Cost, Draft, Env, Params, Target, Verdict, Verifier
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
  """A test's decisions about drafts; see `base.Verdict`.

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
    guarantee: see `Verifier.guarantee`.
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
