"""A rehearsal of `mar_demo` with tiny models and a few steps; the pictures are noise.

  python -m experiments.train --config=configs/train/mar_demo_smoke.py --workdir=runs/mar_smoke

About a minute on two CPU cores, most of it compiling.
"""

from cspd_jax.models.kl_vae import KLVAEConfig
from cspd_jax.models.mar import MARConfig
from experiments.demo_models import photos
from experiments.demo_models.kl_vae import KLVAETrainConfig
from experiments.demo_models.mar import MARTrainConfig
from experiments.demo_models.mar_recipe import MARRecipe


def get_config() -> MARRecipe:
  """The recipe."""
  tokenizer = KLVAEConfig(ch=8, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, scale=1.0)
  model = MARConfig(
      height=2, width=2, token_dim=16, patch_size=2, dim=16, num_layers=1, num_heads=1,
      head_width=16, head_layers=1, num_classes=len(photos.NAMES), buffer_size=2)
  train = MARTrainConfig(num_steps=6, batch_size=4, warmup_steps=2)
  return MARRecipe(
      tokenizer=tokenizer,
      tokenizer_train=KLVAETrainConfig(num_steps=6, batch_size=2, warmup_steps=2),
      target=model, target_train=train, draft=model, draft_train=train,
      image_size=8, num_train_images=64, num_held_out_images=16,
      log_every=2, checkpoint_every=2, evaluate_every=3)
