"""A text-to-image model: scenes of emoji with captions.

  python -m experiments.train --config=configs/train/emoji.py --workdir=runs/train_emoji

docs/embedded.md has the commands that fetch the sources. The tokenizer starts from that of `demo`.

The shipped target and draft model were trained on one GPU in eight minutes, by steps of 256 of 1.6
million scenes, 447 thousand of them different, with products in bfloat16: the target by 21,660
steps, the draft model by 3,560. For the first 70 % of the target's steps, half of the scenes had
more pairs (35 %), rotated hues (55 %) and coloured grounds (75 %) than `experiments.scenes` draws.
On a GPU, --num_train_images=1600000 trains on as many. On two CPU cores,
--target_train.optimizer.batch_size=16 --target_train.optimizer.num_steps=5000 fit into an evening
and reach shapes, but fewer details.
"""

from configs.train import demo
from cspd_jax.models.early_fusion import EarlyFusionConfig
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import emoji, emoji_recipe
from experiments.demo_models.emoji_recipe import EmojiRecipe
from experiments.demo_models.recipe import ARTrainConfig
from experiments.demo_models.tokenizers import VQTrainConfig


def get_config() -> EmojiRecipe:
  tokenizer = demo.get_config().tokenizer
  shared = dict(height=16, width=16, **emoji_recipe.ids(emoji.WORDS, tokenizer.codebook_size))
  return EmojiRecipe(
      tokenizer=tokenizer,
      # Not quantised from the start, the latents would leave the codebook that they start with.
      tokenizer_train=VQTrainConfig(OptimizerConfig(
          num_steps=2750, batch_size=24, muon_learning_rate=0.01, warmup_steps=30,
          cooldown_steps=825, weight_decay=0.0, b2=0.99, ema_decay=None), quantize_from=0),
      tokenizer_from='demo',
      target=EarlyFusionConfig(dim=256, num_layers=8, num_heads=4, ffn_dim=704, **shared),
      target_train=ARTrainConfig(OptimizerConfig(
          num_steps=21660, batch_size=256, learning_rate=2e-3, muon_learning_rate=0.02,
          warmup_steps=200, cooldown_steps=10830, weight_decay=0.02, ema_decay=0.995)),
      draft=EarlyFusionConfig(dim=128, num_layers=2, num_heads=2, ffn_dim=384, **shared),
      draft_train=ARTrainConfig(OptimizerConfig(
          num_steps=3560, batch_size=256, learning_rate=2e-3, muon_learning_rate=0.02,
          warmup_steps=200, cooldown_steps=1780, weight_decay=0.02, ema_decay=0.995)),
      num_train_images=262144,
      num_held_out_images=512,
      guidance_scale=1.5,
  )
