"""Bar charts that compare decoders."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cspd_jax.plots import canvas


class Panel(NamedTuple):
  """One chart.

  Attributes:
    title: the measured quantity with its unit.
    values: length of each bar by name, at least 0.
    form: format of the values, such as '{:.2f}'.
    note: a line under the title, such as which direction is better.
  """

  title: str
  values: Mapping[str, float]
  form: str = '{:.2f}'
  note: str = ''


def save_bars(
    path: str | os.PathLike, panels: Sequence[Panel], *, baseline: str = 'vanilla',
    title: str = '') -> None:
  """Writes panels of horizontal bars side by side as one PNG.

  Args:
    path: the file to write.
    panels: charts over the same names, which label the first panel.
    baseline: the name whose bar is grey and whose value is a dotted line.
    title: a line above the panels.

  Raises:
    ValueError: if there are no panels or names, the panels' names differ, or a value is negative
      or not finite.
  """
  names = list(panels[0].values) if panels else []
  if not names or any(list(panel.values) != names for panel in panels):
    raise ValueError(
        f'panels have the names {[list(panel.values) for panel in panels]}; they must be the '
        'same for all panels, at least one.')
  if invalid := [panel.title for panel in panels
                 if not all(0 <= value < math.inf for value in panel.values.values())]:
    raise ValueError(
        f'panel {invalid[0]!r} has a value that is negative or not finite; a bar cannot show it.')
  figure = canvas.figure(1.2 + 3.4 * len(panels), 0.7 + 0.34 * len(names), title)
  cells = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
  for cell, panel in zip(cells, panels):
    _draw(cell, panel, names, baseline)
  canvas.save(figure, path)


def _draw(axes, panel: Panel, names: Sequence[str], baseline: str) -> None:
  values = [panel.values[name] for name in names]
  colors = [canvas.NEUTRAL if name == baseline else canvas.ACCENT for name in names]
  axes.barh(range(len(names)), values, color=colors, height=0.68)
  for row, value in enumerate(values):
    axes.annotate(
        panel.form.format(value), (value, row), xytext=(4, 0), textcoords='offset points',
        va='center', color=canvas.INK, fontsize=8,
        bbox=dict(facecolor='white', edgecolor='none', pad=1))  # Hides the dotted line.
  if baseline in names:
    axes.axvline(panel.values[baseline], color=canvas.FAINT, linewidth=0.8, linestyle=':')
  axes.set_xlim(0, 1.15 * max(values) or 1)
  axes.set_ylim(len(names) - 0.4, -0.6)
  axes.set_yticks(range(len(names)), [canvas.fit(name, 2, 9, most=2) for name in names],
                  fontsize=9, color=canvas.INK)
  axes.set_xticks([])
  axes.tick_params(length=0)
  for spine in axes.spines.values():
    spine.set_visible(False)
  note = canvas.fit(panel.note, 3.2, 7.5)
  axes.set_title(panel.title, fontsize=9, color=canvas.INK, loc='left',
                 pad=6 + 10 * (note.count('\n') + 1) if note else 6)
  if note:
    axes.text(0, 1.02, note, transform=axes.transAxes, fontsize=7.5, color=canvas.FAINT)
