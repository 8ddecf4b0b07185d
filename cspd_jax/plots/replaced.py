"""Images with marks on the tokens whose drafts were accepted or replaced."""

import os
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colors

from cspd_jax.plots import canvas, grid

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

  Args:
    path: the file to write.
    images: by decoder, `[N, height, width, 3]` in [-1, 1].
    tested: by decoder, `[N, H, W]` how many drafts of a token were tested.
    accepted: by decoder, `[N, H, W]` how many of them were accepted; the colour of a mark shows
      the share.
    captions: one line above every image.
    title: a line above the figure.

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
    for i, image in enumerate(grid.to_unit(images[name])):
      extent = (-0.5, tested[name][i].shape[1] - 0.5, tested[name][i].shape[0] - 0.5, -0.5)
      for axes in row[2 * i:2 * i + 2]:
        canvas.bare(axes)
        axes.imshow(image, interpolation='bicubic', extent=extent)
      y, x = np.nonzero(tested[name][i])
      share = accepted[name][i][y, x] / tested[name][i][y, x]
      row[2 * i + 1].scatter(
          x, y, c=share, cmap=_SHARES, vmin=0, vmax=1, marker='s', s=14, alpha=0.75, linewidths=0)
    row[0].set_ylabel(canvas.fit(name, 1.5, 9), rotation=0, ha='right', va='center', fontsize=9,
                      color=canvas.INK)
  for i, caption in enumerate(captions or ()):
    cells[0, 2 * i].set_title(canvas.fit(caption, 1.3, 8.5, most=2), fontsize=8.5, color=canvas.INK)
  handles = [cells[0, 1].scatter([], [], marker='s', s=20, color=color)
             for color in (_ACCEPTED, _REPLACED)]
  figure.legend(handles, ['draft accepted', 'draft replaced'], loc='outside lower center',
                fontsize=8, ncols=2, frameon=False, labelcolor=canvas.INK)
  canvas.save(figure, path)
