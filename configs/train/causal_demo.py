"""The shipped causal model of continuous tokens: crops of photographs with captions.

  python -m experiments.train --config=configs/train/causal_demo.py --workdir=runs/train_causal_demo

The configuration of cspd_jax/assets/causal_demo; its image tokenizer is the one of `mar_demo`. The
shipped run, on two CPU cores shared with other work, took 48 minutes. Afterwards

  python -m experiments.fit_head_drafter --model=runs/train_causal_demo/export --overwrite

Result on the held-out parts of the photographs: squared error of the predicted velocity 0.201, with
the null prompt 0.206.
"""

from configs.train import mar_demo
from cspd_jax import load
from cspd_jax.models.nextstep import NextStepConfig
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models.causal_recipe import VOCABULARY, CausalRecipe
from experiments.demo_models.flow import FlowTrainConfig


def get_config() -> CausalRecipe:
  """Returns the recipe."""
  return CausalRecipe(
      tokenizer=load('mar_demo').tokenizer.config,
      tokenizer_train=mar_demo.get_config().tokenizer_train, tokenizer_of='mar_demo',
      target=NextStepConfig(
          height=8, width=8, vocab_size=VOCABULARY, latent_channels=4, patch_size=2, dim=192,
          num_layers=5, num_heads=3, num_kv_heads=3, ffn_dim=512, head_width=128, head_layers=3,
          rope_base=1e4, token_norm=False, guidance='linear'),
      target_train=FlowTrainConfig(OptimizerConfig(
          num_steps=2400, batch_size=24, learning_rate=1.5e-3, weight_decay=0.05, ema_decay=0.99)),
      guidance_scale=3.0, num_train_images=8192)
