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
    seconds: `[N]` wall-clock of an image at batch 1, median of the timed runs.
    compile_seconds: time to trace and compile at batch 1.
  """

  sample: Sample
  seconds: np.ndarray
  compile_seconds: float


def compare(
    model: Any,
    programs: Mapping[str, batches.Program],
    prompts: Sequence[Any],
    *,
    seed: int | Sequence[int] = 0,
    sampling: Any = None,
    repeats: int = 3,
    show: Callable[[str], None] = lambda line: None,
    progress: batches.Progress | None = None,
) -> dict[str, Compared]:
  """Generates all images with all decoders, one image at a time.

  The decoders take turns on every image, so that a change in the machine's load meets all of
  them. The first turn makes the images and is not timed.

  Args:
    model: a `generation.Model`.
    programs: by name.
    prompts: one per image.
    seed: see `runner.keys`; every decoder gets the same.
    sampling: of `model.sampling`, the same for every image; the model's defaults if None.
    repeats: timed runs per image and decoder.
    show: called with a line about every step.
    progress: called with the number of decoded images, and of those to decode in all.

  Returns:
    What was found, by name.

  Raises:
    ValueError: for prompts, sampling options or numbers that cannot work; before anything is
      compiled.
  """
  sampling = model.sampling() if sampling is None else sampling
  condition = jax.device_get(model.condition(prompts))
  for program in programs.values():
    program.check(condition, sampling)
  row = lambda i: (jax.tree.map(lambda leaf: leaf[i:i + 1], condition), batches.keys(seed, [i]),
                   sampling)
  compiled = {}
  for name, program in programs.items():
    compiled[name] = program.compiled(*row(0))
    show(f'compiled {name} in {compiled[name].seconds:.1f} s')
  runs = {(i, name): functools.partial(lambda run, i: run(*row(i)), run, i)
          for i in range(len(prompts)) for name, (run, _) in compiled.items()}
  turns = functools.partial(_report_turns, progress, len(runs), repeats)
  results = _first_turn(runs, model.conditions.captions(prompts), show, turns)
  timings = timing.measure(runs, repeats, warmup=0,
                           progress=lambda turn, _: turns((turn + 1) * len(runs)))
  return {
      name: Compared(
          Sample(jax.tree.map(lambda *parts: np.concatenate(parts), *results[name]), condition,
                 sampling, batch_size=1),
          np.array([timings[i, name].median for i in range(len(prompts))]), compiled[name].seconds)
      for name in compiled}


def _first_turn(runs: Mapping[tuple[int, str], Callable], captions: Sequence[str],
                show: Callable[[str], None], turns: Callable[[int], None]) -> dict[str, list[Any]]:
  """The result of every image by decoder."""
  results: dict[str, list[Any]] = {name: [] for _, name in runs}
  turns(0)
  for done, ((i, name), run) in enumerate(runs.items(), 1):
    results[name].append(jax.device_get(run()))
    turns(done)
    if done % len(results) == 0:
      rounds = ', '.join(f'{name} {int(found[i].rounds[0])}' for name, found in results.items())
      show(f'image {i + 1} of {len(captions)}, {captions[i]}: rounds of {rounds}')
  return results


def _report_turns(progress: batches.Progress | None, runs: int, repeats: int, done: int) -> None:
  if progress is not None:
    progress(done, runs * (repeats + 1))
