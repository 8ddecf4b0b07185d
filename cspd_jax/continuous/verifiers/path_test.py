"""Acceptance by the path test: exact speculative sampling with a draft model.

A round, for a row with `n` tokens fixed:

    draft   `gamma` more tokens by the draft model, one after the other
    score   the target on the `gamma + 1` contexts, side by side, and its head on the
            drafts' paths: the log density ratio of every draft
    walk    accept drafts until one fails
    commit  the accepted drafts and one more token: the residual of the failed one, or
            the target's own next token

The ratio is that of the whole path of kernels `split .. 0`, not of the last kernel
alone: that one is so narrow (a standard deviation of 0.006) that two models never agree
on it. Noise above `split` is shared by position: it makes the two models' states before
`split` alike and drops out of the ratio, because both see the same noise with the same
density. This is the test of CSpD (arXiv 2411.11925, equations 1 to 5) without its factor
Sigma, which compares densities at two different points and is not exact; `split = 0` is
its test of the last kernel.

In a masked bidirectional model a new token changes every hidden state, so true contexts
take a forward pass each: at large batch this decoder is slower than the target alone.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import couple, noise as noise_lib, path
from cspd_jax.continuous.parts import Cost, Draft, Env, Verdict, Verifier
from cspd_jax.continuous.path import Path, Shared
from cspd_jax.continuous.span import Span

DEFAULT_ETA = 0.95


class Drafted(NamedTuple):
  """What is recorded of drafts.

  Attributes:
    z: `[N, S, D]` what the draft model's transformer returned for them.
    shared: its chains before kernel `split`, leaves `[N, ...]`.
    path: its paths, leaves `[N, ...]`.
  """

  z: jax.Array
  shared: Shared
  path: Path


def path_test(split: int, eta: float = DEFAULT_ETA, max_trials: int = couple.DEFAULT_TRIALS,
              bonus: bool = True, sigma: bool = False) -> Verifier:
  """Accepts drafts up to the first whose path fails, and replaces that one.

  Args:
    split: first kernel of the tested path; above it the noise is shared.
    eta: see `couple`.
    max_trials: proposals per residual draw at most; see `couple`.
    bonus: whether a round with all drafts accepted adds a token of the target.
    sigma: whether the ratio has the paper's factor Sigma (its equation 4). The tokens then
      follow the distribution only where both models have the same variances.

  Raises:
    ValueError: for options out of range.
  """
  couple.check_eta(eta)
  couple.check_max_trials(max_trials)
  test = _PathTest(split, eta, max_trials, bonus, sigma)
  guarantee = couple.guarantee(eta, max_trials)
  exact_where = 'where both models have the same variances' if sigma else ''
  if sigma:
    guarantee = ('biased where the models have different learned variances; elsewhere '
                 f'{guarantee}')
  return Verifier(test.judge, test.record, guarantee, bonus=int(bonus), context='true',
              exact=not sigma, exact_where=exact_where)


@dataclasses.dataclass(frozen=True)
class _PathTest:
  """The options of `path_test`, with its two functions."""

  split: int
  eta: float
  max_trials: int
  bonus: bool
  sigma: bool

  def record(self, model, schedule, params, batch, aligned) -> tuple[jax.Array, Drafted]:
    """See `Verifier.record`."""
    shared = path.shared(model, schedule, params, batch, self.split, aligned)
    drawn = path.draw(model, schedule, params, batch, shared.x, self.split, noise_lib.DRAFT)
    return drawn.states[:, -1], Drafted(batch.z.swapaxes(0, 1), shared, drawn)

  def judge(self, env: Env, span: Span, draft: Draft, z: jax.Array) -> Verdict:
    """Scores and walks; see `Verifier.judge`."""
    drafted, drafts = draft.record, span.drafts(self.bonus)
    num_rows, width = span.at.shape
    length = width - self.bonus
    shared = path.shared(env.target, env.schedule, env.params, span.batch(z), self.split)
    shared = jax.tree.map(lambda leaf: leaf.reshape(num_rows, width, *leaf.shape[1:]), shared)
    log_sigma = jnp.zeros(drafted.shared.log_std.shape)
    if self.sigma:
      log_sigma = drafted.shared.log_std - shared.log_std[:, :length]

    flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
    index = jnp.broadcast_to(jnp.arange(length), (num_rows, length))
    batch = span.pick(index).batch(z[:, :, :length])
    log_p = path.score(env.target, env.schedule, env.params, batch,
                       flat(shared.x[:, :length]), flat(drafted.path.states))
    log_uniform = noise_lib.log_uniform(batch.keys, noise_lib.ACCEPT, 0)
    log_ratio = log_p - flat(drafted.path.log_density) + flat(log_sigma)
    passed = couple.accept(log_ratio, log_uniform, self.eta)
    passed = passed.reshape(num_rows, length) & (index < drafts[:, None])
    accepted = couple.leading(passed)
    failed = span.active & (accepted < drafts)
    extra = failed | (span.active & self.bonus)

    # One more token: the residual of the failed draft, or the target's own next one.
    end, trials, missed = self._finish(
        env, span, drafted, z, shared.x, log_sigma, accepted, failed, extra)
    tokens = jnp.pad(drafted.path.states[:, :, -1], [(0, 0), (0, width - length), (0, 0)])
    is_end = jnp.arange(width) == accepted[:, None]
    return Verdict(
        tokens=jnp.where(is_end[..., None], end[:, None], tokens),
        length=jnp.where(span.active, accepted + extra, 0),
        tested=_pad((index <= accepted[:, None]) & (index < drafts[:, None]), width),
        accepted=_pad(index < accepted[:, None], width),
        trials=jnp.where(failed, trials, 0), missed=(failed & missed).astype(jnp.int32),
        cost=self._cost(env, span, drafts, failed, trials))

  def _finish(self, env: Env, span: Span, drafted: Drafted, z, x, log_sigma, accepted, failed,
              extra):
    """The token after the accepted drafts `[B, C]`; number of proposals and misses `[B]`."""
    num, last = couple.TRIALS_PER_PASS, span.at.shape[1] - 1
    # Rows without a failed draft look at some draft; their proposals are taken as they are.
    own_index = jnp.minimum(accepted, last)[:, None]
    draft_index = jnp.minimum(accepted, last - self.bonus)[:, None]
    at = lambda leaf, index: jnp.take_along_axis(
        leaf, index.reshape(-1, 1, *(1,) * (leaf.ndim - 2)), axis=1)
    z_own = jnp.take_along_axis(z, own_index[None, :, :, None], axis=2)
    z_other = jnp.moveaxis(at(drafted.z, draft_index), 2, 0)
    own = path.repeat(span.pick(own_index).batch(z_own), num)
    other = path.repeat(span.pick(draft_index).batch(z_other), num)
    x_own = jnp.repeat(at(x, own_index)[:, 0], num, axis=0)
    x_other = jnp.repeat(at(drafted.shared.x, draft_index)[:, 0], num, axis=0)
    log_sigma = jnp.repeat(at(log_sigma, draft_index)[:, 0], num)

    def propose(trials):
      trial = jnp.tile(trials, accepted.shape[0])
      drawn = path.draw(env.target, env.schedule, env.params, own, x_own, self.split,
                        noise_lib.PROPOSE, trial)
      log_q = path.score(
          env.draft, env.schedule, env.draft_params, other, x_other, drawn.states)
      log_ratio = jnp.where(
          jnp.repeat(failed, num), drawn.log_density - log_q + log_sigma, jnp.inf)
      log_uniform = noise_lib.log_uniform(own.keys, noise_lib.RESIDUAL, 0, trial)
      rows = lambda leaf: leaf.reshape(-1, num, *leaf.shape[1:])
      return rows(drawn.states[:, -1]), rows(log_ratio), rows(log_uniform)

    return couple.residual(propose, extra, self.eta, self.max_trials)

  def _cost(self, env: Env, span: Span, drafts, failed, trials) -> Cost:
    """Head calls: shared kernels, one to score, the path's kernels in every pass."""
    above, own = env.schedule.num_levels - 1 - self.split, self.split + 1
    passes = -(-trials // couple.TRIALS_PER_PASS)
    states = span.size * above + (drafts + passes * couple.TRIALS_PER_PASS) * own
    return Cost(
        head_calls=jnp.where(span.active, above + (drafts > 0) + passes * own, 0),
        head_rows=env.target.num_streams * states,
        draft_head_calls=drafts * env.schedule.num_levels + jnp.where(failed, passes, 0))


def _pad(leaf: jax.Array, width: int) -> jax.Array:
  """`[B, width]` with False where `leaf` `[B, n]` ends."""
  return jnp.pad(leaf, [(0, 0), (0, width - leaf.shape[1])])
