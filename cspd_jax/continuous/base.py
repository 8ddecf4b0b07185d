"""The types that every decoder of continuous tokens is built from.

In the shape descriptions, `B` is the number of rows (images), `S` the number of guidance streams
(1, or 2: conditional then unconditional), `T` the number of tokens of an image, `C` the length of a
token, `D` the length of the vector that the diffusion head is conditioned on, `N` any number of
tokens or states, and `W` the largest number of tokens of a round.

A token has a `position` in the image and a `rank`: token number `rank` to be committed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.result import Errors, Kernels
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import Span, TokenBatch
from cspd_jax.core import contracts, fields

Params = Any
Condition = Any


class Modulation(NamedTuple):
  """A diffusion head in two parts: what depends on the step and `z` alone, and the rest.

  The first part is most of a head with adaptive layer norms. Computed once per token and level, it
  is not repeated for every state, and its weights are not read at every kernel.

  Attributes:
    make: `(params, step [L], z [N, D]) -> modulation`, a pytree with leaves `[N, L, ...]`: the
      modulation of every `z` at every step.
    apply: `(params, x [N, C], modulation, row [N]) -> (eps [N, C], v [N, C])`: `Target.denoise`,
      where the leaves of `modulation` are `[R, ...]` and state `n` uses row `row[n]`.
  """

  make: Callable[[Params, jax.Array, jax.Array], Any]
  apply: Callable[[Params, jax.Array, Any, jax.Array], tuple[jax.Array, jax.Array]]


class Cached(NamedTuple):
  """A causal transformer with a cache: token `k` of an image depends on tokens `0 .. k - 1`.

  Tokens are committed in raster order. Rows may have different numbers of tokens.

  Attributes:
    prefill: `(params, condition, num_slots) -> (z [S, B, D], cache)`: a pass over the condition;
      `z` belongs to token 0, and the cache has slots for `num_slots` tokens.
    score: `(params, cache, tokens [B, W, C], start [B]) -> (z [S, B, W, D], cache)`: a pass over
      tokens number `start .. start + W - 1`. Returns `z` of their successors, tokens
      `start + 1 .. start + W`, and writes slots `start .. start + W - 1`, which a later pass may
      overwrite. Slots before `start` hold committed tokens.
  """

  prefill: Callable[[Params, Condition, int], tuple[jax.Array, Any]]
  score: Callable[[Params, Any, jax.Array, jax.Array], tuple[jax.Array, Any]]


class Sizes(NamedTuple):
  """Bytes of a model's intermediate results, from which the memory of a decode is estimated.

  Attributes:
    per_pass: of a `Target.transform` per image and stream, or of a `Cached.score` per token too.
    per_state: of the modulation of one state of the head, as `Modulation.make` returns it.
  """

  per_pass: float = 0.0
  per_state: float = 0.0


class Target(NamedTuple):
  """A model of continuous tokens with a diffusion head, as pure functions.

  The transformer is masked (`transform`) or causal (`cached`). The distribution of a token given
  the visible ones, or those before it, is that of a chain of Gaussian kernels, `schedule.posterior`
  of the head's two outputs, from pure noise down to level 0. With guidance there is one state per
  token: the head is evaluated at it with the `z` of either stream, the guided noise is
  `eps_u + w (eps_c - eps_u)`, and `v` is that of the conditional stream.

  Attributes:
    transform: `(params, condition, tokens [B, T, C], visible [B, T] bool) -> z [S, B, T, D]`: one
      forward pass of the transformer. Rows may have different numbers of visible tokens. Must
      ignore `tokens` where `visible` is False, whatever the values. Returns `z` for every
      position; it is meaningless at visible ones. None for a causal model.
    denoise: `(params, x [N, C], step [N], z [N, D]) -> (eps [N, C], v [N, C])`: the diffusion
      head. `step` is the entry of `schedule.Schedule.steps` of a level, for the cosine schedule a
      step of the full process from 0 to 999. `eps` is the predicted noise, or the predicted
      velocity for a schedule from `schedule.flow`. `v` locates the log-variance in its range, from
      -1 (smallest) to 1, and may lie outside. Both are float32, computed from `x` in float32 with
      full precision: the first kernel of the cosine schedule multiplies an error of `eps` by 316.
    num_tokens: `T`.
    token_dim: `C`.
    num_streams: `S`; 2 if the model runs a null condition for guidance.
    check_condition: `condition -> [B]` bool: which rows the model supports; None for all of them.
      Raises ValueError for a condition of a wrong shape or dtype and, if its values are concrete,
      for a row that is not supported. It must trace.
    modulation: `denoise` in two parts; None if it has no such parts.
    cached: the causal transformer; None for a masked model.
    make_schedule: `num_levels -> Schedule`, the levels of the head.
    num_levels: the default number of levels.
    guidance: the default guidance schedule, one of `schedule.GUIDANCE_SCHEDULES`.
    rho: `schedule -> [levels]` the blend of the head's drafter that was fitted to the model, or
      None for `head_drafter.default_rho`.
    sizes: of intermediate results; zeros make estimates of memory lower bounds.
  """

  transform: Callable[[Params, Condition, jax.Array, jax.Array], jax.Array] | None
  denoise: Callable[[Params, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
  num_tokens: int
  token_dim: int
  num_streams: int = 1
  check_condition: Callable[[Condition], Any] = lambda condition: None
  modulation: Modulation | None = None
  cached: Cached | None = None
  make_schedule: Callable[[int], Schedule] = schedule_lib.make
  num_levels: int = schedule_lib.DEFAULT_LEVELS
  guidance: str = 'linear'
  rho: Callable[[Schedule], np.ndarray | None] = lambda schedule: None
  sizes: Sizes = Sizes()

  def __repr__(self) -> str:
    kind = 'masked' if self.cached is None else 'causal'
    return (f'Target({kind}, num_tokens={self.num_tokens}, token_dim={self.token_dim}, '
            f'num_streams={self.num_streams})')


def as_schedule(target: Target, schedule: Schedule | int | None) -> Schedule:
  """Returns a schedule, or a target's one of a number of levels, by default the model's."""
  contracts.check_part('target', target, Target)
  if isinstance(schedule, Schedule):
    return schedule
  if schedule is not None:
    fields.check_whole('schedule', schedule, 'a Schedule or the number of levels')
  return target.make_schedule(target.num_levels if schedule is None else schedule)


class Draft(NamedTuple):
  """The drafts of one round.

  Attributes:
    tokens: `[B, T, C]` the image with the drafts in it.
    record: what `Verifier.sample_draft` recorded of each draft, leaves `[B, drafts, ...]`; or the
      verifier's memory of earlier rounds.
    missing: `[B, T]` bool, positions without a draft, which a masked model does not see; or None.
  """

  tokens: jax.Array
  record: Any
  missing: jax.Array | None = None


class Cost(NamedTuple):
  """Calls of the two heads in a round, `[B]` int32 each; 0 for none."""

  head_calls: jax.Array
  head_rows: jax.Array
  draft_head_calls: jax.Array | int = 0


class Verdict(NamedTuple):
  """A verifier's decisions in a round, for all rows.

  Entries of the leaves `[B, W]` at or beyond `length` are ignored.

  Attributes:
    tokens: `[B, W, C]` the tokens by rank.
    length: `[B]` int32 how many tokens the round commits; 0 for a complete row.
    tested: `[B, W]` how many drafts were tested for a token.
    accepted: `[B, W]` how many of them were accepted.
    trials: `[B]` int32 proposals evaluated for residual draws.
    missed: `[B]` int32 residual draws for which every proposal was rejected.
    cost: the head calls of the round.
    kernels: tests by level, leaves `[B, M]`; None if the verifier does not count them.
    errors: by rank, leaves `[B, W]`; None if the verifier has no bound.
    memory: what the drafter of the next round reads.
  """

  tokens: jax.Array
  length: jax.Array
  tested: jax.Array
  accepted: jax.Array
  trials: jax.Array
  missed: jax.Array
  cost: Cost
  kernels: Kernels | None = None
  errors: Errors | None = None
  memory: Any = ()


class DecodeContext(NamedTuple):
  """What a drafter, a visibility and a verifier read during one decode.

  Attributes:
    target: the target.
    schedule: the levels of the heads of the target and the draft model.
    verifier: the verifier of the rounds.
    params: the target's parameters.
    condition: what both transformers read, leading axis `B`.
    draft_model: the draft model, or None.
    draft_params: its parameters, or None.
  """

  target: Target
  schedule: Schedule
  verifier: 'Verifier'
  params: Params
  condition: Condition
  draft_model: Target | None
  draft_params: Params


class Drafter(NamedTuple):
  """Where drafts come from.

  Attributes:
    propose: `(context, span, tokens [B, T, C], memory) -> Draft`: drafts for the first ranks of the
      round, `span.num_drafts(context.verifier.bonus)` of them, sampled by
      `context.verifier.sample_draft`, or the drafts in the verifier's `memory`.
    model: the draft model. It has the tokens and the condition of the target. None without one.
    check: `target -> None`; raises ValueError if the drafter does not fit the target.
    guided_as_verified: whether a draft has the guidance scale that it is verified with; else that
      of its own rank.
  """

  propose: Callable[[DecodeContext, Span, jax.Array, Any], Draft]
  model: Target | None
  check: Callable[[Target], None] = lambda target: None
  guided_as_verified: bool = False


class Visibility(NamedTuple):
  """Which tokens the target sees when it scores the positions of a round.

  Attributes:
    name: one word.
    transform: `(context, span, tokens [B, T, C], missing, cache) -> (z [S, B, W, D], cache)`: the
      output for the tokens of the round, from `tokens` and `missing` of the `Draft`.
    passes: `span -> [B]`: passes of the transformer per row; they run in parallel.
    sizes: maps `W` to how often `Sizes.per_pass` is in memory at once, per image and stream.
  """

  name: str
  transform: Callable[[DecodeContext, Span, jax.Array, jax.Array | None, Any],
                      tuple[jax.Array, Any]]
  passes: Callable[[Span], jax.Array]
  sizes: Callable[[int], int] = lambda width: 1


class Verifier(NamedTuple):
  """Which drafts are accepted, and what follows them.

  Attributes:
    verify: `(context, span, Draft or None, z [S, B, W, D]) -> Verdict`.
    sample_draft: `(head, batch [N], aligned) -> (tokens [N, C], record)`: samples drafts with the
      `head.Head` of the draft model and records what `verify` needs to know of them, leaves
      `[N, ...]`. `aligned`: whether the head uses the noise of the positions, which the target's
      head uses too. None if the verifier accepts no drafts.
    guarantee: how close the samples are to the distribution, in words.
    bonus: tokens of a round that follow its drafts, 0 or 1.
    visibility: the only `Visibility.name` the verifier supports; None for any.
    commits_all: whether a round commits all of its tokens, whatever is accepted. They then have the
      guidance scale of the last one, as in MAR's sampler; else each has its own step's.
    levels: `M`, levels whose tests are counted separately; 0 for none.
    start: `(target, num_rows, width) -> memory`: the memory before the first round, for verifiers
      that remember earlier rounds and take their drafts from there; None for others.
    exact: whether the tokens follow the decoder's `distribution`, whatever the model.
    bounded: whether the error of every token is bounded.
    head_states: maps `W` to the most states per image in a call of a head; by default one a token.
  """

  verify: Callable[[DecodeContext, Span, Draft | None, jax.Array], Verdict]
  sample_draft: Callable[[Any, TokenBatch, bool], tuple[jax.Array, Any]] | None
  guarantee: str
  bonus: int = 0
  visibility: str | None = None
  commits_all: bool = False
  levels: int = 0
  start: Callable[[Target, int, int], Any] | None = None
  exact: bool = False
  bounded: bool = False
  head_states: Callable[[int], int] = lambda width: width


class Stage(NamedTuple):
  """Rounds of one kind; a decoder has one or more stages.

  Attributes:
    stops: the ranks at which rounds end, ascending. The stage begins where the one before it ended
      and is over when every row has reached the last stop.
    width: `W`, the largest number of tokens of a round.
    verifier: decides about the drafts of a round.
    visibility: which tokens the target sees.
    drafter: where drafts come from; None if the target samples alone.
    steps: the ranks at which autoregressive steps end, ascending. The tokens of a step see those of
      earlier steps. None for steps of one token.
  """

  stops: tuple[int, ...]
  width: int
  verifier: Verifier
  visibility: Visibility
  drafter: Drafter | None = None
  steps: tuple[int, ...] | None = None
