"""Captions of crops of the photographs: what is shown, in which colour, and where it lies.

  crops = captioned(photos.load(), seed=0, step=0, split='train', batch_size=16)

A caption names the photograph, the colour that most pixels of the crop have and the crop's place in
the photograph, and leaves some of that out; some names are unknown words. Of every photograph some
crops have their colours turned to the opposite, because most photographs have one colour only and
the word for it would say nothing.
"""

from typing import NamedTuple

import numpy as np

from experiments.demo_models import photos as photos_lib

COLOURS = ('black', 'grey', 'white', 'red', 'brown', 'orange', 'yellow', 'green', 'blue', 'purple')
PLACES = tuple(' '.join(filter(None, (row, column))) or 'middle'
               for row in ('top', '', 'bottom') for column in ('left', '', 'right'))
# What stands for a word that is not known.
UNKNOWN = '?'
# All words of captions, and of the request that they stand in.
WORDS = tuple(sorted({
    'generate', 'image', 'of', 'a', 'an', 'the', 'photo', 'mostly', ',',
    *photos_lib.NAMES, *COLOURS,
    *(word for place in PLACES for word in place.split())}))
# Prompts that show what can be asked for.
EXAMPLES = (
    'a photo of the astronaut, mostly orange', 'a photo of the astronaut, mostly blue',
    'an orange cat', 'a blue cat', 'a red coffee', 'a blue coffee', 'an orange flower',
    'the galaxies', 'a red retina', 'a blue retina', 'a blue rocket', 'a brown rocket',
    'a photo of the temple, bottom', 'a photo of the temple, top')

# Share of crops with the opposite colours.
_OPPOSITE = 0.4
# Shares of captions with a name, that name being known, a colour and a place.
_KNOWN, _COLOURED, _PLACED = 0.9, 0.75, 0.5
# Bounds of the hues, in degrees, of these colours; what is beyond the last one is red again.
_HUES = ((12, 'red'), (42, 'orange'), (70, 'yellow'), (165, 'green'), (260, 'blue'),
         (335, 'purple'))


class Captioned(NamedTuple):
  """Crops with captions.

  Attributes:
    images: `[N, size, size, 3]` float32 in [-1, 1].
    captions: `[N]` str.
  """

  images: np.ndarray
  captions: np.ndarray


def captioned(photos: tuple, seed: int, step: int, split: str, batch_size: int, size: int = 64
              ) -> Captioned:
  """One batch of crops, the same for the same arguments; see `photos.crops`."""
  images, labels, places = photos_lib.crops(photos, seed, step, split, batch_size, size)
  # Not the stream of the crops, so that these are the same with and without captions.
  rng = np.random.default_rng([seed, photos_lib.SPLITS.index(split), step, 1])
  turned = rng.random(batch_size) < _OPPOSITE
  images = np.where(turned[:, None, None, None], opposite(images), images)
  return Captioned(images, np.array([
      caption(rng, photos_lib.NAMES[label], colour(image), place_of(*place))
      for image, label, place in zip(images, labels, places)]))


def caption(rng: np.random.Generator, name: str, colour_name: str, place: str) -> str:
  """A caption that says all of this, or a part of it."""
  known, coloured, placed, short = rng.random(4) < (_KNOWN, _COLOURED, _PLACED, 0.5)
  subject = name if known else UNKNOWN
  if not short:
    text = f'a photo of the {subject}' + f', mostly {colour_name}' * bool(coloured)
  elif coloured:
    text = f'{"an" if colour_name[0] in "aeiou" else "a"} {colour_name} {subject}'
  else:
    text = f'the {subject}'
  return text + f', {place}' * bool(placed)


def opposite(images: np.ndarray) -> np.ndarray:
  """Images `[..., 3]` with every hue turned by 180 degrees."""
  return images.max(axis=-1, keepdims=True) + images.min(axis=-1, keepdims=True) - images


def colour(image: np.ndarray) -> str:
  """The name, of `COLOURS`, that most pixels of an image `[H, W, 3]` in [-1, 1] have."""
  red, green, blue = np.moveaxis((image + 1) / 2, -1, 0)
  most, least = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
  spread = np.maximum(most - least, 1e-6)
  turn = np.select([most == red, most == green], [
      (green - blue) / spread % 6, (blue - red) / spread + 2], (red - green) / spread + 4)
  hue = np.array([*(name for _, name in _HUES), 'red'])[
      np.digitize(turn * 60, [bound for bound, _ in _HUES])]
  hue = np.where((hue == 'orange') & (most < 0.5), 'brown', hue)
  pale = np.where(most > 0.75, 'white', 'grey')
  names = np.where(most < 0.2, 'black', np.where(spread < 0.12, pale, hue))
  found, counts = np.unique(names, return_counts=True)
  return str(found[np.argmax(counts)])


def place_of(across: float, down: float) -> str:
  """The name, of `PLACES`, of a place from (0, 0), the top left, to (1, 1)."""
  row, column = (min(int(3 * part), 2) for part in (down, across))
  return PLACES[3 * row + column]
