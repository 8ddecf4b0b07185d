"""The shipped EAGLE drafter: one layer of half a million parameters for `demo`.

  cspd-train --config=configs/train/eagle_demo.py --workdir=runs/eagle_demo

The configuration of cspd_jax/assets/demo/eagle. On two CPU cores without other work, a step takes
0.35 s and the images 4 minutes. In the shipped run, shared with other work, the images took 10
minutes and the training 42.

Result on 64 held-out images of the target at guidance scale 2, at depths 1 to 4: overlap of the
distributions 0.81, 0.79, 0.78, 0.78; token among the first three 0.40, 0.37, 0.38, 0.38 (the
first: 0.23, 0.21, 0.22, 0.22).
"""

from cspd_jax.models.eagle import EagleConfig
from cspd_jax.training.drafter import DrafterTrainConfig
from cspd_jax.training.drafter_recipe import DrafterRecipe
from cspd_jax.training.optimizer import OptimizerConfig


def get_config() -> DrafterRecipe:
  """Returns the recipe."""
  return DrafterRecipe(
      drafter=EagleConfig(
          num_tokens=256, row_width=16, dim=192, num_heads=3, ffn_dim=512, vocab_size=1024,
          norm_eps=1e-5),
      train=DrafterTrainConfig(
          OptimizerConfig(num_steps=1600, batch_size=8, learning_rate=4e-3),
          distribution_weight=0.2),
      num_train_images=2048)
