"""A grid of generated images."""

import math
import os
from collections.abc import Sequence

import numpy as np

from cspd_jax.plots import canvas


def save_grid(
    path: str | os.PathLike,
    images: np.ndarray,
    *,
    captions: Sequence[str] | None = None,
    title: str = '',
    columns: int | None = None,
) -> None:
  """Writes images side by side as one PNG; small images are enlarged.

  Args:
    path: the file to write.
    images: `[N, H, W, 3]` in [-1, 1], as a tokenizer decodes them.
    captions: texts under the images, at most three lines each.
    title: a line above the grid.
    columns: images per row; by default the grid is about square, with at least four columns.

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
