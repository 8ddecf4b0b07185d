"""A rehearsal of `text_demo` with tiny models and a few steps; the pictures are noise.

  python -m experiments.train --config=configs/train/text_demo_smoke.py \\
      --workdir=runs/text_demo_smoke

About a minute on two CPU cores, most of it compiling.
"""

from cspd_jax.models.early_fusion import EarlyFusionConfig
from cspd_jax.models.vq import VQConfig
from experiments.demo_models import text_recipe
from experiments.demo_models.autoregressive import ARTrainConfig
from experiments.demo_models.text_recipe import TextRecipe
from experiments.demo_models.vq import VQTrainConfig


def get_config() -> TextRecipe:
  """The recipe."""
  tokenizer = VQConfig(
      ch=8, ch_mult=(1, 1), num_res_blocks=1, z_channels=8, codebook_size=32, codebook_dim=4)
  model = EarlyFusionConfig(height=4, width=4, dim=16, num_layers=1, num_heads=1, ffn_dim=16,
                        **text_recipe.vocabulary(tokenizer.codebook_size))
  train = ARTrainConfig(num_steps=6, batch_size=4, warmup_steps=2)
  return TextRecipe(
      tokenizer=tokenizer,
      tokenizer_train=VQTrainConfig(num_steps=6, batch_size=2, warmup_steps=2, quantize_from=2),
      target=model, target_train=train, draft=model, draft_train=train,
      image_size=8, num_train_images=64, num_held_out_images=16,
      log_every=2, checkpoint_every=2, evaluate_every=3)
