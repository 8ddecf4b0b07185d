"""Runs several decoders on the same images, in turns, and times them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np


class Measured(NamedTuple):
  """One decoder's result.

  Attributes:
    decoded: what the decoder returned, of all images (`B = N`), as NumPy arrays.
    seconds: `[N]` wall-clock of an image at batch 1, median of the timed runs.
    compile_seconds: time to trace and compile.
  """

  decoded: Any
  seconds: np.ndarray
  compile_seconds: float


def measure(decoders: Mapping[str, Callable], arguments: Callable[[str, int], tuple],
            captions: Sequence[str], repeats: int, show: Callable[[str], None]
            ) -> dict[str, Measured]:
  """Generates all images with all decoders, one image at a time.

  The decoders take turns on every image, so that a change in the machine's load
  meets all of them; the first turn is not timed.

  Args:
    decoders: by name; their result has a field `rounds`.
    arguments: `(name, i)` to the arguments for image `i`; same shapes for all images.
    captions: what every image shows.
    repeats: timed runs per image and decoder.
    show: called with a line about every step.
  """
  compiled, compile_seconds = {}, {}
  for name, decoder in decoders.items():
    start = time.perf_counter()
    compiled[name] = jax.jit(decoder).lower(*arguments(name, 0)).compile()
    compile_seconds[name] = time.perf_counter() - start
    show(f'compiled {name} in {compile_seconds[name]:.1f} s')

  results = {name: [] for name in compiled}
  seconds = {name: np.zeros((repeats, len(captions))) for name in compiled}
  for i, caption in enumerate(captions):
    for name, run in compiled.items():
      results[name].append(jax.device_get(run(*arguments(name, i))))
    rounds = ', '.join(f'{name} {int(results[name][i].rounds[0])}' for name in compiled)
    show(f'image {i + 1} of {len(captions)}, {caption}: rounds of {rounds}')
  for repeat in range(repeats):
    show(f'timing, run {repeat + 1} of {repeats}')
    for i in range(len(captions)):
      for name, run in compiled.items():
        args = arguments(name, i)
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        seconds[name][repeat, i] = time.perf_counter() - start
  return {
      name: Measured(jax.tree.map(lambda *parts: np.concatenate(parts), *results[name]),
                     np.median(seconds[name], axis=0), compile_seconds[name])
      for name in compiled}
