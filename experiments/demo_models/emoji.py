"""Scenes of emoji with captions: 64 things in two styles, alone or in pairs, on plain grounds.

  sprites = Sources().sprites()
  images, captions = scenes(sprites, seed=0, step=0, split='train', batch_size=16)

The files are Fluent Emoji in 3D (Microsoft, MIT), Noto Color Emoji (Google, SIL OFL 1.1) and the
short names of Unicode's CLDR; docs/embedded.md has the commands that fetch them. A fixed part of
the pairs of a thing with a colour, a ground or another thing never occurs in the training split and
occurs in every held-out scene, so that composition can be measured.
"""

import dataclasses
import functools
import pathlib
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cspd_jax.files import reading
from cspd_jax.metrics import requests, scenes as score
from cspd_jax.metrics.requests import SceneRequest, Thing

SPLITS = ('train', 'held_out')
# The words for things, with their CLDR short names.
THINGS = {
    'dog': 'dog face', 'cat': 'cat face', 'fox': 'fox', 'lion': 'lion', 'tiger': 'tiger face',
    'rabbit': 'rabbit face', 'pig': 'pig face', 'cow': 'cow face', 'frog': 'frog',
    'koala': 'koala', 'panda': 'panda', 'monkey': 'monkey face', 'bear': 'bear',
    'unicorn': 'unicorn', 'owl': 'owl', 'penguin': 'penguin', 'chick': 'baby chick',
    'octopus': 'octopus', 'fish': 'tropical fish', 'whale': 'spouting whale', 'crab': 'crab',
    'snail': 'snail', 'butterfly': 'butterfly', 'turtle': 'turtle', 'dragon': 'dragon face',
    'elephant': 'elephant', 'bee': 'honeybee', 'tulip': 'tulip', 'sunflower': 'sunflower',
    'cactus': 'cactus', 'mushroom': 'mushroom', 'rose': 'rose', 'tomato': 'tomato',
    'strawberry': 'strawberry', 'banana': 'banana', 'carrot': 'carrot', 'apple': 'red apple',
    'lemon': 'lemon', 'watermelon': 'watermelon', 'pineapple': 'pineapple',
    'hamburger': 'hamburger', 'pizza': 'pizza', 'doughnut': 'doughnut', 'cookie': 'cookie',
    'cupcake': 'cupcake', 'avocado': 'avocado', 'castle': 'castle', 'rocket': 'rocket',
    'house': 'house', 'car': 'automobile', 'sailboat': 'sailboat', 'volcano': 'volcano',
    'star': 'star', 'snowman': 'snowman without snow', 'moon': 'crescent moon', 'fire': 'fire',
    'balloon': 'balloon', 'trophy': 'trophy', 'guitar': 'guitar', 'crown': 'crown', 'bell': 'bell',
    'robot': 'robot', 'ghost': 'ghost', 'pumpkin': 'jack-o-lantern'}
NAMES = tuple(THINGS)
# All words of the captions and of the prompt template around them.
WORDS = tuple(sorted({'generate', 'image', 'of', *requests.WORDS, *NAMES}))
# Example prompts.
EXAMPLES = (
    'a fox on white', 'a castle flat on yellow', 'a strawberry on white', 'a bear 3d on white',
    'a purple mushroom 3d on yellow', 'a ghost on purple', 'a hamburger 3d on pink',
    'a purple star flat on white', 'a yellow chick on black', 'an owl and a tulip on white',
    'a sunflower 3d on purple', 'a cactus flat on orange')

