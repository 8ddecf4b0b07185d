"""The parts that a decoder of continuous tokens is built from.

Shapes are those of `base`; `W` is the number of places that a round covers, and place `p` of
an image is the `p`-th position to be fixed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from cspd_jax.continuous.base import Condition, Params, Target
from cspd_jax.continuous.head import Batch
from cspd_jax.continuous.result import Errors, Kernels
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import Span


class Env(NamedTuple):
  """What all parts rely on during one decode.

  Attributes:
    target: the target.
    schedule: the levels of the target's head, and of the draft model's.
    params: the target's parameters.
    condition: what both transformers read, leading axis `B`.
    draft: the draft model, or None.
    draft_params: its parameters, or None.
  """

  target: Target
  schedule: Schedule
  params: Params
  condition: Condition
  draft: Target | None
  draft_params: Params


class Draft(NamedTuple):
  """The drafts of one round.

  Attributes:
    tokens: `[B, T, C]` the image with the drafts in it.
    record: what the verifier asked to be recorded of each, leaves `[B, drafts, ...]`.
  """

  tokens: jax.Array
  record: Any


class Drafter(NamedTuple):
  """A draft model that continues an image token by token with its own true contexts.

  Attributes:
    model: has the same tokens as the target and reads the same condition.
    aligned: whether its head uses the noise of the positions, which the target's uses too.
    guided_as_verified: whether a draft has the guidance scale that it is verified with; else
      the one of its own place.
  """

  model: Target
  aligned: bool = True
  guided_as_verified: bool = False


class Context(NamedTuple):
  """What the target sees when it looks at the places of a round.

  Attributes:
    name: one word.
    transform: `(Env, Span, tokens [B, T, C]) -> z [S, B, W, D]`: the transformer's output for
      the places, from an image in which the drafts are.
    passes: `Span -> [B]`: passes of the transformer that a row takes; they run side by side.
  """

  name: str
  transform: Callable[[Env, Span, jax.Array], jax.Array]
  passes: Callable[[Span], jax.Array]


class Cost(NamedTuple):
  """Calls of the two heads in a round, `[B]` int32 each; see `result.Costs`."""

  head_calls: jax.Array
  head_rows: jax.Array
  draft_head_calls: jax.Array


class Verdict(NamedTuple):
  """What a round came to, for all rows.

  What the leaves `[B, W]` hold at or beyond `length` is ignored.

  Attributes:
    tokens: `[B, W, C]` the tokens by place.
    length: `[B]` int32 how many of the places are fixed now; 0 for a complete row.
    tested: `[B, W]` how many drafts were tested for a place.
    accepted: `[B, W]` how many of them were accepted.
    trials: `[B]` int32 proposals looked at for residual draws.
    missed: `[B]` int32 residual draws of which no proposal was taken.
    cost: what the round cost.
    kernels: tests by level, leaves `[B, M]`, if the verifier has them.
    errors: by place, leaves `[B, W]`, if the verifier bounds them.
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


class Verifier(NamedTuple):
  """How the tokens of a round come about: which drafts stay, and what follows them.

  Attributes:
    judge: `(Env, Span, Draft or None, z [S, B, W, D]) -> Verdict`.
    record: `(model, schedule, params, batch [N], aligned) -> (tokens [N, C], record)`: samples
      drafts with the head of the draft model and records what `judge` wants to know of them,
      leaves `[N, ...]`. None if the verifier takes no drafts.
    bonus: places of a round that come after its drafts, 0 or 1.
    context: the only `Context.name` the verifier can judge by; None for any.
    whole: whether a round fixes all of its places, whatever is accepted.
    levels: `M`, levels whose tests are counted apart; 0 for none.
    exact: whether the tokens follow the decoder's `distribution`.
    exact_where: the models for which they do if not for all; '' if there are none.
    bounded: whether the error of every token is bounded.
    guarantee: how near the samples are to the distribution, in words.
  """

  judge: Callable[[Env, Span, Draft | None, jax.Array], Verdict]
  record: Callable[[Target, Schedule, Params, Batch, bool], tuple[jax.Array, Any]] | None
  guarantee: str
  bonus: int = 0
  context: str | None = None
  whole: bool = False
  levels: int = 0
  exact: bool = False
  exact_where: str = ''
  bounded: bool = False


class Stage(NamedTuple):
  """Rounds of one kind; a decoder goes through one or two kinds.

  Attributes:
    stops: ascending places where rounds end. The stage begins where the one before it ended and
      is over when every row has come to the last of its stops.
    width: `W`, places of a round at most.
    verifier: how the tokens of a round come about.
    context: what the target sees.
    drafter: where drafts come from; None if the target samples alone.
    guidance_of_last: whether all tokens of a round have the guidance scale of its last, as in
      MAR's sampler; else each has that of its own place.
  """

  stops: tuple[int, ...]
  width: int
  verifier: Verifier
  context: Context
  drafter: Drafter | None = None
  guidance_of_last: bool = True
