"""What all pictures share: a figure without global state, colours, safe files."""

import io
import os

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cspd_jax.core import files

INK = '#1f2933'
FAINT = '#7b8794'
ACCENT = '#2f6f9f'
NEUTRAL = '#b8c1cc'


def figure(width: float, height: float) -> Figure:
  """A white figure of `width` by `height` inches that no global list knows of."""
  result = Figure(figsize=(width, height), dpi=160, facecolor='white', layout='constrained')
  FigureCanvasAgg(result)
  return result


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
  """Writes a figure as PNG; see `core.files.write`."""
  files.write(path, png(picture))