# Side of a sprite and of a bitmap of the font, pixels.
_SIDE, _FONT_SIZE = 96, 109
_TEMPLATE = 48  # Side of a template of the score.
_TURNS = (0, 60, 120, 180, 240, 300)  # Rotations of the hue in degrees; the first changes nothing.
# Shares of pairs, of small things, of rotated hues and of white grounds.
_PAIRS, _SMALL, _TURNED, _WHITE = 0.2, 0.15, 0.3, 0.5
# Shares of captions with style, ground, and colour of a thing of natural hue.
_STYLED, _GROUNDED, _COLOURED = 0.8, 0.75, 0.25
# Sides of things in 64ths of the scene; edges fall between pixels of a token as seldom as possible.
_LARGE, _LITTLE = (52, 56, 60), (28, 32)
_GROUNDS = tuple(requests.GROUNDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
  """Where the commands of docs/embedded.md put the sources: the arguments of `load`.

  Attributes:
    fluent: folder of the files of Fluent Emoji, WebP that are named after code points.
    noto: file of Noto Color Emoji, a font with colour bitmaps.
    names: file of the short names, a JSON list of objects with 'label' and 'hexcode'.
  """

  fluent: str = 'emoji/node_modules/@lobehub/fluent-emoji-3d/assets'
  noto: str = '/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf'
  names: str = 'emoji/node_modules/emojibase-data/en/data.json'

  def sprites(self) -> 'Sprites':
    """Returns the things; a source without a picture of one raises ValueError."""
    return load(self.fluent, self.noto, self.names)


class Sprites(NamedTuple):
  """Things of both styles in all hues.

  `pixels` are `[things, styles, turns, 96, 96, 4]` uint8, RGBA; `colours` `[things, styles, turns]`
  the index in `requests.COLOURS`, -1 for things without colour, whose hue is never rotated.
  """

  pixels: np.ndarray
  colours: np.ndarray


class Scenes(NamedTuple):
  """Scenes with captions.

  Attributes:
    images: `[N, size, size, 3]` float32 in [-1, 1].
    captions: `[N]` str.
    complete: the captions' requests with every part, for measurements.
  """

  images: np.ndarray
  captions: np.ndarray
  complete: list[SceneRequest]


@functools.cache
def load(fluent: str, noto: str, names: str) -> Sprites:
  """Reads the things; see `Sources`."""
  codes = {entry['label']: entry['hexcode'] for entry in reading.json(
      names, 'use en/data.json of emojibase-data', 'names', list)}
  if missing := [word for word in NAMES if THINGS[word] not in codes]:
    raise ValueError(f'names is {names!r}, which has no entry {THINGS[missing[0]]!r}; use '
                     'en/data.json of emojibase-data.')
  pictures = [(_fluent(fluent, codes[THINGS[word]]), _noto(noto, codes[THINGS[word]]))
              for word in NAMES]
  turned = np.stack([[[turn(picture, angle) for angle in _TURNS] for picture in styles]
                     for styles in pictures])
  shape = turned.shape[:3]
  names_of = [requests.colour(picture[picture[..., 3] > 200][:, :3])
           for picture in turned.reshape(-1, *turned.shape[3:])]
  colours = np.array([-1 if name is None else requests.COLOURS.index(name) for name in names_of])
  return Sprites(turned, colours.reshape(shape))


def _fluent(folder: str, code: str) -> np.ndarray:
  path = pathlib.Path(folder) / f'{code.lower()}.webp'
  if not path.is_file():
    raise ValueError(f'fluent is {folder!r}, which has no file {path.name}; use the folder assets '
                     'of @lobehub/fluent-emoji-3d.')
  with Image.open(path) as picture:
    return square(picture.convert('RGBA'))


def _noto(font: str, code: str) -> np.ndarray:
  canvas = Image.new('RGBA', (2 * _FONT_SIZE, 2 * _FONT_SIZE))
  character = ''.join(chr(int(part, 16)) for part in code.split('-'))
  ImageDraw.Draw(canvas).text((8, 8), character, font=ImageFont.truetype(font, _FONT_SIZE),
                              embedded_color=True)
  if canvas.getbbox() is None:
    raise ValueError(f'noto is {font!r}, which draws nothing for {code}; use NotoColorEmoji.ttf '
                     'of fonts-noto-color-emoji.')
  return square(canvas)


def square(picture: Image.Image) -> np.ndarray:
  """Trims an RGBA picture to its visible box and centres it in a square `[96, 96, 4]`."""
  trimmed = picture.crop(picture.getchannel('A').point(lambda alpha: 255 * (alpha > 16)).getbbox())
  side = max(trimmed.size)
  canvas = Image.new('RGBA', (side, side))
  canvas.paste(trimmed, ((side - trimmed.width) // 2, (side - trimmed.height) // 2))
  return np.asarray(canvas.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS))


def turn(picture: np.ndarray, degrees: float) -> np.ndarray:
  """Rotates the hue of an RGBA picture in YIQ; luminance and alpha remain."""
  to_yiq = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
  cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
  rotation = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])
  matrix = np.linalg.inv(to_yiq) @ rotation @ to_yiq
  colours = np.clip(np.round(picture[..., :3] @ matrix.T), 0, 255).astype(np.uint8)
  return picture.copy() if degrees == 0 else np.concatenate([colours, picture[..., 3:]], axis=-1)


def is_held_out(sprites: Sprites, request: SceneRequest) -> bool:
  """Returns whether a complete request has a pair that never occurs in the training split."""
  numbers = [NAMES.index(thing.name) for thing in request.items]
  if len(numbers) == 2 and sum(numbers) % 10 == 3:
    return True
  return any(request.ground == _GROUNDS[1 + 7 * number % 9] or
             thing.colour is not None and thing.colour == held_out_colour(sprites, number)
             for number, thing in zip(numbers, request.items, strict=True))


