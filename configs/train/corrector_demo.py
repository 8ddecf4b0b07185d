"""The shipped corrector: an EAGLE network of two layers, trained for corrected windows of `demo`.

  cspd-train --config=configs/train/corrector_demo.py

The configuration of cspd_jax/assets/demo/corrector. On two CPU cores, shared with light other work,
the images took 7 minutes, training on them 20, the windows 10 (and 2 GB of disk) and training on
them 47.

Result on windows of 128 held-out images at guidance scale 2: a mean of 9.76 accepted drafts in a
chain of 31, compared with 7.57 before the training (the shipped EAGLE network).
docs/corrected_windows.md has the acceptance rates by depth.
"""

from cspd_jax.models.eagle import EagleConfig
from cspd_jax.training.corrector import CorrectorTrainConfig
from cspd_jax.training.corrector_recipe import CorrectorRecipe
from cspd_jax.training.optimizer import OptimizerConfig


def get_config() -> CorrectorRecipe:
  """Returns the recipe."""
  return CorrectorRecipe(
      drafter=EagleConfig(
          num_tokens=256, row_width=16, dim=192, num_heads=3, ffn_dim=512, vocab_size=1024,
          norm_eps=1e-5, num_layers=2, correction_dim=192),
      plain=OptimizerConfig(num_steps=1200, warmup_steps=50),
      train=CorrectorTrainConfig(OptimizerConfig(
          num_steps=1400, batch_size=8, learning_rate=5e-4, warmup_steps=50)))
