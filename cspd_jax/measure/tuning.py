"""What decoders cost on this machine, predicted from few measurements, and which one to choose.

The rounds of an image depend on the model and the decoder, the cost of a round on the machine:

  seconds per image = rounds x seconds of a round / images decoded together

Rounds come from a short run of every candidate. A batch ends with its last row, so of a batch the
expected rounds of the slowest of so many images count. Where more images wait than are decoded
together, a row that is complete takes the next one (`decoding.refill`), so that the rounds of all
images over the rows count, the last of which end alone, and the prefill of every group. A round is
timed in the same run, at one
number of images; at another number `b` it takes as many times longer as a bare forward pass of the
target over as many tokens does:

  seconds of a round(b) = seconds of a round(base) x pass(b, tokens) / pass(base, tokens)

Candidates run one after the other, and a machine may do other work in between. So bare passes over
one token take turns with the images of every short run, and the times of a candidate count by
theirs.
"""

import functools
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from cspd_jax.core import programs
from cspd_jax.decoding import refill
from cspd_jax.decoding.tree import chain
from cspd_jax.measure import forward, timing
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import acceptance

# Bare passes in a timed run.
_PASSES = 16
# Part of the tokens of an image whose passes tell how fast the machine is.
_PACE = 8
# A longer round that is predicted to be so much slower ends a line of candidates.
_MARGIN = 1.1
# Candidates up to so many times slower than the best one are looked at more closely.
_NEAR = 1.3
# Queues that are drawn for an expectation.
_QUEUES = 400


class Run(NamedTuple):
  """The short run of a candidate.

  Attributes:
    decoder: its specification.
    tokens: of a round: the last committed one and the drafts.
    accepted: tokens that a round commits in the mean.
    rounds: `[N]` of every image, the prefill included.
    seconds: of a round, with `batch_size` images decoded together, at the pace of the machine.
    batch_size: see `seconds`.
  """

  decoder: str
  tokens: int
  accepted: float
  rounds: np.ndarray
  seconds: float
  batch_size: int


class Pace(NamedTuple):
  """How fast the machine is.

  Attributes:
    run: some bare forward passes.
    seconds: that they took at first, in the median.
  """

  run: Callable[[], object]
  seconds: float


class Predicted(NamedTuple):
  """What a candidate is expected to take.

  Attributes:
    rounds: in which as many images as are decoded together become complete: of a batch, which ends
      with its last row; or of a queue in the mean, with its prefills.
    round_seconds: of one of them.
    seconds: per image.
  """

  rounds: float
  round_seconds: float
  seconds: float


def last_row(rounds: np.ndarray, batch_size: int) -> float:
  """The expected rounds of the slowest of `batch_size` images, drawn from those of `[N]` images."""
  ordered = np.sort(np.asarray(rounds, float))
  below = (np.arange(len(ordered) + 1) / len(ordered)) ** batch_size
  return float(ordered @ np.diff(below))


def queue_rounds(rounds: np.ndarray, batch_size: int, count: int) -> float:
  """The expected rounds of `count` images that follow each other in `batch_size` rows.

  Args:
    rounds: of `[N]` images, the prefill included, which does not count here. Those of the queue are
      drawn from them.
    batch_size: rows; the one that is free first takes the next image.
    count: images.
  """
  drawn, found = np.random.default_rng(0), []
  for own in drawn.choice(np.asarray(rounds) - 1, (_QUEUES, count)):
    ends = [0.0] * batch_size
    for one in own:
      heapq.heapreplace(ends, ends[0] + one)
    found.append(max(ends))
  return float(np.mean(found))


