"""The control flow of CSpD's released code: drafts are verified in whole blocks.

The target fixes the first tokens alone (the prefix). Then the draft model goes on token
by token, and at every step number divisible by `gamma`, and at the last, one pass of the
target verifies all tokens since the last verification. That pass does not see the
drafts: it is the target's parallel distribution of the block. Every draft is kept or replaced by
itself, none is discarded, so the number of passes, and with it the speed, does not
depend on acceptance. With a valid test the distribution would be that of `sample.parallel`,
which needs no draft model; the tests here are not valid, see `cspd`. Either can be had
the other way: true contexts, and an end at the first rejection.

Tests look at the two heads' means at kernel 0, the tokens that each would emit under the
shared noise of the position.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import context
from cspd_jax.continuous import couple
from cspd_jax.continuous import head as head_lib
from cspd_jax.continuous import path
from cspd_jax.continuous import sample as sample_lib
from cspd_jax.continuous import sampling as sampling_lib
from cspd_jax.continuous.base import Condition, Params, Target
from cspd_jax.continuous.head import Batch
from cspd_jax.continuous.result import Generated, empty_result
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.core.random import RowKeys, row_keys


class Ends(NamedTuple):
  """How a model's chains end, leaves `[N, ...]` or `[B, T, ...]` by place in the order.

  Attributes:
    mean: `[..., C]` mean of kernel 0: the token it would emit.
    std: `[..., C]` standard deviation of kernel 0.
    log_std: `[...]` sum of the logarithms of the standard deviations of all kernels above.
  """

  mean: jax.Array
  std: jax.Array
  log_std: jax.Array


class Verdict(NamedTuple):
  """What became of drafts; see `result.Generated`.

  Attributes:
    tokens: `[N, C]` kept or replaced.
    accepted: `[N]` bool.
    trials: `[N]` int32.
    missed: `[N]` bool or int32.
    error: `[N]`, or None if there is no bound.
    error_bound: `[N]`, or None.
  """

  tokens: jax.Array
  accepted: jax.Array
  trials: jax.Array
  missed: jax.Array
  error: jax.Array | None = None
  error_bound: jax.Array | None = None


# `(Batch [N], draft's Ends, target's Ends, pending [N]) -> Verdict`.
Rule = Callable[[Batch, Ends, Ends, jax.Array], Verdict]


def ends(target: Target, schedule: Schedule, params: Params, batch: Batch,
         aligned: bool = True) -> Ends:
  """Runs the whole chain, `num_levels` head calls; `aligned` as for `path.shared`."""
  batch = head_lib.modulated(target, schedule, params, batch)
  shared = path.shared(target, schedule, params, batch, 0, aligned)
  level = jnp.zeros(shared.log_std.shape, jnp.int32)
  k = head_lib.kernel(target, schedule, params, batch, shared.x, level)
  return Ends(k.mean, k.std, shared.log_std)


class Round(NamedTuple):
  """What a round is about; place `p` is the `p`-th position to be fixed.

  Attributes:
    rows: `[B]` random state.
    place: `[B, T]` place of every position.
    count: `[B]` fixed tokens.
    stop: `[B]` place where the round's block ends; `count` for rows that are complete.
    at: `[B, width]` places of the drafts.
    positions: `[B, width]` their positions; those past the end repeat the last.
    draft_scale: `[B, width]` their guidance scale when drafted,
    scale: `[B, width]` and when verified.
    temperature: a scalar or `[B]`.
  """

  rows: RowKeys
  place: jax.Array
  count: jax.Array
  stop: jax.Array
  at: jax.Array
  positions: jax.Array
  draft_scale: jax.Array
  scale: jax.Array
  temperature: jax.Array

  @property
  def wanted(self) -> jax.Array:
    """`[B, width]` which drafts there are."""
    return self.at < self.stop[:, None]

  def batch(self, z: jax.Array, scale: jax.Array) -> Batch:
    """All drafts for the head; `z` is `[S, B, width, D]` and `scale` `[B, width]`."""
    return head_lib.batch(
        self.rows, z, self.positions, scale, self.temperature, self.wanted)


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
  """Block verification: `decoder(params, condition, key, draft_params=...)`.

  A pure function of arrays, to be jitted whole.

  Attributes:
    target: verifies.
    draft: the draft model.
    schedule: the levels of both heads.
    blocks: `schedule.blocks`.
    rule: keeps or replaces drafts.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`.
    guidance_of_last: whether a block is verified with the guidance scale of its last token,
      as `sample.parallel` has it; else every token has that of its own place.
    drafts_alike: whether drafts are made with the scale that they are verified with; else each
      has that of its own place.
    block_context: whether verification sees only the tokens before the block; else it
      sees the drafts before each draft, which takes a pass of the target per draft.
    keep_after_reject: whether drafts after a replaced one are kept where their own test
      says so; else the round ends there, and the block is drafted anew from there.
    bounded: whether the rule has a bound on its error.
    aligned: whether the draft model uses the target's noise.
    orders: as for `sample.Decoder`.
    distribution: what the samples come near to, in words.
    guarantee: how near, in words.
  """

  target: Target
  draft: Target
  schedule: Schedule
  blocks: tuple[tuple[int, int], ...]
  rule: Rule
  guidance: str
  guidance_of_last: bool
  drafts_alike: bool
  block_context: bool
  keep_after_reject: bool
  bounded: bool
  aligned: bool
  orders: Callable
  distribution: str
  guarantee: str

  def check(self, condition: Condition, sampling: Sampling = Sampling()) -> None:
    """Raises ValueError for a condition or options that cannot work; for concrete values."""
    sampling_lib.check(condition, sampling, self.target, self.draft)

  def __call__(self, params: Params, condition: Condition, key: jax.Array,
               sampling: Sampling = Sampling(), draft_params: Params = None) -> Generated:
    """Generates one image's tokens per row; arguments and result as for `exact_path`.

    A round of the result is one token of the prefix, or a block.
    """
    if draft_params is None:
      raise ValueError("draft_params is None; it must be the draft model's parameters.")
    if sampling_lib.is_concrete(condition, sampling):
      self.check(condition, sampling)
    size, num_rows = self.target.num_tokens, jax.tree.leaves(condition)[0].shape[0]
    rows = row_keys(key, num_rows)
    order = self.orders(rows, size)
    place = jnp.argsort(order, axis=1)
    (_, prefix), *verified = self.blocks
    rounds = prefix + (len(verified) if self.keep_after_reject else size - prefix)

    def block_step(carry):
      count, generated = carry
      ahead = self._open(rows, order, place, count, stops, width, sampling)
      tokens, theirs = self._draft(draft_params, condition, ahead, generated.tokens)
      z = self._contexts(params, condition, ahead, tokens)
      batch = ahead.batch(z, ahead.scale)
      own = ends(self.target, self.schedule, params, batch)
      flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
      verdict = self.rule(batch, jax.tree.map(flat, theirs), own, batch.active)
      verdict = jax.tree.map(
          lambda leaf: leaf.reshape(num_rows, width, *leaf.shape[1:]), verdict)
      count = ahead.stop
      if not self.keep_after_reject:
        count = jnp.minimum(count, ahead.count + couple.leading(verdict.accepted) + 1)
      return count, self._count(generated, ahead, count, verdict)

    generated = sample_lib.first_tokens(
        self.target, prefix, self.schedule, self.guidance, last_noise=False).run(
            params, condition, rows, order, sampling,
            empty_result(self.target, order, rounds, bounded=self.bounded))
    if verified:
      stops = jnp.array([stop for _, stop in verified], jnp.int32)
      width = max(stop - first for first, stop in verified)
      _, generated = jax.lax.while_loop(
          lambda carry: jnp.any(carry[0] < size), block_step,
          (jnp.full((num_rows,), prefix, jnp.int32), generated))
    return generated

  def _open(self, rows, order, place, count, stops, width, sampling) -> Round:
    size = self.target.num_tokens
    stop = jnp.append(stops, size)[jnp.sum(count[:, None] >= stops, axis=1)]
    at = count[:, None] + jnp.arange(width)
    scale = functools.partial(sampling_lib.scale, sampling, self.guidance, size)
    own, last = scale(size - 1 - at), scale(jnp.broadcast_to(size - stop[:, None], at.shape))
    verified = last if self.guidance_of_last else own
    return Round(
        rows=rows, place=place, count=count, stop=stop, at=at,
        positions=jnp.take_along_axis(order, jnp.minimum(at, size - 1), axis=1),
        draft_scale=verified if self.drafts_alike else own, scale=verified,
        temperature=sampling.temperature)

  def _draft(self, params, condition, ahead: Round, tokens):
    """The draft model's own sampler, token by token; the image and `Ends` `[B, width]`."""
    draft, num_rows = self.draft, tokens.shape[0]

    def step(j, carry):
      tokens, drafted = carry
      z = draft.transform(params, condition, tokens, ahead.place < ahead.count[:, None] + j)
      column = lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, j, 1, axis=1)
      position = column(ahead.positions)
      end = ends(draft, self.schedule, params, head_lib.batch(
          ahead.rows, head_lib.pick(z, position), position, column(ahead.draft_scale),
          ahead.temperature, column(ahead.wanted)), self.aligned)
      target_position = jnp.where(column(ahead.wanted), position, tokens.shape[1])[:, 0]
      tokens = tokens.at[jnp.arange(num_rows), target_position].set(end.mean, mode='drop')
      return tokens, jax.tree.map(lambda old, new: old.at[:, j].set(new), drafted, end)

    zeros = jnp.zeros((*ahead.at.shape, tokens.shape[-1]), jnp.float32)
    # Standard deviations of 1 where there is no draft, so that no density is infinite.
    return jax.lax.fori_loop(
        0, jnp.max(ahead.stop - ahead.count), step,
        (tokens, Ends(zeros, zeros + 1, zeros[..., 0])))

  def _contexts(self, params, condition, ahead: Round, tokens):
    """`[S, B, width, D]`: what the target's transformer returns for the drafts."""
    if self.block_context:
      z = self.target.transform(params, condition, tokens, ahead.place < ahead.count[:, None])
      return head_lib.pick(z, ahead.positions)
    return context.true_contexts(
        self.target, params, condition, tokens, ahead.place, ahead.at, ahead.positions)

  def _count(self, generated: Generated, ahead: Round, count, verdict: Verdict) -> Generated:
    """The result after a round that fixed tokens up to `count`; `verdict` is `[B, width]`."""
    size, levels = self.target.num_tokens, self.schedule.num_levels
    by_row = jnp.arange(count.shape[0])[:, None]
    done = ahead.at < count[:, None]
    active = ahead.count < size
    drafts = ahead.stop - ahead.count
    passes = active.astype(jnp.int32) if self.block_context else drafts
    in_round = (ahead.place >= ahead.count[:, None]) & (ahead.place < count[:, None])
    write = lambda old, new: old.at[by_row, jnp.where(done, ahead.positions, size)].set(
        new, mode='drop')
    add = lambda old, new: old + jnp.sum(jnp.where(done, new, 0), axis=1)
    if self.bounded:
      generated = generated._replace(
          error=write(generated.error, verdict.error),
          error_bound=write(generated.error_bound, verdict.error_bound))
    return generated._replace(
        tokens=write(generated.tokens, verdict.tokens),
        round_of_token=jnp.where(in_round, generated.rounds[:, None], generated.round_of_token),
        rounds=generated.rounds + active,
        target_passes=generated.target_passes + passes,
        head_calls=generated.head_calls.at[by_row[:, 0], generated.rounds].add(
            jnp.where(active, levels, 0), mode='drop'),
        head_rows=generated.head_rows + self.target.num_streams * levels * drafts,
        draft_passes=generated.draft_passes + drafts,
        draft_head_calls=generated.draft_head_calls + drafts * levels,
        tested=write(generated.tested, 1),
        accepted=write(generated.accepted, verdict.accepted.astype(jnp.int32)),
        trials=add(generated.trials, verdict.trials),
        missed=add(generated.missed, verdict.missed))
