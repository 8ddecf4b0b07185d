"""What all pictures share: a figure without global state, colours, safe files."""

import io
import os
import re

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cspd_jax.checkpoints import files

INK = '#1f2933'
FAINT = '#7b8794'
ACCENT = '#2f6f9f'
NEUTRAL = '#b8c1cc'


# Inches that a letter takes and a line, per point of the font.
_LETTER, _LINE = 0.0083, 0.02


def figure(width: float, height: float, title: str = '') -> Figure:
  """A white figure that no global list knows of.

  Args:
    width: inches.
    height: inches, without the title.
    title: a line above all, broken into more where it is wider than the figure.
  """
  title = fit(title, width - 0.1, 10)
  height += _LINE * 10 * (title.count('\n') + 1) if title else 0
  result = Figure(figsize=(width, height), dpi=160, facecolor='white', layout='constrained')
  FigureCanvasAgg(result)
  if title:
    result.suptitle(title, color=INK, fontsize=10)
  return result


def fit(text: str, inches: float, size: float, most: int = 8) -> str:
  """Breaks `text` into lines that are not wider than `inches`, as far as words allow.

  Args:
    text: broken at spaces and, as specifications of decoders have none, after `+`, `(`, `,`, `=`.
      A dollar sign stands for itself, not for a formula.
    inches: that a line may take.
    size: of the font, in points.
    most: lines; what is too much ends in an ellipsis.
  """
  letters, lines = max(8, int(inches / (_LETTER * size))), ['']
  for word in re.findall(r'[^\s+(,=]+[+(,=]*\s*|[+(,=]+\s*', text):
    if len(lines[-1] + word.rstrip()) > letters and lines[-1]:
      lines.append('')
    lines[-1] += word
  lines = [line.rstrip() for line in lines]
  if len(lines) > most:
    lines = [*lines[:most - 1], f'{lines[most - 1]} ...']
  return plain('\n'.join(lines))


def plain(text: str) -> str:
  """A text as it is drawn: without this, what stands between two dollar signs is a formula."""
  return text.replace('$', r'\$')


def bare(axes) -> None:
  """Removes ticks and frame."""
  axes.set_xticks([])
  axes.set_yticks([])
  for spine in axes.spines.values():
    spine.set_visible(False)


def png(picture: Figure) -> bytes:
  """A figure as PNG."""
  buffer = io.BytesIO()
  picture.savefig(buffer, format='png')
  return buffer.getvalue()


def save(picture: Figure, path: str | os.PathLike) -> None:
  """Writes a figure as PNG; see `checkpoints.files.write`."""
  files.write(path, png(picture))
