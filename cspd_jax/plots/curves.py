"""Trade-off curves: what a decoder costs in fidelity against how fast it is."""

import io
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cspd_jax.checkpoints import files
from cspd_jax.plots import canvas

# Colours that the colour-blind can tell apart (Okabe and Ito), and a marker for each.
_COLORS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000')
_MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')


class Curve(NamedTuple):
  """One line.

  Attributes:
    x: where the points are, in the order in which they are joined.
    y: as many values.
    error: standard errors of `y`, drawn as bars; none if empty.
    like: name of the curve whose colour this one shares. It is drawn dashed with open
      markers, for variants of one method.
  """

  x: Sequence[float]
  y: Sequence[float]
  error: Sequence[float] = ()
  like: str = ''


class Panel(NamedTuple):
  """One chart.

  Attributes:
    title: a line above it.
    ylabel: what is measured, with its unit.
    curves: by name; a name looks the same in all panels.
    floor: what noise alone amounts to, drawn as a grey area from 0 up; None for no area.
  """

  title: str
  ylabel: str
  curves: Mapping[str, Curve]
  floor: float | None = None


def save_curves(path: str | os.PathLike, panels: Sequence[Sequence[Panel]], *, xlabel: str,
                title: str = '') -> None:
  """Writes small multiples with one legend, as PNG or SVG.

  Args:
    path: the file to write, ending in .png or .svg.
    panels: rows of panels, all of one length; the panels of a column share their axis of
      `y`, all panels that of `x`.
    xlabel: what the curves run along.
    title: a line above all.

  Raises:
    ValueError: if there is nothing to draw, a curve is not finite numbers of one length,
      it shares the colour of none, or there are more curves than colours.
  """
  form = pathlib.Path(path).suffix
  if form not in ('.png', '.svg'):
    raise ValueError(f'path is {str(path)!r}; it must end in .png or .svg.')
  if not panels or not panels[0] or any(len(row) != len(panels[0]) for row in panels):
    raise ValueError(
        f'panels has rows of {[len(row) for row in panels]}; they must be equal, at least one.')
  styles = _styles([panel for row in panels for panel in row])
  # Names are long: a single panel has room for one of them beside the other's mark.
  columns = min(len(styles), 4) if len(panels[0]) > 1 else 1
  lines = math.ceil(len(styles) / columns)
  figure = canvas.figure(
      0.4 + 3.5 * len(panels[0]), 0.9 + 0.2 * max(lines, 2) + 2.7 * len(panels), title)
  cells = figure.subplots(len(panels), len(panels[0]), squeeze=False, sharex=True, sharey='col')
  drawn = {}
  for row, line in zip(panels, cells):
    for panel, axes in zip(row, line):
      drawn |= _draw(axes, panel, styles)
  for axes in cells[-1]:
    axes.set_xlabel(xlabel, fontsize=8, color=canvas.INK)
  figure.legend(
      [drawn[name] for name in styles], [canvas.plain(name) for name in styles],
      loc='outside lower center', fontsize=8, ncols=columns, frameon=False, labelcolor=canvas.INK,
      handlelength=3)
  buffer = io.BytesIO()
  figure.savefig(buffer, format=form[1:], metadata={'Date': None} if form == '.svg' else None)
  files.write(path, buffer.getvalue())


def _styles(panels: Sequence[Panel]) -> dict[str, dict]:
  """How every curve is drawn, by name, in the order in which they first come."""
  curves = {}
  for panel in panels:
    for name, curve in panel.curves.items():
      lengths = {len(curve.x), len(curve.y), len(curve.error) or len(curve.x)}
      values = (*curve.x, *curve.y, *curve.error)
      if len(lengths) > 1 or not values or not all(map(math.isfinite, values)):
        raise ValueError(
            f'curve {name!r} of panel {panel.title!r} must be finite numbers, as many x as y, and '
            f'as many errors if there are any; it has x {list(curve.x)}, y {list(curve.y)} and '
            f'error {list(curve.error)}.')
      curves.setdefault(name, curve.like)
  if not curves:
    raise ValueError('panels hold no curves.')
  leaders = [name for name, like in curves.items() if not like]
  if lost := [name for name, like in curves.items() if like and like not in leaders]:
    raise ValueError(f'curve {lost[0]!r} is like {curves[lost[0]]!r}, which is none of '
                     f'{", ".join(leaders)}.')
  if len(leaders) > len(_COLORS):
    raise ValueError(f'panels hold {len(leaders)} curves that are like no other; there are '
                     f'{len(_COLORS)} colours.')
  look = {name: dict(color=color, marker=marker, markerfacecolor=color, linestyle='-')
          for name, color, marker in zip(leaders, _COLORS, _MARKERS)}
  return {name: look[name] if not like else
          look[like] | dict(markerfacecolor='white', linestyle=(0, (4, 2)))
          for name, like in curves.items()}


def _draw(axes, panel: Panel, styles: Mapping[str, dict]) -> dict:
  """One panel; returns what the legend shows, by name."""
  if panel.floor is not None:
    axes.axhspan(0, panel.floor, color=canvas.NEUTRAL, alpha=0.35, linewidth=0)
    axes.annotate('noise', (1, panel.floor), xycoords=('axes fraction', 'data'), xytext=(-3, -2),
                  textcoords='offset points', ha='right', va='top', fontsize=7, color=canvas.FAINT)
  drawn = {}
  for name, curve in panel.curves.items():
    drawn[name] = axes.errorbar(
        curve.x, curve.y, yerr=list(curve.error) or None, linewidth=1.3, markersize=4,
        elinewidth=0.7, capsize=0, **styles[name])
  axes.set_title(canvas.fit(panel.title, 3, 9), fontsize=9, color=canvas.INK, loc='left')
  axes.set_ylabel(canvas.fit(panel.ylabel, 2.5, 8), fontsize=8, color=canvas.INK)
  axes.tick_params(labelsize=7, colors=canvas.FAINT)
  axes.grid(color=canvas.NEUTRAL, linewidth=0.4, alpha=0.6)
  axes.set_axisbelow(True)
  for side, spine in axes.spines.items():
    spine.set_visible(side in ('left', 'bottom'))
    spine.set_color(canvas.NEUTRAL)
  return drawn
