"""What the recipes of shipped models have in common, whatever their tokens are."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging
import numpy as np

from cspd_jax.data import photos as photos_lib
from cspd_jax.training import loop

# Crops that the encoder reads at once.
_ENCODE_BATCH = 32

_photos = functools.cache(photos_lib.load)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages:
  """A recipe's settings apart from the models.

  Attributes:
    image_size: side of a crop in pixels.
    num_train_images: crops that are tokenised for training.
    num_held_out_images: crops of the held-out parts to evaluate on.
    guidance_scale: for the guided samples and figures of the report.
    seed: of the crops that are tokenised.
    log_every: steps between lines of the log.
    checkpoint_every: steps between checkpoints.
    evaluate_every: steps between held-out evaluations.
  """

  image_size: int = 64
  num_train_images: int = 16384
  num_held_out_images: int = 256
  guidance_scale: float = 2.0
  seed: int = 0
  log_every: int = 50
  checkpoint_every: int = 250
  evaluate_every: int = 250

  def side(self, factor: int) -> int:
    """Latents along the side of a crop, for a tokenizer with `factor` pixels per latent.

    Raises:
      ValueError: if the crop is no whole number of them.
    """
    if self.image_size % factor:
      raise ValueError(f'image_size is {self.image_size}; it must be a multiple of the '
                       f"tokenizer's {factor} pixels per token.")
    return self.image_size // factor

  def crops(self, seed: int, index: int, split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Batch `index` of random crops `[size, H, W, 3]` of a split, and labels `[size]`."""
    return photos_lib.crop_batch(_photos(), seed, index, split, size, self.image_size)

  def train(self, name: str, state: Any, step: Callable, batch: Callable[[int], Any],
            num_steps: int, batch_size: int, workdir: pathlib.Path,
            evaluate: Callable[[Any], list[Mapping[str, Any]]]) -> Any:
    """Trains in `workdir` or continues; returns the last state.

    Args:
      name: names the files.
      state: the state before the first step.
      step: see `loop.run`.
      batch: see `loop.run`.
      num_steps: see `loop.run`.
      batch_size: see `loop.run`.
      workdir: the folder of the run.
      evaluate: held-out metrics of a state, one dictionary per batch.
    """
    def held_out(state):
      means = loop.mean_metrics(evaluate(state))
      return {f'held_out_{key}': value for key, value in means.items()}

    return loop.run(
        state, step, batch, num_steps=num_steps, batch_size=batch_size, workdir=workdir, name=name,
        log_every=self.log_every, checkpoint_every=self.checkpoint_every, evaluate=held_out,
        evaluate_every=self.evaluate_every)

  def encoded(self, path: pathlib.Path, name: str, split: str,
              encode: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What a tokenizer makes of random crops, and labels `[N]` int32; kept in a file.

    The crops are not those that the tokenizer was trained on: those of the held-out split lie in
    other parts of the photographs, those of the training split are drawn anew.

    Args:
      path: the file.
      name: what is kept in it.
      split: 'train' or 'held_out'.
      encode: `[N, H, W, 3]` images to `[N, ...]`.
    """
    count = self.num_train_images if split == 'train' else self.num_held_out_images
    if path.exists():
      with np.load(path) as stored:
        if stored[name].shape[0] == count:
          return stored[name], stored['labels']
    parts, labels = [], []
    for index in range(-(-count // _ENCODE_BATCH)):
      # One more than the tokenizer's seed, so that the training crops differ.
      images, batch_labels = self.crops(self.seed + 1, index, split, _ENCODE_BATCH)
      parts.append(encode(images))
      labels.append(batch_labels)
      if index % 50 == 0:
        logging.info('%s of %s: %d of %d crops', name, split, index * _ENCODE_BATCH, count)
    parts, labels = np.concatenate(parts)[:count], np.concatenate(labels)[:count]
    np.savez(path, **{name: parts, 'labels': labels})
    return parts, labels


def check_model(role: str, config: Any, wanted: Mapping[str, Any]) -> None:
  """Raises ValueError unless the fields of a model's configuration are as `wanted`."""
  for name, value in wanted.items():
    found = getattr(config, name)
    if found != value:
      raise ValueError(f'{role}.{name} is {found!r}; with this tokenizer, image size and set of '
                       f'photographs it must be {value!r}.')