def predict(run: Run, batch_size: int, growth: float, count: int = 0,
            prefill: float = 0.0) -> Predicted:
  """What a candidate is expected to take with `batch_size` images decoded together.

  Args:
    run: its short run.
    batch_size: images decoded together.
    growth: how many times longer a round takes with them than in the short run; see `growth`.
    count: images of a queue, whose rows take the next one; 0 for a batch.
    prefill: seconds of the prefill of a group of the queue; see `prefill`.
  """
  seconds = run.seconds * growth
  if count:
    groups = -(-count // refill.group(batch_size))
    rounds = queue_rounds(run.rounds, batch_size, count) + groups * prefill / seconds
    rounds *= batch_size / count
  else:
    rounds = last_row(run.rounds, batch_size)
  return Predicted(rounds, seconds, rounds * seconds / batch_size)


def queue_length(bench: Bench, text: str, batch_size: int) -> int:
  """The number of a bench's images if they are decoded as a queue; 0 if in batches.

  So `generation.generate` decodes them.
  """
  count = len(bench.prompts)
  return count if refill.helps(bench.check(text), count, batch_size) else 0


class Searched(NamedTuple):
  """Candidates after a search.

  Attributes:
    seconds: per image by number of images decoded together, by specification.
    left_out: why others were not tried, by specification.
  """

  seconds: dict[str, Mapping[int, float]]
  left_out: dict[str, str]


def search(lines: Sequence[Sequence[str]], further: Callable[[str], Sequence[str]],
           seconds: Callable[[str], Mapping[int, float] | None]) -> Searched:
  """Tries candidates, but for those that cannot be expected to win.

  Of a line, whose rounds get longer, no more are tried after one that is clearly slower than the
  best one before it, whatever number of images is decoded together. What is near the best of all
  lines is looked at more closely.

  Args:
    lines: specifications of decoders.
    further: `specification -> ` others that differ little from it.
    seconds: `specification -> ` predicted seconds per image by number of images decoded together;
      None if the time is up.
  """
  found: dict[str, Mapping[int, float]] = {}
  left_out: dict[str, str] = {}

  def visit(text):
    if text not in found:
      one = seconds(text)
      if one is None:
        left_out[text] = 'the time was up'
        return None
      found[text] = one
    return found[text]

  for line in lines:
    best: dict[int, float] = {}
    for number, text in enumerate(line):
      one = visit(text)
      if one is None:
        continue
      if best and all(value > _MARGIN * best[size] for size, value in one.items()):
        left_out |= {later: f'{text}, with shorter rounds, is slower than shorter ones already'
                     for later in line[number + 1:] if later not in found}
        break
      best = {size: min(value, best.get(size, value)) for size, value in one.items()}
  for text in _promising(lines, found):
    for more in further(text):
      visit(more)
  return Searched(found, {text: why for text, why in left_out.items() if text not in found})


def _promising(lines: Sequence[Sequence[str]], found: Mapping[str, Mapping[int, float]]
               ) -> list[str]:
  """The best of every line for every number of images, if it is near the best of all lines."""
  sizes = next(iter(found.values()), {})
  promising = []
  for size in sizes:
    least = min(one[size] for one in found.values())
    for line in lines:
      known = [text for text in line if text in found]
      best = min(known, key=lambda text: found[text][size], default=None)
      if best is not None and found[best][size] <= _NEAR * least:
        promising.append(best)
  return list(dict.fromkeys(promising))


def ranked(found: Mapping[str, Mapping[int, float]], batch_size: int) -> list[str]:
  """Candidates of a search, those first that are predicted to be fastest."""
  return sorted(found, key=lambda text: found[text][batch_size])


def tokens(bench: Bench, text: str) -> int:
  """Tokens of a round of a decoder: the last committed one and the drafts."""
  return bench.check(text).drafter.tree.num_nodes + 1


def pace(bench: Bench, batch_size: int) -> Pace:
  """Times bare passes over one token per image, `batch_size` at once."""
  model, target = bench.model, bench.check(bench.baseline).target
  (condition, _, _), = bench.batches(batch_size, 1)
  arguments = model.params, condition, np.int32(max(1, target.num_tokens // _PACE))
  run = programs.compiled(forward.passes(target, chain(0)), *arguments).run
  passes = functools.partial(run, *arguments)
  return Pace(passes, timing.measure({'passes': passes})['passes'].median)


def short_run(bench: Bench, text: str, batch_size: int, pace: Pace) -> Run:
  """Decodes the images of a bench with a candidate, `batch_size` at once.

  Args:
    bench: the model and the images.
    text: the candidate.
    batch_size: images decoded together.
    pace: what takes turns with them.

  Raises:
    ValueError: if the model's numbers are no probabilities.
  """
  batches = -(-len(bench.prompts) // batch_size)
  bench.run(text, batch_size)  # Compiles it and runs it once.
  decode, found = bench.programs.decode(text, bench.sampling), {}
  arguments = bench.batches(batch_size, batches)

  def run(number):
    found[number] = decode(*arguments[number])
    return found[number]

  turns = {}
  for number in range(batches):
    turns |= {('pace', number): pace.run, ('own', number): functools.partial(run, number)}
  timed = {name: one.median for name, one in timing.measure(turns, 1, warmup=0).items()}
  decoded = jax.tree.map(lambda *parts: np.concatenate(parts), *map(
      jax.device_get, (found[number] for number in range(batches))))
  bench.model.engine.check_result(decoded, [
      f'number {number}' for number in range(len(decoded.rounds))])
  rounds = decoded.rounds.reshape(batches, batch_size).max(axis=1)
  seconds = [timed['own', number] / timed['pace', number] / rounds[number]
             for number in range(batches)]
  return Run(
      text, tokens(bench, text), acceptance.summarise(decoded).accepted_length_mean,
      decoded.rounds, pace.seconds * float(np.median(seconds)), batch_size)


def growth(bench: Bench, tokens: int, batch_sizes: Sequence[int], repeats: int
           ) -> dict[int, float]:
  """How many times longer a bare forward pass takes than with the first number of images.

  Args:
    bench: the model and the images.
    tokens: of an image in a pass.
    batch_sizes: numbers of images.
    repeats: timed runs, which take turns.

  Returns:
    The factor by number of images.
  """
  if len(batch_sizes) == 1:
    return {batch_sizes[0]: 1.0}
  model, runs = bench.model, {}
  passes = forward.passes(bench.check(bench.baseline).target, chain(tokens - 1))
  for size in batch_sizes:
    (condition, _, _), = bench.batches(size, 1)
    run = programs.compiled(passes, model.params, condition, np.int32(1)).run
    for count in (1, _PASSES):
      runs[size, count] = functools.partial(run, model.params, condition, np.int32(count))
  found = {name: one.median for name, one in timing.measure(runs, repeats).items()}
  # What comes before the passes, such as the prefill, does not count.
  spent = {size: max(found[size, _PASSES] - found[size, 1], found[size, _PASSES] / _PASSES)
           for size in batch_sizes}
  return {size: spent[size] / spent[batch_sizes[0]] for size in batch_sizes}


def prefill(bench: Bench, batch_size: int, pace: Pace, repeats: int) -> float:
  """Seconds of the prefill of a group of a queue, at the pace of the machine.

  Args:
    bench: the model and the images.
    batch_size: images decoded together.
    pace: what takes turns with it.
    repeats: timed runs.
  """
  (condition, _, _), = bench.batches(refill.group(batch_size), 1)
  arguments = bench.model.params, condition, np.int32(0)
  run = programs.compiled(
      forward.passes(bench.check(bench.baseline).target, chain(0)), *arguments).run
  found = timing.measure(
      {'pace': pace.run, 'own': functools.partial(run, *arguments)}, repeats)
  return pace.seconds * found['own'].median / found['pace'].median


def measure(bench: Bench, texts: Sequence[str], batch_size: int, repeats: int) -> dict[str, float]:
  """Seconds per image of whole decodes that take turns, the images of a bench, in the median."""
  runs, counts = {}, {}
  for text in texts:
    batches = -(-len(bench.prompts) // batch_size)
    if count := queue_length(bench, text, batch_size):
      runs[text], counts[text] = bench.queue(text, batch_size), count
    else:
      runs[text], counts[text] = bench.run(text, batch_size, batches), batches * batch_size
  found = timing.measure(runs, repeats, warmup=0)
  return {text: found[text].median / counts[text] for text in texts}
