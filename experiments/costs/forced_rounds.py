"""Times rounds over continuous tokens at random weights, as if a trained model accepted the drafts.

Random weights accept arbitrarily, and how often a round calls the diffusion head depends on it. All
arrays of a compiled round have fixed shapes, so a round costs a fixed amount plus the same for
every call in its loop. So a round in the middle of an image is timed twice: with the calls that
these weights need, and without the loop, because every token of it is marked as not needed:

    seconds(calls) = seconds(0) + (seconds(timed calls) - seconds(0)) * calls / timed calls

The calls of a round and the tokens that it commits are those that a report measured with a trained
model. What this assumes: that the timed model, once trained, would accept as that one does.

The counts of calls, of the report and of the timed round, are the largest over the tokens of a
round, with the call at all old states of `windows` as one of them. A token without an old chain has
no such call, so the counted loop may be one call too short; the calls may only seem too dear.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import specification
from cspd_jax.continuous.base import Cost, DecodeContext, Draft, Target, Verdict
from cspd_jax.continuous.loop import Decoder
from cspd_jax.continuous.span import Span
from cspd_jax.core import programs, random
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.measure import timing
from experiments.costs import predicted

BASELINE = 'mar'  # The decoder of one token per round, which every comparison has.
_PARTS = ('round', 'without calls', 'transformer')  # The parts of a round that are timed.
DECODERS = ('exact_head', *(f'windows(window={window})' for window in (2, 4, 8, 16)))
COLUMNS = {
    '': '{name}', 'tokens': '{tokens:.2f}', 'transformer ms': '{transformer_ms:.0f}',
    'head calls': '{head_calls:.1f}', 'head ms': '{head_ms:.0f}', 'round ms': '{round_ms:.0f}',
    'of a round of mar': '{ratio:.2f}x', 'ms/token': '{token_ms:.0f}',
    'over PyTorch': '{speedup_over_pytorch:.2f}x', 'over mar': '{speedup_over_mar:.2f}x'}


class Rounds(NamedTuple):
  """The compiled programs of a round of a decoder."""

  decoder: Decoder  # The decoder.
  measured: predicted.Measured  # Tokens that a round commits and calls of the head, of a report.
  # Functions that run a part of the round and wait for it, by the names in `_PARTS`.
  runs: Mapping[str, Callable[[], Any]]
  calls: float  # Calls of the head in 'round'.


def check(target: Target, texts: Sequence[str], accepted: str, model: str
          ) -> dict[str, tuple[Decoder, predicted.Measured]]:
  """Builds decoders, `BASELINE` first, and reads what a report has on their rounds.

  `accepted` is a report.json of `experiments.sweep --measure=head`, whose rows of `model` count.
  """
  result = {}
  for text in (BASELINE, *texts):
    measured = predicted.measured(accepted, text, model)
    if measured.tokens is None or measured.head_calls is None and text != BASELINE:
      raise ValueError(
          f'decoder holds {text!r}, which accepted ({accepted!r}) does not contain for {model}; '
          'give a report of experiments.sweep with it.')
    result[text] = specification.build(text, target), measured
  return result


def prepare(decoder: Decoder, measured: predicted.Measured, params: Any, condition: Any,
            sampling: SamplingParams, count: int) -> Rounds:
  """Compiles a round of one image that begins after `count` random tokens and another round.

  A round without calls in its loop, which cannot be timed, raises ValueError.
  """
  rng = random.row_keys(jax.random.key(0), 1)
  state = decoder.start(params, condition, rng, sampling)
  tokens = jax.random.normal(jax.random.key(1), state.decoded.tokens.shape)
  state = state._replace(count=jnp.full_like(state.count, count),
                         decoded=state.decoded._replace(tokens=tokens))
  # The first round has no chains of an earlier one.
  state = programs.jit(decoder.round, short_sums=True)(params, state, sampling)
  part = lambda verify: _program(decoder, verify, params, state, sampling)
  runs = dict(zip(_PARTS, map(part, (lambda verify: verify, _without_calls, _nothing))))
  before, after = (float(each.costs.head_calls.sum()) for each in (state.decoded, runs['round']()))
  if predicted.iterations(decoder, after - before) <= 0:
    raise ValueError(f'the round has {after - before:.0f} calls of the head; the weights must need '
                     'several, so use others.')
  return Rounds(decoder, measured, runs, after - before)


def _program(decoder: Decoder, change: Callable[[Callable], Callable], params: Any, state: Any,
             sampling: SamplingParams) -> Callable[[], Any]:
  """Compiles one round with another `verify`; the cache is updated in place, as in a decode."""
  stage, = decoder.stages
  verifier = stage.verifier._replace(verify=change(stage.verifier.verify))
  changed = dataclasses.replace(decoder, stages=(stage._replace(verifier=verifier),))

  def run(params, cache, state, sampling):
    after = changed.round(params, state._replace(cache=cache), sampling)
    return after.decoded, after.memory, after.cache

  cache, state = jax.tree.map(jnp.copy, state.cache), state._replace(cache=())
  jitted = programs.jit(run, donate_argnums=1, short_sums=True)
  compiled = programs.compiled_for(jitted, params, cache, state, sampling).run

  def once():
    nonlocal cache
    # The same slots are written in every run.
    decoded, memory, cache = compiled(params, cache, state, sampling)
    jax.block_until_ready((decoded, memory, cache))
    return decoded

  return once


def _without_calls(verify: Callable) -> Callable:
  """Returns a `verify` for rounds without a token to be drawn, so that its loop has no calls."""
  def idle(context: DecodeContext, span: Span, draft: Draft | None, z: jax.Array) -> Verdict:
    # No count is negative, but the compiler cannot infer that and computes everything else.
    stop = jnp.where(span.count < 0, span.stop, span.count)
    return verify(context, span._replace(stop=stop), draft, z)

  return idle


def _nothing(verify: Callable) -> Callable:
  """Returns a `verify` that only waits for the transformer."""

  def read(context: DecodeContext, span: Span, draft: Draft | None, z: jax.Array) -> Verdict:
    rows, width = span.ranks.shape
    none, zero = jnp.zeros((rows, width), jnp.int32), jnp.zeros(rows, jnp.int32)
    tokens = jnp.broadcast_to(jnp.sum(z, axis=(0, 3))[..., None],
                              (rows, width, context.target.token_dim))
    start = context.verifier.start
    return Verdict(tokens, zero + 1, none, none, zero, zero, Cost(zero, zero, zero),
                   memory=() if start is None else start(context.target, rows, width))

  return read


def measure(prepared: Mapping[str, Rounds], official: Mapping[str, Callable[[], Any]], repeats: int
            ) -> dict[Any, timing.Timing]:
  """Times parts of an official program and those of rounds, by name of the decoder and part.

  The threads of a program sleep while another one runs, and its first run after that takes longer.
  So that no part is that run, the last of each repeats first.
  """
  parts = {(name, part): run for name, each in prepared.items() for part, run in each.runs.items()}
  runs: dict[Any, Callable[[], Any]] = {}
  for program, own in (('official', official), ('rounds', parts)):
    if own:
      runs |= {(program, 'wakes'): list(own.values())[-1], **own}
  return timing.measure(runs, repeats)


def rows(prepared: Mapping[str, Rounds], timed: Mapping[Any, timing.Timing],
         official: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
  """Returns the rows of a table, that of an official program in PyTorch first.

  Times are by name of the decoder, `BASELINE` among them, and part. Of the official program,
  'round_ms' and 'head_calls' for a token are known, and maybe 'transformer_ms' and 'head_ms'; None
  without one.
  """
  result: list[dict[str, Any]] = [] if official is None else [
      dict(name='PyTorch', tokens=1.0, transformer_ms=None, head_ms=None) | dict(official)]
  for name, each in prepared.items():
    whole, idle, transformer = (1e3 * timed[name, part].median for part in _PARTS)
    calls, call_ms = each.calls, None
    if each.measured.head_calls is not None:
      call_ms = (whole - idle) / predicted.iterations(each.decoder, calls)
      calls = each.measured.head_calls
      whole = idle + call_ms * predicted.iterations(each.decoder, calls)
    result.append(dict(
        name=name, tokens=each.measured.tokens, transformer_ms=transformer, head_calls=calls,
        head_ms=whole - transformer, round_ms=whole, timed_calls=each.calls,
        without_calls_ms=idle, call_ms=call_ms,
        quartiles_ms=[1e3 * value for value in timed[name, 'round'].quartiles]))
  per_token = {row['name']: row['round_ms'] / row['tokens'] for row in result}
  baseline = next(row for row in result if row['name'] == BASELINE)['round_ms']
  return [dict(
      row, ratio=row['round_ms'] / baseline, token_ms=per_token[row['name']],
      speedup_over_pytorch=None if official is None else (
          per_token['PyTorch'] / per_token[row['name']]),
      speedup_over_mar=per_token[BASELINE] / per_token[row['name']]) for row in result]
