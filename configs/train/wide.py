"""A second target, of 24x24 tokens: 96x96 crops of the photographs, the shipped tokenizer.

  python -m experiments.train --config=configs/train/wide.py:target --workdir=runs/wide
  cspd-train --config=configs/train/wide.py:corrector --workdir=runs/corrector_wide

They are not shipped. They show that the results on the shipped model do not depend on its size. The
corrector is trained without a pretrained EAGLE network, and by another program than the target.
"""

from configs.train import demo
from cspd_jax import cli
from cspd_jax.models.eagle import EagleConfig
from cspd_jax.models.llamagen import LlamaGenConfig
from cspd_jax.training.corrector import CorrectorRecipe
from cspd_jax.training.corrector_loss import CorrectorTrainConfig
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models.recipe import ARTrainConfig, Recipe

_SHIPPED = demo.get_config()
_SHARED = dict(height=24, width=24, vocab_size=_SHIPPED.target.vocab_size,
               num_classes=_SHIPPED.target.num_classes)

CONFIGS: dict[str, Recipe | CorrectorRecipe] = dict(
    target=Recipe(
        tokenizer=_SHIPPED.tokenizer, tokenizer_train=_SHIPPED.tokenizer_train,
        tokenizer_of='demo',
        target=LlamaGenConfig(dim=128, num_layers=6, num_heads=2, **_SHARED),
        target_train=ARTrainConfig(OptimizerConfig(
            num_steps=1500, batch_size=8, learning_rate=2e-3, weight_decay=0.05)),
        draft=LlamaGenConfig(dim=64, num_layers=2, num_heads=1, ffn_dim=192, **_SHARED),
        draft_train=ARTrainConfig(OptimizerConfig(
            num_steps=400, batch_size=8, learning_rate=2e-3, weight_decay=0.05)),
        image_size=96, num_train_images=8192, num_held_out_images=64),
    corrector=CorrectorRecipe(
        drafter=EagleConfig(
            num_tokens=576, row_width=24, dim=128, num_heads=2, ffn_dim=384, vocab_size=1024,
            norm_eps=1e-5, num_layers=2, correction_dim=128),
        plain=OptimizerConfig(num_steps=600, batch_size=8, learning_rate=2e-3, warmup_steps=50),
        train=CorrectorTrainConfig(OptimizerConfig(
            num_steps=200, batch_size=4, learning_rate=5e-4, warmup_steps=50)),
        target='runs/wide/export',
        decoder='corrected(corrector=layers, window=32, iterations=2, tree=chain())',
        num_plain_images=1024, num_train_images=192, num_held_out_images=32))


def get_config(name: str = '') -> Recipe | CorrectorRecipe:
  return cli.named(CONFIGS, name)
