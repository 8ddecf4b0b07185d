"""Grids of generated images, also with the round in which each token was committed, or replaced."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colors

from cspd_jax.plots import canvas

# Colour-blind safe colours.
_ACCEPTED, _REPLACED = '#56b4e9', '#d55e00'
_SHARES = colors.LinearSegmentedColormap.from_list('shares', [_REPLACED, _ACCEPTED])


def save_grid(path: str | os.PathLike, images: np.ndarray, *, captions: Sequence[str] | None = None,
              title: str = '', columns: int | None = None) -> None:
  """Writes images `[N, H, W, 3]` in [-1, 1] side by side as one PNG; small ones are enlarged.

  Captions, of at most three lines, stand under the images, the title above the grid. By default the
  grid is about square, with at least four columns.
  """
  images = to_unit(images)
  assert captions is None or len(captions) == len(images), 'a caption per image'
  columns = columns or min(len(images), max(4, math.ceil(math.sqrt(len(images)))))
  rows = math.ceil(len(images) / columns)
  lines = [canvas.fit(caption, 1.9, 8, most=3) for caption in captions or ()]
  most = max((line.count('\n') + 1 for line in lines), default=0)
  height = 2 * images.shape[1] / images.shape[2] + 0.1 + 0.2 * most
  figure = canvas.figure(2 * columns, height * rows, title)
  cells = figure.subplots(rows, columns, squeeze=False).ravel()
  for cell in cells:
    canvas.bare(cell)
  for i, image in enumerate(images):
    cells[i].imshow(image, interpolation='bicubic')
    if lines:
      cells[i].set_xlabel(lines[i], color=canvas.FAINT, fontsize=8)
  canvas.save(figure, path)


def to_unit(images: np.ndarray) -> np.ndarray:
  """Maps images `[N, H, W, 3]` from [-1, 1] to [0, 1]; ValueError unless they are finite."""
  images = np.asarray(images, np.float32)
  assert images.ndim == 4 and images.shape[-1] == 3 and images.size, '[N, H, W, 3]'
  if not np.isfinite(images).all():
    raise ValueError('images holds values that are not finite; check the tokenizer.')
  return np.clip(images / 2 + 0.5, 0, 1)


def save_rows(path: str | os.PathLike, images: Mapping[str, np.ndarray], *,
              captions: Sequence[str] | None = None, notes: Mapping[str, str] | None = None
              ) -> None:
  """Writes a row of images per decoder as one PNG, to be compared column by column.

  `images` `[N, H, W, 3]` in [-1, 1] are by name; captions stand above the columns, notes below the
  names.
  """
  figure, cells = _rows(captions, 1, dict(images=images), notes=notes, label=2.1)
  for row, name in zip(cells, images):
    for axes, image in zip(row, to_unit(images[name])):
      axes.imshow(image, interpolation='bicubic')
  canvas.save(figure, path)


def acceptance_map(
    rounds: Mapping[str, np.ndarray], *, images: Mapping[str, np.ndarray] | None = None,
    captions: Sequence[str] | None = None, notes: Mapping[str, str] | None = None,
    title: str = '') -> bytes:
  """Draws one row of maps per decoder, as PNG.

  Every token is a cell of its image's grid, coloured by the forward pass that committed it, on a
  scale that all rows share. Lines separate the rows of the grid and, within a row, tokens of
  different passes, so that a pass is as long as its tokens. If `rounds` is empty, or the shapes do
  not fit together, it raises ValueError.

  Args:
    rounds: by decoder, `[N, H, W]` the number of the pass that committed each token.
    images: by decoder, `[N, height, width, 3]` in [-1, 1]; drawn next to the maps.
    captions: one line above every image.
    notes: by decoder, a line below its name, such as its number of passes: the maps' would
      leave out the passes of tokens that are no cells, and images that are not shown.
    title: a line above the figure.
  """
  per_image = 2 if images else 1
  figure, cells = _rows(captions, per_image, dict(rounds=rounds) | (
      dict(images=images) if images else {}), notes=notes, title=title)
  last = max(int(np.max(value)) for value in rounds.values())
  for row, (name, maps) in zip(cells, rounds.items()):
    if images:
      for axes, image in zip(row[::2], to_unit(images[name])):
        axes.imshow(image, interpolation='bicubic')
    for axes, values in zip(row[per_image - 1::per_image], np.asarray(maps)):
      mappable = _draw(axes, values, last)
  bar = figure.colorbar(mappable, ax=cells, location='bottom', shrink=0.35, aspect=40, pad=0.01)
  bar.set_label('forward pass that committed the token', fontsize=8, color=canvas.INK)
  bar.ax.tick_params(labelsize=7, colors=canvas.FAINT)
  bar.outline.set_visible(False)
  return canvas.png(figure)


def _draw(axes, rounds: np.ndarray, last: int):
  """Draws one map `[H, W]` with lines between the rounds; returns the object for the colour bar."""
  mappable = axes.imshow(rounds, cmap='viridis', vmin=0, vmax=max(last, 1), interpolation='nearest')
  rows, columns = np.nonzero(rounds[:, 1:] != rounds[:, :-1])
  axes.vlines(columns + 0.5, rows - 0.5, rows + 0.5, color='white', linewidth=0.5)
  axes.hlines(np.arange(rounds.shape[0] - 1) + 0.5, -0.5, rounds.shape[1] - 0.5,
              color='white', linewidth=0.5)
  return mappable


def save_replaced_map(path: str | os.PathLike, images: Mapping[str, np.ndarray],
                      tested: Mapping[str, np.ndarray], accepted: Mapping[str, np.ndarray], *,
                      captions: Sequence[str] | None = None, title: str = '') -> None:
  """Writes one row per decoder, with every image next to a copy with marked tokens, as PNG.

  The marks are on tokens whose drafts were `tested`, `[N, H, W]` how many by decoder; their colour
  shows the share of those that were `accepted`. Other arguments and errors as for `acceptance_map`.
  """
  figure, cells = _rows(
      captions, 2, dict(images=images, tested=tested, accepted=accepted), title=title)
  for row, name in zip(cells, images):
    for i, image in enumerate(to_unit(images[name])):
      height, width = tested[name][i].shape
      for axes in row[2 * i:2 * i + 2]:
        axes.imshow(image, interpolation='bicubic', extent=(-0.5, width - 0.5, height - 0.5, -0.5))
      y, x = np.nonzero(tested[name][i])
      share = accepted[name][i][y, x] / tested[name][i][y, x]
      row[2 * i + 1].scatter(
          x, y, c=share, cmap=_SHARES, vmin=0, vmax=1, marker='s', s=14, alpha=0.75, linewidths=0)
  handles = [cells[0, 1].scatter([], [], marker='s', s=20, color=color)
             for color in (_ACCEPTED, _REPLACED)]
  figure.legend(handles, ['draft accepted', 'draft replaced'], loc='outside lower center',
                fontsize=8, ncols=2, frameon=False, labelcolor=canvas.INK)
  canvas.save(figure, path)


def _rows(captions: Sequence[str] | None, per_image: int,
          values: Mapping[str, Mapping[str, np.ndarray]], *, notes: Mapping[str, str] | None = None,
          title: str = '', label: float = 1.5) -> tuple[Any, np.ndarray]:
  """Returns a figure and its bare axes, a row per decoder with `per_image` of them for an image.

  Captions are above the images, names, and notes below them, in `label` inches next to the rows.
  `values` are what is drawn, by kind and decoder, `[N, H, W, 3]` images and `[N, H, W]` others.
  """
  shapes = {kind: {name: np.shape(value) for name, value in rows.items()}
            for kind, rows in values.items()}
  names, *_ = shapes.values()
  every = {(kind, *shape) for kind, rows in shapes.items() for shape in rows.values()}
  assert len(every) == len(shapes) and all(
      rows.keys() == names.keys() for rows in shapes.values()), 'one size for every decoder'
  count, = {shape[1] for shape in every}
  assert captions is None or len(captions) == count, 'a caption per image'
  figure = canvas.figure(label - 0.2 + 1.35 * per_image * count, 1.4 * len(names) + 0.7, title)
  cells = figure.subplots(len(names), per_image * count, squeeze=False)
  for axes in cells.flat:
    canvas.bare(axes)
  for row, name in zip(cells, names):
    lines = canvas.fit(name, label, 9), canvas.fit((notes or {}).get(name, ''), label, 9)
    row[0].set_ylabel('\n'.join(filter(None, lines)), rotation=0, ha='right', va='center',
                      fontsize=9, color=canvas.INK)
  for axes, caption in zip(cells[0, ::per_image], captions or ()):
    axes.set_title(canvas.fit(caption, 1.3, 8.5, most=2), fontsize=8.5, color=canvas.INK)
  return figure, cells
