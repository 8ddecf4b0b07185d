"""The shipped text-conditioned models: the photographs and crops of `demo`, with captions.

  python -m experiments.train --config=configs/train/text_demo.py --workdir=runs/train_text_demo

The configuration of cspd_jax/assets/text_demo; its image tokenizer is the one of `demo`. A step of
the target takes 1.1 s on one CPU core without other work. The shipped run, shared with other work,
took 57 minutes for the target and 26 for the draft model.

Result on the held-out parts of the photographs: target 3.75 bits per token (median entropy of its
distributions 4.1), draft model 4.09. The prompt reduces the entropy of the first token by 1.1 bits
and that of later tokens, which depend on their neighbours, by little. All of 24 images of blue and
orange, or red, cats, retinas and flowers (guidance scale 3, top-k 50) had the requested tint.
"""

from configs.train import demo
from cspd_jax.models.early_fusion import EarlyFusionConfig
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import text_recipe
from experiments.demo_models.autoregressive import ARTrainConfig
from experiments.demo_models.text_recipe import TextRecipe


def get_config() -> TextRecipe:
  """Returns the recipe."""
  shipped = demo.get_config()
  shared = dict(height=16, width=16, **text_recipe.vocabulary(shipped.tokenizer.codebook_size))
  return TextRecipe(
      tokenizer=shipped.tokenizer, tokenizer_train=shipped.tokenizer_train, tokenizer_of='demo',
      target=EarlyFusionConfig(dim=192, num_layers=6, num_heads=3, ffn_dim=512, **shared),
      target_train=ARTrainConfig(OptimizerConfig(
          num_steps=1800, batch_size=8, learning_rate=1.5e-3, weight_decay=0.05)),
      draft=EarlyFusionConfig(dim=128, num_layers=2, num_heads=2, ffn_dim=384, **shared),
      draft_train=ARTrainConfig(OptimizerConfig(
          num_steps=800, batch_size=8, learning_rate=2e-3, weight_decay=0.05)),
      guidance_scale=3.0,
      top_k=50,
  )
