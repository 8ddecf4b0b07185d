"""Generated images: looking at them, saving them, watching them come about."""

import base64
import dataclasses
import html
import io
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from PIL import Image, PngImagePlugin

from cspd_jax.checkpoints import files, paths
from cspd_jax.version import __version__

# More than these would make a page of a notebook too long.
_MOST_SHOWN = 16


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Generated:
  """Images and how they came about.

  Attributes:
    images: `[B, H, W, 3]` uint8.
    decoded: the decoder's result, NumPy arrays with a leading axis `B`; without given tokens.
    tokens: `[B, T, ...]` the images' tokens, the given ones included.
    round_of_cell: `[B, rows, columns]` the round that fixed a token of the grid; 0 is the prefill,
      and for given tokens too.
    prompts: `[B]` what every image was asked to show.
    seeds: `[B]` seed of every image, and its number under that seed.
    decoder: specification of the decoder.
    guarantee: what the images have to do with the model's distribution.
    sampling: sampling options by name.
    model: name of the model.
    grid: rows and columns of tokens.
    labels: `[B]` number of every image's class; None if there are no classes.
    given: first tokens of every image that were given.
  """

  images: np.ndarray
  decoded: Any
  tokens: np.ndarray
  round_of_cell: np.ndarray
  prompts: Sequence[str]
  seeds: Sequence[tuple[int, int]]
  decoder: str
  guarantee: str
  sampling: Mapping[str, Any]
  model: str
  grid: tuple[int, int]
  labels: Sequence[int] | None = None
  given: int = 0

  def __len__(self) -> int:
    return len(self.images)

  def names(self) -> list[str]:
    """Names a file `[B]` for every image, by its number, prompt and seed."""
    return [file_name(i, prompt, seed)
            for i, (prompt, (seed, _)) in enumerate(zip(self.prompts, self.seeds))]

  def save(self, folder: str | os.PathLike, *, overwrite: bool = False) -> list[pathlib.Path]:
    """Writes one PNG per image, with its prompt, seed, decoder and versions in the metadata.

    Args:
      folder: where to; it is created if necessary.
      overwrite: whether images of the same names are replaced.

    Returns:
      `[B]` the files.

    Raises:
      ValueError: if a file exists and is not to be replaced, or nothing can be written there.
    """
    folder = paths.find('folder', folder)
    pictures = [folder / name for name in self.names()]
    if not overwrite and (found := [path for path in pictures if path.exists()]):
      raise ValueError(
          f'folder is {str(folder)!r}, which holds {found[0].name} already; give another folder, '
          'or overwrite=True.')
    try:
      folder.mkdir(parents=True, exist_ok=True)
      for i, path in enumerate(pictures):
        files.write(path, self.png(i))
    except OSError as error:
      raise ValueError(f'folder is {str(folder)!r}, where files cannot be written '
                       f'({error.strerror}); give another folder.') from error
    return pictures

  def png(self, index: int) -> bytes:
    """One image as PNG, with `metadata` as its text."""
    info = PngImagePlugin.PngInfo()
    for name, value in self.metadata(index).items():
      info.add_itxt(name, value if isinstance(value, str) else json.dumps(value))
    buffer = io.BytesIO()
    Image.fromarray(self.images[index]).save(buffer, 'PNG', pnginfo=info)
    return buffer.getvalue()

  def metadata(self, index: int) -> dict[str, Any]:
    """What is to be known of one image: enough to make it again."""
    seed, number = self.seeds[index]
    per_image = {name: value[index] if isinstance(value, list) else value
                 for name, value in self.sampling.items()}
    label = {} if self.labels is None else dict(label=self.labels[index])
    given = dict(given_tokens=self.given) if self.given else {}
    return dict(
        prompt=self.prompts[index], **label, **given, seed=seed, number=number, model=self.model,
        decoder=self.decoder, guarantee=self.guarantee, sampling=per_image,
        rounds=int(self.decoded.rounds[index]), software=software())

  def __repr__(self) -> str:
    height, width = self.images.shape[1:3]
    return (f'Generated({len(self)} images of {height}x{width} by {self.decoder} '
            f'({self.guarantee}) from {self.model!r}, '
            f'{np.mean(self.decoded.rounds):.1f} rounds on average)')

  def _repr_html_(self) -> str:
    """The images and the acceptance map, for notebooks."""
    shown = min(len(self), _MOST_SHOWN)
    cells = ''.join(
        f'<figure style="display:inline-block;margin:4px;text-align:center">'
        f'<img src="{_inline(self.png(i))}" style="width:160px;image-rendering:pixelated">'
        f'<figcaption>{html.escape(self.prompts[i])}</figcaption></figure>' for i in range(shown))
    from cspd_jax.plots import acceptance  # Matplotlib takes a second to import.
    maps = acceptance.acceptance_map(
        {self.decoder: self.round_of_cell[:4]}, captions=self.prompts[:4])
    more = f'<p>and {len(self) - shown} more</p>' if len(self) > shown else ''
    return f'<p>{html.escape(repr(self))}</p>{cells}{more}<br><img src="{_inline(maps)}">'


class Partial:
  """Images that are coming about.

  Attributes:
    decoded: the decoder's result so far, NumPy arrays; what is not committed means nothing.
    count: `[B]` committed tokens, the given ones included.
    complete: whether all images are.
    fixed: `[B, rows, columns]` bool, the tokens that are committed.
  """

  def __init__(self, task: Any, decoded: Any, count: np.ndarray, complete: bool):
    self._task, self.decoded, self.count, self.complete = task, decoded, count, complete
    order = getattr(decoded, 'order', None)
    place = np.arange(task.given + decoded.round_of_token.shape[1])
    if order is not None:
      place = np.argsort(order, axis=1)
    self.fixed = task.model.cells(place < count[:, None])

  @property
  def images(self) -> np.ndarray:
    """The images so far, uint8 `[B, H, W, 3]`; grey where no token is committed."""
    images = self._task.result(self.decoded).images.copy()
    scale = [pixels // tokens for pixels, tokens in zip(images.shape[1:3], self.fixed.shape[1:])]
    shown = self.fixed.repeat(scale[0], axis=1).repeat(scale[1], axis=2)
    images[~shown] = 128
    return images

  def result(self) -> Generated:
    """The images, once they are complete.

    Raises:
      ValueError: if they are not.
    """
    if not self.complete:
      raise ValueError(f'the images have {self.count.tolist()} tokens so far; go on until '
                       '`complete` is True.')
    return self._task.result(self.decoded)

  def __repr__(self) -> str:
    # The grid has no place for the grammar's tokens.
    total = len(self.count) * (self._task.given + self.decoded.round_of_token.shape[1])
    return (f'Partial({int(self.count.sum())} of {total} tokens of {len(self.count)} images, '
            f'round {int(np.max(self.decoded.rounds))})')


def file_name(index: int, prompt: str, seed: int) -> str:
  """The name of an image's file."""
  words = re.sub(r'\W+', '_', prompt.lower()).strip('_')[:60] or 'image'
  words = words.encode()[:180].decode(errors='ignore')  # A name has 255 bytes at most.
  return f'{index:05d}_{words}_seed{seed}.png'


def software() -> str:
  """Names and versions of what made an image."""
  return f'cspd_jax {__version__}, jax {jax.__version__}'


def _inline(png: bytes) -> str:
  return f'data:image/png;base64,{base64.b64encode(png).decode()}'
