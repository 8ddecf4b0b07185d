"""Several decoders of one model on the same images, and what each of them costs."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.generation import batches
from cspd_jax.measure import timing
from cspd_jax.metrics.base import Sample


class Compared(NamedTuple):
  """One decoder's images and times.

  Attributes:
    sample: the images.
    compile_seconds: time to trace and compile at batch 1.
    seconds: `[N]` wall-clock of an image at batch 1, median of the timed runs; None before them.
    timed_runs: timed runs of every image.
  """

  sample: Sample
  compile_seconds: float
  seconds: np.ndarray | None = None
  timed_runs: int = 0


def compare(
    model: Any,
    programs: Mapping[str, batches.BatchDecoder],
    prompts: Sequence[Any],
    *,
    seed: int | Sequence[int] = 0,
    sampling: Any = None,
    repeats: int = 3,
    budget: float | None = None,
    show: Callable[[str], None] = lambda line: None,
    progress: batches.Progress | None = None,
    look: Callable[[dict[str, Compared]], None] = lambda compared: None,
) -> dict[str, Compared]:
  """Generates all images with all decoders, one image at a time.

  First each decoder in turn is compiled and makes the images. In the timed turns that follow, the
  decoders take turns on every image, so that a change in the machine's load meets all of them.

  Args:
    model: a `generation.Model`.
    programs: by name.
    prompts: one per image.
    seed: see `batches.keys`; every decoder gets the same.
    sampling: of `model.sampling`, the same for every image; the model's defaults if None.
    repeats: timed runs per image and decoder, at most.
    budget: seconds of all timed runs, after which there are no more than one; None for no limit.
      See `timing.measure`.
    show: called with a line about every step.
    progress: called with the number of decoded images, and of those to decode in all.
    look: called with the decoders that have made their images, still without times: with the first
      one, and with all of them.

  Returns:
    Images and times of the decoders, by name.

  Raises:
    ValueError: for prompts, sampling options or numbers that cannot work; before anything is
      compiled.
  """
  sampling = model.sampling() if sampling is None else sampling
  condition, rows = _arguments(model, programs, prompts, seed, sampling)
  runs: dict[tuple[int, str], Callable[[], Any]] = {}
  compared: dict[str, Compared] = {}
  count = len(rows) * len(programs)
  turns = functools.partial(_report_turns, progress, count * (repeats + 1))
  for name, program in programs.items():
    run, compile_seconds = program.compiled(*rows[0])
    show(f'compiled {name} in {compile_seconds:.1f} s')
    runs |= {(i, name): functools.partial(run, *row) for i, row in enumerate(rows)}
    decoded = _first_turn([runs[i, name] for i in range(len(rows))], turns, len(runs) - len(rows))
    show(f'{name}: {", ".join(map(str, decoded.rounds))} rounds')
    compared[name] = Compared(
        Sample(decoded, condition, sampling, batch_size=1), compile_seconds)
    if len(compared) in (1, len(programs)):
      look(compared)
  timings = timing.measure(
      {(i, name): runs[i, name] for i in range(len(rows)) for name in programs}, repeats, warmup=0,
      budget=budget, progress=lambda turn, _: turns((turn + 1) * count))
  return {name: _timed(one, [timings[i, name] for i in range(len(rows))])
          for name, one in compared.items()}


def _arguments(model: Any, programs: Mapping[str, batches.BatchDecoder], prompts: Sequence[Any],
               seed: Any, sampling: Any) -> tuple[Any, list[tuple]]:
  """The condition of all images, and what programs are called with for each; checks both."""
  condition = jax.device_get(model.condition(prompts))
  for program in programs.values():
    program.check(condition, sampling)
  row = lambda i: (jax.tree.map(lambda leaf: leaf[i:i + 1], condition), batches.keys(seed, [i]),
                   sampling)
  return condition, [row(i) for i in range(len(prompts))]


def _timed(one: Compared, timings: Sequence[timing.Timing]) -> Compared:
  """A decoder with the times of its images."""
  return one._replace(seconds=np.array([each.median for each in timings]),
                      timed_runs=len(timings[0].seconds))


def _first_turn(runs: Sequence[Callable[[], Any]], turns: Callable[[int], None],
                done: int) -> Any:
  """The result of all images of a decoder."""
  results = []
  for i, run in enumerate(runs, 1):
    results.append(jax.device_get(run()))
    turns(done + i)
  return jax.tree.map(lambda *parts: np.concatenate(parts), *results)


def _report_turns(progress: batches.Progress | None, total: int, done: int) -> None:
  if progress is not None:
    progress(done, total)
