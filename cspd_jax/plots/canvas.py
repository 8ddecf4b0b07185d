"""What all pictures share: a figure without global state, colours, safe files."""

import io
import os
import pathlib

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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


def save(picture: Figure, path: str | os.PathLike) -> None:
  """Writes a figure as PNG; see `write`."""
  buffer = io.BytesIO()
  picture.savefig(buffer, format='png')
  write(path, buffer.getvalue())


def write(path: str | os.PathLike, data: bytes) -> None:
  """Writes a file that is complete whenever it is there, replacing an older one."""
  path = pathlib.Path(path)
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  try:
    temporary.write_bytes(data)
    temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)
