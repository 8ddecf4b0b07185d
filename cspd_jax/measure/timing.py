"""Times functions in alternation, so that a change in the machine's load affects all of them."""

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.core.batches import Progress, concatenated
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.tree import Tree
from cspd_jax.generation.images import Images
from cspd_jax.metrics.base import Sample

Name = TypeVar('Name', bound=Hashable)


class Timing(NamedTuple):
  """The timed runs of one function: the seconds `[n]` of every run, in order."""

  seconds: np.ndarray

  @property
  def median(self) -> float:
    """Median seconds of a run, the figure to report."""
    return float(np.median(self.seconds))

  @property
  def quartiles(self) -> tuple[float, float]:
    """Lower and upper quartile of the seconds of a run."""
    lower, upper = np.quantile(self.seconds, (0.25, 0.75))
    return float(lower), float(upper)


def measure(runs: Mapping[Name, Callable[[], Any]], repeats: int = 5, *, warmup: int = 1,
            enough: float | None = None, budget: float | None = None,
            until: Callable[[Mapping[Name, Sequence[float]]], bool] = lambda seconds: False,
            progress: Progress = lambda done, total: None) -> dict[Name, Timing]:
  """Times functions without arguments, by name, that run in turns.

  In every turn each function runs once, in the order of `runs`, until its result is ready. Compile
  the functions beforehand; otherwise the first run includes the compilation.

  Args:
    runs: the functions.
    repeats: number of timed turns, at least 1, or ValueError.
    warmup: number of turns before them that are not timed, because a first run may be slower.
    enough: a function whose first timed run takes more seconds than this is timed only once; None
      for no limit.
    budget: limit on the total seconds of all timed runs; None for no limit. A further turn starts
      only if it would end within the budget at the mean time of the previous turns.
    until: called with the seconds so far before every further turn, which it prevents if it returns
      True.
    progress: called after each turn with the number of finished turns and of all turns.
  """
  fields.check_whole('repeats', repeats, 'at least 1', 1)
  fields.check_whole('warmup', warmup, 'at least 0', 0)
  seconds: dict[Name, list[float]] = {name: [] for name in runs}
  for turn in range(warmup + repeats):
    timed = turn - warmup
    spent = sum(map(sum, seconds.values()))
    if timed > 0 and (until(seconds) or (
        budget is not None and spent * (timed + 1) / timed > budget)):
      break
    for name, run in runs.items():
      if enough is not None and seconds[name] and seconds[name][0] > enough:
        continue
      start = time.perf_counter()
      jax.block_until_ready(run())
      if timed >= 0:
        seconds[name].append(time.perf_counter() - start)
    progress(turn + 1, warmup + repeats)
  return {name: Timing(np.array(values)) for name, values in seconds.items()}


