"""A corrector for the second target (configs/train/wide.py), without a pretrained EAGLE network.

  cspd-train --config=configs/train/corrector_wide.py \\
      --workdir=runs/corrector_wide
"""

from cspd_jax.models.eagle import EagleConfig
from cspd_jax.training.corrector import CorrectorTrainConfig
from cspd_jax.training.corrector_recipe import CorrectorRecipe
from cspd_jax.training.optimizer import OptimizerConfig


def get_config() -> CorrectorRecipe:
  """Returns the recipe."""
  return CorrectorRecipe(
      drafter=EagleConfig(
          num_tokens=576, row_width=24, dim=128, num_heads=2, ffn_dim=384, vocab_size=1024,
          norm_eps=1e-5, num_layers=2, correction_dim=128),
      plain=OptimizerConfig(num_steps=600, batch_size=8, learning_rate=2e-3, warmup_steps=50),
      train=CorrectorTrainConfig(OptimizerConfig(
          num_steps=200, batch_size=4, learning_rate=5e-4, warmup_steps=50)),
      target='runs/wide/export',
      decoder='corrected(by=layers, window=32, passes=2, tree=chain())',
      num_plain_images=1024, num_train_images=192, num_held_out_images=32)
