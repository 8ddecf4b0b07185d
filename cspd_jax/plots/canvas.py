"""Helpers of all figures: a figure without global state, colours, texts, file output."""

import functools
import io
import os
import re
import unicodedata

import numpy as np
from matplotlib import font_manager, ft2font
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from cspd_jax.core import progress
from cspd_jax.files import atomic

INK = '#1f2933'
FAINT = '#7b8794'
ACCENT = '#2f6f9f'
NEUTRAL = '#b8c1cc'

# Width of a letter and height of a line, in inches per point of the font size.
_LETTER, _LINE = 0.0083, 0.02
# The font of all texts, which Matplotlib contains, and fonts whose letters are blanks or boxes.
_FONT, _NO_FONTS = 'DejaVu Sans', ('Last Resort', 'Adobe Blank')
# What a line may be broken after: a wide letter, as of Chinese, a word, parts of specifications.
_WIDE = '\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60'
_PIECES = re.compile(rf'[{_WIDE}]\s*|[^\s+(,={_WIDE}]+[+(,=]*\s*|[+(,=]+\s*')


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

  It is broken at spaces, after letters of Chinese, Japanese and Korean, and after `+`, `(`, `,` and
  `=`, because specifications of decoders have no spaces. A longer text ends in an ellipsis. `size`
  is the font's in points; for the rest, see `plain`.
  """
  letters, lines = max(8, int(inches / (_LETTER * size))), ['']
  for word in _PIECES.findall(_drawable(' '.join(text.split()))):
    if _width(lines[-1] + word.rstrip()) > letters and lines[-1]:
      lines.append('')
    lines[-1] += word
  lines = [line.rstrip() for line in lines]
  if len(lines) > most:
    lines = [*lines[:most - 1], f'{lines[most - 1]} ...']
  return plain('\n'.join(lines))


def plain(text: str) -> str:
  """Returns a text as Matplotlib draws it, to be applied to every text of others.

  Dollar signs, between which it would typeset a formula, are escaped; words with letters that no
  font of the system has, in whose place it would draw boxes, are left out.
  """
  return _drawable(text).replace('$', r'\$')


def _drawable(text: str) -> str:
  """Leaves out the words with letters that no font has."""
  text = progress.unicode(text)
  return text if all(map(_font, set(text))) else ' '.join(
      word for word in text.split() if all(map(_font, set(word))))


def _width(text: str) -> int:
  """Returns the width of a text in letters; Chinese ones are as wide as two."""
  return len(text) + sum(unicodedata.east_asian_width(letter) in 'WF' for letter in text)


@functools.cache
def _font(letter: str) -> str | None:
  """Returns the name of a font of the system that has a letter; None if there is no such font."""
  if letter.isspace():
    return _FONT
  return next((name for name in _fonts() if ord(letter) in _letters(name)), None)


@functools.cache
def _fonts() -> list[str]:
  """Returns the system's fonts by name, first the one for all texts, then those without serifs."""
  # Matplotlib logs a warning about names without the usual weight.
  names = {font.name for font in font_manager.fontManager.ttflist
           if font.style == 'normal' and font.weight in (400, 'normal', 'regular')}
  return [_FONT, *sorted((name for name in names - {_FONT} if not name.startswith(_NO_FONTS)),
                         key=lambda name: ('Sans' not in name, name))]


@functools.cache
def _letters(name: str) -> np.ndarray:
  """Returns the numbers of the letters of a font; none of one whose file cannot be read."""
  try:
    # Of several files with a name, Matplotlib draws with this one.
    path = font_manager.findfont(
        font_manager.FontProperties(family=[name]), fallback_to_default=False)
    return np.fromiter(ft2font.FT2Font(path).get_charmap(), np.int32)
  except (OSError, RuntimeError, ValueError):
    return np.zeros(0, np.int32)


def bare(axes) -> None:
  """Removes the ticks and the frame of axes."""
  axes.set(xticks=[], yticks=[])
  axes.spines[:].set_visible(False)


def png(drawing: Figure) -> bytes:
  """Returns a figure as PNG."""
  buffer = io.BytesIO()
  _set_fonts(drawing)
  drawing.savefig(buffer, format='png')
  return buffer.getvalue()


def _set_fonts(drawing: Figure) -> None:
  """Lets every text be drawn with the fonts that have its letters."""
  for text in drawing.findobj(Text):
    text.set_fontfamily([_FONT, *sorted({*filter(None, map(_font, text.get_text()))} - {_FONT})])


def save(drawing: Figure, path: str | os.PathLike) -> None:
  """Writes a figure as SVG if the path ends in .svg, else as PNG."""
  is_svg = str(path).endswith('.svg')
  _set_fonts(drawing)
  with atomic.writing(path) as stream:
    drawing.savefig(stream, format='svg' if is_svg else 'png',
                    metadata={'Date': None} if is_svg else None)
