"""Recipe of the shipped MAR models: KL tokenizer, latents, target and draft model."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.models import kl_vae, mar
from cspd_jax.training import loop
from experiments.demo_models import latents, mar as mar_training, photos as photos_lib, stages
from experiments.demo_models.mar import MARTrainConfig

# Number and size of the batches of held-out crops for the metrics.
_NUM_BATCHES, _BATCH = 32, 16


@dataclasses.dataclass(frozen=True)
class MARRecipe(latents.Latents):
  """Recipe of MAR models; see also `latents.Latents`.

  Attributes:
    target: configuration of the target.
    target_train: configuration of its training.
    draft: configuration of the draft model, which has the same tokens and classes.
    draft_train: configuration of its training.
  """

  family: ClassVar[str] = 'mar'

  target: mar.MARConfig
  target_train: MARTrainConfig
  draft: mar.MARConfig
  draft_train: MARTrainConfig

  def __post_init__(self):
    super().__post_init__()
    side = self.side(self.tokenizer.factor)
    for role in self.models:
      config = getattr(self, role)
      stages.check_model(role, config, {
          'patch_size': self.target.patch_size, 'height': side // config.patch_size,
          'width': side // config.patch_size, 'num_classes': len(photos_lib.NAMES),
          'token_dim': self.tokenizer.z_channels * config.patch_size**2})

  def small(self) -> 'MARRecipe':
    """Returns the recipe with tiny networks, for crops of 8x8 pixels."""
    tokenizer = kl_vae.KLVAEConfig(
        ch=8, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, scale=1.0)
    model = mar.MARConfig(
        height=2, width=2, token_dim=16, patch_size=2, dim=16, num_layers=1, num_heads=1,
        head_width=16, head_layers=1, num_classes=len(photos_lib.NAMES), buffer_size=2)
    return dataclasses.replace(self, tokenizer=tokenizer, target=model, draft=model,
                               tokenizer_of=None, image_size=8)

  def train_model(self, role: str, data: Mapping[str, stages.Split],
                  workdir: pathlib.Path) -> Any:
    """Trains the target or the draft model in `workdir` or continues."""
    config, train = getattr(self, role), getattr(self, f'{role}_train')
    optimizer = train.optimizer
    scale = latents.scaled_tokenizer(self, data).scale
    draw = lambda split, index: latents.batch_of(
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
    """Returns the trained networks by their role in a model."""
    sizes = latents.scaled_tokenizer(self, data)
    return {'tokenizer': stages.Network('kl_vae', sizes, tokenizer)} | {
        role: stages.Network('mar', getattr(self, role), params)
        for role, params in models.items()}

  def metrics(self, tokenizer: Any, models: Mapping[str, Any],
              data: Mapping[str, stages.Split]) -> dict[str, dict[str, Any]]:
    """Returns held-out metrics by role; for the models, the terms of the training loss."""
    images, _ = self.held_out()
    scale = latents.scaled_tokenizer(self, data).scale
    metrics = {'tokenizer': stages.errors(self.reconstruct(tokenizer, data, images), images) |
               {'scale': scale}}
    return metrics | {
        role: _losses(params, getattr(self, role), getattr(self, f'{role}_train'),
                      data['held_out'], scale) for role, params in models.items()}

def _losses(params: Any, config: mar.MARConfig, train: MARTrainConfig, held_out: stages.Split,
            scale: float) -> dict[str, float]:
  """Measures the terms of the training loss on held-out crops, with label and with null class."""
  def terms(dropped, index):
    tokens, labels = latents.batch_of(config, *held_out, scale, 0, index, _BATCH)
    draws = mar_training.draw(jax.random.key(index), tokens.shape, train)
    draws = draws._replace(drop=jnp.full((_BATCH,), dropped))
    return compiled(params, tokens, labels, draws)

  compiled = jax.jit(lambda params, tokens, labels, draws: mar_training.loss(
      params, config, tokens, labels, draws)[1])
  metrics = {suffix: [terms(dropped, index) for index in range(_NUM_BATCHES)]
             for suffix, dropped in (('', False), ('_no_label', True))}
  return {f'{key}{suffix}': float(np.mean([part[key] for part in parts]))
          for suffix, parts in metrics.items() for key in ('mse', 'vlb')}
