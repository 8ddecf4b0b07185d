"""Speculative sampling of continuous tokens with a draft model, exact by the path test.

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
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import context, couple, path
from cspd_jax.continuous import head as head_lib
from cspd_jax.continuous import random as random_lib
from cspd_jax.continuous import sample as sample_lib
from cspd_jax.continuous import sampling as sampling_lib
from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.base import Condition, Params, Target
from cspd_jax.continuous.path import Path, Shared
from cspd_jax.continuous.result import Generated, empty_result
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.decoding.random import RowKeys, row_keys


class Round(NamedTuple):
  """What a round is about; place `p` is the `p`-th position to be fixed.

  Attributes:
    rows: `[B]` random state.
    place: `[B, T]` place of every position.
    count: `[B]` fixed tokens.
    drafts: `[B]` drafts that count: fewer than `gamma` near the end.
    at: `[B, gamma + 1]` places of the drafts and of the token after them.
    positions: `[B, gamma + 1]` their positions; those past the end repeat the last.
    scale: `[B, gamma + 1]` their guidance scale.
    temperature: a scalar or `[B]`.
  """

  rows: RowKeys
  place: jax.Array
  count: jax.Array
  drafts: jax.Array
  at: jax.Array
  positions: jax.Array
  scale: jax.Array
  temperature: jax.Array

  def batch(self, z: jax.Array, index: jax.Array) -> head_lib.Batch:
    """Tokens number `index` `[B, n]` of the round for the head; `z` `[S, B, n, D]`."""
    pick = lambda leaf: jnp.take_along_axis(leaf, index, axis=1)
    return head_lib.batch(self.rows, z, pick(self.positions), pick(self.scale),
                          self.temperature, jnp.ones(index.shape, bool))


class Drafted(NamedTuple):
  """The draft model's tokens.

  Attributes:
    tokens: `[B, T, C]` the image with the drafts in it.
    z: `[S, B, gamma, D]` what the draft model's transformer returned for them.
    shared: its chains before kernel `split`, leaves `[B, gamma, ...]`.
    path: its paths, leaves `[B, gamma, ...]`.
  """

  tokens: jax.Array
  z: jax.Array
  shared: Shared
  path: Path


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
  """A target and a draft model: `decoder(params, condition, key, draft_params=...)`.

  A pure function of arrays, to be jitted whole. See `exact_path` for the fields; `sigma`
  is for `cspd.cspd_paper`, which adds the paper's factor to the ratio.
  """

  target: Target
  draft: Target
  schedule: Schedule
  length: int
  split: int
  eta: float
  max_trials: int
  sigma: bool
  bonus: bool
  prefix_share: float
  aligned: bool
  guidance: str
  orders: Callable
  distribution: str
  guarantee: str

  def check(self, condition: Condition, sampling: Sampling = Sampling()) -> None:
    """Raises ValueError for a condition or options that cannot work; for concrete values."""
    sampling_lib.check(condition, sampling, self.target, self.draft)

  def __call__(self, params: Params, condition: Condition, key: jax.Array,
               sampling: Sampling = Sampling(), draft_params: Params = None) -> Generated:
    """Generates one image's tokens per row of `condition`; both models read it.

    Args:
      params: the target's parameters.
      condition: what both `transform` take, with leading axis `B`.
      key: one random key, or one per row `[B]`. A row's result depends on its own key
        and condition only.
      sampling: guidance and temperature, of both models; run-time values.
      draft_params: the draft model's parameters.

    Returns:
      A `Generated`.

    Raises:
      ValueError: if `draft_params` is not given, or from `check`.
    """
    if draft_params is None:
      raise ValueError("draft_params is None; it must be the draft model's parameters.")
    if sampling_lib.is_concrete(condition, sampling):
      self.check(condition, sampling)
    size = self.target.num_tokens
    rows = row_keys(key, jax.tree.leaves(condition)[0].shape[0])
    order = self.orders(rows, size)
    place = jnp.argsort(order, axis=1)

    def one_round(carry):
      count, generated = carry
      ahead = self._open(rows, order, place, count, sampling)
      drafted = self._draft(draft_params, condition, ahead, generated.tokens)
      return self._verify(params, draft_params, condition, ahead, drafted, generated)

    first = math.floor(self.prefix_share * size)
    generated = sample_lib.first_tokens(
        self.target, first, self.schedule, self.guidance, last_noise=True).run(
            params, condition, rows, order, sampling, empty_result(self.target, order, size))
    return jax.lax.while_loop(
        lambda carry: jnp.any(carry[0] < size), one_round,
        (jnp.full_like(generated.rounds, first), generated))[1]

  def _open(self, rows, order, place, count, sampling) -> Round:
    size = self.target.num_tokens
    at = count[:, None] + jnp.arange(self.length + 1)
    return Round(
        rows=rows, place=place, count=count,
        drafts=jnp.clip(size - count - self.bonus, 0, self.length), at=at,
        positions=jnp.take_along_axis(order, jnp.minimum(at, size - 1), axis=1),
        scale=sampling_lib.scale(sampling, self.guidance, size, size - 1 - at),
        temperature=sampling.temperature)

  def _draft(self, params, condition, ahead: Round, tokens) -> Drafted:
    """The draft model's own sampler, token by token, with true contexts."""
    draft, schedule = self.draft, self.schedule

    def step(tokens, j):
      index = jnp.full((tokens.shape[0], 1), j)
      visible = ahead.place < (ahead.count + j)[:, None]
      position = jnp.take_along_axis(ahead.positions, index, axis=1)
      z = head_lib.pick(draft.transform(params, condition, tokens, visible), position)
      batch = ahead.batch(z, index)
      shared = path.shared(draft, schedule, params, batch, self.split, self.aligned)
      drawn = path.draw(
          draft, schedule, params, batch, shared.x, self.split, random_lib.DRAFT)
      tokens = _write(tokens, position[:, 0], j < ahead.drafts, drawn.states[:, -1])
      return tokens, (z[:, :, 0], shared, drawn)

    tokens, (z, *chains) = jax.lax.scan(step, tokens, jnp.arange(self.length))
    by_row = lambda leaf: jnp.moveaxis(leaf, 0, 1)
    return Drafted(tokens, jnp.moveaxis(z, 0, 2), *jax.tree.map(by_row, chains))

  def _verify(self, params, draft_params, condition, ahead: Round, drafted: Drafted,
              generated: Generated) -> tuple[jax.Array, Generated]:
    """Scores, walks and commits; returns the new counts and result."""
    target, length, split = self.target, self.length, self.split
    num_rows = ahead.count.shape[0]
    z = context.true_contexts(
        target, params, condition, drafted.tokens, ahead.place, ahead.at, ahead.positions)
    index = jnp.broadcast_to(jnp.arange(length + 1), ahead.at.shape)
    shared = path.shared(target, self.schedule, params, ahead.batch(z, index), split)
    shared = jax.tree.map(
        lambda leaf: leaf.reshape(num_rows, length + 1, *leaf.shape[1:]), shared)
    log_sigma = jnp.zeros(drafted.shared.log_std.shape)
    if self.sigma:  # The paper's equation 4.
      log_sigma = drafted.shared.log_std - shared.log_std[:, :length]

    # Walk.
    flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
    drafts = ahead.batch(z[:, :, :length], index[:, :length])
    log_p = path.score(
        target, self.schedule, params, drafts, flat(shared.x[:, :length]),
        flat(drafted.path.states))
    log_uniform = random_lib.log_uniform(drafts.keys, random_lib.ACCEPT, 0)
    log_ratio = log_p - flat(drafted.path.log_density) + flat(log_sigma)
    passed = couple.accept(log_ratio, log_uniform, self.eta)
    passed = passed.reshape(num_rows, length) & (index[:, :length] < ahead.drafts[:, None])
    accepted = couple.leading(passed)
    active = ahead.count < target.num_tokens
    failed = active & (accepted < ahead.drafts)
    extra = failed | (active & self.bonus)

    # One more token: the residual of the failed draft, or the target's own next one.
    end, trials, missed = self._finish(
        params, draft_params, ahead, drafted, z, shared.x, log_sigma, accepted, failed, extra)
    position = jnp.take_along_axis(ahead.positions, accepted[:, None], axis=1)[:, 0]
    tokens = _write(drafted.tokens, position, extra, end)
    count = ahead.count + jnp.where(active, accepted + extra, 0)

    return count, self._count(
        generated._replace(tokens=tokens), ahead, count, accepted, failed, trials, missed)

  def _count(self, generated, ahead: Round, count, accepted, failed, trials,
             missed) -> Generated:
    """Adds a round to the counts."""
    num_rows, length = ahead.count.shape[0], self.length
    active = count > ahead.count
    index = jnp.arange(length)
    fixed = (ahead.place >= ahead.count[:, None]) & (ahead.place < count[:, None])
    tested = (index <= accepted[:, None]) & (index < ahead.drafts[:, None])
    # Past the end positions repeat, but nothing is tested there.
    add = lambda old, new: old.at[
        jnp.arange(num_rows)[:, None], ahead.positions[:, :length]].add(new.astype(jnp.int32))
    # Head calls: shared kernels, one to score, the path's kernels in every pass.
    above, own = self.schedule.num_levels - 1 - self.split, self.split + 1
    contexts = ahead.drafts + (active & self.bonus)
    passes = -(-trials // couple.TRIALS_PER_PASS)
    calls = jnp.where(active, above + (ahead.drafts > 0) + passes * own, 0)
    states = contexts * above + (ahead.drafts + passes * couple.TRIALS_PER_PASS) * own
    return generated._replace(
        round_of_token=jnp.where(fixed, generated.rounds[:, None], generated.round_of_token),
        rounds=generated.rounds + active,
        target_passes=generated.target_passes + contexts,
        draft_passes=generated.draft_passes + ahead.drafts,
        head_calls=generated.head_calls.at[jnp.arange(num_rows), generated.rounds].add(
            calls, mode='drop'),
        head_rows=generated.head_rows + self.target.num_streams * states,
        draft_head_calls=generated.draft_head_calls + (
            ahead.drafts * self.schedule.num_levels + jnp.where(failed, passes, 0)),
        tested=add(generated.tested, tested),
        accepted=add(generated.accepted, index < accepted[:, None]),
        trials=generated.trials + jnp.where(failed, trials, 0),
        missed=generated.missed + (failed & missed))

  def _finish(self, params, draft_params, ahead: Round, drafted: Drafted, z, x, log_sigma,
              accepted, failed, extra):
    """The token after the accepted drafts `[B, C]`; number of proposals and misses `[B]`."""
    num = couple.TRIALS_PER_PASS
    # Rows without a failed draft look at some draft; their proposals are taken as they are.
    draft_index = jnp.minimum(accepted, self.length - 1)[:, None]
    own = path.repeat(ahead.batch(_at(z, accepted[:, None]), accepted[:, None]), num)
    other = path.repeat(ahead.batch(_at(drafted.z, draft_index), draft_index), num)
    x_own = jnp.repeat(_at(x[None], accepted[:, None])[0, :, 0], num, axis=0)
    x_other = jnp.repeat(_at(drafted.shared.x[None], draft_index)[0, :, 0], num, axis=0)
    log_sigma = jnp.repeat(jnp.take_along_axis(log_sigma, draft_index, axis=1)[:, 0], num)

    def propose(trials):
      trial = jnp.tile(trials, accepted.shape[0])
      drawn = path.draw(self.target, self.schedule, params, own, x_own, self.split,
                        random_lib.PROPOSE, trial)
      log_q = path.score(
          self.draft, self.schedule, draft_params, other, x_other, drawn.states)
      log_ratio = jnp.where(
          jnp.repeat(failed, num), drawn.log_density - log_q + log_sigma, jnp.inf)
      log_uniform = random_lib.log_uniform(own.keys, random_lib.RESIDUAL, 0, trial)
      rows = lambda leaf: leaf.reshape(-1, num, *leaf.shape[1:])
      return rows(drawn.states[:, -1]), rows(log_ratio), rows(log_uniform)

    return couple.residual(propose, extra, self.eta, self.max_trials)


def exact_path(target: Target, draft: Target, length: int = 2, schedule: Schedule | None = None,
               *, split: int | None = None, eta: float = 0.95,
               max_trials: int = couple.DEFAULT_TRIALS, bonus: bool = True,
               prefix_share: float = 0.0, aligned: bool = True, num_iter: int | None = None,
               guidance: str = 'linear', orders: Callable = random_lib.random_orders) -> Decoder:
  """Speculative sampling with a draft model, one token per autoregressive step.

  Args:
    target: the model whose distribution is sampled: that of `mar` with `last_noise`.
    draft: the draft model; it has the same tokens and reads the same condition.
    length: `gamma`, drafts per round.
    schedule: the levels of both heads; 100 by default.
    split: first kernel of the tested path, a fifth of the way up by default. Above it the
      noise is shared. Low values accept less; high ones suffer where heads disagree at
      the first kernels, which magnify errors most. The distribution is the same for all.
    eta: see `couple`.
    max_trials: proposals per residual draw at most; see `couple`.
    bonus: whether a round with all drafts accepted adds a token of the target. Without,
      every token goes through the same draft and test whatever `length` is, so the images
      of a key do not depend on it.
    prefix_share: share of the tokens that the target fixes alone.
    aligned: whether the draft model uses the target's noise above `split`.
    num_iter: must be the number of tokens, one per step.
    guidance: as for `mar`.
    orders: as for `mar`.

  Raises:
    ValueError: for options out of range or models that do not fit together.
  """
  schedule = schedule_lib.make() if schedule is None else schedule
  split = schedule.num_levels // 5 if split is None else split
  check_pair(target, draft)
  check_num_iter(target, num_iter)
  schedule_lib.check_length(length, target.num_tokens)
  schedule_lib.check_prefix_share(prefix_share)
  if not 0 <= split < schedule.num_levels:
    raise ValueError(f'split is {split}; it must be from 0 to the last of the '
                     f'{schedule.num_levels} levels, {schedule.num_levels - 1}.')
  couple.check_eta(eta)
  couple.check_max_trials(max_trials)
  sampling_lib.check_guidance(guidance)
  return Decoder(
      target, draft, schedule, length, split, eta, max_trials, False, bonus, prefix_share, aligned,
      guidance, orders,
      f'masked generation in {target.num_tokens} steps, last kernel with noise',
      couple.guarantee(eta, max_trials))


def check_num_iter(target: Target, num_iter: int | None) -> None:
  """Raises ValueError unless it is None or one step per token."""
  if num_iter not in (None, target.num_tokens):
    raise ValueError(f'num_iter is {num_iter}; drafts come one per step, so it must be the number '
                     f'of tokens, {target.num_tokens}.')


def check_pair(target: Target, draft: Target) -> None:
  """Raises ValueError if the two models' tokens or guidance streams differ.

  Schedules cannot differ: a decoder runs both heads on its own.
  """
  for name, words in (('num_tokens', 'tokens per image'), ('token_dim', 'numbers per token'),
                      ('num_streams', 'guidance streams')):
    ours, theirs = getattr(target, name), getattr(draft, name)
    if ours != theirs:
      raise ValueError(f'draft has {theirs} {words}, the target {ours}; they must be equal.')


def _at(leaf, index):
  """`[S, B, n, D]` entries `index` `[B, n]` of `leaf` `[S, B, m, D]`."""
  return jnp.take_along_axis(leaf, index[None, :, :, None], axis=2)


def _write(tokens, position, wanted, value):
  """`tokens` `[B, T, C]` with `value` `[B, C]` at `position` `[B]` where `wanted` `[B]`."""
  position = jnp.where(wanted, position, tokens.shape[1])
  return tokens.at[jnp.arange(tokens.shape[0]), position].set(value, mode='drop')
