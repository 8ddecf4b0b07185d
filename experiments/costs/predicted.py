"""What a round of a decoder costs on an accelerator, predicted from compilation.

Layers of a model are alike, so a model of few layers and one with a layer more tell what all of
them cost. A kernel takes a fixed time and the longer of what its bytes take at the memory's
bandwidth and its matrix products at the peak rate. That a cache of the device may hold what one
kernel leaves for the next is not counted on, which makes true times shorter; that no device reaches
its stated rates makes them longer.
"""

import collections
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.checkpoints.kinds import KINDS
from cspd_jax.core import random
from cspd_jax.core.spec import Spec
from cspd_jax.generation.model import Model
from experiments.costs import devices, hlo, rounds

# Copies from here on are listed.
LARGE = 1 << 20


class Figures(NamedTuple):
  """What a round costs; all of it grows with the layers by equal steps.

  Attributes:
    bytes: moved in the main memory, by part of the decoder and what for.
    weights: bytes of the target's parameters that a round reads, each counted once.
    drafter_weights: the same of the drafter's.
    cached_sums: bytes of partial sums of split products that fit in the device's second-level
      cache, written and read; they are among `bytes`.
    flops: of matrix products.
    kernels: by part of the decoder.
    conditionals: branches at run time, by the host on a GPU.
    loops: loops inside of a round.
    copies: number of kernels that only move numbers and write a MiB or more, by what they give,
      in words, and their line of the source.
    copied: bytes of the cache that are not updated in place.
    seconds: by what they go to: 'launches', 'bytes', 'products'.
    temporaries: bytes that the whole program needs beside parameters.
  """

  bytes: Mapping[tuple[str, str], float]
  weights: float
  drafter_weights: float
  cached_sums: float
  flops: float
  kernels: Mapping[str, float]
  conditionals: float
  loops: float
  copies: Mapping[tuple[str, str], float]
  copied: float
  seconds: Mapping[str, float]
  temporaries: float

  @property
  def total_bytes(self) -> float:
    """Bytes of a round."""
    return sum(self.bytes.values())

  @property
  def total_kernels(self) -> float:
    """Kernels of a round."""
    return sum(self.kernels.values())

  @property
  def total_seconds(self) -> float:
    """Seconds of a round."""
    return sum(self.seconds.values())


def figures(found: rounds.Round, accelerator: devices.Accelerator, temporaries: float = 0
            ) -> Figures:
  """Adds the kernels of a round up."""
  moved: dict[tuple[str, str], float] = collections.defaultdict(float)
  weights: dict[rounds.Label, float] = collections.defaultdict(float)
  cached_sums = 0.0
  kernels: dict[str, float] = collections.defaultdict(float)
  copies: dict[tuple[str, str], float] = collections.defaultdict(float)
  seconds: dict[str, float] = collections.defaultdict(float)
  for kernel in found.kernels:
    launches = 0 if kernel.beside else kernel.times
    kernels[kernel.part] += launches
    for one in kernel.moved:
      size = kernel.times * (one.read + one.written)
      moved[kernel.part, one.label.kind or kernel.scope] += size
      if one.label.is_weights:
        weights[one.label] += kernel.times * one.read
      if one.label.kind == rounds.PARTIAL_SUMS and size <= kernel.times * accelerator.cache:
        cached_sums += size
    if kernel.moves and kernel.written >= LARGE:
      copies[kernel.arrays, kernel.source] += kernel.times
    streaming = kernel.bytes / accelerator.bandwidth
    multiplying = kernel.flops / accelerator.flops
    seconds['launches'] += launches * accelerator.kernel_seconds
    seconds['products' if multiplying > streaming else 'bytes'] += (
        kernel.times * max(streaming, multiplying))
  # On TPUs they are read in parts.
  once = lambda kind: sum(
      min(label.size, read) for label, read in weights.items() if label.kind == kind)
  flops = sum(kernel.times * kernel.flops for kernel in found.kernels)
  return Figures(
      moved, once('weights'), once('drafter weights'), cached_sums, flops, kernels,
      found.conditionals, found.loops, copies, found.copied, seconds, temporaries)


def extrapolated(few: Figures, more: Figures, steps: int) -> Figures:
  """The figures after `steps` layers more, from those of few layers and of one more."""
  def part(one, other):
    if isinstance(one, Mapping):
      return {key: part(one.get(key, 0), other.get(key, 0)) for key in {**one, **other}}
    return one + steps * (other - one)

  return Figures(*map(part, few, more))


def decode(model: Model, specification: str | Spec, batch: int, guided: bool, condition: Any,
           accelerator: devices.Accelerator, device: Any) -> Figures:
  """Compiles a decoder and adds its round up.

  Args:
    model: a described `generation.Model`.
    specification: of the decoder.
    batch: images that are decoded at once.
    guided: whether the null condition runs beside the condition.
    condition: of so many images, described.
    accelerator: the device's rates.
    device: to compile for.

  Raises:
    ValueError: for a specification that cannot work.
  """
  decoder = model.decoder(specification, guided=guided)
  arguments = [model.params, condition, jax.random.split(jax.random.key(0), batch),
               model.engine.settled(model.sampling()), model.draft_params(specification)]
  program = devices.compiled(decoder, arguments, device, KINDS[model.family].orders)
  arguments[2] = random.row_keys(arguments[2], batch)
  caches = set()
  if model.engine.name == 'discrete':  # Masked models keep none.
    start = jax.eval_shape(decoder.start, *arguments)
    caches = {leaf.shape for leaf in jax.tree.leaves(start.cache) if leaf.ndim > 2}
  found = rounds.read(hlo.parse(program.as_text()), caches)
  return figures(found, accelerator, program.memory_analysis().temp_size_in_bytes)


def live_cache(model: Model, guided: bool, condition: Any) -> float:
  """Bytes of the cache that the mean round of an image must read: half of the image's."""
  if model.engine.name != 'discrete':
    return 0.0
  target = model.target(guided=guided)
  cache = jax.eval_shape(
      lambda *args: target.prefill(*args, target.num_tokens // 2)[2], model.params, condition)
  return size(cache)


def size(tree: Any) -> float:
  """Bytes of arrays, or of what describes them."""
  return float(sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
                   for leaf in jax.tree.leaves(tree)))
