"""A rehearsal of `eagle_demo` with a few images and steps; the drafter learns next to nothing.

  cspd-train-drafter --config=configs/train/eagle_demo_smoke.py \\
      --workdir=runs/eagle_smoke

About half a minute on two CPU cores, most of it compiling.
"""

from cspd_jax.models.eagle import EagleConfig
from cspd_jax.training.drafter import DrafterTrainConfig
from cspd_jax.training.drafter_recipe import DrafterRecipe


def get_config() -> DrafterRecipe:
  """The recipe."""
  return DrafterRecipe(
      drafter=EagleConfig(
          num_tokens=256, row_width=16, dim=192, num_heads=3, ffn_dim=64, vocab_size=1024,
          norm_eps=1e-5),
      train=DrafterTrainConfig(num_steps=6, batch_size=2, learning_rate=4e-3, warmup_steps=2),
      num_train_images=8, num_held_out_images=2, num_depths=2,
      log_every=2, checkpoint_every=2, evaluate_every=3)
