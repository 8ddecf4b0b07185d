"""The shipped models: tokenizer, target and draft model of 64x64 crops of eight photographs.

  python -m experiments.train --config=configs/train/demo.py --workdir=runs/train_demo

The configuration of the tokenizer, target and draft model in cspd_jax/assets/demo. On two CPU
cores: tokenizer 23 minutes, tokens 2, target 40, draft model 2, report and pictures 1.

Result on the held-out parts of the photographs: reconstructions of 29.2 dB, all 1024 codes in use,
target 3.99 bits per token (median entropy of its distributions 4.5), draft model 4.61.
"""

from cspd_jax.models.llamagen import LlamaGenConfig
from cspd_jax.models.vq import VQConfig
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import photos
from experiments.demo_models.recipe import ARTrainConfig, Recipe
from experiments.demo_models.tokenizers import VQTrainConfig


def get_config() -> Recipe:
  tokenizer = VQConfig(
      ch=32, ch_mult=(1, 1, 2), num_res_blocks=1, z_channels=64, codebook_size=1024)
  shared = dict(vocab_size=tokenizer.codebook_size, num_classes=len(photos.NAMES))
  return Recipe(
      tokenizer=tokenizer,
      tokenizer_train=VQTrainConfig(),
      target=LlamaGenConfig(dim=192, num_layers=8, num_heads=3, **shared),
      target_train=ARTrainConfig(OptimizerConfig(
          num_steps=2400, batch_size=8, learning_rate=1.5e-3, weight_decay=0.05)),
      draft=LlamaGenConfig(dim=128, num_layers=2, num_heads=2, ffn_dim=384, **shared),
      draft_train=ARTrainConfig(OptimizerConfig(
          num_steps=1200, batch_size=8, learning_rate=2e-3, weight_decay=0.05)),
  )
