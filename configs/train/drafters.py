"""The shipped drafters of `demo` and `emoji`.

  cspd-train --config=configs/train/drafters.py:eagle --workdir=runs/eagle_demo
  cspd-train --config=configs/train/drafters.py:emoji_eagle --workdir=runs/eagle_emoji
  cspd-train --config=configs/train/drafters.py:emoji_medusa --workdir=runs/medusa_emoji
  cspd-train --config=configs/train/drafters.py:medusa --workdir=runs/medusa_demo
  cspd-train --config=configs/train/drafters.py:corrector --workdir=runs/corrector
  cspd-train --config=configs/train/drafters.py:emoji_corrector --workdir=runs/corrector_emoji
  cspd-train --config=configs/train/drafters.py:local --workdir=runs/local

The configurations of cspd_jax/assets/demo/eagle and so on; the network of `emoji_corrector` is not
shipped. Times of the drafters of `demo` are on two CPU cores, shared with other work. Their results
are on held-out images of the target at guidance scale 2: 64 for `eagle` and `medusa`, 128 for
`corrector`.

eagle, one layer of half a million parameters: the images took 10 minutes and the training 42.
Result at depths 1 to 4: overlap of the distributions 0.81, 0.79, 0.78, 0.78; token among the first
three 0.40, 0.37, 0.38, 0.38 (the first: 0.23, 0.21, 0.22, 0.22).

emoji_eagle, one layer of 0.9 million parameters, by Muon: the images and the first 2,000 steps took
some minutes on one GPU, the last 500 steps 18 on two CPU cores. Result at depths 1 to 4 at guidance
scale 1.5: overlap of the distributions 0.50, 0.39, 0.37, 0.37.

medusa, four tokens ahead: training took 15 minutes; the images are those of `eagle`. Result of
heads 1 to 4: overlap of the distributions 0.56, 0.44, 0.37, 0.34; token among the first three 0.30,
0.24, 0.21, 0.18 (the first: 0.16, 0.13, 0.11, 0.10).

corrector, an EAGLE network of two layers, trained for corrected windows: the images took 7 minutes,
training on them 20, the windows 10 (and 2 GB of disk) and training on them 47. Result on windows: a
mean of 9.76 accepted drafts in a chain of 31, compared with 7.57 before the training (the EAGLE
network above). docs/lab/corrected_windows.md has what it learned.

local, half a million parameters, by Muon, on one CPU core: the windows took 37 minutes (and 3 GB of
disk) and the training 29. Result on windows of 64 images: a mean of 6.77 accepted drafts in a chain
of 31.

emoji_medusa, on scenes of the training split in place of sampled images, which
`python -m experiments.scenes --num_tokenised=19200 --workdir=runs/scenes` tokenises: training took
less than two hours on two CPU cores, shared with other work. Result of heads 1 to 4 on 64 images of
the target at guidance scale 1.5: overlap of the distributions 0.30, 0.23, 0.19, 0.16; token among
the first three 0.50, 0.41, 0.35, 0.31 (the first: 0.35, 0.29, 0.24, 0.21).

emoji_corrector, the same with the layers of emoji_eagle, by Muon, on the scenes of emoji_medusa and
on the windows of 640 images: less than two hours on two CPU cores, shared with other work. It is no
better than emoji_eagle, see docs/lab/corrected_windows.md.
"""

import dataclasses

from cspd_jax import cli
from cspd_jax.models.eagle import EagleConfig
from cspd_jax.models.local import LocalConfig
from cspd_jax.models.medusa import MedusaConfig
from cspd_jax.training.corrector import LOCAL_PLAIN, LOCAL_TRAIN, CorrectorRecipe
from cspd_jax.training.corrector_loss import CorrectorTrainConfig
from cspd_jax.training.drafter import DrafterRecipe, DrafterTrainConfig
from cspd_jax.training.optimizer import OptimizerConfig

_EMOJI_EAGLE = EagleConfig(
    family='chameleon', num_tokens=273, row_width=17, dim=256, num_heads=4, num_kv_heads=4,
    ffn_dim=704, vocab_size=1117, num_outputs=1026, norm_eps=1e-5)

