"""The score `asked`: do scenes of emoji show what their captions asked for? By correlation alone.

  marks = score(images, captions)      # images [N, H, W, 3] uint8
  asked(marks, captions)['asked'].mean

A thing is the template with the largest correlation of luminance with the scene, over both styles,
mirrored or not, three sizes and nine shifts; two things are searched in the two halves, a small one
in nine places. Its style is the template's, its colour any that covers at least three quarters as
many of its pixels as the most frequent one, and the ground is the colour of the border. No network
is involved. As in GenEval (arXiv:2310.11513), every kind of request has a share of images that
fulfil it, and `asked` is the mean of these shares.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from cspd_jax.files import npz
from cspd_jax.generation import pixels
from cspd_jax.generation.model import Model
from cspd_jax.metrics import base, layouts, requests
from cspd_jax.metrics.base import Metric, Sample, Value
from cspd_jax.metrics.requests import SceneRequest

KINDS = ('thing', 'two', 'style', 'ground', 'colour')
# What the scores of `asked` are, by name, for output.
MEANINGS = {
    'thing': 'of the images of one thing, the share that show it',
    'two': 'of the images of two things, the share that show both in their order',
    'style': 'of the images whose caption has a style, the share in this style',
    'ground': 'of the images whose caption has a ground, the share with this ground',
    'colour': 'of the images with coloured things, the share in which all have their colour',
    'all': 'the share of images that show all that their caption asks for',
    'asked': 'the mean of the shares before `all`',
    'any': 'the share of captions with at least one image that shows all'}
# The file of the templates; its licences are in its folder.
_TEMPLATES = pathlib.Path(__file__).parents[1] / 'assets' / 'scenes' / 'templates.npz'

# Side in pixels of the scenes, of a window in which a thing is searched, and of its shifts.
_SCENE, _WINDOW = 64, 32
# Sides of things in a window: of a whole scene at half its resolution, or of a part of it.
_WHOLE, _PART = (26, 28, 30), (28, 30, 32)
_SHIFTS = (-1, 0, 1), (-2, 0, 2)
_PLACES = (16, 32, 48)
_LUMA = np.array([.299, .587, .114], np.float32)
# A colour is right if its share of the thing is at least this part of the largest one.
_NEARLY = 0.75
_BORDER = 2
# The most that a patch of the ground differs from its colour, root mean square over pixels and
# channels, of 255: several times the error of a tokenizer on plain grounds.
_TOLERANCE = 16.0
# Windows that are compared with the templates together.
_ROWS = 128


@dataclasses.dataclass(frozen=True, eq=False)
class Templates:
  """The luminance of things."""

  names: tuple[str, ...]  # The words for the things.
  # `[things, styles, S, S, 2]` uint8, luminance and alpha; styles as `requests.STYLES`.
  pixels: np.ndarray


class Bank(NamedTuple):
  """Templates in all sizes, places and mirrorings, for a window of 32 x 32 pixels.

  A template on a ground of luminance `g` is `fixed + g * free`.
  """

  fixed: np.ndarray  # `[K, 1024]` float32, alpha times luminance, minus its mean.
  free: np.ndarray  # `[K, 1024]` float32, 1 - alpha, minus its mean.
  products: np.ndarray  # `[K, 3]` float32, `fixed . fixed`, `fixed . free` and `free . free`.
  items: np.ndarray  # `[K]` number of the thing.
  styles: np.ndarray  # `[K]` number of the style.
  masks: np.ndarray  # `[K, 1024]` bool, the pixels of the thing.


class Seen(NamedTuple):
  """The word and style of the thing in a window, and the share of every colour of its pixels."""

  name: str
  style: str
  shares: np.ndarray
  correlation: float


@functools.cache
def templates() -> Templates:
  """Reads the templates of the package."""
  arrays = npz.arrays(_TEMPLATES, 'install the package again', needed=('names', 'pixels'))
  return Templates(tuple(arrays['names'].tolist()), arrays['pixels'])


def score(images: np.ndarray, captions: Sequence[str], of: Templates | None = None
          ) -> dict[str, np.ndarray]:
  """Scores scenes, `[N, H, W, 3]` uint8, square, by their captions in the grammar of `requests`.

  Returns for every kind of `KINDS` `[N]` float64: 1 if the scene fulfils the request, 0 if not, and
  NaN if its caption has none; for 'all', 1 if it fulfils all its requests. Images of another form,
  and a caption that is not in the grammar or names a thing without a template, raise ValueError.
  """
  of = templates() if of is None else of
  if (images.ndim != 4 or images.dtype != np.uint8 or images.shape[1:] != (
      images.shape[1], images.shape[1], 3) or len(images) != len(captions)):
    raise ValueError(f'images is {images.dtype}{list(images.shape)} with {len(captions)} captions; '
                     'it must be uint8 [N, S, S, 3] with N captions.')
  wanted = [request_of(caption, of) for caption in captions]
  scenes = [scene(image) for image in images]
  rows = [_marks(scene, request, seen) for scene, request, seen in zip(
      scenes, wanted, see(scenes, wanted, of), strict=True)]
  return {kind: np.array([row.get(kind, np.nan) for row in rows]) for kind in (*KINDS, 'all')}


def request_of(caption: str, of: Templates) -> SceneRequest:
  """Reads a caption; raises ValueError unless all its things have templates."""
  request = requests.parse(caption)
  if request is None:
    raise ValueError(f'caption is {caption!r}; it must be like "a blue owl and a fox flat on red".')
  for thing in request.items:
    if thing.name not in of.names:
      raise ValueError(f'caption is {caption!r}, which names {thing.name!r}; the things are: '
                       f'{", ".join(of.names)}.')
  return request


def asked(marks: dict[str, np.ndarray], captions: Sequence[str]) -> dict[str, base.Value]:
  """Summarises what `score` returned as GenEval does; images of a caption are samples of a prompt.

  Returns the share of every kind that occurs, with its standard error over prompts; 'asked', the
  mean of these shares; 'all', the share of images that fulfil all their requests; and 'any', the
  share of prompts with such an image among theirs.
  """
  prompts = np.unique(np.asarray(captions), return_inverse=True)[1].reshape(-1)
  count = int(prompts.max(initial=-1)) + 1
  sums = {kind: [np.bincount(prompts, part, count) for part in (np.nan_to_num(marks[kind]), valid)]
          for kind in (*KINDS, 'all') if (valid := np.isfinite(marks[kind])).any()}
  values = {kind: base.ratio(right[of > 0], of[of > 0]) for kind, (right, of) in sums.items()}
  shares = [values[kind] for kind in KINDS if kind in values]
  # By prompt, because kinds fail together; NaN if an error is, as with one prompt.
  moved = [(right - values[kind].mean * of) / of.mean() + 0 * values[kind].standard_error
           for kind, (right, of) in sums.items() if kind in KINDS]
  error = base.mean(np.mean(moved, axis=0)).standard_error
  best = np.array([marks['all'][prompts == prompt].max() for prompt in range(count)])
  return {**values, 'asked': base.Value(float(np.mean([v.mean for v in shares])), error),
          'any': base.mean(best)}


def scene(image: np.ndarray) -> np.ndarray:
  """Returns an image as `[64, 64, 3]` float32 from 0 to 255."""
  if image.shape[0] == _SCENE:
    return image.astype(np.float32)
  return np.asarray(Image.fromarray(image).resize((_SCENE, _SCENE), Image.Resampling.BOX),
                    np.float32)


def _marks(scene: np.ndarray, request: SceneRequest, seen: list[Seen]) -> dict[str, float]:
  """Returns the marks of a scene by kind, and 'all'."""
  right = [one.name == thing.name for one, thing in zip(seen, request.items, strict=True)]
  marks = {'two' if len(right) == 2 else 'thing': all(right)}
  if request.style is not None:
    marks['style'] = all(one.style == request.style for one in seen)
  if request.ground is not None:
    marks['ground'] = nearest(border(scene)) == request.ground
  coloured = [(one.shares, one.shares[requests.COLOURS.index(thing.colour)])
              for one, thing in zip(seen, request.items, strict=True) if thing.colour]
  if coloured:
    marks['colour'] = all(share > 0 and share >= _NEARLY * shares.max()
                          for shares, share in coloured)
  return {**{kind: float(mark) for kind, mark in marks.items()}, 'all': float(all(marks.values()))}


def border(scene: np.ndarray) -> np.ndarray:
  """Returns the median colour `[3]` of the border of a scene."""
  inner = np.zeros(scene.shape[:2], bool)
  inner[_BORDER:-_BORDER, _BORDER:-_BORDER] = True
  return np.median(scene[~inner], axis=0)


def nearest(colour: np.ndarray) -> str:
  """Returns the name of the ground that is nearest to an RGB colour."""
  return min(requests.GROUNDS, key=lambda name: float(
      np.sum((colour - np.array(requests.GROUNDS[name])) ** 2)))


def see(scenes: Sequence[np.ndarray], wanted: Sequence[SceneRequest],
        of: Templates) -> list[list[Seen]]:
  """Returns the things of scenes `[64, 64, 3]` float32 from 0 to 255, from left to right."""
  whole = [len(request.items) == 1 and not request.small for request in wanted]
  windows = [_windows(scene, request) for scene, request in zip(scenes, wanted, strict=True)]
  grounds = [float(border(scene) @ _LUMA) for scene in scenes]
  seen: dict[int, list[Seen]] = {}
  for is_whole, among in ((True, (_WHOLE, _SHIFTS[0])), (False, (_PART, _SHIFTS[1]))):
    rows = [row for row, value in enumerate(whole) if value == is_whole]
    if not rows:
      continue
    flat = np.stack([window for row in rows for window in windows[row]])
    levels = np.array([grounds[row] for row in rows for _ in windows[row]], np.float32)
    best = [part for first in range(0, len(flat), _ROWS) for part in _best(
        flat[first:first + _ROWS], levels[first:first + _ROWS], bank(of, *among), of)]
    for row in rows:
      seen[row], best = best[:len(windows[row])], best[len(windows[row]):]
  return [[max(seen[row], key=lambda part: part.correlation)] if request.small else seen[row]
          for row, request in enumerate(wanted)]


def _windows(scene: np.ndarray, request: SceneRequest) -> list[np.ndarray]:
  if len(request.items) == 1 and not request.small:
    return [scene.reshape(_WINDOW, 2, _WINDOW, 2, 3).mean(axis=(1, 3)).reshape(-1, 3)]
  places = ([(16, 32), (48, 32)] if len(request.items) == 2 else
            [(x, y) for x in _PLACES for y in _PLACES])
  return [scene[y - 16:y + 16, x - 16:x + 16].reshape(-1, 3) for x, y in places]


def _best(windows: np.ndarray, grounds: np.ndarray, among: Bank, of: Templates) -> list[Seen]:
  """Returns the thing with the largest correlation in each of the `_windows` `[N, 1024, 3]`, by
  their grounds `[N]`.
  """
  luma = windows @ _LUMA
  luma = luma - luma.mean(axis=1, keepdims=True)
  luma = luma / np.maximum(np.linalg.norm(luma, axis=1, keepdims=True), 1e-3)
  levels = grounds[:, None]
  squares = np.concatenate([np.ones_like(levels), 2 * levels, levels ** 2], axis=1)
  norms = np.sqrt(np.maximum(squares @ among.products.T, 1e-3))
  correlations = (luma @ among.fixed.T + levels * (luma @ among.free.T)) / norms
  numbers = np.argmax(correlations, axis=1)
  return [Seen(of.names[among.items[number]], requests.STYLES[among.styles[number]],
                requests.shares(window[among.masks[number]]), float(row[number]))
          for window, number, row in zip(windows, numbers, correlations, strict=True)]


@functools.cache
def bank(of: Templates, sides: tuple[int, ...], shifts: tuple[int, ...]) -> Bank:
  """Returns the templates in all sizes, shifts and mirrorings; cached."""
  luminance, alpha, items, styles = [], [], [], []
  for thing, style in np.ndindex(of.pixels.shape[:2]):
    for side in sides:
      small = np.asarray(Image.fromarray(of.pixels[thing, style], 'LA').resize(
          (side, side), Image.Resampling.LANCZOS), np.float32)
      for mirrored, x, y in itertools.product((small, small[:, ::-1]), shifts, shifts):
        placed = _placed(mirrored, x, y)
        luminance.append(placed[..., 0].ravel())
        alpha.append(placed[..., 1].ravel() / 255)
        items.append(thing)
        styles.append(style)
  opaque = np.stack(alpha)
  fixed, free = opaque * np.stack(luminance), 1 - opaque
  fixed, free = (part - part.mean(axis=1, keepdims=True) for part in (fixed, free))
  products = np.stack([np.einsum('kp,kp->k', a, b) for a, b in (
      (fixed, fixed), (fixed, free), (free, free))], axis=1)
  return Bank(fixed, free, products, np.array(items), np.array(styles), opaque > 0.8)


def _placed(picture: np.ndarray, x: int, y: int) -> np.ndarray:
  """Places a picture in the middle of a window `[32, 32, 2]`, shifted by `x` and `y`."""
  side = len(picture)
  window = np.zeros((3 * _WINDOW, 3 * _WINDOW, 2), np.float32)
  left, top = (_WINDOW + (_WINDOW - side) // 2 + shift for shift in (x, y))
  window[top:top + side, left:left + side] = picture
  return window[_WINDOW:2 * _WINDOW, _WINDOW:2 * _WINDOW]


def check(captions: Sequence[str]) -> None:
  """Raises ValueError unless all captions are in the grammar of scenes."""
  for caption in captions:
    request_of(caption, templates())


def opened(folder: str) -> list[layouts.StoredImages]:
  """Returns the images of a folder with captions, as `layouts.captioned`.

  Raises ValueError if a caption is not in the grammar of scenes, or if the report of the folder
  names a model whose own prompts are not: it does not draw scenes, whatever its captions are.
  """
  painter = layouts.painter(folder)
  drawn = [requests.parse(text) for text in painter[1]] if painter else []
  if painter and not (drawn and all(
      request is not None and all(thing.name in templates().names for thing in request.items)
      for request in drawn)):
    raise ValueError(
        f'images is {folder!r}, whose report names the model {painter[0]!r}, and asked is True; '
        'asked scores scenes of emoji alone: give images of emoji or emoji_continuous, or leave '
        'asked out.')
  images = layouts.captioned(folder)
  try:
    check([image.prompt for image in images])
  except ValueError as error:
    raise ValueError(f'images is {folder!r}, and asked is True, which scores scenes of emoji '
                     f'alone; give images of emoji, or leave asked out: {error}') from error
  return images


def captions(model: Model, prompts: Sequence[Any]) -> list[str]:
  """Returns prompts as captions; raises ValueError unless all are in the grammar of scenes."""
  result = list(model.prompt_kind.titles(prompts))
  check(result)
  return result


def sample_scores(sample: Sample, model: Model) -> dict[str, Value]:
  """Returns the scores of `asked` of a sample with captions, by name."""
  assert sample.captions is not None
  return asked(_marks_of_sample(sample, model), sample.captions)


def image_shares(sample: Sample, model: Model) -> np.ndarray:
  """Returns the share of its requests that each image of a sample with captions fulfils, `[N]`."""
  marks = _marks_of_sample(sample, model)
  return np.nanmean([marks[kind] for kind in KINDS], axis=0)


def _marks_of_sample(sample: Sample, model: Model) -> dict[str, np.ndarray]:
  """The marks of a sample by kind, as `score` returns them; computed once."""
  assert sample.captions is not None
  captions = sample.captions
  return sample.once('asked', lambda: score(pixels.to_bytes(sample.images(model)), captions))


def scores(images: Sequence[layouts.StoredImages], batch_size: int,
           progress: Callable[[int, int], None]) -> dict[str, Value]:
  """Returns the scores of `asked` by name; unreadable images and several sizes raise ValueError."""
  parts: list[dict[str, np.ndarray]] = []
  size: np.ndarray | None = None
  for first in range(0, len(images), batch_size):
    batch = images[first:first + batch_size]
    pixels = [image.pixels() for image in batch]
    size = pixels[0] if size is None else size
    parts.append(score(np.stack([layouts.same_size(*pair, size) for pair in zip(batch, pixels)]),
                       [image.prompt for image in batch]))
    progress(first + len(batch), len(images))
  marks = {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0]}
  return asked(marks, [image.prompt for image in images])


# A pass that commits `n` tokens counts as `1 / n` pass for each of them, so tokens per pass can
# be stated for parts of an image. Tokens of a grammar, such as the ends of rows, are in no part.


def is_ground(images: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
  """Finds the tokens whose patches have the colour of the ground, the median of the border.

  Images are `[N, H, W, 3]` uint8, and rows and columns of the grid divide `H` and `W`. Returns
  `[N, rows, columns]` bool.
  """
  grounds = np.stack([border(image) for image in images]).astype(np.float32)
  squares = (images - grounds[:, None, None]) ** 2
  count, height, width, channels = squares.shape
  rows, columns = grid
  patches = squares.reshape(count, rows, height // rows, columns, width // columns, channels)
  return np.sqrt(patches.mean(axis=(2, 4, 5))) <= _TOLERANCE


def shares_of_passes(rounds: np.ndarray) -> np.ndarray:
  """Returns one over the number of tokens of its round, by the round `[N, T]` of every token."""
  counts = [np.unique(row, return_inverse=True, return_counts=True) for row in rounds]
  return np.stack([1 / sizes[inverse.reshape(-1)] for _, inverse, sizes in counts])


def _ground(sample: Sample, model: Model) -> np.ndarray:
  """Returns the tokens of a sample that are ground, `[N, rows, columns]` bool; computed once."""
  return sample.once('ground', lambda: is_ground(pixels.to_bytes(sample.images(model)), model.grid))


def _per_pass(sample: Sample, model: Model, of_ground: bool) -> Value:
  """Returns tokens per forward pass of the tokens that are ground, or of those that are not."""
  shares = pixels.cells(model, shares_of_passes(np.asarray(sample.decoded.round_of_token)))
  chosen = _ground(sample, model) == of_ground
  return base.ratio(chosen.sum(axis=(1, 2)), (chosen * shares).sum(axis=(1, 2)))


INSIDE = Metric(
    'tokens_per_pass_inside', 'inside things', '{:.2f}x',
    lambda sample, model: _per_pass(sample, model, False),
    meaning='tokens per forward pass of the tokens of things')
ON_GROUND = Metric(
    'tokens_per_pass_ground', 'on plain ground', '{:.2f}x',
    lambda sample, model: _per_pass(sample, model, True),
    meaning='tokens per forward pass of the tokens of plain grounds')
GROUND_SHARE = Metric(
    'ground_share', 'ground', '{:.0%}',
    lambda *args: base.mean(_ground(*args).mean(axis=(1, 2))),
    meaning='share of the tokens that have the colour of the ground')
