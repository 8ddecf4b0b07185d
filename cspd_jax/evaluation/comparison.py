"""Several decoders of one model on the same images, and what each of them costs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.evaluation import runner
from cspd_jax.evaluation import timing
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
    programs: Mapping[str, runner.Program],
    prompts: Sequence[Any],
    *,
    seed: int | Sequence[int] = 0,
    sampling: Any = None,
    repeats: int = 3,
    show: Callable[[str], None] = lambda line: None,
    progress: runner.Progress | None = None,
) -> dict[str, Compared]:
  """Generates all images with all decoders, one image at a time.

  The decoders take turns on every image, so that a change in the machine's load meets all of
  them. The first turn makes the images and is not timed.

  Args:
    model: a `families.Model`.
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
  captions = model.conditions.captions(prompts)
  for program in programs.values():
    program.check(condition, sampling)
  count = len(captions)
  row = lambda i: (jax.tree.map(lambda leaf: leaf[i:i + 1], condition), runner.keys(seed, [i]),
                   sampling)
  total, done = len(programs) * count * (repeats + 1), 0
  compiled = {}
  for name, program in programs.items():
    compiled[name] = program.compiled(*row(0))
    show(f'compiled {name} in {compiled[name].seconds:.1f} s')

  if progress is not None:
    progress(0, total)
  results: dict[str, list[Any]] = {name: [] for name in compiled}
  for i, caption in enumerate(captions):
    for name, (run, _) in compiled.items():
      results[name].append(jax.device_get(run(*row(i))))
      done += 1
      if progress is not None:
        progress(done, total)
    rounds = ', '.join(f'{name} {int(found[i].rounds[0])}' for name, found in results.items())
    show(f'image {i + 1} of {count}, {caption}: rounds of {rounds}')
  timings = timing.measure(
      {(i, name): lambda i=i, run=run: run(*row(i))
       for i in range(count) for name, (run, _) in compiled.items()}, repeats, warmup=0,
      progress=progress and (lambda turn, turns: progress(
          total * (turn + 1) // (repeats + 1), total)))
  return {
      name: Compared(
          Sample(jax.tree.map(lambda *parts: np.concatenate(parts), *results[name]), condition,
                 sampling, batch_size=1),
          np.array([timings[i, name].median for i in range(count)]), compiled[name].seconds)
      for name in compiled}
