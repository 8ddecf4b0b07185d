"""Features of images that are computed while the images are generated.

Every image has one file of features, by its number, until all are complete. Files that a killed
process did not write are computed from the images themselves, so that the joined file has every
number exactly once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cspd_jax.core import batches
from cspd_jax.files import atomic, npz, reading
from cspd_jax.files.run_folder import Report

NAME = 'features.npz'


class Extractor(NamedTuple):
  """A function of images, and what it depends on.

  Attributes:
    compute: `[batch_size, H, W, 3]` uint8 `->` arrays by name, each with leading axis `batch_size`.
    identity: what determines the features apart from the images, which is stored with them; a run
      is resumed only with the same.
    batch_size: images per call.
  """

  compute: Callable[[np.ndarray], Mapping[str, np.ndarray]]
  identity: Mapping[str, str]
  batch_size: int = 32


class FeatureFiles:
  """The features of the images of an unfinished report."""

  def __init__(self, report: Report, images: Sequence[str], extractor: Extractor):
    """Stores the arguments; nothing is computed yet.

    Args:
      report: the unfinished report.
      images: names of the PNG files of all images, in the order of their numbers.
      extractor: computes the features.
    """
    self._report, self._images, self._extractor = report, images, extractor
    self._size = min(extractor.batch_size, len(images))
    self._waiting: dict[int, np.ndarray] = {}

  def add(self, numbers: Sequence[int], images: np.ndarray) -> None:
    """Adds images `[n, H, W, 3]` uint8, and computes features once enough of them wait."""
    for number, image in zip(numbers, images, strict=True):
      self._waiting[number] = image
      if len(self._waiting) == self._size:
        self.flush()

  def flush(self) -> None:
    """Computes and writes the features of the images that wait."""
    if not self._waiting:
      return
    # The last batch is filled up, so that one program suffices.
    full = batches.padded(np.stack(list(self._waiting.values())), self._size)
    values = {name: np.asarray(leaf) for name, leaf in self._extractor.compute(full).items()}
    for row, number in enumerate(self._waiting):
      atomic.write_arrays(self._report.path(_part(number)),
                         {name: leaf[row] for name, leaf in values.items()})
    self._waiting.clear()

  def join(self) -> None:
    """Writes the features of all images as one file, with the identity of the extractor.

    Computes those that are missing from the images.

    Raises:
      ValueError: if a file of features or an image is damaged.
    """
    if not self._report.has(NAME):
      for number, name in enumerate(self._images):
        if not self._report.has(_part(number)):
          pixels, _ = reading.picture(self._report.path(name), atomic.REMAKE)
          self.add([number], pixels[None])
      self.flush()
      rows = [npz.arrays(self._report.path(_part(number)), atomic.REMAKE)
              for number in range(len(self._images))]
      joined = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
      atomic.write_arrays(self._report.path(NAME), joined | {
          name: np.asarray(text) for name, text in self._extractor.identity.items()})
    for number in range(len(self._images)):
      self._report.path(_part(number)).unlink(missing_ok=True)


def _part(number: int) -> str:
  return f'features_{number:07d}.npz'
