"""Recipe of the shipped MAR models: KL tokenizer, latents, target and draft model.

The tokens of a crop are stored as the tokenizer's Gaussians and sampled in every step that uses the
crop, as in MAR.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.models import kl_vae, mar
from cspd_jax.training import loop
from experiments.demo_models import (
  kl_vae as kl_vae_training,
  mar as mar_training,
  photos as photos_lib,
  stages,
)
from experiments.demo_models.kl_vae import KLVAETrainConfig
from experiments.demo_models.mar import MARTrainConfig

# Number and size of the batches of held-out crops for the metrics.
_NUM_BATCHES, _BATCH = 32, 16


@dataclasses.dataclass(frozen=True)
class MARRecipe(stages.Stages):
  """Recipe of MAR models; see also `stages.Stages`.

  Attributes:
    tokenizer: configuration of the tokenizer; its `scale` is replaced, see `scaled_tokenizer`.
    tokenizer_train: configuration of its training.
    target: configuration of the target.
    target_train: configuration of its training.
    draft: configuration of the draft model, which has the same tokens and classes.
    draft_train: configuration of its training.
  """

  family: ClassVar[str] = 'mar'

  tokenizer: kl_vae.KLVAEConfig
  tokenizer_train: KLVAETrainConfig
  target: mar.MARConfig
  target_train: MARTrainConfig
  draft: mar.MARConfig
  draft_train: MARTrainConfig

  def __post_init__(self):
    super().__post_init__()
    side = self.side(self.tokenizer.factor)
    for role in stages.MODELS:
      config = getattr(self, role)
      stages.check_model(role, config, {
          'patch_size': self.target.patch_size, 'height': side // config.patch_size,
          'width': side // config.patch_size, 'num_classes': len(photos_lib.NAMES),
          'token_dim': self.tokenizer.z_channels * config.patch_size**2})

  def small(self) -> 'MARRecipe':
    """See `stages.Stages`."""
    tokenizer = kl_vae.KLVAEConfig(
        ch=8, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, scale=1.0)
    model = mar.MARConfig(
        height=2, width=2, token_dim=16, patch_size=2, dim=16, num_layers=1, num_heads=1,
        head_width=16, head_layers=1, num_classes=len(photos_lib.NAMES), buffer_size=2)
    return dataclasses.replace(self, tokenizer=tokenizer, target=model, draft=model,
                               tokenizer_of=None, image_size=8)

  def train_tokenizer(self, workdir: pathlib.Path) -> Any:
    """See `stages.Stages`."""
    config, train = self.tokenizer, self.tokenizer_train
    optimizer = train.optimizer
    crops = lambda seed, index, split: self.crops(seed, index, split, optimizer.batch_size)[0]
    held_out = [crops(self.seed, index, 'held_out') for index in range(4)]
    compiled_loss = jax.jit(lambda params, images: kl_vae_training.loss(
        params, config, train, images, jax.random.key(self.seed))[1])
    state = self.train(
        'tokenizer', kl_vae_training.init(config, train),
        loop.jit_step(kl_vae_training.step, config, train),
        lambda index: crops(optimizer.seed, index, 'train'), optimizer, workdir,
        lambda state: [compiled_loss(state.params, images) for images in held_out])
    return state.params

  def tokenize(self, tokenizer: Any, split: str, workdir: pathlib.Path) -> stages.Split:
    """Returns Gaussians of the latents of random crops, and labels; see `stages.Stages`.

    Returns:
      `[N, 2, h, w, z_channels]` float32 means and log-variances before scaling, and the labels.
    """
    encode = jax.jit(lambda images: kl_vae.encode(tokenizer, self.tokenizer, images))
    return self.encode_crops(
        workdir / f'latents_{split}.npz', 'moments', split,
        lambda images: np.stack(jax.device_get(encode(images)), axis=1))

  def train_model(self, role: str, data: Mapping[str, stages.Split],
                  workdir: pathlib.Path) -> Any:
    """See `stages.Stages`."""
    config, train = getattr(self, role), getattr(self, f'{role}_train')
    optimizer = train.optimizer
    scale = scaled_tokenizer(self, data).scale
    draw = lambda split, index: batch_of(
        config, *data[split], scale, optimizer.seed, index, optimizer.batch_size)
    held_out = [draw('held_out', index) for index in range(4)]
    compiled_loss = jax.jit(lambda params, batch, key: mar_training.loss(
        params, config, batch[0], batch[1], mar_training.draw(key, batch[0].shape, train))[1])

    def measure(state):
      # The same masks, steps and noises every time.
      return [compiled_loss(state.average, batch, jax.random.key(index))
              for index, batch in enumerate(held_out)]

    state = self.train(
        role, mar_training.init(config, train), loop.jit_step(mar_training.step, config, train),
        lambda index: draw('train', index), optimizer, workdir, measure)
    return state.average

  def networks(self, tokenizer: Any, models: Mapping[str, Any],
               data: Mapping[str, stages.Split]) -> dict[str, stages.Network]:
    """See `stages.Stages`."""
    networks = {'tokenizer': stages.Network('kl_vae', scaled_tokenizer(self, data), tokenizer)}
    return networks | {role: stages.Network('mar', getattr(self, role), params)
                       for role, params in models.items()}

  def metrics(self, tokenizer: Any, models: Mapping[str, Any],
              data: Mapping[str, stages.Split]) -> dict[str, dict[str, Any]]:
    """See `stages.Stages`; for the models, the terms of the training loss."""
    images, _ = self.held_out()
    scale = scaled_tokenizer(self, data).scale
    metrics = {'tokenizer': stages.errors(self.reconstruct(tokenizer, data, images), images) |
               {'scale': scale}}
    return metrics | {
        role: _losses(params, getattr(self, role), getattr(self, f'{role}_train'),
                      data['held_out'], scale) for role, params in models.items()}

  def reconstruct(self, tokenizer: Any, data: Mapping[str, stages.Split],
                  images: np.ndarray) -> np.ndarray:
    """See `stages.Stages`."""
    config = scaled_tokenizer(self, data)
    run = jax.jit(lambda batch, key: kl_vae.decode(tokenizer, config, kl_vae.sample(
        config, kl_vae.encode(tokenizer, config, batch), key)))
    numbers = iter(range(len(images)))
    return stages.batched(lambda batch: run(batch, jax.random.key(next(numbers))), images)


def scaled_tokenizer(recipe: MARRecipe, data: Mapping[str, stages.Split]) -> kl_vae.KLVAEConfig:
  """Returns the tokenizer's configuration with a scale of unit variance of the training latents."""
  mean, log_variance = np.moveaxis(data['train'][0].astype(np.float64), 1, 0)
  deviation = np.sqrt(np.var(mean) + np.mean(np.exp(log_variance)))
  return dataclasses.replace(recipe.tokenizer, scale=round(float(1 / deviation), 5))