def forward_passes(target: Target, tree: Tree) -> Callable[[Any, Any, Any], jax.Array]:
  """Builds a function that runs only the target's forward passes of `count` rounds, in a loop.

  The rounds, with the drafts of `tree`, are spread evenly over the image. The function maps
  `(params, condition, count)` to a scalar to wait for.
  """

  def run(params, condition, count):
    logits, _, cache = target.prefill(params, condition, target.num_tokens + tree.num_nodes)
    tokens = jnp.zeros((logits.shape[1], tree.num_nodes + 1), jnp.int32)

    def body(i, carry):
      tokens, cache, _ = carry
      start = jnp.broadcast_to(i * target.num_tokens // count, tokens.shape[:1])
      logits, _, cache = target.score(params, cache, tokens, start, tree)
      # The next tokens depend on all logits, so the compiler cannot remove a pass.
      unchanged = (jnp.sum(logits) * 0).astype(jnp.int32)
      return tokens + unchanged, cache, jnp.sum(logits)

    return jax.lax.fori_loop(0, count, body, (tokens, cache, jnp.sum(logits)))[2]

  return run


class Compared(NamedTuple):
  """Images and times of one decoder."""

  sample: Sample  # The images.
  compile_seconds: float  # Time to trace and compile at batch 1.
  # `[N]` seconds of each image at batch 1, median of the timed runs; None before them.
  seconds: np.ndarray | None = None
  timed_runs: int = 0  # Timed runs of every image.
  # Standard error of the time of a pass over the first timed decoder's, relative to it: what
  # the machine adds to the times. None for that decoder, and if too few runs show it.
  noise: float | None = None


def noise(seconds: np.ndarray) -> float | None:
  """Returns the relative standard error of the mean of times `[turns, images]`, or None.

  With several turns it is from the differences between runs of the same image, with one turn from
  those between images, which is too much if the work of an image varies.
  """
  turns, images = seconds.shape
  free = (turns - 1) * images if turns > 1 else images - 1
  if not free:
    return None
  differences = seconds - seconds.mean(axis=0 if turns > 1 else 1, keepdims=True)
  deviation = np.sqrt(np.sum(differences**2) / free)
  return float(deviation / np.sqrt(turns * images) / seconds.mean())


def compare(images: Mapping[str, Images], *, captions: Sequence[str] | None = None,
            repeats: int = 3, budget: float | None = None, steady: float = 0.0,
            untimed: Collection[str] = (),
            show: Callable[[str], None] = lambda line: None,
            progress: Progress = lambda done, total: None,
            look: Callable[[dict[str, Compared]], None] = lambda compared: None
            ) -> dict[str, Compared]:
  """Generates all images with all decoders, one image at a time.

  First compiles each decoder and generates the images with it. In the timed runs that follow, the
  decoders alternate on every image, so that a change in the machine's load affects all of them.

  Args:
    images: by name of the decoder, the same images.
    captions: see `metrics.base.Sample`.
    repeats: maximum number of timed runs per image and decoder.
    budget: limit on the seconds of all timed runs; the first run of each always completes.
    steady: no further run is timed once all of `Compared.noise` are below this.
    untimed: decoders that only generate their images.
    show: called with a line about every step.
    progress: called with the number of images decoded so far and in total.
    look: called with the first decoder that has generated its images, and with all of them.
  """
  numbers = range(len(next(iter(images.values()))))
  runs: dict[tuple[int, str], Callable[[], Any]] = {}
  compared: dict[str, Compared] = {}
  count = len(numbers) * len(images)
  total = count + repeats * len(numbers) * (len(images) - len(untimed))
  report = lambda done: progress(done, total)
  for name, each in images.items():
    sampler = each.sampler
    compile_seconds = sampler.compile(each, 1)
    runs |= {(i, name): sampler.bound(each, np.array([i])) for i in numbers}
    results = []
    for i in numbers:
      results.append(sampler.check_result(each.pick([i]), jax.device_get(runs[i, name]())))
      report(len(compared) * len(numbers) + i + 1)
    decoded = concatenated(results)
    show(f'{name}: {", ".join(map(str, decoded.rounds))} forward passes')
    compared[name] = Compared(
        Sample(decoded, jax.device_get(each.condition), each.sampling, batch_size=1,
               captions=captions),
        compile_seconds)
    if len(compared) in (1, len(images)):
      look(compared)
  timed = [name for name in images if name not in untimed]
  passes = {name: compared[name].sample.decoded.rounds for name in timed}

  def noises(seconds: Mapping[tuple[int, str], Sequence[float]]) -> dict[str, float | None]:
    """The noise of every timed decoder, relative to the first one."""
    pace = {name: np.array([seconds[i, name] for i in numbers]).T / passes[name] for name in timed}
    return {name: noise(pace[name] / pace[timed[0]]) for name in timed[1:]}

  timings = measure(
      {(i, name): runs[i, name] for i in numbers for name in timed}, repeats, warmup=0,
      budget=budget, until=lambda seconds: len(timed) > 1 and all(
          value is not None and value < steady for value in noises(seconds).values()),
      progress=lambda turn, _: report(count + turn * len(numbers) * len(timed)))
  report(total)  # Fewer runs may be enough, or all that the budget allows.
  noise_of = noises({key: timing.seconds.tolist() for key, timing in timings.items()})
  return compared | {name: compared[name]._replace(
      seconds=np.array([timings[i, name].median for i in numbers]),
      timed_runs=len(timings[0, name].seconds), noise=noise_of.get(name)) for name in timed}
