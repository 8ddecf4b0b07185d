"""Base class of the recipes of models on latents: the KL tokenizer and batches of its tokens.

The tokens of a crop are stored as the tokenizer's Gaussians and sampled in every step that uses the
crop, as in MAR.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from cspd_jax.models import kl_vae, mar
from cspd_jax.training import optimizer as optimizer_lib
from experiments.demo_models import stages, tokenizers

# The tokenizer of `Stages.small`.
SMALL_TOKENIZER = kl_vae.KLVAEConfig(
    ch=8, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, scale=1.0)


@dataclasses.dataclass(frozen=True)
class Latents(stages.Stages):
  """Recipe with a KL tokenizer, whose `scale` is replaced."""

  tokenizer_kind: ClassVar[str] = 'kl_vae'

  tokenizer: kl_vae.KLVAEConfig
  tokenizer_train: tokenizers.KLVAETrainConfig

  def _tokenizer_training(self, params: Any) -> tuple[Any, Callable, Callable]:
    config, train = self.tokenizer, self.tokenizer_train
    if params is None:
      params = kl_vae.init(config, jax.random.key(train.optimizer.seed))
    measure = jax.jit(lambda *arguments: tokenizers.kl_loss(*arguments, config, train)[1])
    return (optimizer_lib.start(params, train.optimizer),
            stages.jit_step(tokenizers.kl_loss, config, train), measure)

  def tokenize(self, tokenizer: Any, split: str, workdir: pathlib.Path) -> stages.Split:
    """Returns labels, and `[N, 2, h, w, z_channels]` means and log-variances before scaling."""
    encode = jax.jit(lambda images: kl_vae.encode(tokenizer, self.tokenizer, images))
    return self.encode_crops(
        workdir / f'latents_{split}.npz', 'moments', split,
        lambda images: np.stack(jax.device_get(encode(images)), axis=1))

  def reconstruct(self, tokenizer: Any, data: Mapping[str, stages.Split],
                  images: np.ndarray) -> np.ndarray:
    """Encodes and decodes images `[N, H, W, 3]` in [-1, 1]."""
    config = self.sized_tokenizer(data)
    run = jax.jit(lambda batch, key: kl_vae.decode(tokenizer, config, kl_vae.sample(
        config, kl_vae.encode(tokenizer, config, batch), key)))
    numbers = iter(range(len(images)))
    return stages.batched(lambda batch: run(batch, jax.random.key(next(numbers))), images)

  def _tokenizer_metrics(self, data: Mapping[str, stages.Split]) -> dict[str, float]:
    return {'scale': self.sized_tokenizer(data).scale}

  def sized_tokenizer(self, data: Mapping[str, stages.Split]) -> kl_vae.KLVAEConfig:
    """Returns the tokenizer's configuration, by whose scale training latents have variance 1."""
    mean, log_variance = np.moveaxis(data['train'][0].astype(np.float64), 1, 0)
    deviation = np.sqrt(np.var(mean) + np.mean(np.exp(log_variance)))
    return dataclasses.replace(self.tokenizer, scale=round(float(1 / deviation), 5))


def batch_of(
    config: Any, moments: np.ndarray, labels: np.ndarray, scale: float, seed: int,
    index: int, size: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns batch `index`: tokens `[size, T, C]` sampled for random crops, and labels `[size]`.

  `config` is that of a model with the grid and the patches of a `mar.MARConfig`.
  """
  rng = np.random.default_rng([seed, index])
  chosen = rng.integers(len(labels), size=size)
  mean, log_variance = np.moveaxis(moments[chosen], 1, 0)
  noise = rng.standard_normal(mean.shape, dtype=np.float32)
  latents = (mean + np.exp(0.5 * log_variance) * noise) * np.float32(scale)
  return np.asarray(mar.patchify(config, latents)), labels[chosen]
