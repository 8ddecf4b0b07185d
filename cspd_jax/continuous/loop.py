"""The one loop: draft, score, verify, commit, until every row is complete."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import base, sampling as sampling_lib
from cspd_jax.continuous.head import MODULATION_BYTES, HeadSampler, ancestral, no_drafts
from cspd_jax.continuous.noise import random_orders, raster_orders
from cspd_jax.continuous.result import Costs, Decoded, Tests, empty
from cspd_jax.continuous.schedule import GUIDANCE_SCHEDULES, Schedule
from cspd_jax.continuous.span import Span, step_of
from cspd_jax.continuous.visibility import BLOCK, CACHED, TRUE
from cspd_jax.core import contracts, fields, rows
from cspd_jax.core.decoder import AnyDecoder
from cspd_jax.core.guarantees import Guarantee, of_stages, of_verifier
from cspd_jax.core.random import RowKeys, as_row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.tracing import usual_promotion


class State(NamedTuple):
  """The state of a decode between rounds.

  Attributes:
    count: `[B]` committed tokens.
    rank_of_position: `[B, T]` rank of every position.
    condition: what the models read, leading axis `B`.
    rng: the rows' random numbers.
    decoded: the result so far.
    cache: `z` `[S, B, D]` of token 0 and the cache of a causal target; () for a masked one.
    memory: of the verifier of the last stage.
  """

  count: jax.Array
  rank_of_position: jax.Array
  condition: base.Condition
  rng: RowKeys
  decoded: Decoded
  cache: Any = ()
  memory: Any = ()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Decoder(AnyDecoder):
  """A model with one or more stages of rounds: `decoder(params, condition, key)`.

  `finish` returns the result so far, in any round.

  Attributes:
    target: the model whose distribution is sampled.
    schedule: the levels of the heads.
    stages: the kinds of rounds, one after the other.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`.
    distribution: the distribution that is sampled or approximated, in words.
    orders: `(RowKeys [B], T) -> [B, T]` the order in which a row's positions are committed.
  """

  target: base.Target
  schedule: Schedule
  stages: tuple[base.Stage, ...]
  guidance: str
  distribution: str
  orders: Callable[[RowKeys, int], jax.Array] = random_orders

  failure = 'tokens with NaN or infinity'

  def __repr__(self) -> str:
    return f'Decoder({self.target}, {self.distribution}, {self.guarantee})'

  @property
  def verifier(self) -> base.Verifier:
    """The verifier of the last stage; those before it are exact."""
    return self.stages[-1].verifier

  @property
  def drafter(self) -> base.Drafter | None:
    """The drafter of the last stage; the stages before it have none."""
    return self.stages[-1].drafter

  @property
  def guarantee(self) -> Guarantee:
    """How close the samples are to `distribution`; `verifier.guarantee` has the details.

    'exact'; 'bounded', if `Decoded.errors` bounds the squared distance of every token to the
    target's own; 'biased' otherwise, or if exact for some models only.
    """
    return of_stages(of_verifier(exact=stage.verifier.exact, bounded=stage.verifier.bounded)
                     for stage in self.stages)

  def check_condition(self, condition: base.Condition) -> jax.Array:
    valid = contracts.supported_rows(self.target, condition, 'model')
    if self.drafter is not None and self.drafter.model is not None:
      valid &= contracts.supported_rows(self.drafter.model, condition, 'model')
    return valid

  def check_sampling(self, sampling: SamplingParams, num_rows: int | None = None) -> jax.Array:
    return sampling_lib.check(sampling, self.target.num_streams, num_rows)

  @property
  def phases(self):
    return [(stage.stops[-1], functools.partial(self._round, stage)) for stage in self.stages]

  @usual_promotion
  def start(self, params: base.Params, condition: base.Condition, key: Any,
            sampling: SamplingParams = SamplingParams(), draft_params: base.Params = None) -> State:
    rng = as_row_keys(key, rows.count(condition))
    valid = self.check(condition, sampling)
    if self.drafter is not None and self.drafter.model is not None:
      contracts.check_params(draft_params)
    size = self.target.num_tokens
    order = self.orders(rng, size)
    width = max(stage.width for stage in self.stages)
    begins = [0, *(stage.stops[-1] for stage in self.stages)]
    max_rounds = sum(
        len(stage.stops) if stage.verifier.commits_all else stage.stops[-1] - begin
        for stage, begin in zip(self.stages, begins))
    decoded = empty(
        order, valid, self.target.token_dim, rounds=max_rounds, width=width,
        levels=max(stage.verifier.levels for stage in self.stages),
        bounded=any(stage.verifier.bounded for stage in self.stages))
    cache = () if self.target.cached is None else contracts.cached_prefill(
        self.target, params, condition, size + width)
    memory = () if self.verifier.start is None else self.verifier.start(
        self.target, order.shape[0], width)
    return State(
        count=jnp.zeros_like(decoded.rounds), rank_of_position=jnp.argsort(order, axis=1),
        condition=condition, rng=rng, decoded=decoded, cache=cache, memory=memory)

  @usual_promotion
  def round(self, params, state: State, sampling=SamplingParams(), draft_params=None) -> State:
    # All stages but the last end for all rows at once.
    ends = jnp.array([stage.stops[-1] for stage in self.stages[:-1]], jnp.int32)
    rounds = [lambda state, round_=round_: round_(params, state, sampling, draft_params)
              for _, round_ in self.phases]
    return jax.lax.switch(jnp.sum(jnp.min(state.count) >= ends), rounds, state)

  @usual_promotion
  def finish(self, state: State) -> Decoded:
    decoded = state.decoded
    finite = jnp.all(jnp.isfinite(decoded.tokens), axis=(1, 2))
    return decoded._replace(valid=decoded.valid & finite)

  def intermediate(self, num_rows: int) -> float:
    # XLA computes a round one step after the other: the transformer, then the chains of the head,
    # for the draft model and for the target. The largest step determines the memory.
    return max(_of_stage(self.target, stage, self.schedule.num_levels, num_rows)
               for stage in self.stages)

  def _span(self, stage: base.Stage, state: State, sampling: SamplingParams) -> Span:
    """Returns the next tokens of every row: as many as the stage has, or fewer up to a stop."""
    count, order, size = state.count, state.decoded.order, self.target.num_tokens
    stops = jnp.array(stage.stops, jnp.int32)
    next_stop = jnp.append(stops, size)[jnp.sum(count[:, None] >= stops, axis=1)]
    stop = jnp.minimum(next_stop, count + stage.width)
    ranks = count[:, None] + jnp.arange(stage.width)
    begin, end = ranks, ranks + 1
    if stage.steps is not None:
      begin, end = step_of(ranks, jnp.array(stage.steps, jnp.int32), size)
    scale = lambda masked: sampling_lib.scale(sampling, self.guidance, size, masked)
    scale_of_rank = scale(size - end)
    verified = scale_of_rank
    if stage.verifier.commits_all:
      verified = scale(jnp.broadcast_to(size - stop[:, None], ranks.shape))
    as_verified = stage.drafter is not None and stage.drafter.guided_as_verified
    return Span(
        rng=state.rng, rank_of_position=state.rank_of_position, count=count, stop=stop,
        ranks=ranks, begin=begin, end=end,
        positions=jnp.take_along_axis(order, jnp.minimum(ranks, size - 1), axis=1),
        scale=verified, draft_scale=verified if as_verified else scale_of_rank,
        temperature=sampling.temperature)

  def _round(self, stage: base.Stage, params, state: State, sampling, draft_params) -> State:
    verifier, drafter, decoded = stage.verifier, stage.drafter, state.decoded
    context = base.DecodeContext(
        self.target, self.schedule, verifier, params, state.condition,
        None if drafter is None else drafter.model, draft_params)
    span = self._span(stage, state, sampling)

    # Draft and score.
    draft, num_drafts = None, jnp.zeros_like(state.count)
    if drafter is not None:
      draft = drafter.propose(context, span, decoded.tokens, state.memory)
      num_drafts = span.num_drafts(verifier.bonus) * (drafter.model is not None)
    z, cache = stage.visibility.transform(
        context, span, decoded.tokens if draft is None else draft.tokens,
        None if draft is None else draft.missing, state.cache)

    # Verify and commit.
    verdict = verifier.verify(context, span, draft, z)
    contracts.check_tokens(verdict, (*span.ranks.shape, self.target.token_dim))
    after = state._replace(
        count=state.count + verdict.length, cache=cache,
        memory=verdict.memory if stage is self.stages[-1] else state.memory,
        decoded=_commit(
            decoded, span, verifier, verdict, stage.visibility.passes(span), num_drafts))
    # Counts are int64 under `jax_enable_x64`, where indices are.
    return jax.tree.map(lambda new, old: new if new.dtype == old.dtype else new.astype(old.dtype),
                        after, state)


def _commit(decoded: Decoded, span: Span, verifier: base.Verifier, verdict: base.Verdict,
            target_passes: jax.Array, draft_passes: jax.Array) -> Decoded:
  size, row = decoded.order.shape[1], jnp.arange(span.count.shape[0])
  count = span.count + verdict.length
  committed = (span.rank_of_position >= span.count[:, None]) & (
      span.rank_of_position < count[:, None])
  # Tokens that are not committed write out of range, which drops them.
  positions = jnp.where(span.ranks < count[:, None], span.positions, size)
  write = lambda old, new: old.at[row[:, None], positions].set(new.astype(old.dtype), mode='drop')
  add = lambda old, new: jax.tree.map(jnp.add, old, new)
  costs, tests = decoded.costs, decoded.tests
  added_bound = verdict.missed if verifier.exact else jnp.nan
  return decoded._replace(
      tokens=write(decoded.tokens, verdict.tokens),
      rounds=decoded.rounds + span.active,
      accepted=decoded.accepted.at[row, verdict.length].add(span.active),
      round_of_token=jnp.where(committed, decoded.rounds[:, None], decoded.round_of_token),
      tv_bound=decoded.tv_bound + jnp.where(span.active, added_bound, 0),
      costs=Costs(
          target_passes=costs.target_passes + target_passes,
          draft_passes=costs.draft_passes + draft_passes,
          head_calls=costs.head_calls.at[row, decoded.rounds].add(
              verdict.cost.head_calls, mode='drop'),
          head_rows=costs.head_rows + verdict.cost.head_rows,
          draft_head_calls=costs.draft_head_calls + verdict.cost.draft_head_calls),
      tests=Tests(write(tests.tested, verdict.tested), write(tests.accepted, verdict.accepted),
                  tests.trials + verdict.trials, tests.missed + verdict.missed),
      kernels=decoded.kernels if verdict.kernels is None else add(decoded.kernels, verdict.kernels),
      errors=decoded.errors if verdict.errors is None else jax.tree.map(
          write, decoded.errors, verdict.errors))


def make_decoder(target: base.Target, schedule: Schedule, verifier: base.Verifier,
                 stops: Sequence[int], *, drafter: base.Drafter | None = None,
                 visibility: base.Visibility | None = None, width: int | None = None,
                 prefix: int = 0,
                 prefix_sampler: HeadSampler | None = None, guidance: str | None = None,
                 steps: tuple[int, ...] | None = None, distribution: str = '') -> Decoder:
  """Builds a decoder from its parts; raises ValueError for parts that do not fit together.

  Other arguments are fields of `base.Stage`.

  Args:
    target: the model.
    schedule: the levels of its head, and of a draft model's.
    stops: the ranks at which rounds end, ascending, after the prefix; the last is the number of
      tokens. Empty if the prefix is the whole image.
    visibility: `visibility.BLOCK` (the default) or `TRUE` for a masked target, `CACHED` for a
      causal one.
    width: the largest number of tokens of a round; None for all up to the next stop.
    prefix: the number of first tokens that the target decodes alone, one per round.
    prefix_sampler: samples them; `head.ancestral` by default.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`; None for the target's.
    distribution: the distribution that is sampled, in words.
  """
  contracts.check_part('target', target, base.Target)
  guidance = target.guidance if guidance is None else guidance
  fields.check_choice('guidance', guidance, GUIDANCE_SCHEDULES)
  first_visibility = BLOCK if target.cached is None else CACHED
  visibility = visibility or first_visibility
  _check_parts(target, verifier, drafter, visibility)
  stops = tuple(stops)
  ends = (*range(1, prefix + 1), *stops)
  if not ends or ends[-1] != target.num_tokens or any(b <= a for a, b in zip((0, *ends), ends)):
    raise ValueError(
        f'stops is {stops} after a prefix of {prefix}; they must ascend from there to the number '
        f'of tokens, {target.num_tokens}.')
  stages = []
  if prefix:
    sampler = ancestral(target, schedule) if prefix_sampler is None else prefix_sampler
    stages.append(base.Stage(tuple(range(1, prefix + 1)), 1, no_drafts(sampler), first_visibility))
  # Rounds of one token at the start have a stage of their own, which is not as wide as the others.
  single = 0
  if drafter is None and width is None:
    single = next((i for i, stop in enumerate(stops) if stop != prefix + i + 1), len(stops))
  for stage_stops, begin in ((stops[:single], prefix), (stops[single:], prefix + single)):
    if stage_stops:
      widest = max(b - a for a, b in zip((begin, *stage_stops), stage_stops))
      stages.append(base.Stage(stage_stops, widest if width is None else width, verifier,
                               visibility, drafter, steps))
  if target.cached is not None:
    _check_causal(target.num_tokens, stages, steps or stops)
  orders = random_orders if target.cached is None else raster_orders
  return Decoder(target, schedule, tuple(stages), guidance, distribution, orders)


def _check_causal(num_tokens: int, stages: Sequence[base.Stage], ends: Sequence[int]) -> None:
  several = lambda stage: stage.width > 1 if stage.drafter is None else (
      stage.steps is not None and len(stage.steps) < num_tokens)
  if any(map(several, stages)):
    raise ValueError(
        'a causal model decodes one token per step, because every token depends on the one before '
        f'it; the decoder has steps that end at {tuple(ends)}; leave the number of steps out.')


def _check_parts(target: base.Target, verifier: base.Verifier, drafter: base.Drafter | None,
                 visibility: base.Visibility) -> None:
  remembers = verifier.start is not None
  if drafter is None and (remembers or verifier.sample_draft is not None):
    raise ValueError('drafter is None, but the verifier requires drafts; pass a Drafter.')
  if drafter is not None:
    if remembers != (drafter.model is None) or (
        drafter.model is not None and verifier.sample_draft is None):
      raise ValueError('drafter is set, but the verifier accepts no drafts; pass drafter=None.')
    drafter.check(target)
  causal = target.cached is not None
  if causal != (visibility.name == CACHED.name):
    raise ValueError(
        f'visibility is {visibility.name!r}; a {"causal" if causal else "masked"} model supports '
        f'{CACHED.name if causal else f"{BLOCK.name} and {TRUE.name}"}.')
  # A block of one token is what a causal model scores.
  if verifier.visibility not in (None, visibility.name, BLOCK.name if causal else None):
    raise ValueError(
        f'visibility is {visibility.name!r}; the verifier requires {verifier.visibility!r}.')


# A product and its sum with the bias, or a row of a table and the copy that the head reads: the
# compiled head has two arrays of a modulation's size at the same time. (An accelerator has a third,
# of at most `head.MODULATION_BYTES`, if matrices are bfloat16: see `models.diffusion_head`.)
_COPIES = 2


def _of_stage(target: base.Target, stage: base.Stage, levels: int, num_rows: int) -> float:
  """Returns the bytes of the largest step of a round, from the sizes that the parts declare."""
  states = stage.verifier.head_states(stage.width)
  head = _of_head(target, stage.width, states, levels, num_rows)
  scored = _of_pass(target, stage.visibility.sizes(stage.width), num_rows)
  draft = None if stage.drafter is None else stage.drafter.model
  if draft is None:
    return max(scored, head)
  # It decodes token by token. A part of its last pass is still there during the target's.
  drafted = _of_pass(draft, BLOCK.sizes(1), num_rows)
  return max(scored + drafted / 2, head, _of_head(draft, 1, states, levels, num_rows))


def _of_pass(target: base.Target, passes: int, num_rows: int) -> float:
  """Returns the bytes of `passes` parallel passes of a transformer per image and stream."""
  return target.num_streams * num_rows * passes * target.sizes.per_pass


def _of_head(target: base.Target, tokens: int, states: int, levels: int, num_rows: int) -> float:
  """Returns the bytes of a head: the modulation of `tokens` per image, and calls with `states`."""
  unit = target.num_streams * num_rows * target.sizes.per_state
  table = tokens * levels * unit
  stored = target.modulation is not None and table <= MODULATION_BYTES
  call = _COPIES * states * unit
  return max(_COPIES * table, table + call) if stored else call
