"""Training step of the KL autoencoder: reconstruction from a sampled latent, and a KL term.

The KL term pulls every latent's Gaussian towards the standard normal (Kingma & Welling,
Auto-Encoding Variational Bayes, 2013, appendix B). With the small weight of latent diffusion models
it does not make the latents normal; it bounds their scale and preserves their noise, so that the
decoder tolerates small errors of generated latents.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from cspd_jax.core import fields
from cspd_jax.models import kl_vae
from cspd_jax.training import optimizer as optimizer_lib
from cspd_jax.training.optimizer import OptimizerConfig, TrainState
from experiments.demo_models import reconstruction


@dataclasses.dataclass(frozen=True)
class KLVAETrainConfig:
  """Configuration of a KL tokenizer's training.

  Attributes:
    optimizer: configuration of the optimiser.
    gradient_weight: weight of the error of the differences of adjacent pixels.
    kl_weight: weight of the KL divergence in nats, averaged over the channels of the latents.
  """

  optimizer: OptimizerConfig = reconstruction.OPTIMIZER
  gradient_weight: float = 0.5
  kl_weight: float = 3e-4

  def __post_init__(self):
    fields.check(self, gradient_weight=fields.NOT_NEGATIVE, kl_weight=fields.NOT_NEGATIVE)


def init(config: kl_vae.KLVAEConfig, train: KLVAETrainConfig, params: Any = None) -> TrainState:
  """Returns the state before the first step, from parameters or from random ones."""
  if params is None:
    params = kl_vae.init(config, jax.random.key(train.optimizer.seed))
  return optimizer_lib.start(params, train.optimizer)


def loss(
    params: Any,
    config: kl_vae.KLVAEConfig,
    train: KLVAETrainConfig,
    images: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the training loss.

  Args:
    params: parameters of the tokenizer.
    config: configuration of the tokenizer.
    train: configuration of the training, for the weights.
    images: `[B, H, W, C]` in [-1, 1].
    key: random key of the latents.

  Returns:
    The loss and the metrics 'l1', 'psnr' (decibels for pixel values in [0, 1]) and 'kl' (nats per
    channel of a latent).
  """
  posterior = kl_vae.encode(params, config, images)
  output = kl_vae.decode_unclipped(params, config, kl_vae.sample(config, posterior, key))
  error, metrics = reconstruction.error(output, images, train.gradient_weight)
  kl = 0.5 * jnp.mean(jnp.square(posterior.mean) + jnp.exp(posterior.log_variance) - 1 -
                      posterior.log_variance)
  return error + train.kl_weight * kl, {**metrics, 'kl': kl}


def step(
    state: TrainState,
    images: jax.Array,
    config: kl_vae.KLVAEConfig,
    train: KLVAETrainConfig,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """Does one optimiser step on images `[B, H, W, C]`; jit with `config` and `train` static.

  Returns:
    The next state and the scalar metrics 'loss', 'l1', 'psnr' and 'kl'.
  """
  key = jax.random.fold_in(jax.random.key(train.optimizer.seed + 1), state.step)
  (total, metrics), grads = jax.value_and_grad(loss, has_aux=True)(
      state.params, config, train, images, key)
  return optimizer_lib.update(state, grads, train.optimizer), {'loss': total, **metrics}