CONFIGS: dict[str, DrafterRecipe | CorrectorRecipe] = dict(
    eagle=DrafterRecipe(
        drafter=EagleConfig(
            num_tokens=256, row_width=16, dim=192, num_heads=3, ffn_dim=512, vocab_size=1024,
            norm_eps=1e-5),
        train=DrafterTrainConfig(
            OptimizerConfig(num_steps=1600, batch_size=8, learning_rate=4e-3),
            distribution_weight=0.2),
        num_train_images=2048),
    medusa=DrafterRecipe(
        drafter=MedusaConfig(num_heads=4, dim=192, vocab_size=1024),
        train=DrafterTrainConfig(OptimizerConfig(
            num_steps=600, batch_size=8, learning_rate=2e-3, warmup_steps=50)),
        num_train_images=2048),
    emoji_medusa=DrafterRecipe(
        drafter=MedusaConfig(num_heads=4, dim=256, vocab_size=1026),
        train=DrafterTrainConfig(OptimizerConfig(
            num_steps=1200, batch_size=16, learning_rate=3e-3, warmup_steps=50)),
        target='emoji', prompts='runs/scenes/tokens.txt', images='runs/scenes/tokens.npz',
        num_train_images=19200, evaluate_every=600, log_every=100),
    emoji_eagle=DrafterRecipe(
        drafter=_EMOJI_EAGLE,
        train=DrafterTrainConfig(
            OptimizerConfig(num_steps=2500, batch_size=16, learning_rate=2e-3,
                            muon_learning_rate=0.02, cooldown_steps=500),
            distribution_weight=0.2),
        target='emoji', prompts='runs/scenes/train.txt', num_train_images=4096, evaluate_every=1000,
        checkpoint_every=2000, log_every=200),
    local=CorrectorRecipe(
        drafter=LocalConfig(vocab_size=1024, num_tokens=256, row_width=16, feature_dim=192),
        plain=dataclasses.replace(LOCAL_PLAIN, num_steps=1200),
        train=dataclasses.replace(LOCAL_TRAIN, optimizer=dataclasses.replace(
            LOCAL_TRAIN.optimizer, num_steps=4000, cooldown_steps=1500)),
        decoder='corrected(corrector=eagle, window=32, iterations=3, tree=chain())',
        num_train_images=2048, num_held_out_images=64, evaluate_every=500, log_every=100),
    corrector=CorrectorRecipe(
        drafter=EagleConfig(
            num_tokens=256, row_width=16, dim=192, num_heads=3, ffn_dim=512, vocab_size=1024,
            norm_eps=1e-5, num_layers=2, correction_dim=192),
        plain=OptimizerConfig(num_steps=1200, warmup_steps=50),
        train=CorrectorTrainConfig(OptimizerConfig(
            num_steps=1400, batch_size=8, learning_rate=5e-4, warmup_steps=50))),
    emoji_corrector=CorrectorRecipe(
        drafter=dataclasses.replace(_EMOJI_EAGLE, num_layers=2, correction_dim=256),
        plain=OptimizerConfig(
            num_steps=700, muon_learning_rate=0.01, warmup_steps=50, cooldown_steps=200),
        train=CorrectorTrainConfig(
            OptimizerConfig(num_steps=500, batch_size=8, learning_rate=5e-4,
                            muon_learning_rate=0.005, warmup_steps=50, cooldown_steps=200),
            windows_per_image=8, guidance_scales=(1.5,)),
        target='emoji', prompts='runs/scenes/tokens.txt', images='runs/scenes/tokens.npz',
        decoder='corrected(corrector=eagle, window=16, iterations=2, tree=chain())',
        num_plain_images=19200, num_train_images=640, num_held_out_images=64,
        evaluate_every=150, checkpoint_every=100, log_every=20))


def get_config(name: str = '') -> DrafterRecipe | CorrectorRecipe:
  return cli.named(CONFIGS, name)
