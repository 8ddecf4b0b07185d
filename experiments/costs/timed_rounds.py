"""Rounds of a decoder, timed in the middle of an image on the device at hand.

The parameters may be anything of the right shapes, see `costs.forced`. The compiled program is read
as well (`costs.rounds`), so that bytes and products are reported with the time.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs, random
from cspd_jax.decoding.loop import Decoder
from cspd_jax.measure import timing
from cspd_jax.measure.timing import Timing
from experiments.costs import devices, hlo, predicted, rounds

# Deviation of weights that are made up.
_DEVIATION = 0.02


class TimedRound(NamedTuple):
  """A compiled program of rounds, to be timed.

  Attributes:
    run: `count -> ` runs the prefill and so many rounds, until they are done.
    figures: what a round moves and multiplies, by what was compiled; its times are those of the
      rates that it was given.
    seconds: of compilation.
  """

  run: Callable[[int], Any]
  figures: predicted.Figures
  seconds: float


def made_up(described: Any, seed: int = 0) -> Any:
  """Arrays for what `jax.ShapeDtypeStruct` describes, on the device.

  Normal numbers of deviation 0.02, ones for norms and masks, zeros for whole numbers.
  """
  def array(key, leaf):
    if leaf.dtype == bool:
      return jnp.ones(leaf.shape, leaf.dtype)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
      return jnp.zeros(leaf.shape, leaf.dtype)
    if leaf.ndim < 2:
      return jnp.ones(leaf.shape, leaf.dtype)
    return _DEVIATION * jax.random.normal(key, leaf.shape, leaf.dtype)

  make = jax.jit(array, static_argnums=1)
  leaves, form = jax.tree.flatten(described)
  keys = jax.random.split(jax.random.key(seed), max(1, len(leaves)))
  struct = lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype)
  return form.unflatten([make(key, struct(leaf)) for key, leaf in zip(keys, leaves)])


def program(decoder: Decoder, params: Any, condition: Any, sampling: Any, draft_params: Any,
            accelerator: devices.Accelerator, graphs: str | None = None) -> TimedRound:
  """Compiles rounds that begin when half of the image is there.

  Args:
    decoder: see `forced.forced`.
    params: of the target.
    condition: of the images.
    sampling: options, as `Engine.settled` gives them.
    draft_params: of the drafter.
    accelerator: the rates of the device, for the figures.
    graphs: what is one CUDA graph, see `core.programs.jit`.
  """
  batch = jax.tree.leaves(condition)[0].shape[0]

  def run(params, condition, key, sampling, draft_params, count):
    state = decoder.start(params, condition, key, sampling, draft_params)
    middle = jnp.full_like(state.count, decoder.target.num_tokens // 2)
    # What is not there yet is zeros in the cache, which take as long to read.
    state = jax.lax.fori_loop(
        0, count, lambda i, state: decoder.round(params, state, sampling, draft_params),
        state._replace(count=middle))
    return state.count, state.tokens

  keys = random.row_keys(jax.random.key(0), batch)
  arguments = (params, condition, keys, sampling, draft_params)
  compiled = programs.compiled(run, *arguments, np.int32(1), graphs=graphs)
  state = jax.eval_shape(decoder.start, *arguments)
  caches = {leaf.shape for leaf in jax.tree.leaves(state.cache) if leaf.ndim > 2}
  found = rounds.read(hlo.parse(compiled.run.as_text()), caches)
  return TimedRound(lambda count: compiled.run(*arguments, np.int32(count)),
                 predicted.figures(found, accelerator), compiled.seconds)


def measure(programs: Mapping[str, TimedRound], count: int, repeats: int) -> dict[str, Timing]:
  """Seconds of a round of every program, which take turns.

  Args:
    programs: by name.
    count: rounds of a timed run; the prefill, timed apart, is taken off.
    repeats: timed runs.

  Raises:
    ValueError: if rounds take no longer than what else the machine does meanwhile.
  """
  runs = {(name, number): lambda one=one, number=number: one.run(number)
          for name, one in programs.items() for number in (0, count)}
  found = timing.measure(runs, repeats)
  times = {name: Timing((found[name, count].seconds - found[name, 0].median) / count)
           for name in programs}
  if unknown := [name for name, one in times.items() if one.median <= 0]:
    raise ValueError(f'{count} rounds of {unknown[0]} took no longer than none; give more rounds.')
  return times
