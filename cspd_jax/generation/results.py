"""Generated images: display and saving."""

import base64
import dataclasses
import html
import io
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from PIL import Image, PngImagePlugin

from cspd_jax.files import atomic, paths, reading
from cspd_jax.version import __version__

# More images would make a notebook page too long.
MOST_SHOWN = 16


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Generated:
  """Images and how they were generated; `out[0]` and `out[1:3]` are some of them.

  Attributes:
    images: `[B, H, W, 3]` uint8; `[B, 0, 0, 3]` if another program draws their pixels.
    decoded: the decoder's result, NumPy arrays with a leading axis `B`; without the prefix.
    tokens: `[B, T, ...]` the images' tokens, including the prefix.
    round_of_cell: `[B, rows, columns]` the round that fixed a token of the grid; 0 for the prefill
      and for the prefix.
    prompts: `[B]` the prompts in words.
    seeds: `[B]` seed of every image, and its number under that seed.
    decoder: specification of the decoder.
    guarantee: how the images relate to the model's distribution.
    sampling: sampling options by name.
    model: name of the model.
    grid: rows and columns of tokens.
    numbers: `[B]` numbers of the images in the names of their files.
    unknown_words: `[B]` the words of every prompt that do not reach the model; empty lists
      otherwise. See `PromptKind.unknown_words`.
    labels: `[B]` class number of every image; None without classes.
    prefix_length: number of tokens of the prefix.
    precision: the options of `cspd_jax.load` that round the model's numbers, by name: `dtype`,
      `quantize` and `cache_dtype`.
    handed: arrays `[B, ...]` by name for the program that draws the pixels; None if they are drawn
      here. See `parts.Handover`.
    prior: what the model's prior drew for these images; None without one.
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
  numbers: Sequence[int]
  unknown_words: Sequence[Sequence[str]]
  labels: Sequence[int] | None = None
  prefix_length: int = 0
  precision: Mapping[str, str] = dataclasses.field(default_factory=dict)
  handed: Mapping[str, np.ndarray] | None = None
  prior: 'Generated | None' = None

  @property
  def log_probs(self) -> np.ndarray | None:
    """The log-probability `[B, T]` of every token of `tokens`; None for continuous tokens.

    Under the target's distribution after guidance, temperature, cuts and grammar; see
    `decoding.base.Decoded.log_probs`. 0 for the prefix, which is not sampled, and forced tokens.
    """
    return self._with_prefix('log_probs')

  @property
  def raw_log_probs(self) -> np.ndarray | None:
    """As `log_probs`, after guidance alone; None unless `generate(raw_log_probs=True)`."""
    return self._with_prefix('raw_log_probs')

  @property
  def tv_bound(self) -> np.ndarray:
    """`[B]` whose mean bounds the total variation to the distribution of the model, and its prior.

    It is the sum over both of `decoding.base.Decoded.tv_bound`.
    """
    own = np.asarray(self.decoded.tv_bound)
    return own if self.prior is None else own + self.prior.tv_bound

  def _with_prefix(self, name: str) -> np.ndarray | None:
    """A field of `decoded` `[B, T]`, with zeros for the prefix; None if it is missing."""
    values = getattr(self.decoded, name, None)
    return None if values is None else np.pad(values, ((0, 0), (self.prefix_length, 0)))

  def __len__(self) -> int:
    return len(self.images)

  def __iter__(self) -> Iterator['Generated']:
    return (self[i] for i in range(len(self)))

  def __getitem__(self, index: int | slice) -> 'Generated':
    """Returns one image, or a slice of them; raises IndexError or TypeError for another index."""
    try:
      selected = range(len(self))[index]
    except IndexError as error:
      raise IndexError(f'index is {index}, but there are {len(self)} images.') from error
    except TypeError as error:
      raise TypeError(f'index is {index!r:.80}; it must be a whole number or a slice.') from error
    rows = [selected] if isinstance(selected, int) else list(selected)
    pick = lambda values: [values[i] for i in rows]
    return dataclasses.replace(
        self, images=self.images[rows], tokens=self.tokens[rows],
        decoded=jax.tree.map(lambda leaf: leaf[rows], self.decoded),
        round_of_cell=self.round_of_cell[rows], prompts=pick(self.prompts),
        seeds=pick(self.seeds), labels=None if self.labels is None else pick(self.labels),
        sampling={name: pick(value) if isinstance(value, list) else value
                  for name, value in self.sampling.items()},
        unknown_words=pick(self.unknown_words), numbers=pick(self.numbers),
        prior=self.prior and self.prior[index],
        handed=self.handed and {name: value[rows] for name, value in self.handed.items()})

  def names(self) -> list[str]:
    """Returns a file name per image `[B]`, from its number, prompt and seed."""
    return [file_name(number, prompt, seed, tokens=self.handed is not None)
            for number, prompt, (seed, _) in zip(self.numbers, self.prompts, self.seeds)]

  def save(self, folder: str | os.PathLike, *, overwrite: bool = False) -> list[pathlib.Path]:
    """Writes one file per image, with its prompt, seed, decoder and versions in the metadata.

    They are PNG or, if another program draws the pixels, safetensors with its tokens. The folder is
    created if necessary; returns the paths of the files `[B]`. A file that exists with the same
    content stays. Raises ValueError if one has another content and is not to be replaced by
    `overwrite`, or the folder is not writable.
    """
    folder = paths.find('folder', folder)
    pictures = [folder / name for name in self.names()]
    new = [(path, self.file(i)) for i, path in enumerate(pictures)]
    try:
      new = [(path, content) for path, content in new
             if not (path.is_file() and path.read_bytes() == content)]
      if not overwrite and (existing := [path for path, _ in new if path.exists()]):
        raise ValueError(f'folder is {str(folder)!r}, which holds another {existing[0].name} '
                         'already; use another folder, or pass overwrite=True.')
      folder.mkdir(parents=True, exist_ok=True)
      for path, content in new:
        atomic.write(path, content)
    except OSError as error:
      raise ValueError(f'folder is {str(folder)!r}, where files cannot be written '
                       f'({error.strerror}); use another folder.') from error
    return pictures

  def file(self, index: int) -> bytes:
    """Encodes one image as PNG, or its tokens for another program as safetensors; see `save`."""
    if self.handed is None:
      return self.png(index)
    texts = {name: value if isinstance(value, str) else json.dumps(value)
             for name, value in self.metadata(index).items()}
    return _in_order(safetensors.numpy.save(
        {name: np.ascontiguousarray(value[index:index + 1])
         for name, value in self.handed.items()}, metadata=texts))

  def png(self, index: int) -> bytes:
    """Encodes one image as PNG, with `metadata` as its text; ValueError without pixels."""
    if self.handed is not None:
      raise ValueError(f'model is {self.model!r}, whose pixels another program draws; pass the '
                       'tokens of save, or of handed, to it.')
    info = PngImagePlugin.PngInfo()
    for name, value in self.metadata(index).items():
      info.add_itxt(name, value if isinstance(value, str) else json.dumps(value))
    return encoded(self.images[index], info)

  def metadata(self, index: int) -> dict[str, Any]:
    """Returns the metadata of one image.

    With the same networks they suffice to generate it again, up to rounding: `load` accepts the
    grid, dtype, quantize and cache_dtype, `generate` the others, and `seed=[(seed, number)]`.
    """
    seed, number = self.seeds[index]
    per_image = {name: value[index] if isinstance(value, list) else value
                 for name, value in self.sampling.items()}
    if self.prior is not None:
      per_image['prior'] = self.prior.metadata(index)['sampling']
    label = {} if self.labels is None else dict(label=self.labels[index])
    prefix = {}
    if self.prefix_length:  # `given_tokens` is the name of its length in images of all versions.
      prefix = dict(given_tokens=self.prefix_length,
                    prefix=self.tokens[index, :self.prefix_length].tolist())
    return dict(
        prompt=self.prompts[index], **label, **prefix, seed=seed, number=number, model=self.model,
        grid=list(self.grid), **self.precision, decoder=self.decoder, guarantee=self.guarantee,
        sampling=per_image, passes=int(self.decoded.rounds[index]),
        **({} if self.prior is None else dict(prior_passes=int(self.prior.decoded.rounds[index]))),
        software=f'cspd_jax {__version__}, jax {jax.__version__}')

  def __repr__(self) -> str:
    count, (height, width) = len(self), self.images.shape[1:3]
    size = f'{height}x{width}' if self.handed is None else '{}x{} tokens'.format(*self.grid)
    passes = f', {self._passes()}{" on average" if count > 1 else ""}' if count else ''
    return (f'Generated({count} image{"s"[:count != 1]} of {size} by {self.decoder} '
            f'({self.guarantee}) from {self.model!r}{passes})')

  def _passes(self) -> str:
    mean = lambda images: f'{np.mean(images.decoded.rounds):.{int(len(self) > 1)}f}'
    before = '' if self.prior is None else f'{mean(self.prior)} + '
    return f'{before}{mean(self)} forward passes'

  def _repr_html_(self) -> str:
    """Displays the images and the acceptance map in notebooks."""
    if not len(self):
      return f'<p>{html.escape(repr(self))}</p>'
    shown = min(len(self), MOST_SHOWN)
    pngs = [self.png(i) for i in range(shown)] if self.handed is None else []
    cells = figures(repr(self), pngs, self.prompts)
    from cspd_jax.plots import grid as grid_lib  # Importing Matplotlib takes a second.
    maps = grid_lib.acceptance_map(
        {self.decoder: self.round_of_cell[:4]}, captions=self.prompts[:4],
        notes={self.decoder: self._passes()})
    more = f'<p>and {len(self) - shown} more</p>' if len(self) > shown else ''
    return f'{cells}{more}<br><img src="{_inline(maps)}">'


def encoded(image: np.ndarray, info: PngImagePlugin.PngInfo | None = None) -> bytes:
  """Encodes an image `[H, W, 3]` uint8 as PNG."""
  buffer = io.BytesIO()
  Image.fromarray(image).save(buffer, 'PNG', pnginfo=info)
  return buffer.getvalue()


def figures(text: str, pngs: Sequence[bytes], captions: Sequence[str]) -> str:
  """Returns HTML that displays a line of text, and images with captions next to each other."""
  return f'<p>{html.escape(text)}</p>' + ''.join(
      f'<figure style="display:inline-block;margin:4px;text-align:center">'
      f'<img src="{_inline(png)}" style="width:160px;image-rendering:pixelated">'
      f'<figcaption>{html.escape(caption)}</figcaption></figure>'
      for png, caption in zip(pngs, captions))


def file_name(index: int, prompt: str, seed: int, *, tokens: bool = False) -> str:
  """Returns the file name of an image, or of its tokens for another program."""
  encoding = sys.getfilesystemencoding()
  words = re.sub(r'\W+', '_', prompt.lower()).strip('_')[:60]
  # A name has 255 bytes at most, and only characters that the system can encode.
  words = words.encode(encoding, 'ignore')[:180].decode(encoding, 'ignore') or 'image'
  return f'{index:05d}_{words}_seed{seed}.{"safetensors" if tokens else "png"}'


def texts_of_file(path: pathlib.Path) -> dict[str, Any]:
  """Returns the metadata of a file of `Generated.save`; a damaged one raises ValueError."""
  if path.suffix == '.png':
    return reading.texts_of_picture(path, atomic.REMAKE, needed=('passes',))
  return reading.texts_of_arrays(path, atomic.REMAKE, needed=('passes',))


def _in_order(content: bytes) -> bytes:
  """Sorts the header of a safetensors file, whose order is random: equal results, equal files."""
  size = int.from_bytes(content[:8], 'little')
  header = json.dumps(json.loads(content[8:8 + size]), sort_keys=True).encode()
  header += b' ' * (-len(header) % 8)
  return len(header).to_bytes(8, 'little') + header + content[8 + size:]


def _inline(png: bytes) -> str:
  return f'data:image/png;base64,{base64.b64encode(png).decode()}'
