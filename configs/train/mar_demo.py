"""The shipped MAR models: KL tokenizer, target and draft model of 64x64 crops of photographs.

  python -m experiments.train --config=configs/train/mar_demo.py --workdir=runs/train_mar_demo

The configuration of the MAR models in cspd_jax/assets/mar_demo. On two CPU cores:
tokenizer 11 minutes, target 55, draft model 11, report and pictures 1.

Result on the held-out parts of the photographs: reconstructions of 29.1 dB; squared error of the
predicted noise, with 10 to 100 % of the tokens hidden, 0.117 (target) and 0.119 (draft model),
without label 0.119 and 0.121.
"""

import dataclasses

from cspd_jax.models.kl_vae import KLVAEConfig
from cspd_jax.models.mar import MARConfig
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import photos
from experiments.demo_models.mar import MARRecipe, MARTrainConfig
from experiments.demo_models.tokenizers import KLVAETrainConfig


def get_config() -> MARRecipe:
  tokenizer = KLVAEConfig(ch=32, ch_mult=(1, 1, 2), num_res_blocks=1, z_channels=4, scale=1.0)
  shared = dict(
      height=8, width=8, token_dim=16, patch_size=2, num_classes=len(photos.NAMES), buffer_size=8)
  # The published recipe relies on hundreds of epochs of a million images. In a few thousand steps
  # on few images, the model learns the dependence on adjacent tokens only from masks that leave
  # some of them visible, and with position tables that start as sines and cosines.
  optimizer = OptimizerConfig(
      num_steps=9000, batch_size=24, weight_decay=0.02, max_norm=3.0, ema_decay=0.998)
  train = MARTrainConfig(
      dropout=0.0, draws=1, min_hidden=0.1, hidden_deviation=0.5, sine_positions=True,
      last_share=0.125, last_weight=1000.0)
  return MARRecipe(
      tokenizer=tokenizer,
      tokenizer_train=KLVAETrainConfig(
          OptimizerConfig(num_steps=4000, batch_size=4, learning_rate=1.5e-3, weight_decay=0.0,
                          b2=0.99, ema_decay=None),
          kl_weight=1e-4),
      target=MARConfig(dim=128, num_layers=4, num_heads=4, head_width=256, head_layers=4, **shared),
      target_train=dataclasses.replace(train, optimizer=dataclasses.replace(
          optimizer, learning_rate=1e-3, cooldown_steps=2500)),
      draft=MARConfig(dim=64, num_layers=2, num_heads=2, head_width=128, head_layers=2, **shared),
      draft_train=dataclasses.replace(train, optimizer=dataclasses.replace(
          optimizer, learning_rate=1.5e-3, cooldown_steps=3000)),
  )
