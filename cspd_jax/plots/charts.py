"""Charts that compare decoders: bars, and trade-off curves of fidelity against speed."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax.core import fields
from cspd_jax.plots import canvas

# A colour-blind safe palette (Okabe and Ito), with a marker for each colour.
COLORS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000')
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')


class Curve(NamedTuple):
  """One line."""

  x: Sequence[float]  # Coordinates of the points, in the order of the line.
  y: Sequence[float]  # Values, as many as `x`.
  error: Sequence[float] = ()  # Standard errors of `y`, drawn as bars; empty for no bars.
  # Name of the curve whose colour this one shares, for variants of one method. It is drawn dashed
  # with open markers. Empty for a colour of its own.
  like: str = ''


class Panel(NamedTuple):
  """One chart."""

  title: str  # A line above it.
  ylabel: str  # The measured quantity with its unit.
  curves: Mapping[str, Curve]  # By name; a name has the same style in all panels.
  floor: float | None = None  # Level of noise, drawn as a grey area from 0 up; None for no area.


def save_curves(path: str | os.PathLike, panels: Sequence[Sequence[Panel]], *, xlabel: str) -> None:
  """Writes small multiples with one legend, as PNG or SVG by the ending of the path.

  `panels` are rows of one length; the panels of a column share their y axis, all panels the x axis.
  Raises ValueError if the path has another ending.
  """
  fields.require(str(path).endswith(('.png', '.svg')), 'path', str(path), 'a .png or .svg file')
  assert panels and panels[0] and {len(row) for row in panels} == {len(panels[0])}, 'one length'
  styles = _styles([panel for row in panels for panel in row])
  # Names are long: the width of a single panel fits one name per line of the legend.
  columns = min(len(styles), 4) if len(panels[0]) > 1 else 1
  lines = math.ceil(len(styles) / columns)
  figure = canvas.figure(0.4 + 3.5 * len(panels[0]), 0.9 + 0.2 * max(lines, 2) + 2.7 * len(panels))
  cells = figure.subplots(len(panels), len(panels[0]), squeeze=False, sharex=True, sharey='col')
  handles: dict[str, Any] = {}
  for row, line in zip(panels, cells):
    for panel, axes in zip(row, line):
      handles |= _draw(axes, panel, styles)
  for axes in cells[-1]:
    axes.set_xlabel(canvas.plain(xlabel), fontsize=8, color=canvas.INK)
  figure.legend(
      [handles[name] for name in styles], [canvas.plain(name) for name in styles],
      loc='outside lower center', fontsize=8, ncols=columns, frameon=False, labelcolor=canvas.INK,
      handlelength=3)
  canvas.save(figure, path)


def _styles(panels: Sequence[Panel]) -> dict[str, dict]:
  """Returns the style of every curve by name, in the order of their first appearance."""
  leader_of: dict[str, str] = {}
  for panel in panels:
    for name, curve in panel.curves.items():
      assert 0 < len(curve.x) == len(curve.y) == (len(curve.error) or len(curve.x)), name
      assert all(map(math.isfinite, (*curve.x, *curve.y, *curve.error))), name
      leader_of.setdefault(name, curve.like)
  leaders = [name for name, like in leader_of.items() if not like]
  assert len(leaders) <= len(COLORS), f'{len(leaders)} curves with a colour of their own'
  styles: dict[str, dict[str, Any]] = {
      name: dict(color=color, marker=marker, markerfacecolor=color, linestyle='-')
      for name, color, marker in zip(leaders, COLORS, MARKERS)}
  return {name: styles[name] if not like else
          styles[like] | dict(markerfacecolor='white', linestyle=(0, (4, 2)))
          for name, like in leader_of.items()}


def _draw(axes, panel: Panel, styles: Mapping[str, dict]) -> dict[str, Any]:
  """Draws one panel; returns the handles for the legend by name."""
  if panel.floor is not None:
    axes.axhspan(0, panel.floor, color=canvas.NEUTRAL, alpha=0.35, linewidth=0)
    axes.annotate('noise', (1, panel.floor), xycoords=('axes fraction', 'data'), xytext=(-3, -2),
                  textcoords='offset points', ha='right', va='top', fontsize=7, color=canvas.FAINT)
  handles = {}
  for name, curve in panel.curves.items():
    handles[name] = axes.errorbar(
        curve.x, curve.y, yerr=list(curve.error) or None, linewidth=1.3, markersize=4,
        elinewidth=0.7, capsize=0, **styles[name])
  axes.set_title(canvas.fit(panel.title, 3, 9), fontsize=9, color=canvas.INK, loc='left')
  axes.set_ylabel(canvas.fit(panel.ylabel, 2.5, 8), fontsize=8, color=canvas.INK)
  axes.tick_params(labelsize=7, colors=canvas.FAINT)
  axes.grid(color=canvas.NEUTRAL, linewidth=0.4, alpha=0.6)
  axes.set_axisbelow(True)
  axes.spines[:].set_color(canvas.NEUTRAL)
  axes.spines[['top', 'right']].set_visible(False)
  return handles


class BarPanel(NamedTuple):
  """One chart."""

  title: str  # The measured quantity with its unit.
  # Length of each bar by name, at least 0; None for what was not measured.
  values: Mapping[str, float | None]
  form: str = '{:.2f}'  # Format of the values, such as '{:.2f}'.
  note: str = ''  # A line under the title, such as which direction is better.


def save_bars(path: str | os.PathLike, panels: Sequence[BarPanel], *, baseline: str = 'vanilla',
              title: str = '') -> None:
  """Writes panels of horizontal bars side by side as one PNG.

  The panels are over the same names, which label the first one. The bar of the baseline is grey and
  its value a dotted line; the title is a line above the panels.
  """
  names = list(panels[0].values)
  for panel in panels:
    assert [*panel.values] == names, 'the same names'
    assert all(x is None or 0 <= x < math.inf for x in panel.values.values()), panel.title
  figure = canvas.figure(1.2 + 3.4 * len(panels), 0.7 + 0.34 * len(names), title)
  cells = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
  for cell, panel in zip(cells, panels):
    _draw_bars(cell, panel, names, baseline)
  canvas.save(figure, path)


def _draw_bars(axes, panel: BarPanel, names: Sequence[str], baseline: str) -> None:
  values = {row: value for row, name in enumerate(names)
            if (value := panel.values[name]) is not None}
  colors = [canvas.NEUTRAL if names[row] == baseline else canvas.ACCENT for row in values]
  axes.barh(list(values), list(values.values()), color=colors, height=0.68)
  for row, value in values.items():
    axes.annotate(
        panel.form.format(value), (value, row), xytext=(4, 0), textcoords='offset points',
        va='center', color=canvas.INK, fontsize=8,
        bbox=dict(facecolor='white', edgecolor='none', pad=1))  # Hides the dotted line.
  for row in set(range(len(names))) - {*values}:
    axes.annotate('not measured', (0, row), xytext=(4, 0), textcoords='offset points', va='center',
                  color=canvas.FAINT, fontsize=8)
  if panel.values.get(baseline) is not None:
    axes.axvline(panel.values[baseline], color=canvas.FAINT, linewidth=0.8, linestyle=':')
  axes.set_xlim(0, 1.15 * max(values.values(), default=0) or 1)
  axes.set_ylim(len(names) - 0.4, -0.6)
  axes.set_yticks(range(len(names)), [canvas.fit(name, 2, 9, most=2) for name in names],
                  fontsize=9, color=canvas.INK)
  axes.set_xticks([])
  axes.tick_params(length=0)
  axes.spines[:].set_visible(False)
  note = canvas.fit(panel.note, 3.2, 7.5)
  axes.set_title(canvas.plain(panel.title), fontsize=9, color=canvas.INK, loc='left',
                 pad=6 + 10 * (note.count('\n') + 1) if note else 6)
  if note:
    axes.text(0, 1.02, note, transform=axes.transAxes, fontsize=7.5, color=canvas.FAINT)
