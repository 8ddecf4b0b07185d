"""Acceptance token by token, by what both models would emit under the same noise.

This is the control flow of CSpD's released code: drafts are verified in whole blocks.
The target fixes the first tokens alone (the prefix). Then the draft model goes on token
by token, and at every step number divisible by `gamma`, and at the last, one pass of the
target verifies all tokens since the last verification. That pass does not see the
drafts: it is the target's parallel distribution of the block. Every draft is kept or replaced by
itself, none is discarded, so the number of passes, and with it the speed, does not
depend on acceptance. With a valid test the distribution would be that of `parallel`,
which needs no draft model; the tests here are not valid, see `cspd`. Either can be had
the other way: true contexts, and an end at the first rejection.

Tests look at the two heads' means at kernel 0, the tokens that each would emit under the
shared noise of the position.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import couple, head as head_lib, path
from cspd_jax.continuous.base import Params, Target
from cspd_jax.continuous.head import Batch
from cspd_jax.continuous.parts import Cost, Draft, Env, Verdict, Verifier
from cspd_jax.continuous.result import Errors
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import Span


class Ends(NamedTuple):
  """How a model's chains end, leaves `[N, ...]` or `[B, W, ...]`.

  Attributes:
    mean: `[..., C]` mean of kernel 0: the token it would emit.
    std: `[..., C]` standard deviation of kernel 0.
    log_std: `[...]` sum of the logarithms of the standard deviations of all kernels above.
  """

  mean: jax.Array
  std: jax.Array
  log_std: jax.Array


class Judged(NamedTuple):
  """What became of drafts; see `result`.

  Attributes:
    tokens: `[N, C]` kept or replaced.
    accepted: `[N]` bool.
    trials: `[N]` int32.
    missed: `[N]` bool or int32.
    errors: leaves `[N]`, or None if there is no bound.
  """

  tokens: jax.Array
  accepted: jax.Array
  trials: jax.Array
  missed: jax.Array
  errors: Errors | None = None


# `(Batch [N], draft's Ends, target's Ends, pending [N]) -> Judged`: keeps or replaces drafts;
# those that are not pending do not matter.
Test = Callable[[Batch, Ends, Ends, jax.Array], Judged]


def ends(target: Target, schedule: Schedule, params: Params, batch: Batch,
         aligned: bool = True) -> Ends:
  """Runs the whole chain, `num_levels` head calls; `aligned` as for `path.shared`."""
  batch = head_lib.modulated(target, schedule, params, batch)
  shared = path.shared(target, schedule, params, batch, 0, aligned)
  level = jnp.zeros(shared.log_std.shape, jnp.int32)
  k = head_lib.kernel(target, schedule, params, batch, shared.x, level)
  return Ends(k.mean, k.std, shared.log_std)


def token_test(test: Test, guarantee: str, *, keep_after_reject: bool = True,
               bounded: bool = False) -> Verifier:
  """Keeps or replaces every draft by itself.

  Args:
    test: what decides.
    guarantee: see `Verifier.guarantee`.
    keep_after_reject: whether drafts after a replaced one are kept where their own test
      says so; else the round ends there, and the block is drafted anew from there.
    bounded: whether the test has a bound on its error.
  """
  def record(model, schedule, params, batch, aligned) -> tuple[jax.Array, Ends]:
    end = ends(model, schedule, params, batch, aligned)
    return end.mean, end

  def judge(env: Env, span: Span, draft: Draft, z: jax.Array) -> Verdict:
    batch = span.batch(z)
    theirs = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draft.record)
    own = ends(env.target, env.schedule, env.params, batch)
    tested = test(batch, theirs, own, batch.active)
    tested = jax.tree.map(lambda leaf: leaf.reshape(*span.at.shape, *leaf.shape[1:]), tested)
    length, levels = span.size, env.schedule.num_levels
    if not keep_after_reject:
      length = jnp.minimum(length, couple.leading(tested.accepted) + 1)
    done = jnp.arange(span.at.shape[1]) < length[:, None]
    total = lambda leaf: jnp.sum(jnp.where(done, leaf, 0), axis=1)
    return Verdict(
        tokens=tested.tokens, length=length, tested=done, accepted=tested.accepted,
        trials=total(tested.trials), missed=total(tested.missed),
        cost=Cost(head_calls=jnp.where(span.active, levels, 0),
                  head_rows=env.target.num_streams * levels * span.size,
                  draft_head_calls=levels * span.size),
        errors=tested.errors)

  return Verifier(judge, record, guarantee, whole=keep_after_reject, bounded=bounded)


def softened(theirs: Ends, own: Ends, kappa: float) -> jax.Array:
  """Returns half the squared distance `[N]` of the two tokens, in units of `kappa` deviations."""
  return 0.5 * jnp.sum(jnp.square((theirs.mean - own.mean) / (kappa * own.std)), axis=-1)


def check_kappa(kappa: float) -> None:
  """Raises ValueError unless the tolerance is finite and above 0."""
  if not (np.isfinite(kappa) and kappa > 0):
    raise ValueError(f'kappa is {kappa}; it must be finite and above 0.')