def held_out_colour(sprites: Sprites, number: int) -> str | None:
  """Returns the colour that a thing never has in the training split, another than its natural ones.

  None is a colourless thing.
  """
  natural, turned = sprites.colours[number, :, 0], sprites.colours[number, :, 1:]
  others = sorted(set(turned[natural >= 0].ravel()) - {*natural, -1})
  return requests.COLOURS[others[number % len(others)]] if others else None


class _Part(NamedTuple):
  """Number, turn and mirroring of a thing, its side, and its centre in 64ths of the scene."""

  thing: int
  turn: int
  mirrored: bool
  side: int
  centre: tuple[int, int]


def _plan(rng: np.random.Generator, sprites: Sprites) -> tuple[list[_Part], int, SceneRequest]:
  """Draws the parts and the style of a scene, and its complete request."""
  style = int(rng.integers(2))
  count, small = (2, False) if rng.random() < _PAIRS else (1, bool(rng.random() < _SMALL))
  parts, items = [], []
  for place, thing in enumerate(rng.choice(len(sprites.pixels), count, replace=False)):
    turned = rng.random() < _TURNED and sprites.colours[thing, style, 0] >= 0
    angle = int(rng.integers(1, len(_TURNS))) if turned else 0
    centre = (16 + 32 * place, 32) if count == 2 else (32, 32)
    if small:
      centre = tuple(16 + 16 * int(offset) for offset in rng.integers(3, size=2))
    side = int(rng.choice(_LITTLE if small or count == 2 else _LARGE))
    parts.append(_Part(int(thing), angle, bool(rng.random() < 0.5), side, centre))
    number = sprites.colours[thing, style, angle]
    items.append(Thing(NAMES[thing], None if number < 0 else requests.COLOURS[number]))
  ground = 'white' if rng.random() < _WHITE else _GROUNDS[rng.integers(1, len(_GROUNDS))]
  return parts, style, SceneRequest(tuple(items), small, requests.STYLES[style], ground)


def _partly(rng: np.random.Generator, request: SceneRequest, parts: list[_Part]) -> SceneRequest:
  """Leaves a random part of a complete request unsaid; a rotated hue is always said."""
  styled, grounded = rng.random(2) < (_STYLED, _GROUNDED)
  coloured = rng.random(len(parts)) < _COLOURED
  items = tuple(thing if part.turn or named else Thing(thing.name)
                 for thing, part, named in zip(request.items, parts, coloured, strict=True))
  return request._replace(items=items, style=request.style if styled else None,
                          ground=request.ground if grounded else None)


def draw(sprites: Sprites, parts: list[_Part], style: int, ground: str, size: int) -> np.ndarray:
  """Draws a scene `[size, size, 3]` uint8."""
  scene = Image.new('RGB', (size, size), requests.GROUNDS[ground])
  for part in parts:
    picture = sprites.pixels[part.thing, style, part.turn]
    picture = picture[:, ::-1] if part.mirrored else picture
    side = max(part.side * size // 64, 1)
    small = Image.fromarray(np.ascontiguousarray(picture)).resize(
        (side, side), Image.Resampling.LANCZOS)
    scene.paste(small, tuple(place * size // 64 - side // 2 for place in part.centre), small)
  return np.asarray(scene)


def scenes(sprites: Sprites, seed: int, step: int, split: str, batch_size: int, size: int = 64
           ) -> Scenes:
  """Returns batch number `step` of scenes of a split, 'train' or 'held_out'; see the module.

  They are the same for the same arguments; `size` is the side of a scene in pixels.
  """
  rng = np.random.default_rng([seed, SPLITS.index(split), step])
  images, captions, complete = [], [], []
  while len(images) < batch_size:
    parts, style, request = _plan(rng, sprites)
    if is_held_out(sprites, request) != (split == 'held_out'):
      continue
    images.append(draw(sprites, parts, style, request.ground, size))
    captions.append(requests.caption(_partly(rng, request, parts)))
    complete.append(request)
  return Scenes(np.stack(images).astype(np.float32) / 127.5 - 1, np.array(captions), complete)


def templates(sprites: Sprites) -> score.Templates:
  """Returns the templates of the score."""
  pictures = [[Image.fromarray(picture).convert('LA').resize(
      (_TEMPLATE, _TEMPLATE), Image.Resampling.LANCZOS) for picture in styles]
      for styles in sprites.pixels[:, :, 0]]
  return score.Templates(NAMES, np.array([
      [np.asarray(picture) for picture in styles] for styles in pictures]))
