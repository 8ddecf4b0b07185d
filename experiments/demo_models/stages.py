"""What the recipes of shipped models have in common, whatever their tokens are."""

import abc
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from absl import logging

from cspd_jax.checkpoints import files, reading
from cspd_jax.core import fields
from cspd_jax.training import loop
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import photos as photos_lib

# Crops that the encoder reads at once.
_ENCODE_BATCH = 32

# What is trained on the tokens.
MODELS = ('target', 'draft')

# Arrays of a tokenised split, and what its crops show: labels `[N]` int32, or captions `[N]` str.
Split = tuple[np.ndarray, np.ndarray]

# The photographs, opened once.
photos = functools.cache(photos_lib.load)


class Network(NamedTuple):
  """A trained network as a checkpoint holds it: its kind, sizes and parameters."""

  kind: str
  config: Any
  params: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages(abc.ABC):
  """A recipe for a tokenizer, a target and a draft model: settings apart from their sizes.

  Every method that has a folder continues what it already holds and does nothing if it is
  complete.

  Attributes:
    family: the models' family.
    image_size: side of a crop in pixels.
    num_train_images: crops that are tokenised for training.
    num_held_out_images: crops of the held-out parts to evaluate on.
    guidance_scale: for the guided samples and figures of the report.
    tokenizer_of: a model, shipped or a folder, whose tokenizer is taken as it is; None trains one.
    seed: of the crops that are tokenised.
    log_every: steps between lines of the log.
    checkpoint_every: steps between checkpoints.
    evaluate_every: steps between held-out evaluations.
  """

  family: ClassVar[str]

  image_size: int = 64
  num_train_images: int = 16384
  num_held_out_images: int = 256
  guidance_scale: float = 2.0
  tokenizer_of: str | None = None
  seed: int = 0
  log_every: int = 50
  checkpoint_every: int = 250
  evaluate_every: int = 250

  def __post_init__(self):
    fields.check(self, image_size=(1, fields.MOST_SIDE), guidance_scale=fields.FINITE,
                 seed=fields.SEEDS)

  @property
  def metadata(self) -> dict[str, Any]:
    """What is stored with the networks, as JSON can hold it."""
    return {'labels': list(photos_lib.NAMES), 'image_size': self.image_size}

  @property
  def defaults(self) -> dict[str, Any]:
    """What suits the exported model; see `generation.Model.defaults`."""
    return {'dtype': 'float32', 'guidance_scale': self.guidance_scale}

  @abc.abstractmethod
  def small(self) -> 'Stages':
    """Returns the recipe with tiny networks of its kind, for crops of 8x8 pixels."""

  @abc.abstractmethod
  def train_tokenizer(self, workdir: pathlib.Path) -> Any:
    """Trains the tokenizer in `workdir` or continues; returns its parameters."""

  @abc.abstractmethod
  def tokenize(self, tokenizer: Any, split: str, workdir: pathlib.Path) -> Split:
    """What the tokenizer makes of random crops, and what these show; kept in `workdir`.

    Args:
      tokenizer: its parameters.
      split: 'train' or 'held_out'.
      workdir: the folder of the run.
    """

  @abc.abstractmethod
  def train_model(self, role: str, data: Mapping[str, Split], workdir: pathlib.Path) -> Any:
    """Trains the target or the draft model in `workdir` or continues.

    Args:
      role: one of `MODELS`; names the files.
      data: what `tokenize` returned for both splits.
      workdir: the folder of the run.

    Returns:
      The moving average of the parameters.
    """

  @abc.abstractmethod
  def networks(self, tokenizer: Any, models: Mapping[str, Any],
               data: Mapping[str, Split]) -> dict[str, Network]:
    """What a run makes, by its role in a model.

    Args:
      tokenizer: parameters.
      models: parameters by role.
      data: what `tokenize` returned for both splits.
    """

  @abc.abstractmethod
  def figures(self, tokenizer: Any, models: Mapping[str, Any],
              data: Mapping[str, Split]) -> dict[str, dict[str, Any]]:
    """Held-out figures by role; arguments as for `networks`."""

  @abc.abstractmethod
  def rebuilt(self, tokenizer: Any, data: Mapping[str, Split], images: np.ndarray) -> np.ndarray:
    """Takes images `[N, H, W, 3]` in [-1, 1] through the tokenizer and back."""

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
    """Batch `index` of random crops `[size, H, W, 3]` of a split, and what they show `[size]`."""
    found = photos_lib.crops(photos(), seed, index, split, size, self.image_size)
    return found.images, found.labels

  def described(self, labels: np.ndarray) -> list[str]:
    """In words, what crops show; `labels` as `crops` gives them."""
    return [photos_lib.NAMES[label] for label in labels]

  def held_out(self) -> tuple[np.ndarray, np.ndarray]:
    """Crops of the held-out parts and what they show, to measure on and to show."""
    return self.crops(self.seed + 1, 0, 'held_out', self.num_held_out_images)

  def train(self, name: str, state: Any, step: Callable, batch: Callable[[int], Any],
            optimizer: OptimizerConfig, workdir: pathlib.Path,
            evaluate: Callable[[Any], list[Mapping[str, Any]]]) -> Any:
    """Trains in `workdir` or continues; returns the last state.

    Args:
      name: names the files.
      state: the state before the first step.
      step: see `loop.run`.
      batch: see `loop.run`.
      optimizer: configuration of the optimiser, for the steps and the batch size.
      workdir: the folder of the run.
      evaluate: held-out metrics of a state, one dictionary per batch.
    """
    def held_out(state):
      means = loop.mean_metrics(evaluate(state))
      return {f'held_out_{key}': value for key, value in means.items()}

    return loop.run(
        state, step, batch, num_steps=optimizer.num_steps, batch_size=optimizer.batch_size,
        workdir=workdir, name=name, log_every=self.log_every,
        checkpoint_every=self.checkpoint_every, evaluate=held_out,
        evaluate_every=self.evaluate_every)

  def encoded(self, path: pathlib.Path, name: str, split: str,
              encode: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What a tokenizer makes of random crops, and what these show `[N]`; kept in a file.

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
      stored = reading.arrays(path, files.REMAKE, needed=(name, 'labels'))
      if len(stored[name]) == count and stored['labels'].shape == (count,):
        return stored[name], stored['labels']
    found, classes = [], []
    for index in range(-(-count // _ENCODE_BATCH)):
      # One more than the tokenizer's seed, so that the training crops differ.
      images, batch_labels = self.crops(self.seed + 1, index, split, _ENCODE_BATCH)
      found.append(encode(images))
      classes.append(batch_labels)
      if index % 50 == 0:
        logging.info('%s of %s: %d of %d crops', name, split, index * _ENCODE_BATCH, count)
    parts, labels = np.concatenate(found)[:count], np.concatenate(classes)[:count]
    files.write_arrays(path, {name: parts, 'labels': labels})
    return parts, labels


def check_model(role: str, config: Any, wanted: Mapping[str, Any]) -> None:
  """Raises ValueError unless the fields of a model's configuration are as `wanted`."""
  for name, value in wanted.items():
    found = getattr(config, name)
    if found != value:
      raise ValueError(f'{role}.{name} is {found!r}; with this tokenizer, image size and set of '
                       f'photographs it must be {value!r}.')


def batched(run: Callable[[np.ndarray], Any], images: np.ndarray, size: int = 16) -> np.ndarray:
  """Runs a function on all images, some at a time, and joins the results as a NumPy array."""
  return np.concatenate([np.asarray(run(images[i:i + size])) for i in range(0, len(images), size)])


def errors(rebuilt: np.ndarray, images: np.ndarray) -> dict[str, float]:
  """How far images `[N, H, W, 3]` in [-1, 1] are from those they were made of.

  Returns:
    'psnr' (mean over images, in decibels for values in [0, 1]) and 'l1' (same scale).
  """
  error = (rebuilt - images) / 2
  mean_square = np.mean(error ** 2, axis=(1, 2, 3))
  return {'psnr': float(np.mean(-10 * np.log10(np.maximum(mean_square, 1e-12)))),
          'l1': float(np.mean(np.abs(error)))}


