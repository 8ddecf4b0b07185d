"""Predicts the speed of decoders on this machine from few measurements, to select the fastest.

The number of rounds depends on the model and the decoder, the cost of a round on the machine:

  seconds per image = rounds x seconds of a round / images decoded together

A short run of every candidate measures its rounds. A batch runs until its slowest row is complete,
so its rounds are the expected maximum over its images. If a row whose image is complete starts the
next one (`decoding.continuous_batching`), the total is the rounds of all images divided by the
rows, plus the tail in which the last images finish alone, plus one prefill per group of images. The
short run also times a round at one number of images (`base`). At another number `b`, the time
scales like a bare forward pass of the target over equally many tokens:

  seconds of a round(b) = seconds of a round(base) x pass(b, tokens) / pass(base, tokens)

The load of the machine may change from candidate to candidate. Bare passes over one token therefore
alternate with the images of every short run, and times are measured relative to these passes.
"""

import functools
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from cspd_jax.core import programs
from cspd_jax.core.batches import concatenated
from cspd_jax.decoding import continuous_batching
from cspd_jax.decoding.tree import chain
from cspd_jax.generation import decode
from cspd_jax.measure import timing
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import acceptance

_PASSES = 16  # Bare passes in a timed run.
# The speed of the machine is measured with passes over an eighth of an image's tokens.
_PACE = 8
# A candidate that is predicted to be slower by the first factor than shorter rounds ends its line;
# variants are tried of candidates within the second one of the best.
_MARGIN, _NEAR = 1.1, 1.3
_QUEUES = 400  # Simulated queues in an expectation.

# Why a candidate is not tried, see `search`.
OUT_OF_TIME = 'the time limit was reached'


class TimedRun(NamedTuple):
  """The short run of a candidate."""

  decoder: str  # Its specification.
  tokens: int  # Tokens of a round: the last committed one and the drafts.
  accepted: float  # Mean number of tokens that a round commits.
  rounds: np.ndarray  # `[N]` rounds of every image, including the prefill.
  # Seconds of a round with `batch_size` images decoded together, relative to the `Pace`.
  seconds: float
  batch_size: int  # Images decoded together.


class Pace(NamedTuple):
  """A reference for the speed of the machine."""

  run: Callable[[], object]  # Runs some bare forward passes.
  seconds: float  # Their median time at the start.


class PredictedSpeed(NamedTuple):
  """The predicted cost of a candidate."""

  # Rounds per `batch_size` images: until the last row of a batch is complete; or the mean over
  # a queue, including its prefills.
  rounds: float
  round_seconds: float  # Seconds of a round.
  seconds: float  # Seconds per image.


def last_row(rounds: np.ndarray, batch_size: int) -> float:
  """Returns the expected maximum of `batch_size` draws from the rounds `[N]` of images."""
  ordered = np.sort(np.asarray(rounds, float))
  below = (np.arange(len(ordered) + 1) / len(ordered)) ** batch_size
  return float(ordered @ np.diff(below))


def queue_rounds(rounds: np.ndarray, batch_size: int, count: int) -> float:
  """Returns the expected rounds of a queue of `count` images, without their prefills.

  The rounds of an image are drawn from `rounds` `[N]`, which include the prefill.
  """
  rng, totals = np.random.default_rng(0), []
  for queue in rng.choice(np.asarray(rounds) - 1, (_QUEUES, count)):
    ends = [0.0] * batch_size
    for length in queue:
      heapq.heapreplace(ends, ends[0] + length)
    totals.append(max(ends))
  return float(np.mean(totals))


