"""Helpers of all figures: a figure without global state, colours, line breaks, file output."""

import io
import os
import re

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cspd_jax.files import atomic

INK = '#1f2933'
FAINT = '#7b8794'
ACCENT = '#2f6f9f'
NEUTRAL = '#b8c1cc'

# Width of a letter and height of a line, in inches per point of the font size.
_LETTER, _LINE = 0.0083, 0.02


def figure(width: float, height: float, title: str = '') -> Figure:
  """Creates a white figure outside of pyplot, in inches, below a title broken to fit the width."""
  title = fit(title, width - 0.1, 10)
  height += _LINE * 10 * (title.count('\n') + 1) if title else 0
  result = Figure(figsize=(width, height), dpi=160, facecolor='white', layout='constrained')
  FigureCanvasAgg(result)
  if title:
    result.suptitle(title, color=INK, fontsize=10)
  return result


def fit(text: str, inches: float, size: float, most: int = 8) -> str:
  """Breaks `text` into at most `most` lines that are not wider than `inches`, but for long words.

  It is broken at spaces and after `+`, `(`, `,` and `=`, because specifications of decoders have no
  spaces. A dollar sign does not begin a formula; a longer text ends in an ellipsis. `size` is that
  of the font in points.
  """
  letters, lines = max(8, int(inches / (_LETTER * size))), ['']
  for word in re.findall(r'[^\s+(,=]+[+(,=]*\s*|[+(,=]+\s*', ' '.join(text.split())):
    if len(lines[-1] + word.rstrip()) > letters and lines[-1]:
      lines.append('')
    lines[-1] += word
  lines = [line.rstrip() for line in lines]
  if len(lines) > most:
    lines = [*lines[:most - 1], f'{lines[most - 1]} ...']
  return plain('\n'.join(lines))


def plain(text: str) -> str:
  """Escapes dollar signs, between which Matplotlib would typeset a formula."""
  return text.replace('$', r'\$')


def bare(axes) -> None:
  """Removes the ticks and the frame of axes."""
  axes.set(xticks=[], yticks=[])
  axes.spines[:].set_visible(False)


def png(drawing: Figure) -> bytes:
  """Returns a figure as PNG."""
  buffer = io.BytesIO()
  drawing.savefig(buffer, format='png')
  return buffer.getvalue()


def save(drawing: Figure, path: str | os.PathLike) -> None:
  """Writes a figure as SVG if the path ends in .svg, else as PNG."""
  is_svg = str(path).endswith('.svg')
  with atomic.writing(path) as stream:
    drawing.savefig(stream, format='svg' if is_svg else 'png',
                    metadata={'Date': None} if is_svg else None)
