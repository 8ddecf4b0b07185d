"""How the shipped MAR models are made: KL tokenizer, latents, target and draft model.

The functions are those of `recipe`, for continuous tokens. The tokens of a crop are stored as the
tokenizer's Gaussians, and drawn anew whenever the crop is trained on, as MAR does.
"""

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np

from cspd_jax.data import photos as photos_lib
from cspd_jax.models import kl_vae
from cspd_jax.models import mar
from cspd_jax.training import kl_vae as kl_vae_training
from cspd_jax.training import loop
from cspd_jax.training import mar as mar_training
from cspd_jax.training import stages
from cspd_jax.training.kl_vae import KLVAETrainConfig
from cspd_jax.training.mar import MARTrainConfig


@dataclasses.dataclass(frozen=True)
class MARRecipe(stages.Stages):
  """Everything that determines the shipped MAR models; more in `stages.Stages`.

  Attributes:
    tokenizer: sizes of the tokenizer; its `scale` is replaced by what the training crops ask for.
    tokenizer_train: its optimisation.
    target: sizes of the target.
    target_train: its optimisation.
    draft: sizes of the draft model; the same tokens and classes as the target.
    draft_train: its optimisation.
  """

  tokenizer: kl_vae.KLVAEConfig
  tokenizer_train: KLVAETrainConfig
  target: mar.MARConfig
  target_train: MARTrainConfig
  draft: mar.MARConfig
  draft_train: MARTrainConfig

  def __post_init__(self):
    side = self.side(self.tokenizer.factor)
    for role in ('target', 'draft'):
      config = getattr(self, role)
      stages.check_model(role, config, {
          'patch_size': self.target.patch_size, 'height': side // config.patch_size,
          'width': side // config.patch_size, 'num_classes': len(photos_lib.NAMES),
          'token_dim': self.tokenizer.z_channels * config.patch_size**2})


def train_tokenizer(recipe: MARRecipe, workdir: pathlib.Path) -> Any:
  """Trains the tokenizer in `workdir` or continues; returns its parameters."""
  config, train = recipe.tokenizer, recipe.tokenizer_train
  crops = lambda seed, index, split: recipe.crops(seed, index, split, train.batch_size)[0]
  held_out = [crops(recipe.seed, index, 'held_out') for index in range(4)]
  compiled_loss = jax.jit(lambda params, images: kl_vae_training.loss(
      params, config, train, images, jax.random.key(recipe.seed))[1])
  state = recipe.train(
      'tokenizer', kl_vae_training.init(config, train),
      loop.jit_step(kl_vae_training.step, config, train),
      lambda index: crops(train.seed, index, 'train'), train.num_steps, train.batch_size, workdir,
      lambda state: [compiled_loss(state.params, images) for images in held_out])
  return state.params


def tokenize(
    recipe: MARRecipe,
    params: Any,
    split: str,
    workdir: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray]:
  """Gaussians of the latents of random crops, and labels `[N]` int32; kept in `workdir`.

  Returns:
    `[N, 2, h, w, z_channels]` float32 means and log-variances before scaling, and the labels.
  """
  encode = jax.jit(lambda images: kl_vae.encode(params, recipe.tokenizer, images))
  return recipe.encoded(
      workdir / f'latents_{split}.npz', 'moments', split,
      lambda images: np.stack(jax.device_get(encode(images)), axis=1))


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
    return [compiled_loss(state.average, batch, jax.random.key(index))
            for index, batch in enumerate(held_out)]

  state = recipe.train(
      name, mar_training.init(config, train), loop.jit_step(mar_training.step, config, train),
      lambda index: draw('train', index), train.num_steps, train.batch_size, workdir, evaluate)
  return state.average


def exports(recipe: MARRecipe, tokenizer: Any, models: dict[str, Any],
            data: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[tuple]:
  """Name, kind, sizes and parameters of every checkpoint that a run makes."""
  return [('mar_demo/tokenizer', 'kl_vae', scaled_tokenizer(recipe, data), tokenizer),
          ('mar_demo/target', 'mar', recipe.target, models['target']),
          ('mar_demo/draft', 'mar', recipe.draft, models['draft'])]
