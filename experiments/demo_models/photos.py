"""Random crops of freely licensed photographs in the scikit-image and scikit-learn wheels.

Nothing is downloaded: `pip install -e '.[train]'` installs the two packages, and with them
eight colour photographs, one per class. A crop is a square of random position and size, mirrored
with probability 1/2, and resized to a fixed side. The left three quarters of every photograph are
for training and the rest is held out, so that no held-out pixel is used for training.

  photos = load()
  batch = crops(photos, seed=0, step=0, split='train', batch_size=16)
"""

import importlib.util
import pathlib
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from cspd_jax.core import fields, packages

SPLITS = ('train', 'held_out')
# Fraction of the width of every photograph, from the left, that belongs to the training split.
TRAIN_FRACTION = 0.75
# Maximum of the shorter side in pixels. Larger photographs are scaled down, so that crops show
# objects of about the same apparent size in all of them.
_SHORTER_SIDE = 512
_CROP_SIDES = (64, 160)  # Smallest and largest side of a crop in pixels of the photograph.


class Source(NamedTuple):
  """Source of a photograph."""

  name: str  # Name of its class, the object that it shows.
  package: str  # Import name of the package whose wheel contains it.
  file: str  # Path inside the package.
  licence: str  # Its licence.
  credit: str  # Its author.
  stated: str  # Where the package states the licence.


SOURCES = (
    Source('astronaut', 'skimage', 'data/astronaut.png', 'public domain',
           'NASA (portrait of Eileen Collins)', 'docstring of skimage.data.astronaut'),
    Source('cat', 'skimage', 'data/chelsea.png', 'CC0', 'Stefan van der Walt',
           'docstring of skimage.data.chelsea'),
    Source('coffee', 'skimage', 'data/coffee.png', 'CC0', 'Rachel Michetti, Pikolo Espresso Bar',
           'docstring of skimage.data.coffee'),
    Source('flower', 'sklearn', 'datasets/images/flower.jpg', 'CC BY 2.0',
           'vultilion, https://www.flickr.com/photos/vultilion/6056698931/',
           'sklearn/datasets/images/README.txt'),
    Source('galaxies', 'skimage', 'data/hubble_deep_field.jpg', 'public domain',
           'NASA, Hubble eXtreme Deep Field', 'docstring of skimage.data.hubble_deep_field'),
    Source('retina', 'skimage', 'data/retina.jpg', 'CC0', 'Mikael Häggström',
           'docstring of skimage.data.retina'),
    Source('rocket', 'skimage', 'data/rocket.jpg', 'public domain', 'SpaceX',
           'docstring of skimage.data.rocket'),
    Source('temple', 'sklearn', 'datasets/images/china.jpg', 'CC BY 2.0',
           'danielbuechele, https://www.flickr.com/photos/danielbuechele/6061409035/',
           'sklearn/datasets/images/README.txt'),
)

NAMES = tuple(source.name for source in SOURCES)  # Class names; a label is an index into them.


def load() -> tuple:
  """Opens the photographs: one `PIL.Image` in RGB per entry of `SOURCES`.

  ImportError says which package is missing, FileNotFoundError which photograph.
  """
  return tuple(_open(source) for source in SOURCES)


def _open(source: Source) -> Any:
  package = importlib.util.find_spec(source.package)
  if package is None:
    raise ImportError(
        f"The photograph '{source.name}' needs the package {source.package}, which is not "
        f"installed; run {packages.install('train')}.")
  path = pathlib.Path(str(package.origin)).parent / source.file
  if not path.is_file():
    raise FileNotFoundError(
        f"The photograph '{source.name}' is not at {path}; the installed version of "
        f'{source.package} does not contain it. Install scikit-image 0.26 and scikit-learn 1.9.')
  image = Image.open(path).convert('RGB')
  shrink = _SHORTER_SIDE / min(image.size)
  if shrink < 1:
    size = tuple(round(side * shrink) for side in image.size)
    image = image.resize(size, Image.Resampling.LANCZOS)
  return image


def crops(photos: tuple, seed: int, step: int, split: str, batch_size: int, size: int = 64
          ) -> tuple[np.ndarray, np.ndarray]:
  """Returns one batch of crops, number `step` of those of a seed, from what `load` returned.

  The classes alternate, starting at a random one. Returns images `[N, size, size, 3]` float32 in
  [-1, 1], and labels `[N]` int32, indices of photographs. Another split raises ValueError.
  """
  fields.check_choice('split', split, SPLITS)
  rng = np.random.default_rng([seed, SPLITS.index(split), step])
  labels = ((rng.integers(len(photos)) + np.arange(batch_size)) % len(photos)).astype(np.int32)
  images = np.stack([_crop(photos[label], rng, split, size) for label in labels])
  return images.astype(np.float32) / 127.5 - 1, labels


def _crop(photo: Any, rng: np.random.Generator, split: str, size: int) -> np.ndarray:
  """Returns one crop `[size, size, 3]` uint8."""
  width, height = photo.size
  border = int(TRAIN_FRACTION * width)
  left, right = (0, border) if split == 'train' else (border, width)
  largest = min(_CROP_SIDES[1], height, right - left)
  # The logarithm of the side is uniform, so that every scale is equally likely.
  side = int(round(np.exp(rng.uniform(np.log(_CROP_SIDES[0]), np.log(largest)))))
  x = left + int(rng.integers(right - left - side + 1))
  y = int(rng.integers(height - side + 1))
  # Cropped first: the filter of a resize with a box would read across the border of the splits.
  square = photo.crop((x, y, x + side, y + side))
  pixels = np.asarray(square.resize((size, size), Image.Resampling.LANCZOS))
  return pixels[:, ::-1] if rng.integers(2) else pixels
