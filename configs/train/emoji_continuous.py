"""The causal model of continuous tokens: scenes of emoji with captions, in NextStep-1's layout.

  python -m experiments.train --config=configs/train/emoji_continuous.py \\
      --workdir=runs/train_emoji_continuous

docs/embedded.md has the commands that fetch the sources. The tokenizer starts from the one of
`mar_demo`. On one GPU (NVIDIA H200) all stages take 6 minutes. On held-out scenes the tokenizer
reaches 30.3 dB and the target a loss of 0.208. Afterwards

  python -m experiments.fit_head_drafter --model=runs/train_emoji_continuous/export
"""

from cspd_jax import load
from cspd_jax.models.nextstep import NextStepConfig
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import continuous_recipe
from experiments.demo_models.tokenizers import KLVAETrainConfig


def get_config() -> continuous_recipe.ContinuousRecipe:
  return continuous_recipe.ContinuousRecipe(
      tokenizer=load('mar_demo').tokenizer.config,
      tokenizer_train=KLVAETrainConfig(
          OptimizerConfig(num_steps=3250, batch_size=24, muon_learning_rate=0.01, warmup_steps=30,
                          cooldown_steps=975, weight_decay=0.0, b2=0.99, ema_decay=None),
          kl_weight=1e-4),
      tokenizer_from='mar_demo',
      target=NextStepConfig(
          height=8, width=8, vocab_size=continuous_recipe.VOCABULARY, latent_channels=4,
          patch_size=2, dim=192, num_layers=6, num_heads=3, num_kv_heads=3, ffn_dim=512,
          head_width=192, head_layers=3, rope_base=1e4, token_norm=False, guidance='linear'),
      target_train=continuous_recipe.FlowTrainConfig(OptimizerConfig(
          num_steps=19500, batch_size=64, learning_rate=2e-3, muon_learning_rate=0.02,
          cooldown_steps=5850)),
      guidance_scale=3.0, num_train_images=131072, num_held_out_images=512)
