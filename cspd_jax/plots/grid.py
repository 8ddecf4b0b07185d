"""Grids of generated images, also with the round in which each token was committed, or replaced."""

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colors

from cspd_jax.files import atomic
from cspd_jax.plots import canvas


def save_grid(
    path: str | os.PathLike,
    images: np.ndarray,
    *,
    captions: Sequence[str] | None = None,
    title: str = '',
    columns: int | None = None,
) -> None:
  """Writes images `[N, H, W, 3]` in [-1, 1] side by side as one PNG; small ones are enlarged.

  Captions, of at most three lines, stand under the images, the title above the grid. By default the
  grid is about square, with at least four columns.

  Raises:
    ValueError: if the shapes or the number of captions do not fit.
  """
  images = to_unit(images)
  if captions is not None and len(captions) != len(images):
    raise ValueError(f'captions has {len(captions)} entries for {len(images)} images.')
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


def save_rows(
    path: str | os.PathLike,
    images: Mapping[str, np.ndarray],
    *,
    captions: Sequence[str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
  """Writes a row of images per decoder as one PNG, to be compared column by column.

  `images` `[N, H, W, 3]` in [-1, 1] are by name; captions, of at most three lines, stand above the
  columns, notes below the names.

  Raises:
    ValueError: if the shapes or the numbers of images and captions differ.
  """
  rows = {name: to_unit(value) for name, value in images.items()}
  shapes = {value.shape for value in rows.values()}
  count = len(captions) if captions is not None else max((shape[0] for shape in shapes), default=0)
  if len(shapes) != 1 or {shape[0] for shape in shapes} != {count}:
    raise ValueError(f'images has { {name: value.shape for name, value in rows.items()} } and '
                     f'captions {count}; there must be as many images of one size in every row.')
  figure = canvas.figure(2.2 + 1.2 * count, 1.25 * len(rows) + 0.5)
  cells = figure.subplots(len(rows), count, squeeze=False)
  for row, (name, pictures) in zip(cells, rows.items()):
    for cell, picture in zip(row, pictures):
      canvas.bare(cell)
      cell.imshow(picture, interpolation='bicubic')
    note = canvas.fit((notes or {}).get(name, ''), 2.1, 8)
    _name(row[0], canvas.fit(name, 2.1, 9), note, 8.5)
  for cell, caption in zip(cells[0], captions or ()):
    cell.set_title(canvas.fit(caption, 1.15, 8, most=3), fontsize=8, color=canvas.FAINT)
  canvas.save(figure, path)


def _name(axes, name: str, note: str = '', size: float = 9) -> None:
  """Writes the name of a row, and a note below it, to the left of its first axes."""
  axes.set_ylabel(f'{name}\n{note}' if note else name, rotation=0, ha='right', va='center',
                  fontsize=size, color=canvas.INK)


def to_unit(images: np.ndarray) -> np.ndarray:
  """Maps images `[N, H, W, 3]` from [-1, 1] to [0, 1] and clips values outside.

  Raises:
    ValueError: for another shape, or values that are not finite.
  """
  images = np.asarray(images, np.float32)
  if images.ndim != 4 or images.shape[-1] != 3 or not images.size:
    raise ValueError(f'images has shape {images.shape}; it must be [N, H, W, 3], not empty.')
  if not np.isfinite(images).all():
    raise ValueError('images holds values that are not finite; check the tokenizer.')
  return np.clip(images / 2 + 0.5, 0, 1)


def save_acceptance_map(path: str | os.PathLike, rounds: Mapping[str, np.ndarray],
                        **options) -> None:
  """Writes an acceptance map as PNG; for arguments and errors see `acceptance_map`."""
  atomic.write(path, acceptance_map(rounds, **options))


def acceptance_map(
    rounds: Mapping[str, np.ndarray],
    *,
    images: Mapping[str, np.ndarray] | None = None,
    captions: Sequence[str] | None = None,
    notes: Mapping[str, str] | None = None,
    title: str = '',
) -> bytes:
  """Draws one row of maps per decoder, as PNG.

  Every token is a cell of its image's grid, coloured by the round that committed it on a scale that
  all rows share. Lines separate the rows of the grid and, within a row, tokens of different rounds,
  so that a round is as long as its tokens.

  Args:
    rounds: by decoder, `[N, H, W]` the round that committed each token.
    images: by decoder, `[N, height, width, 3]` in [-1, 1]; drawn next to the maps.
    captions: one line above every image.
    notes: by decoder, a line below its name, such as its number of rounds: that of the maps would
      leave out the rounds of tokens that are no cells, and images that are not shown.
    title: a line above the figure.

  Raises:
    ValueError: if `rounds` is empty, or the shapes do not fit together.
  """
  rounds = {name: np.asarray(value) for name, value in rounds.items()}
  count = _check(rounds, images, captions)
  last = max(int(value.max()) for value in rounds.values())
  per_image = 2 if images else 1
  figure = canvas.figure(1.3 + 1.35 * per_image * count, 1.4 * len(rounds) + 0.7, title)
  cells = figure.subplots(len(rounds), per_image * count, squeeze=False)
  for row, (name, maps) in zip(cells, rounds.items()):
    pictures = to_unit(images[name]) if images else None
    for i in range(count):
      if pictures is not None:
        canvas.bare(row[2 * i])
        row[2 * i].imshow(pictures[i], interpolation='bicubic')
      mappable = _draw(row[per_image * (i + 1) - 1], maps[i], last)
    _name(row[0], canvas.fit(name, 1.5, 9), notes[name] if notes else '')
  for i, caption in enumerate(captions or ()):
    cells[0, per_image * i].set_title(
        canvas.fit(caption, 1.3, 8.5, most=2), fontsize=8.5, color=canvas.INK)
  bar = figure.colorbar(mappable, ax=cells, location='bottom', shrink=0.35, aspect=40, pad=0.01)
  bar.set_label('round that committed the token', fontsize=8, color=canvas.INK)
  bar.ax.tick_params(labelsize=7, colors=canvas.FAINT)
  bar.outline.set_visible(False)
  return canvas.png(figure)


def _check(rounds, images, captions) -> int:
  """Returns the number of images; raises ValueError if the arguments do not fit together."""
  shapes = {value.shape for value in rounds.values()}
  if len(shapes) != 1 or len(shape := shapes.pop()) != 3 or 0 in shape:
    raise ValueError(
        f'rounds has shapes { {name: value.shape for name, value in rounds.items()} }; they must '
        'be [N, H, W], not empty and the same for all decoders.')
  count = shape[0]
  if captions is not None and len(captions) != count:
    raise ValueError(f'captions has {len(captions)} entries for {count} images.')
  if images is not None and any(len(images.get(name, ())) != count for name in rounds):
    raise ValueError(
        f'images has { {name: len(value) for name, value in images.items()} } images; it must have '
        f'{count} for each of {", ".join(rounds)}.')
  return count


def _draw(axes, rounds: np.ndarray, last: int):
  """Draws one map `[H, W]` with lines between the rounds; returns the object for the colour bar."""
  canvas.bare(axes)
  mappable = axes.imshow(
      rounds, cmap='viridis', vmin=0, vmax=max(last, 1), interpolation='nearest')
  rows, columns = np.nonzero(rounds[:, 1:] != rounds[:, :-1])
  axes.vlines(columns + 0.5, rows - 0.5, rows + 0.5, color='white', linewidth=0.5)
  axes.hlines(np.arange(rounds.shape[0] - 1) + 0.5, -0.5, rounds.shape[1] - 0.5,
              color='white', linewidth=0.5)
  return mappable


# Colour-blind safe colours.
_ACCEPTED, _REPLACED = '#56b4e9', '#d55e00'
_SHARES = colors.LinearSegmentedColormap.from_list('shares', [_REPLACED, _ACCEPTED])


def save_replaced_map(
    path: str | os.PathLike,
    images: Mapping[str, np.ndarray],
    tested: Mapping[str, np.ndarray],
    accepted: Mapping[str, np.ndarray],
    *,
    captions: Sequence[str] | None = None,
    title: str = '',
) -> None:
  """Writes one row per decoder, with every image next to a copy with marked tokens, as PNG.

  The marks are on tokens whose drafts were `tested`, `[N, H, W]` how many by decoder; their colour
  shows the share of those that were `accepted`. Other arguments as for `acceptance_map`.

  Raises:
    ValueError: if there are no images, or the decoders or numbers of images differ.
  """
  counts = {name: (len(images[name]), len(tested.get(name, ())), len(accepted.get(name, ())))
            for name in images}
  sizes = set(sum(counts.values(), ()))
  if len(sizes) != 1 or 0 in sizes or captions is not None and {len(captions)} != sizes:
    raise ValueError(f'images, tested and accepted have {counts} entries, captions '
                     f'{captions and len(captions)}; they must be equal and not 0.')
  count = sizes.pop()
  figure = canvas.figure(1.3 + 2.7 * count, 1.4 * len(images) + 0.4, title)
  cells = figure.subplots(len(images), 2 * count, squeeze=False)
  for row, name in zip(cells, images):
    for i, image in enumerate(to_unit(images[name])):
      extent = (-0.5, tested[name][i].shape[1] - 0.5, tested[name][i].shape[0] - 0.5, -0.5)
      for axes in row[2 * i:2 * i + 2]:
        canvas.bare(axes)
        axes.imshow(image, interpolation='bicubic', extent=extent)
      y, x = np.nonzero(tested[name][i])
      share = accepted[name][i][y, x] / tested[name][i][y, x]
      row[2 * i + 1].scatter(
          x, y, c=share, cmap=_SHARES, vmin=0, vmax=1, marker='s', s=14, alpha=0.75, linewidths=0)
    _name(row[0], canvas.fit(name, 1.5, 9))
  for i, caption in enumerate(captions or ()):
    cells[0, 2 * i].set_title(canvas.fit(caption, 1.3, 8.5, most=2), fontsize=8.5, color=canvas.INK)
  handles = [cells[0, 1].scatter([], [], marker='s', s=20, color=color)
             for color in (_ACCEPTED, _REPLACED)]
  figure.legend(handles, ['draft accepted', 'draft replaced'], loc='outside lower center',
                fontsize=8, ncols=2, frameon=False, labelcolor=canvas.INK)
  canvas.save(figure, path)
