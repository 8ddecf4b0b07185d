"""Runs several decoders on the same images, in turns, and times them."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import checkpoint


class Job(NamedTuple):
  """What is to be generated.

  Attributes:
    model: the target's checkpoint.
    draft_params: by decoder, the parameters of what drafts for it, or None.
    tokenizer: the image tokenizer's checkpoint.
    decoders: by name; their result has a field `rounds`.
    left_out: decoders of the registry that cannot run, with the reason.
    labels: `[N]` int32 the class of every image.
    captions: what every image shows, for people.
    sampling: the sampling options.
    seed: of the images' keys.
    repeats: timed runs per image and decoder.
  """

  model: checkpoint.Loaded
  draft_params: dict[str, Any]
  tokenizer: checkpoint.Loaded
  decoders: dict[str, Callable]
  left_out: dict[str, str]
  labels: np.ndarray
  captions: list[str]
  sampling: Any
  seed: int
  repeats: int

  def grid(self, values: np.ndarray) -> np.ndarray:
    """`[N, T]` values of tokens in their places, `[N, height, width]`."""
    return values.reshape(-1, self.model.config.height, self.model.config.width)


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


def measure(job: Job, show: Callable[[str], None] = print) -> dict[str, Measured]:
  """Generates all images with all decoders, one image at a time.

  The decoders take turns on every image, so that a change in the machine's load
  meets all of them; the first turn is not timed.

  Args:
    job: what to generate.
    show: called with a line about every step.
  """
  keys = [jax.random.fold_in(jax.random.key(job.seed), i) for i in range(len(job.labels))]

  def arguments(name, i):
    return (job.model.params, jnp.asarray(job.labels[i:i + 1]), keys[i], job.sampling,
            job.draft_params[name])

  compiled, compile_seconds = {}, {}
  for name, decoder in job.decoders.items():
    start = time.perf_counter()
    compiled[name] = jax.jit(decoder).lower(*arguments(name, 0)).compile()
    compile_seconds[name] = time.perf_counter() - start
    show(f'compiled {name} in {compile_seconds[name]:.1f} s')

  results = {name: [] for name in compiled}
  seconds = {name: np.zeros((job.repeats, len(job.captions))) for name in compiled}
  for i, caption in enumerate(job.captions):
    for name, run in compiled.items():
      results[name].append(jax.device_get(run(*arguments(name, i))))
    rounds = ', '.join(f'{name} {int(results[name][i].rounds[0])}' for name in compiled)
    show(f'image {i + 1} of {len(job.captions)}, {caption}: rounds of {rounds}')
  for repeat in range(job.repeats):
    show(f'timing, run {repeat + 1} of {job.repeats}')
    for i in range(len(job.captions)):
      for name, run in compiled.items():
        args = arguments(name, i)
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        seconds[name][repeat, i] = time.perf_counter() - start
  return {
      name: Measured(jax.tree.map(lambda *parts: np.concatenate(parts), *results[name]),
                     np.median(seconds[name], axis=0), compile_seconds[name])
      for name in compiled}
