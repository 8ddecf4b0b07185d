"""Captions of crops of the photographs: object, colour and position.

  crops = captioned(photos.load(), seed=0, step=0, split='train', batch_size=16)

A caption names the photograph, the most frequent colour of the crop and the position of the crop in
the photograph, or a random part of that; some names are replaced by an unknown word. Some crops of
every photograph have complementary colours, because most photographs have one colour only, so that
the word for it would carry no information.
"""

from typing import NamedTuple

import numpy as np

from experiments.demo_models import photos as photos_lib

COLOURS = ('black', 'grey', 'white', 'red', 'brown', 'orange', 'yellow', 'green', 'blue', 'purple')
PLACES = tuple(' '.join(filter(None, (row, column))) or 'middle'
               for row in ('top', '', 'bottom') for column in ('left', '', 'right'))
# Replacement of a word that is not in the vocabulary.
UNKNOWN = '?'
# All words of captions and of the prompt template around them.
WORDS = tuple(sorted({
    'generate', 'image', 'of', 'a', 'an', 'the', 'photo', 'mostly', ',',
    *photos_lib.NAMES, *COLOURS,
    *(word for place in PLACES for word in place.split())}))
# Example prompts.
EXAMPLES = (
    'a photo of the astronaut, mostly orange', 'a photo of the astronaut, mostly blue',
    'an orange cat', 'a blue cat', 'a red coffee', 'a blue coffee', 'an orange flower',
    'the galaxies', 'a red retina', 'a blue retina', 'a blue rocket', 'a brown rocket',
    'a photo of the temple, bottom', 'a photo of the temple, top')

# Fraction of crops with complementary colours.
_OPPOSITE = 0.4
# Fractions of captions with a known name, a colour and a position.
_NAMED, _COLOURED, _PLACED = 0.9, 0.75, 0.5
# Upper bounds of the hues in degrees; hues above the last bound are red.
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
  """Returns one batch of crops, the same for the same arguments."""
  images, labels, places = photos_lib.crops(photos, seed, step, split, batch_size, size)
  # A separate random stream, so that the crops are the same with and without captions.
  rng = np.random.default_rng([seed, photos_lib.SPLITS.index(split), step, 1])
  complementary = rng.random(batch_size) < _OPPOSITE
  images = np.where(complementary[:, None, None, None], opposite(images), images)
  return Captioned(images, np.array([
      caption(rng, photos_lib.NAMES[label], colour(image), place_of(*place))
      for image, label, place in zip(images, labels, places)]))


def caption(rng: np.random.Generator, name: str, colour_name: str, place: str) -> str:
  """Writes a caption with all or a random part of the arguments."""
  named, coloured, placed, short = rng.random(4) < (_NAMED, _COLOURED, _PLACED, 0.5)
  subject = name if named else UNKNOWN
  if not short:
    text = f'a photo of the {subject}' + f', mostly {colour_name}' * bool(coloured)
  elif coloured:
    text = f'{"an" if colour_name[0] in "aeiou" else "a"} {colour_name} {subject}'
  else:
    text = f'the {subject}'
  return text + f', {place}' * bool(placed)


def opposite(images: np.ndarray) -> np.ndarray:
  """Rotates the hue of every pixel of images `[..., 3]` by 180 degrees."""
  return images.max(axis=-1, keepdims=True) + images.min(axis=-1, keepdims=True) - images


def colour(image: np.ndarray) -> str:
  """Returns the most frequent colour, of `COLOURS`, of an image `[H, W, 3]` in [-1, 1]."""
  red, green, blue = np.moveaxis((image + 1) / 2, -1, 0)
  most, least = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
  spread = np.maximum(most - least, 1e-6)
  sector = np.select([most == red, most == green], [
      (green - blue) / spread % 6, (blue - red) / spread + 2], (red - green) / spread + 4)
  hue = np.array([*(name for _, name in _HUES), 'red'])[
      np.digitize(sector * 60, [bound for bound, _ in _HUES])]
  hue = np.where((hue == 'orange') & (most < 0.5), 'brown', hue)
  pale = np.where(most > 0.75, 'white', 'grey')
  names = np.where(most < 0.2, 'black', np.where(spread < 0.12, pale, hue))
  colours, counts = np.unique(names, return_counts=True)
  return str(colours[np.argmax(counts)])


def place_of(across: float, down: float) -> str:
  """Returns the name, of `PLACES`, of a position from (0, 0), the top left, to (1, 1)."""
  row, column = (min(int(3 * part), 2) for part in (down, across))
  return PLACES[3 * row + column]
