"""The one loop: draft, look, judge, commit, until every row is complete."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import (
  contract,
  drafter as drafter_lib,
  noise as noise_lib,
  result as result_lib,
  sampling as sampling_lib,
)
from cspd_jax.continuous.base import Condition, Params, Target
from cspd_jax.continuous.parts import Drafter, Env, Stage, Verdict, Verifier
from cspd_jax.continuous.result import Costs, Decoded, Tests
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import Span, open_span
from cspd_jax.core.random import RowKeys, row_keys
from cspd_jax.core.tracing import is_concrete


class State(NamedTuple):
  """What a decode carries from round to round.

  Attributes:
    count: `[B]` fixed tokens.
    place: `[B, T]` place of every position in the order.
    condition: what the models read, leading axis `B`.
    rng: the rows' random numbers.
    decoded: the result so far.
  """

  count: jax.Array
  place: jax.Array
  condition: Condition
  rng: RowKeys
  decoded: Decoded


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
  """A masked model with rounds of one or two kinds: `decoder(params, condition, key)`.

  A pure function of arrays, to be jitted whole: `jax.jit(decoder)`. `start`, `round` and
  `finish` are its pieces, for those who want to watch it work: `finish` gives the result so
  far after any number of rounds.

  Attributes:
    target: the model whose distribution is sampled.
    schedule: the levels of the heads.
    stages: the kinds of rounds, one after the other.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`.
    distribution: the distribution that is sampled, or that is come near to, in words.
    orders: `(RowKeys [B], T) -> [B, T]` the order in which a row's positions are fixed.
  """

  target: Target
  schedule: Schedule
  stages: tuple[Stage, ...]
  guidance: str
  distribution: str
  orders: Callable[[RowKeys, int], jax.Array] = noise_lib.random_orders

  @property
  def verifier(self) -> Verifier:
    """Of the last stage; those before it are exact."""
    return self.stages[-1].verifier

  @property
  def drafter(self) -> Drafter | None:
    """Of the last stage; those before it have none."""
    return self.stages[-1].drafter

  @property
  def guarantee(self) -> str:
    """How close the samples are to the distribution, in words; `specification.guarantee` in one."""
    return self.verifier.guarantee

  @property
  def stops(self) -> tuple[int, ...]:
    """The places where rounds end."""
    return tuple(itertools.chain.from_iterable(stage.stops for stage in self.stages))

  def check(self, condition: Condition, sampling: Sampling = Sampling()) -> None:
    """Raises ValueError for a condition or options that cannot work.

    For concrete values, before tracing; a traced call cannot look at values.
    """
    drafts = [] if self.drafter is None else [self.drafter.model]
    sampling_lib.check(condition, sampling, self.target, *drafts)

  def __call__(self, params: Params, condition: Condition, key: jax.Array,
               sampling: Sampling = Sampling(), draft_params: Params = None) -> Decoded:
    """Generates one image's tokens per row of `condition`; all models read it.

    Args:
      params: the target's parameters.
      condition: what `transform` takes, with leading axis `B`.
      key: one random key, or one per row `[B]`. A row's result depends on its own key
        and condition only.
      sampling: guidance and temperature, of all models; run-time values.
      draft_params: the draft model's parameters, if there is one.

    Returns:
      A `Decoded`.

    Raises:
      ValueError: if `draft_params` is needed and not given, or from `check`.
    """
    if is_concrete(condition, sampling):
      self.check(condition, sampling)
    rng = row_keys(key, jax.tree.leaves(condition)[0].shape[0])
    state = self.start(params, condition, rng, sampling, draft_params)
    for stage in self.stages:
      state = jax.lax.while_loop(
          lambda state, end=stage.stops[-1]: jnp.any(state.count < end),
          lambda state, stage=stage: self._round(stage, params, state, sampling, draft_params),
          state)
    return self.finish(state)

  def start(self, params, condition, rng, sampling=Sampling(), draft_params=None) -> State:
    """Before the first round, with no token fixed. `rng`: see `core.random.row_keys`."""
    del params, sampling
    if self.drafter is not None and draft_params is None:
      raise ValueError("draft_params is None; it must be the draft model's parameters.")
    size = self.target.num_tokens
    order = self.orders(rng, size)
    decoded = result_lib.empty(
        order, self.target.token_dim, rounds=self._most_rounds(),
        width=max(stage.width for stage in self.stages),
        levels=max(stage.verifier.levels for stage in self.stages),
        bounded=any(stage.verifier.bounded for stage in self.stages))
    return State(count=jnp.zeros_like(decoded.rounds), place=jnp.argsort(order, axis=1),
                 condition=condition, rng=rng, decoded=decoded)

  def round(self, params, state: State, sampling=Sampling(), draft_params=None) -> State:
    """One round; complete rows stay as they are."""
    # A stage ends for all rows at once, but for the last.
    ends = jnp.array([stage.stops[-1] for stage in self.stages[:-1]], jnp.int32)
    rounds = [lambda state, stage=stage: self._round(stage, params, state, sampling, draft_params)
              for stage in self.stages]
    return jax.lax.switch(jnp.sum(jnp.min(state.count) >= ends), rounds, state)

  def finish(self, state: State) -> Decoded:
    """The result, or what there is of it so far."""
    return state.decoded

  def _round(self, stage: Stage, params, state: State, sampling, draft_params) -> State:
    verifier, drafter, decoded = stage.verifier, stage.drafter, state.decoded
    env = Env(self.target, self.schedule, params, state.condition,
              drafter and drafter.model, draft_params)
    span = open_span(
        state.rng, decoded.order, state.place, state.count, jnp.array(stage.stops, jnp.int32),
        stage.width, sampling, self.guidance, stage.guidance_of_last,
        drafter is not None and drafter.guided_as_verified)
    draft, num_drafts = None, jnp.zeros_like(state.count)
    if drafter is not None:
      draft = drafter_lib.propose(drafter, verifier, env, span, decoded.tokens)
      num_drafts = span.drafts(verifier.bonus)
    z = stage.context.transform(env, span, decoded.tokens if draft is None else draft.tokens)
    verdict = verifier.judge(env, span, draft, z)
    contract.check_verdict(verdict, (*span.at.shape, self.target.token_dim))
    return state._replace(
        count=state.count + verdict.length,
        decoded=_commit(decoded, span, verifier, verdict, stage.context.passes(span), num_drafts))

  def _most_rounds(self) -> int:
    """Rounds until the last row is complete, at most."""
    rounds, begin = 0, 0
    for stage in self.stages:
      rounds += len(stage.stops) if stage.verifier.whole else stage.stops[-1] - begin
      begin = stage.stops[-1]
    return rounds


def _commit(decoded: Decoded, span: Span, verifier: Verifier, verdict: Verdict,
            target_passes: jax.Array, draft_passes: jax.Array) -> Decoded:
  """The result after a round."""
  size, row = decoded.order.shape[1], jnp.arange(span.count.shape[0])
  count = span.count + verdict.length
  fixed = (span.place >= span.count[:, None]) & (span.place < count[:, None])
  # Places that are not fixed now write nowhere.
  positions = jnp.where(span.at < count[:, None], span.positions, size)
  write = lambda old, new: old.at[row[:, None], positions].set(new.astype(old.dtype), mode='drop')
  add = lambda old, new: jax.tree.map(jnp.add, old, new)
  costs, tests = decoded.costs, decoded.tests
  added = verdict.missed if verifier.exact else jnp.nan
  return decoded._replace(
      tokens=write(decoded.tokens, verdict.tokens),
      rounds=decoded.rounds + span.active,
      accepted=decoded.accepted.at[row, verdict.length].add(span.active),
      round_of_token=jnp.where(fixed, decoded.rounds[:, None], decoded.round_of_token),
      tv_bound=decoded.tv_bound + jnp.where(span.active, added, 0),
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
