"""Times other people's code and decoders here at a published size with random weights.

Random weights accept arbitrarily, so decoders here commit as many tokens per pass, and call the
head as often, as a report measured with a trained model; everything else is computed, drafters
included. See `experiments.costs.timed_rounds` and `experiments.costs.forced_rounds`.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from cspd_jax import families
from cspd_jax.core import programs
from cspd_jax.decoding import warp
from cspd_jax.files import store
from cspd_jax.generation.model import Model
from cspd_jax.measure import timing
from cspd_jax.measure.tables import Table
from experiments.costs import forced_rounds, predicted, timed_rounds
from experiments.released import Loops, Sizes, Work

_SCALE = 2.0  # Of guidance.
_VISIBLE = 3 / 8  # Of the tokens; an eighth below one of the static lengths of MAR's encoder here.
_IMAGES = {
    '': '{decoder}', 'tokens': '{tokens:.2f}', 'rounds': '{rounds}', 'ms/round': '{ms:.1f}',
    'of one token': '{ratio:.2f}x', 's/image': '{seconds_per_image:.2f}',
    'over vanilla': '{speedup:.2f}x', 'over PyTorch': '{speedup_over_pytorch:.2f}x'}


def work(described: Model, compiled: bool) -> Work:
  """Gives a described model random weights and one image with guidance."""
  network = store.Loaded(described.family, described.config,
                         timed_rounds.random_like(described.params), {})
  model = dataclasses.replace(described, params=store.for_decoding(network.kind, network.params))
  condition = timed_rounds.random_like(
      families.FAMILIES[model.family].published.condition(model.config, 1))
  return Work(model, network, model.name, [condition], model.sampling(guidance_scale=_SCALE),
              compiled=compiled)


def prepare(sizes: Sizes, described: Model, texts: Sequence[str], accepted: str,
            tokens_per_round: float | None) -> Callable[[Work, Loops, int], Table]:
  """Checks decoders, and reads what `accepted`, a report.json, has on them.

  Returns `(work, loops, repeats) -> ` the table of their times. `tokens_per_round` are those of all
  decoders in place of the report's; None for the report's.
  """
  if described.table.tokens == 'discrete':
    tokens = timed_rounds.committed(described, texts, predicted.Accepted(
        accepted=accepted, tokens_per_round=tokens_per_round))
    return functools.partial(_images, tokens)
  if tokens_per_round is not None:
    raise ValueError(f'tokens_per_round is {tokens_per_round:g}, but passes of continuous tokens '
                     'also need the calls of the head, of a report; leave it out.')
  return functools.partial(_rounds, sizes.measured, forced_rounds.check(
      described.target(guided=True), texts, accepted, sizes.measured))


def _images(committed: Mapping[str, float], of: Work, loops: Loops, repeats: int) -> Table:
  """Times whole images of discrete tokens."""
  model, pytorch = of.model, 'PyTorch, compiled' if of.compiled else 'PyTorch'
  baseline = next(iter(loops.windows))
  runs = {text: _run(of, text, count) for text, count in committed.items()}
  timed = timing.measure({pytorch: lambda: loops.decode(baseline, 0, 0)} | runs, repeats)
  rows, first = [], timed[model.table.baseline].median
  for name, times in timed.items():
    rounds = int(runs[name]().rounds[0]) if name in runs else model.num_tokens
    rows.append(dict(
        decoder=name, tokens=model.num_tokens / rounds, rounds=rounds,
        ms=1e3 * times.median / rounds, ratio=times.median / rounds * model.num_tokens / first,
        seconds_per_image=times.median, quartiles=times.quartiles,
        speedup=first / times.median, speedup_over_pytorch=timed[pytorch].median / times.median))
  return Table(f'{model.name}, one image with guidance', _IMAGES, rows)


def _run(of: Work, text: str, tokens: float) -> Callable[[], Any]:
  """Compiles a decoder that commits `tokens` tokens per round; returns what generates an image."""
  model, decoder = of.model, of.model.decoder(text, guided=True)
  if text != model.table.baseline:
    decoder = timed_rounds.with_acceptance(decoder, tokens)
  arguments = (model.params, of.conditions[0], jax.random.split(jax.random.key(0), 1),
               warp.drop_inactive(of.sampling),
               store.for_decoding('eagle', timed_rounds.random_like(model.draft_params(text))))
  run = programs.compiled(decoder, *arguments).run
  print(f'{text} is compiled', file=sys.stderr, flush=True)
  return lambda: run(*arguments)


def _rounds(measured: str, decoders: Mapping[str, tuple[Any, predicted.Measured]], of: Work,
            loops: Loops, repeats: int) -> Table:
  """Times rounds of continuous tokens, in the same place of an image as the official code."""
  count = int(_VISIBLE * of.model.num_tokens)
  prepared = {name: forced_rounds.prepare(
      *each, of.model.params, of.conditions[0], of.sampling, count)
              for name, each in decoders.items()}
  parts = loops.parts(count)
  timed = forced_rounds.measure(
      prepared, {f'PyTorch {name}': part for name, part in parts.items()}, repeats)
  ms = {f'{name}_ms': 1e3 * timed[f'PyTorch {name}'].median for name in parts}
  official = dict(round_ms=sum(ms.values()),
                  head_calls=decoders[forced_rounds.BASELINE][0].schedule.num_levels, **ms)
  return Table(f'{of.model.name}, rounds with acceptance as measured with {measured}',
               forced_rounds.COLUMNS, forced_rounds.rows(prepared, timed, official))
