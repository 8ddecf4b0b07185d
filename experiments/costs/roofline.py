"""The roofline: how near work comes to what a device can do (Williams et al., 2009)."""

import io
import os
from collections.abc import Mapping
from typing import NamedTuple

from cspd_jax.checkpoints import files
from cspd_jax.plots import canvas

_COLORS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000')
_MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')
# How far the roof reaches beyond the points and its ridge.
_MARGIN = 4.0


class Work(NamedTuple):
  """A piece of work.

  Attributes:
    bytes: moved in memory.
    flops: multiplications and additions.
    seconds: that it took.
  """

  bytes: float
  flops: float
  seconds: float


def save_roofline(path: str | os.PathLike, works: Mapping[str, Mapping[str, Work]], *,
                  bandwidth: float, flops: float, title: str = '') -> None:
  """Writes a picture, as PNG.

  Args:
    path: the file to write.
    works: by group, which share a colour, and name.
    bandwidth: bytes per second of the memory.
    flops: per second, at the peak.
    title: a line above it.

  Raises:
    ValueError: if there is nothing to draw, or more groups than colours.
  """
  points = [work for group in works.values() for work in group.values()]
  if not points or any(min(work) <= 0 for work in points):
    raise ValueError('works must hold work, with bytes, flops and seconds above 0.')
  if len(works) > len(_COLORS):
    raise ValueError(f'works has {len(works)} groups; there are {len(_COLORS)} colours.')
  figure = canvas.figure(6.4, 4.2, title)
  axes = figure.subplots()
  ridge = flops / bandwidth
  intensities = [work.flops / work.bytes for work in points]
  ends = min(ridge, *intensities) / _MARGIN, max(ridge, *intensities) * _MARGIN
  axes.plot([ends[0], ridge, ends[1]],
            [1e-12 * min(flops, bandwidth * x) for x in (ends[0], ridge, ends[1])],
            color=canvas.FAINT, linewidth=1.2)
  for color, marker, (group, members) in zip(_COLORS, _MARKERS, works.items()):
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
  files.write(path, buffer.getvalue())
