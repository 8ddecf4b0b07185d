"""The images of one call: what determines each of them, row by row."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import batches, random as random_lib
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.files import atomic
from cspd_jax.generation import given_rows, options, prompts as prompts_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
  """Images to be decoded; all arguments are checked, and nothing is compiled.

  Image `i` depends, up to rounding, only on its seed, number and prompt, whatever the mode and the
  batch size; log-probabilities and `Decoded.tv_bound` may differ in their last bits.

  Attributes:
    sampler: the `Sampler` that draws them.
    prompts: the caller's prompts.
    condition: NumPy arrays with a leading axis `B`; a `decoding.prefix.Prefixed` if there is a
      prefix.
    titles: `[B]` the prompts in words.
    unknown_words: `[B]` words of the prompts that do not reach the model.
    seeds: `[B]` seed and number of every image; or one random key per image.
    sampling: the sampling options of these images.
    active: the same as the program takes them; see `Sampler.active`.
    batch_size: images decoded at once.
    slots: whether finished rows are refilled.
    stage: 1 for the prior of a `Cascade`, whose random keys are folded once more; otherwise 0.
  """

  sampler: Any
  prompts: Any
  condition: Any
  titles: Sequence[str]
  unknown_words: Sequence[Sequence[str]]
  seeds: Sequence[tuple[int, int]] | jax.Array
  sampling: SamplingParams
  active: SamplingParams
  batch_size: int
  slots: bool = True
  stage: int = 0

  def __len__(self) -> int:
    return len(self.titles)

  def pick(self, index: Sequence[int] | np.ndarray) -> Self:
    """Returns the images with these numbers."""
    index = np.asarray(index, int)
    if np.array_equal(index, np.arange(len(self))):
      return self  # Without a copy of the features of many prompts.
    listed = lambda values: [values[i] for i in index]
    return dataclasses.replace(
        self, condition=batches.select(self.condition, index), titles=listed(self.titles),
        seeds=self.seeds[index] if isinstance(self.seeds, jax.Array) else listed(self.seeds),
        unknown_words=listed(self.unknown_words), sampling=batches.select(self.sampling, index),
        active=batches.select(self.active, index))

  def with_batch_size(self, size: int) -> Self:
    """Returns the images with at most `size` of them at once."""
    return dataclasses.replace(self, batch_size=min(size, self.batch_size))

  def with_seeds(self, seeds: Sequence[tuple[int, int]]) -> Self:
    """Returns the images with other seeds and numbers `[B]`; prompts are not encoded again."""
    return dataclasses.replace(self, seeds=seeds)

  @usual_promotion
  def inputs(self, index: np.ndarray) -> tuple[Any, jax.Array, Any]:
    """Returns condition, random keys and sampling options of the images with these numbers."""
    condition, sampling = batches.select((self.condition, self.active), index)
    keys = (self.seeds[index] if isinstance(self.seeds, jax.Array) else
            random_lib.image_keys([self.seeds[i] for i in index]))
    if self.stage:
      keys = random_lib.stage_keys(keys, self.stage)
    return jax.tree.map(jnp.asarray, condition), keys, sampling

  @property
  def recorded(self) -> dict[str, Any]:
    """The sampling options by name as plain numbers and lists, as images record them."""
    if self.sampling is self.sampler.sampling:
      return self.sampler.recorded
    return atomic.plain(options.named(self.sampler.model.table, self.sampling))

  @property
  def names(self) -> list[str]:
    """The titles and seeds of the images, for messages."""
    numbered = [f'number {number}' for number in range(len(self))] if isinstance(
        self.seeds, jax.Array) else [f'with seed {seed}, number {number}'
                                     for seed, number in self.seeds]
    return [f'{title!r} {number}' for title, number in zip(self.titles, numbered)]

  @property
  def unread(self) -> list[str]:
    """A sentence on the words of every prompt that the model does not read, or of the first."""
    return prompts_lib.sentences(dict(zip(self.titles, self.unknown_words)))


def with_prefix(model: Any, prefix: Any, rows: int | None) -> Any:
  """Returns the model, or the one of images that begin with the rows of a prefix.

  The arguments are as for `Model.generate`; without a prefix it is the model itself.
  """
  if prefix is None and rows is None:
    return model
  return model.with_prefix(given_rows.tokens(model, prefix, rows))


def fitted(images: Any) -> Any:
  """Returns images, also of a cascade, that are decoded in batches which fit in memory.

  A batch size that the caller has set, and that is too large, raises ValueError.
  """
  sampler = images.sampler
  if sampler.batch_size is not None:
    sampler.check_fits(images)
    return images
  while (size := sampler.largest_batch(images)) < images.batch_size:
    images = images.with_batch_size(size)
  return images


def build_fitted(build: Callable[[Any], Any], count: int, batch_size: Any, most: int | None = None
                 ) -> Any:
  """Returns `build(size)`, images with a sampler for as many at once, for the largest that fits.

  `batch_size` is the caller's, which must fit, or None; `most` is then the largest, None for all.
  """
  if batch_size is not None:
    if isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool):
      batch_size = min(count, int(batch_size))
    images = build(batch_size)
    images.sampler.check_fits(images)
    return images
  size = count if most is None else min(count, most)
  # The default decoder may be another one for a smaller batch.
  while (largest := (images := build(size)).sampler.largest_batch(images)) < size:
    size = largest
  return images


def warn(images: Any) -> None:
  """Warns of words that the model does not read."""
  if lines := images.unread:
    warnings.warn('\n'.join(lines), stacklevel=3)  # In the caller of a public function.
