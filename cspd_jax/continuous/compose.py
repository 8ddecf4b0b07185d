"""Puts a decoder together from its parts."""

from collections.abc import Sequence

from cspd_jax.continuous import drafter as drafter_lib, head as head_lib, sampling as sampling_lib
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.context import BLOCK
from cspd_jax.continuous.head import Head
from cspd_jax.continuous.loop import Decoder
from cspd_jax.continuous.parts import Context, Drafter, Stage, Verifier
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.verifiers.own import own


def make_decoder(target: Target, schedule: Schedule, verifier: Verifier, stops: Sequence[int], *,
                 drafter: Drafter | None = None, context: Context = BLOCK,
                 width: int | None = None, prefix: int = 0, prefix_head: Head | None = None,
                 guidance: str = 'linear', guidance_of_last: bool = True,
                 distribution: str = '') -> Decoder:
  """Puts a decoder together.

  Args:
    target: the model.
    schedule: the levels of its head, and of a draft model's.
    verifier: how tokens come about; see `verifiers`.
    stops: places where rounds end, ascending, after the prefix; the last is the number of tokens.
      Without any the prefix is all there is.
    drafter: the draft model, for verifiers that take drafts.
    context: what the target sees when it looks at a round's places: `context.BLOCK` or
      `context.TRUE`.
    width: places of a round at most; None for all up to the next stop.
    prefix: tokens that the target fixes alone before that, one per round.
    prefix_head: samples them; `head.ancestral` by default.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`.
    guidance_of_last: see `Stage`.
    distribution: the distribution that is sampled, in words.

  Raises:
    ValueError: for parts that do not fit together.
  """
  sampling_lib.check_guidance(guidance)
  _check_parts(target, verifier, drafter, context)
  stops = tuple(stops)
  ends = (*range(1, prefix + 1), *stops)
  if not ends or ends[-1] != target.num_tokens or any(b <= a for a, b in zip((0, *ends), ends)):
    raise ValueError(
        f'stops is {stops} after a prefix of {prefix}; they must ascend from there to the number '
        f'of tokens, {target.num_tokens}.')
  stages = []
  if prefix:
    head = head_lib.ancestral(target, schedule) if prefix_head is None else prefix_head
    stages.append(Stage(tuple(range(1, prefix + 1)), 1, own(head), BLOCK))
  # Rounds of one token at the start do not pay for the width of the others.
  single = 0
  if drafter is None and width is None:
    single = next((i for i, stop in enumerate(stops) if stop != prefix + i + 1), len(stops))
  for part, begin in ((stops[:single], prefix), (stops[single:], prefix + single)):
    if part:
      widest = max(b - a for a, b in zip((begin, *part), part))
      stages.append(Stage(part, widest if width is None else width, verifier, context, drafter,
                          guidance_of_last))
  return Decoder(target, schedule, tuple(stages), guidance, distribution)


def _check_parts(target: Target, verifier: Verifier, drafter: Drafter | None,
                 context: Context) -> None:
  """Raises ValueError for parts that do not fit together."""
  if drafter is None and verifier.record is not None:
    raise ValueError('drafter is None, but the verifier judges drafts; give a Drafter.')
  if drafter is not None:
    if verifier.record is None:
      raise ValueError('drafter is given, but the verifier takes no drafts; set it to None.')
    drafter_lib.check_pair(target, drafter.model)
  if verifier.context not in (None, context.name):
    raise ValueError(
        f'context is {context.name!r}; the verifier requires the context {verifier.context!r}.')
