"""Decodes the same images with several decoders of one model, and times each decoder."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.core.batches import Progress, concatenated
from cspd_jax.generation.request import Request
from cspd_jax.measure import timing
from cspd_jax.metrics.base import Sample


class Compared(NamedTuple):
  """Images and times of one decoder."""

  sample: Sample  # The images.
  compile_seconds: float  # Time to trace and compile at batch 1.
  # `[N]` wall-clock time of each image at batch 1, median of the timed runs; None before the timed
  # runs.
  seconds: np.ndarray | None = None
  timed_runs: int = 0  # Timed runs of every image.


def compare(
    requests: Mapping[str, Request],
    *,
    captions: Sequence[str] | None = None,
    repeats: int = 3,
    budget: float | None = None,
    show: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
    look: Callable[[dict[str, Compared]], None] = lambda compared: None,
) -> dict[str, Compared]:
  """Generates all images with all decoders, one image at a time.

  First compiles each decoder and generates the images with it. In the timed runs that follow, the
  decoders alternate on every image, so that a change in the machine's load affects all of them.

  Args:
    requests: by name of the decoder, the requests of the same images.
    captions: what the images were asked for; see `metrics.base.Sample`.
    repeats: maximum number of timed runs per image and decoder.
    budget: limit on the seconds of all timed runs together; the first run of each always completes.
    show: called with a line about every step.
    progress: called with the number of images decoded so far and in total.
    look: called with the first decoder that has generated its images, and with all of them.
  """
  images = range(len(next(iter(requests.values()))))
  runs: dict[tuple[int, str], Callable[[], Any]] = {}
  compared: dict[str, Compared] = {}
  count = len(images) * len(requests)

  def report(done):
    if progress is not None:
      progress(done, count * (repeats + 1))

  for name, request in requests.items():
    compile_seconds = request.compile(1)
    runs |= {(i, name): request.bound(np.array([i])) for i in images}
    results = []
    for i in images:
      results.append(jax.device_get(runs[i, name]()))
      report(len(compared) * len(images) + i + 1)
    decoded = concatenated(results)
    show(f'{name}: {", ".join(map(str, decoded.rounds))} rounds')
    compared[name] = Compared(
        Sample(decoded, jax.device_get(request.condition), request.sampling, batch_size=1,
               captions=captions),
        compile_seconds)
    if len(compared) in (1, len(requests)):
      look(compared)
  timings = timing.measure(
      {(i, name): runs[i, name] for i in images for name in requests}, repeats, warmup=0,
      budget=budget, progress=lambda turn, _: report((turn + 1) * count))
  return {name: untimed._replace(
      seconds=np.array([timings[i, name].median for i in images]),
      timed_runs=len(timings[0, name].seconds)) for name, untimed in compared.items()}
