"""Random crops of the freely licensed photographs inside the scikit-image and scikit-learn wheels.

Nothing is downloaded: `pip install -e '.[train]'` brings the two packages, and with them eight
colour photographs, one per class. A crop is a square of random place and size, mirrored half of
the time, and resized to a fixed side. The left three quarters of every photograph are for training
and the rest is held out, so no held-out pixel is ever trained on.

  photos = load()
  found = crops(photos, seed=0, step=0, split='train', batch_size=16)
"""

import importlib.util
import pathlib
from typing import NamedTuple

import numpy as np

SPLITS = ('train', 'held_out')
# Left part of every photograph that belongs to the training split.
TRAIN_FRACTION = 0.75
# Larger photographs are reduced to this many pixels on their shorter side, so that a crop shows
# things of about the same apparent size in all of them.
_SHORTER_SIDE = 512
# Sides, in pixels of the photograph, between which a crop is chosen.
_CROP_SIDES = (64, 160)


class Source(NamedTuple):
  """Where a photograph comes from.

  Attributes:
    name: its class, a word for what it shows.
    package: import name of the package whose wheel holds it.
    file: path inside the package.
    licence: its licence.
    credit: who made it.
    stated: where the package states the licence.
  """

  name: str
  package: str
  file: str
  licence: str
  credit: str
  stated: str


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

# Class names; a label is an index into them.
NAMES = tuple(source.name for source in SOURCES)


class Crops(NamedTuple):
  """Crops of the photographs.

  Attributes:
    images: `[N, size, size, 3]` float32 in [-1, 1].
    labels: `[N]` int32, the photographs.
    places: `[N, 2]` float, how far across and down its part of the photograph a crop lies, from 0
      to 1; across is counted in the mirrored photograph if the crop is mirrored.
  """

  images: np.ndarray
  labels: np.ndarray
  places: np.ndarray


def load() -> tuple:
  """Opens the photographs.

  Returns:
    One `PIL.Image` in RGB per entry of `SOURCES`, in that order.

  Raises:
    ImportError: if a package of the extra `train` is not installed.
    FileNotFoundError: if a package no longer holds the photograph.
  """
  return tuple(_open(source) for source in SOURCES)


def _open(source: Source):
  # scikit-image itself depends on Pillow.
  missing = [name for name in (source.package, 'PIL') if importlib.util.find_spec(name) is None]
  if missing:
    raise ImportError(
        f"The photograph '{source.name}' needs the package {missing[0]}, which is not installed; "
        "run pip install -e '.[train]' in the repository.")
  from PIL import Image  # Only training needs it.

  root = pathlib.Path(importlib.util.find_spec(source.package).origin).parent
  path = root / source.file
  if not path.is_file():
    raise FileNotFoundError(
        f"The photograph '{source.name}' is not at {path}; the installed version of "
        f'{source.package} does not hold it. Install scikit-image 0.26 and scikit-learn 1.9.')
  image = Image.open(path).convert('RGB')
  shrink = _SHORTER_SIDE / min(image.size)
  if shrink < 1:
    size = tuple(round(side * shrink) for side in image.size)
    image = image.resize(size, Image.Resampling.LANCZOS)
  return image


def crops(
    photos: tuple,
    seed: int,
    step: int,
    split: str,
    batch_size: int,
    size: int = 64,
) -> Crops:
  """One batch of crops, the same for the same arguments.

  Args:
    photos: what `load` returned.
    seed: chooses the whole sequence of batches.
    step: number of the batch in it.
    split: 'train' or 'held_out'.
    batch_size: number of crops; the classes take turns from a random start.
    size: side of the returned crops in pixels.

  Raises:
    ValueError: if `split` is not one of `SPLITS`.
  """
  if split not in SPLITS:
    raise ValueError(f'split must be one of {", ".join(SPLITS)}, got {split!r}.')
  rng = np.random.default_rng([seed, SPLITS.index(split), step])
  labels = ((rng.integers(len(photos)) + np.arange(batch_size)) % len(photos)).astype(np.int32)
  found, places = zip(*(_crop(photos[label], rng, split, size) for label in labels))
  return Crops(np.stack(found).astype(np.float32) / 127.5 - 1, labels, np.array(places))


def _crop(photo, rng: np.random.Generator, split: str, size: int
          ) -> tuple[np.ndarray, tuple[float, float]]:
  """One crop `[size, size, 3]` uint8, and its place."""
  from PIL import Image  # Only training needs it.

  width, height = photo.size
  border = int(TRAIN_FRACTION * width)
  left, right = (0, border) if split == 'train' else (border, width)
  largest = min(_CROP_SIDES[1], height, right - left)
  # Uniform in the logarithm: doubling the side is as likely at every scale.
  side = int(round(np.exp(rng.uniform(np.log(_CROP_SIDES[0]), np.log(largest)))))
  x = left + int(rng.integers(right - left - side + 1))
  y = int(rng.integers(height - side + 1))
  # Cut first: resizing with a box would let the filter look across the border between splits.
  square = photo.crop((x, y, x + side, y + side))
  pixels = np.asarray(square.resize((size, size), Image.Resampling.LANCZOS))
  across, down = (x - left) / max(right - left - side, 1), y / max(height - side, 1)
  return (pixels[:, ::-1], (1 - across, down)) if rng.integers(2) else (pixels, (across, down))
