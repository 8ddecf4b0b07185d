"""The roofline: rates that a device reaches, and how close work comes to them.

See Williams et al., 2009.
"""

import io
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.files import atomic
from cspd_jax.measure import timing
from cspd_jax.plots import canvas, charts

# Factor by which the roof extends beyond the points and its ridge.
_MARGIN = 4.0
# Iterations of a timed run, so that the time to launch it is negligible.
_ITERATIONS = 16
# Sizes double until a run takes this many seconds; the largest arrays exceed the caches of any
# device.
_ENOUGH = 0.05
_SMALLEST_COPY, _LARGEST_COPY = 1 << 26, 1 << 31
_SMALLEST_MATRIX, _LARGEST_MATRIX = 512, 8192


class Work(NamedTuple):
  """A measured piece of work, such as a round.

  Attributes:
    bytes: bytes read and written in memory.
    flops: multiplications and additions.
    seconds: time of the work.
  """

  bytes: float
  flops: float
  seconds: float


def copy_bandwidth(repeats: int = 5) -> float:
  """Measures the bytes per second, read and written, of copies of an array larger than any cache.

  Args:
    repeats: timed runs; the result is from their median.
  """
  # Every iteration reads and writes every element, and the compiler cannot remove any.
  run = jax.jit(lambda x: jax.lax.fori_loop(0, _ITERATIONS, lambda i, x: x + i, x))
  size = _SMALLEST_COPY
  while True:
    array = jnp.zeros((size // 4,), jnp.float32)
    seconds = _seconds(run, array, repeats)
    if seconds > _ENOUGH or size >= _LARGEST_COPY:
      return 2 * array.nbytes * _ITERATIONS / seconds
    size *= 2


def matrix_rate(dtype: str = 'bfloat16', repeats: int = 5) -> float:
  """Measures the multiplications and additions per second of square matrix products.

  Args:
    dtype: type of the numbers.
    repeats: timed runs; the result is from their median.
  """
  run = jax.jit(lambda x: jax.lax.fori_loop(0, _ITERATIONS, lambda i, y: y @ x, x))
  size = _SMALLEST_MATRIX
  while True:
    seconds = _seconds(run, jnp.full((size, size), 1 / size, dtype), repeats)
    if seconds > _ENOUGH or size >= _LARGEST_MATRIX:
      return 2 * size**3 * _ITERATIONS / seconds
    size *= 2


def _seconds(run: Callable[[jax.Array], jax.Array], array: jax.Array, repeats: int) -> float:
  return timing.measure({'run': lambda: run(array)}, repeats, warmup=2)['run'].median


def save_roofline(path: str | os.PathLike, works: Mapping[str, Mapping[str, Work]], *,
                  bandwidth: float, flops: float, title: str = '') -> None:
  """Draws a roofline plot and writes it as PNG.

  Args:
    path: the file to write.
    works: works by group and name; a group has one colour.
    bandwidth: bytes per second of the memory.
    flops: peak FLOP/s.
    title: title of the plot.

  Raises:
    ValueError: if there are no works, or more groups than colours.
  """
  points = [work for group in works.values() for work in group.values()]
  if not points or any(min(work) <= 0 for work in points):
    raise ValueError('works must contain at least one work, with bytes, flops and seconds above 0.')
  if len(works) > len(charts.COLORS):
    raise ValueError(f'works has {len(works)} groups; there are {len(charts.COLORS)} colours.')
  figure = canvas.figure(6.4, 4.2, title)
  axes = figure.subplots()
  ridge = flops / bandwidth
  intensities = [work.flops / work.bytes for work in points]
  ends = min(ridge, *intensities) / _MARGIN, max(ridge, *intensities) * _MARGIN
  axes.plot([ends[0], ridge, ends[1]],
            [1e-12 * min(flops, bandwidth * x) for x in (ends[0], ridge, ends[1])],
            color=canvas.FAINT, linewidth=1.2)
  for color, marker, (group, members) in zip(charts.COLORS, charts.MARKERS, works.items()):
    axes.plot([work.flops / work.bytes for work in members.values()],
              [1e-12 * work.flops / work.seconds for work in members.values()],
              marker, color=color, markersize=5, label=canvas.plain(group))
    for name, work in members.items():
      axes.annotate(name, (work.flops / work.bytes, 1e-12 * work.flops / work.seconds),
                    xytext=(5, -3), textcoords='offset points', fontsize=6, color=canvas.INK)
  axes.set_xscale('log')
  axes.set_yscale('log')
  axes.set_xlabel('FLOPs per byte', fontsize=8, color=canvas.INK)
  axes.set_ylabel('TFLOP/s', fontsize=8, color=canvas.INK)
  axes.tick_params(labelsize=7, colors=canvas.FAINT)
  axes.grid(color=canvas.NEUTRAL, linewidth=0.4, alpha=0.6)
  axes.legend(fontsize=7, frameon=False, labelcolor=canvas.INK)
  buffer = io.BytesIO()
  figure.savefig(buffer, format='png')
  atomic.write(path, buffer.getvalue())
