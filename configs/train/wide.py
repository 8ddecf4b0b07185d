"""A second target, of 24x24 tokens: 96x96 crops of the photographs, the shipped tokenizer.

  python -m experiments.train --config=configs/train/wide.py --workdir=runs/wide

It is not shipped. It shows that the results on the shipped model do not depend on its size.
"""

from configs.train import demo
from cspd_jax.models.llamagen import LlamaGenConfig
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models.autoregressive import ARTrainConfig
from experiments.demo_models.recipe import Recipe


def get_config() -> Recipe:
  """Returns the recipe."""
  shipped = demo.get_config()
  shared = dict(height=24, width=24, vocab_size=shipped.target.vocab_size,
                num_classes=shipped.target.num_classes)
  return Recipe(
      tokenizer=shipped.tokenizer, tokenizer_train=shipped.tokenizer_train, tokenizer_of='demo',
      target=LlamaGenConfig(dim=128, num_layers=6, num_heads=2, **shared),
      target_train=ARTrainConfig(OptimizerConfig(
          num_steps=1500, batch_size=8, learning_rate=2e-3, weight_decay=0.05)),
      draft=LlamaGenConfig(dim=64, num_layers=2, num_heads=1, ffn_dim=192, **shared),
      draft_train=ARTrainConfig(OptimizerConfig(
          num_steps=400, batch_size=8, learning_rate=2e-3, weight_decay=0.05)),
      image_size=96, num_train_images=8192, num_held_out_images=64)
