"""How the shipped MAR models are made: KL tokenizer, latents, target and draft model.

The functions are those of `recipe`, for continuous tokens. The tokens of a crop are stored as the
tokenizer's Gaussians, and drawn anew whenever the crop is trained on, as MAR does.
"""

import dataclasses
import pathlib
from typing import Any

from absl import logging
import jax
import numpy as np

from cspd_jax.data import photos as photos_lib
from cspd_jax.models import kl_vae
from cspd_jax.models import mar
from cspd_jax.training import kl_vae as kl_vae_training
from cspd_jax.training import loop
from cspd_jax.training import mar as mar_training
from cspd_jax.training.kl_vae import KLVAETrainConfig
from cspd_jax.training.mar import MARTrainConfig

# Crops that the encoder reads at once.
_ENCODE_BATCH = 32


@dataclasses.dataclass(frozen=True)
class MARRecipe:
  """Everything that determines the shipped MAR models.

  Attributes:
    tokenizer: sizes of the tokenizer; its `scale` is replaced by what the training crops ask for.
    tokenizer_train: its optimisation.
    target: sizes of the target.
    target_train: its optimisation.
    draft: sizes of the draft model; the same tokens and classes as the target.
    draft_train: its optimisation.
    image_size: side of a crop in pixels.
    num_train_images: crops that are encoded for training.
    num_held_out_images: crops of the held-out parts to evaluate on.
    guidance_scale: for the guided samples.
    seed: of the crops that are encoded.
    log_every: steps between lines of the log.
    checkpoint_every: steps between checkpoints.
    evaluate_every: steps between held-out evaluations.
  """

  tokenizer: kl_vae.KLVAEConfig
  tokenizer_train: KLVAETrainConfig
  target: mar.MARConfig
  target_train: MARTrainConfig
  draft: mar.MARConfig
  draft_train: MARTrainConfig
  image_size: int = 64
  num_train_images: int = 16384
  num_held_out_images: int = 256
  guidance_scale: float = 2.0
  seed: int = 0
  log_every: int = 50
  checkpoint_every: int = 250
  evaluate_every: int = 250

  def __post_init__(self):
    if self.image_size % self.tokenizer.factor:
      raise ValueError(f'image_size is {self.image_size}; it must be a multiple of the '
                       f"tokenizer's {self.tokenizer.factor} pixels per token.")
    side = self.image_size // self.tokenizer.factor
    for model in ('target', 'draft'):
      config = getattr(self, model)
      wanted = {'patch_size': self.target.patch_size, 'height': side // config.patch_size,
                'width': side // config.patch_size, 'num_classes': len(photos_lib.NAMES),
                'token_dim': self.tokenizer.z_channels * config.patch_size**2}
      for name, value in wanted.items():
        found = getattr(config, name)
        if found != value:
          raise ValueError(f'{model}.{name} is {found!r}; with this tokenizer, image size and '
                           f'set of photographs it must be {value!r}.')


def train_tokenizer(recipe: MARRecipe, workdir: pathlib.Path) -> Any:
  """Trains the tokenizer in `workdir` or continues; returns its parameters."""
  config, train = recipe.tokenizer, recipe.tokenizer_train
  photos = photos_lib.load()

  def batch(index):
    return photos_lib.crop_batch(
        photos, train.seed, index, 'train', train.batch_size, recipe.image_size)[0]

  held_out = [photos_lib.crop_batch(photos, recipe.seed, index, 'held_out', train.batch_size,
                                    recipe.image_size)[0] for index in range(4)]
  compiled_loss = jax.jit(lambda params, images: kl_vae_training.loss(
      params, config, train, images, jax.random.key(recipe.seed))[1])

  def evaluate(state):
    parts = [compiled_loss(state.params, images) for images in held_out]
    return loop.mean_metrics([
        {f'held_out_{key}': value for key, value in part.items()} for part in parts])

  state = loop.run(
      kl_vae_training.init(config, train), loop.jit_step(kl_vae_training.step, config, train),
      batch, num_steps=train.num_steps, batch_size=train.batch_size, workdir=workdir,
      name='tokenizer', log_every=recipe.log_every, checkpoint_every=recipe.checkpoint_every,
      evaluate=evaluate, evaluate_every=recipe.evaluate_every)
  return state.params


