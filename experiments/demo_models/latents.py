"""Base class of the recipes of models on latents: the KL tokenizer and batches of its tokens.

The tokens of a crop are stored as the tokenizer's Gaussians and sampled in every step that uses the
crop, as in MAR.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from cspd_jax.models import kl_vae, mar
from cspd_jax.training import loop
from experiments.demo_models import kl_vae as kl_vae_training, stages
from experiments.demo_models.kl_vae import KLVAETrainConfig


@dataclasses.dataclass(frozen=True)
class Latents(stages.Stages):
  """The tokenizer of a recipe; see also `stages.Stages`.

  Attributes:
    tokenizer: configuration of the tokenizer; its `scale` is replaced.
    tokenizer_train: configuration of its training.
  """

  tokenizer: kl_vae.KLVAEConfig
  tokenizer_train: KLVAETrainConfig

  def train_tokenizer(self, workdir: pathlib.Path) -> Any:
    """Trains the tokenizer in `workdir` or continues; returns its parameters."""
    config, train = self.tokenizer, self.tokenizer_train
    optimizer = train.optimizer
    crops = lambda seed, index, split: self.crops(seed, index, split, optimizer.batch_size)[0]
    held_out = [crops(self.seed, index, 'held_out') for index in range(4)]
    compiled_loss = jax.jit(lambda params, images: kl_vae_training.loss(
        params, config, train, images, jax.random.key(self.seed))[1])
    state = self.train(
        'tokenizer', kl_vae_training.init(config, train, self.start(config)),
        loop.jit_step(kl_vae_training.step, config, train),
        lambda index: crops(optimizer.seed, index, 'train'), optimizer, workdir,
        lambda state: [compiled_loss(state.params, images) for images in held_out])
    return state.params

  def tokenize(self, tokenizer: Any, split: str, workdir: pathlib.Path) -> stages.Split:
    """Returns Gaussians of the latents of random crops, and labels.

    Returns:
      `[N, 2, h, w, z_channels]` float32 means and log-variances before scaling, and the labels.
    """
    encode = jax.jit(lambda images: kl_vae.encode(tokenizer, self.tokenizer, images))
    return self.encode_crops(
        workdir / f'latents_{split}.npz', 'moments', split,
        lambda images: np.stack(jax.device_get(encode(images)), axis=1))

  def reconstruct(self, tokenizer: Any, data: Mapping[str, stages.Split],
                  images: np.ndarray) -> np.ndarray:
    """Encodes and decodes images `[N, H, W, 3]` in [-1, 1]."""
    config = scaled_tokenizer(self, data)
    run = jax.jit(lambda batch, key: kl_vae.decode(tokenizer, config, kl_vae.sample(
        config, kl_vae.encode(tokenizer, config, batch), key)))
    numbers = iter(range(len(images)))
    return stages.batched(lambda batch: run(batch, jax.random.key(next(numbers))), images)


def scaled_tokenizer(recipe: Latents, data: Mapping[str, stages.Split]) -> kl_vae.KLVAEConfig:
  """Returns the tokenizer's configuration with a scale of unit variance of the training latents."""
  mean, log_variance = np.moveaxis(data['train'][0].astype(np.float64), 1, 0)
  deviation = np.sqrt(np.var(mean) + np.mean(np.exp(log_variance)))
  return dataclasses.replace(recipe.tokenizer, scale=round(float(1 / deviation), 5))


def batch_of(
    config: Any, moments: np.ndarray, labels: np.ndarray, scale: float, seed: int,
    index: int, size: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns batch `index`: tokens `[size, T, C]` sampled for random crops, and labels `[size]`.

  `config` is that of a model with the grid and the patches of a `mar.MARConfig`.
  """
  rng = np.random.default_rng([seed, index])
  chosen = rng.integers(len(labels), size=size)
  mean, log_variance = np.moveaxis(moments[chosen], 1, 0)
  noise = rng.standard_normal(mean.shape, dtype=np.float32)
  latents = (mean + np.exp(0.5 * log_variance) * noise) * np.float32(scale)
  return np.asarray(mar.patchify(config, latents)), labels[chosen]