def batch_of(
    config: mar.MARConfig, moments: np.ndarray, labels: np.ndarray, scale: float, seed: int,
    index: int, size: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns batch `index`: tokens `[size, T, C]` sampled for random crops, and labels `[size]`."""
  rng = np.random.default_rng([seed, index])
  chosen = rng.integers(len(labels), size=size)
  mean, log_variance = np.moveaxis(moments[chosen], 1, 0)
  noise = rng.standard_normal(mean.shape, dtype=np.float32)
  latents = (mean + np.exp(0.5 * log_variance) * noise) * np.float32(scale)
  return np.asarray(mar.patchify(config, latents)), labels[chosen]


def _losses(params: Any, config: mar.MARConfig, train: MARTrainConfig, held_out: stages.Split,
            scale: float) -> dict[str, float]:
  """Measures the terms of the training loss on held-out crops, with label and with null class."""
  def terms(dropped, index):
    tokens, labels = batch_of(config, *held_out, scale, 0, index, _BATCH)
    draws = mar_training.draw(jax.random.key(index), tokens.shape, train)
    draws = draws._replace(drop=jnp.full((_BATCH,), dropped))
    return compiled(params, tokens, labels, draws)

  compiled = jax.jit(lambda params, tokens, labels, draws: mar_training.loss(
      params, config, tokens, labels, draws)[1])
  metrics = {suffix: [terms(dropped, index) for index in range(_NUM_BATCHES)]
             for suffix, dropped in (('', False), ('_no_label', True))}
  return {f'{key}{suffix}': float(np.mean([part[key] for part in parts]))
          for suffix, parts in metrics.items() for key in ('mse', 'vlb')}