def tokenize(
    recipe: MARRecipe,
    params: Any,
    split: str,
    workdir: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray]:
  """Gaussians of the latents of random crops, and labels `[N]` int32; kept in `workdir`.

  The crops are chosen as `recipe.tokenize` chooses them.

  Returns:
    `[N, 2, h, w, z_channels]` float32 means and log-variances before scaling, and the labels.
  """
  count = recipe.num_train_images if split == 'train' else recipe.num_held_out_images
  path = workdir / f'latents_{split}.npz'
  if path.exists():
    with np.load(path) as stored:
      if stored['moments'].shape[0] == count:
        return stored['moments'], stored['labels']
  photos = photos_lib.load()
  encode = jax.jit(lambda images: kl_vae.encode(params, recipe.tokenizer, images))
  moments, labels = [], []
  for index in range(-(-count // _ENCODE_BATCH)):
    images, batch_labels = photos_lib.crop_batch(
        photos, recipe.seed + 1, index, split, _ENCODE_BATCH, recipe.image_size)
    moments.append(np.stack(jax.device_get(encode(images)), axis=1))
    labels.append(batch_labels)
    if index % 50 == 0:
      logging.info('latents of %s: %d of %d crops', split, index * _ENCODE_BATCH, count)
  moments, labels = np.concatenate(moments)[:count], np.concatenate(labels)[:count]
  np.savez(path, moments=moments, labels=labels)
  return moments, labels


def scaled_tokenizer(
    recipe: MARRecipe, data: dict[str, tuple[np.ndarray, np.ndarray]]) -> kl_vae.KLVAEConfig:
  """The tokenizer's sizes with the scale that gives the training latents a variance of one."""
  mean, log_variance = np.moveaxis(data['train'][0].astype(np.float64), 1, 0)
  deviation = np.sqrt(np.var(mean) + np.mean(np.exp(log_variance)))
  return dataclasses.replace(recipe.tokenizer, scale=round(float(1 / deviation), 5))


def batch_of(
    config: mar.MARConfig, moments: np.ndarray, labels: np.ndarray, scale: float, seed: int,
    index: int, size: int) -> tuple[np.ndarray, np.ndarray]:
  """Tokens `[size, T, C]` drawn from random crops' Gaussians, and labels; batch `index`."""
  rng = np.random.default_rng([seed, index])
  chosen = rng.integers(len(labels), size=size)
  mean, log_variance = np.moveaxis(moments[chosen], 1, 0)
  noise = rng.standard_normal(mean.shape, dtype=np.float32)
  latents = (mean + np.exp(0.5 * log_variance) * noise) * np.float32(scale)
  return np.asarray(mar.patchify(config, latents)), labels[chosen]


def train_model(
    name: str,
    config: mar.MARConfig,
    train: MARTrainConfig,
    recipe: MARRecipe,
    data: dict[str, tuple[np.ndarray, np.ndarray]],
    workdir: pathlib.Path,
) -> Any:
  """Trains the model `name` in `workdir` or continues; returns its averaged parameters.

  Args:
    name: 'target' or 'draft'; names the files.
    config: sizes of the model.
    train: its optimisation.
    recipe: what both models share.
    data: what `tokenize` returned for the splits 'train' and 'held_out'.
    workdir: the folder of the run.
  """
  scale = scaled_tokenizer(recipe, data).scale
  draw = lambda split, index: batch_of(
      config, *data[split], scale, train.seed, index, train.batch_size)
  held_out = [draw('held_out', index) for index in range(4)]
  compiled_loss = jax.jit(lambda params, batch, key: mar_training.loss(
      params, config, *batch, mar_training.draw(key, batch[0].shape, train))[1])

  def evaluate(state):
    # The same masks, steps and noises every time.
    parts = [compiled_loss(state.average, batch, jax.random.key(index))
             for index, batch in enumerate(held_out)]
    return loop.mean_metrics([
        {f'held_out_{key}': value for key, value in part.items()} for part in parts])

  state = loop.run(
      mar_training.init(config, train), loop.jit_step(mar_training.step, config, train),
      lambda index: draw('train', index), num_steps=train.num_steps, batch_size=train.batch_size,
      workdir=workdir, name=name, log_every=recipe.log_every,
      checkpoint_every=recipe.checkpoint_every, evaluate=evaluate,
      evaluate_every=recipe.evaluate_every)
  return state.average


def exports(recipe: MARRecipe, tokenizer: Any, models: dict[str, Any],
            data: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[tuple]:
  """Name, kind, sizes and parameters of every checkpoint that a run makes."""
  return [('mar_demo_vae', 'kl_vae', scaled_tokenizer(recipe, data), tokenizer),
          ('mar_demo_target', 'mar', recipe.target, models['target']),
          ('mar_demo_draft', 'mar', recipe.draft, models['draft'])]
