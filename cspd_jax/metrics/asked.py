"""The score `asked` of images with captions: on disk, and of the samples of a decoder."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cspd_jax.files import reading
from cspd_jax.generation.model import Model
from cspd_jax.generation.results import to_bytes
from cspd_jax.metrics import layouts, scenes
from cspd_jax.metrics.base import Sample, Value

_REMEDY = 'replace or remove it'


def check(captions: Sequence[str]) -> None:
  """Raises ValueError unless all captions are in the grammar of scenes."""
  for caption in captions:
    scenes.request_of(caption, scenes.templates())


def captions(model: Model, prompts: Sequence[Any]) -> list[str]:
  """Returns prompts as captions; raises ValueError unless all are in the grammar of scenes."""
  result = list(model.conditions.titles(prompts))
  check(result)
  return result


def of_sample(sample: Sample, model: Model) -> dict[str, Value]:
  """Returns the scores of `metrics.scenes.asked` of a sample with captions, by name."""
  assert sample.captions is not None
  return scenes.asked(_marks(sample, model), sample.captions)


def of_each(sample: Sample, model: Model) -> np.ndarray:
  """Returns the share of its requests that each image of a sample with captions fulfils, `[N]`."""
  marks = _marks(sample, model)
  return np.nanmean([marks[kind] for kind in scenes.KINDS], axis=0)


def _marks(sample: Sample, model: Model) -> dict[str, np.ndarray]:
  """The marks of a sample by kind, see `metrics.scenes.score`; computed once."""
  assert sample.captions is not None
  captions = sample.captions
  return sample.once('asked', lambda: scenes.score(to_bytes(sample.images(model)), captions))


def scores(images: Sequence[layouts.Generated], batch_size: int,
           progress: Callable[[int, int], None]) -> dict[str, Value]:
  """Returns the scores of `metrics.scenes.asked` by name.

  Args:
    images: the images and their captions; images of a caption are samples of a prompt.
    batch_size: images that are compared with the templates together.
    progress: called with the number of images so far and in total.

  Raises:
    ValueError: if an image cannot be read, is not square or has another size.
  """
  parts: list[dict[str, np.ndarray]] = []
  for first in range(0, len(images), batch_size):
    batch = images[first:first + batch_size]
    pixels = [np.asarray(reading.photograph(image.path, _REMEDY)) for image in batch]
    for image, picture in zip(batch, pixels, strict=True):
      if picture.shape != pixels[0].shape:
        raise ValueError(f'{image.path} has {picture.shape[0]} x {picture.shape[1]} pixels and '
                         f'{batch[0].path} {pixels[0].shape[0]} x {pixels[0].shape[1]}; all images '
                         'must have one size.')
    parts.append(scenes.score(np.stack(pixels), [image.prompt for image in batch]))
    progress(first + len(batch), len(images))
  marks = {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0]}
  return scenes.asked(marks, [image.prompt for image in images])