def predict(run: TimedRun, batch_size: int, growth: float, count: int = 0,
            prefill: float = 0.0) -> PredictedSpeed:
  """Predicts the cost of a candidate with `batch_size` images decoded together.

  `growth` is the time of a round relative to that in the short run. For a queue, `count` is its
  number of images, else 0, and `prefill` the seconds of the prefill of a group of them.
  """
  seconds = run.seconds * growth
  if count:
    groups = -(-count // continuous_batching.group(batch_size))
    rounds = queue_rounds(run.rounds, batch_size, count) + groups * prefill / seconds
    rounds *= batch_size / count
  else:
    rounds = last_row(run.rounds, batch_size)
  return PredictedSpeed(rounds, seconds, rounds * seconds / batch_size)


def queue_length(bench: Bench, text: str, batch_size: int) -> int:
  """Returns the number of a bench's images if `generate` decodes them as a queue, otherwise 0."""
  count = len(bench.prompts)
  queues = count > batch_size > 1 and bench.model.mesh is None and (
      continuous_batching.supports(bench.check(text)))
  return count if queues else 0


class Searched(NamedTuple):
  """The result of a search."""

  # By specification, seconds per image by number of images decoded together.
  seconds: dict[str, Mapping[int, float]]
  left_out: dict[str, str]  # By specification, the reason why a candidate was not tried.


def search(lines: Sequence[Sequence[str]], variants: Callable[[str], Sequence[str]],
           seconds: Callable[[str], Mapping[int, float] | None]) -> Searched:
  """Tries the candidates that may be the fastest.

  The rounds of a line get longer from candidate to candidate; it ends after one that is clearly
  slower than the best before it, for all numbers of images decoded together. Then variants,
  `variants(specification)`, are tried of the candidates that are close to the best of all lines.
  `seconds(specification)` predicts the seconds per image by number of images decoded together; None
  if the time limit is reached.
  """
  predicted: dict[str, Mapping[int, float]] = {}
  left_out: dict[str, str] = {}

  def visit(text):
    if text not in predicted:
      if (by_size := seconds(text)) is None:
        left_out[text] = OUT_OF_TIME
        return None
      predicted[text] = by_size
    return predicted[text]

  for line in lines:
    best: dict[int, float] = {}
    for number, text in enumerate(line):
      by_size = visit(text)
      if by_size is None:
        continue
      if best and all(value > _MARGIN * best[size] for size, value in by_size.items()):
        left_out |= {later: f'{text}, with shorter rounds, is already slower than the best'
                     for later in line[number + 1:] if later not in predicted}
        break
      best = {size: min(value, best.get(size, value)) for size, value in by_size.items()}
  for text in _promising(lines, predicted):
    for variant in variants(text):
      visit(variant)
  return Searched(predicted, {text: why for text, why in left_out.items() if text not in predicted})


def _promising(lines: Sequence[Sequence[str]], predicted: Mapping[str, Mapping[int, float]]
               ) -> list[str]:
  """Returns the best of every line and number of images, if it is close to the overall best."""
  sizes = next(iter(predicted.values()), {})
  promising = []
  for size in sizes:
    least = min(by_size[size] for by_size in predicted.values())
    for line in lines:
      tried = [text for text in line if text in predicted]
      best = min(tried, key=lambda text: predicted[text][size], default=None)
      if best is not None and predicted[best][size] <= _NEAR * least:
        promising.append(best)
  return list(dict.fromkeys(promising))


def ranked(seconds: Mapping[str, Mapping[int, float]], batch_size: int) -> list[str]:
  """Sorts the candidates of a search by predicted time, the fastest first."""
  return sorted(seconds, key=lambda text: seconds[text][batch_size])


def _passes(bench: Bench, images: int, tokens: int, label: str
            ) -> Callable[[int], Callable[[], object]]:
  """Compiles bare passes over `tokens` per image: `count ->` a function of that many to be timed.
  """
  passes = timing.forward_passes(bench.check(bench.baseline).target, chain(tokens - 1))
  arguments = bench.model.params, bench.condition(images)
  run = programs.compiled(passes, *arguments, np.int32(1), label=label).run
  return lambda count: functools.partial(run, *arguments, np.int32(count))


def pace(bench: Bench, batch_size: int) -> Pace:
  """Times bare passes over one token per image, for `batch_size` images together."""
  count = max(1, bench.check(bench.baseline).target.num_tokens // _PACE)
  passes = _passes(bench, batch_size, 1, 'passes over 1 token')(count)
  return Pace(passes, timing.measure({'passes': passes})['passes'].median)


def short_run(bench: Bench, text: str, batch_size: int, pace: Pace) -> TimedRun:
  """Runs a candidate, in turns with passes of `pace`; invalid probabilities raise ValueError."""
  batches = -(-len(bench.prompts) // batch_size)
  calls, results = bench.runs(text, batch_size, batches), {}

  def run(number):
    results[number] = calls[number]()
    return results[number]

  turns: dict[tuple[str, int], Callable[[], object]] = {}
  for number in range(batches):
    turns |= {('pace', number): pace.run, ('decoder', number): functools.partial(run, number)}
  timed = {name: times.median for name, times in timing.measure(turns, 1, warmup=0).items()}
  decoded = concatenated(jax.device_get([results[number] for number in range(batches)]))
  decode.check_valid(bench.check(text), decoded, [
      f'number {number}' for number in range(len(decoded.rounds))])
  rounds = decoded.rounds.reshape(batches, batch_size).max(axis=1)
  seconds = [timed['decoder', number] / timed['pace', number] / rounds[number]
             for number in range(batches)]
  return TimedRun(
      text, bench.tokens_per_round(text), acceptance.accepted_length(decoded).mean,
      decoded.rounds, pace.seconds * float(np.median(seconds)), batch_size)


def growth(bench: Bench, tokens: int, batch_sizes: Sequence[int], repeats: int) -> dict[int, float]:
  """Measures bare passes over `tokens` by number of images: median times relative to the first."""
  if len(batch_sizes) == 1:
    return {batch_sizes[0]: 1.0}
  runs: dict[tuple[int, int], Callable[[], object]] = {}
  for size in batch_sizes:
    passes = _passes(bench, size, tokens, f'passes over {tokens} tokens, {size} images')
    runs |= {(size, count): passes(count) for count in (1, _PASSES)}
  times = {name: timed.median for name, timed in timing.measure(runs, repeats).items()}
  # The difference excludes what precedes the passes, such as the prefill.
  spent = {size: max(times[size, _PASSES] - times[size, 1], times[size, _PASSES] / _PASSES)
           for size in batch_sizes}
  return {size: spent[size] / spent[batch_sizes[0]] for size in batch_sizes}


def prefill(bench: Bench, batch_size: int, pace: Pace, repeats: int) -> float:
  """Measures the prefill of a group, in seconds, for a queue of `batch_size` rows and the pace."""
  images = continuous_batching.group(batch_size)
  run = _passes(bench, images, 1, f'the prefill of {images} images')(0)
  times = timing.measure({'pace': pace.run, 'prefill': run}, repeats)
  return pace.seconds * times['prefill'].median / times['pace'].median


def measure(bench: Bench, texts: Sequence[str], batch_size: int, repeats: int) -> dict[str, float]:
  """Measures the median seconds per image of complete decodes that alternate, by specification."""
  runs, counts = {}, {}
  for text in texts:
    batches = -(-len(bench.prompts) // batch_size)
    if count := queue_length(bench, text, batch_size):
      runs[text], counts[text] = bench.queue(text, batch_size), count
    else:
      runs[text], counts[text] = bench.run(text, batch_size, batches), batches * batch_size
  times = timing.measure(runs, repeats, warmup=0)
  return {text: times[text].median / counts[text] for text in texts}
