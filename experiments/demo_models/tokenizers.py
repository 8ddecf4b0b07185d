"""Training of the image tokenizers, without an adversary.

The loss of both is the absolute error of the pixels and of their horizontal and vertical
differences, which preserves sharp edges, plus the terms of the tokenizer.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from cspd_jax.core import fields
from cspd_jax.models import kl_vae, vq
from cspd_jax.training import optimizer as optimizer_lib
from cspd_jax.training.optimizer import OptimizerConfig, TrainState

_EDGES = 0.5  # Weight of the error of the differences of adjacent pixels.
# Fraction of the steps after which codebook vectors are no longer restarted, and usage, relative to
# uniform usage, below which a vector is considered unused.
_RESTART_UNTIL, _RESTART_BELOW = 0.7, 0.05
# Tokenizers are trained without weight decay and without a moving average.
OPTIMIZER = OptimizerConfig(num_steps=5000, batch_size=4, weight_decay=0.0, b2=0.99, ema_decay=None)


def error(output: jax.Array, images: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the error of outputs of the decoder, before clipping, for images in [-1, 1].

  Returns the loss term, and the metrics 'l1' and 'psnr' (decibels for pixel values in [0, 1]).
  """
  difference = output - images
  l1 = jnp.mean(jnp.abs(difference))
  edges = sum(jnp.mean(jnp.abs(jnp.diff(difference, axis=axis))) for axis in (1, 2))
  mean_square = jnp.mean((jnp.clip(output, -1, 1) - images) ** 2) / 4
  return l1 + _EDGES * edges, {'l1': l1, 'psnr': -10 * jnp.log10(mean_square)}


@dataclasses.dataclass(frozen=True)
class KLVAETrainConfig:
  """Configuration of a KL tokenizer's training.

  Attributes:
    optimizer: configuration of the optimiser.
    kl_weight: weight of the KL divergence in nats, averaged over the channels of the latents.
  """

  optimizer: OptimizerConfig = OPTIMIZER
  kl_weight: float = 3e-4

  def __post_init__(self):
    fields.check(self, kl_weight=fields.NOT_NEGATIVE)


def kl_loss(params: Any, images: jax.Array, key: jax.Array, config: kl_vae.KLVAEConfig,
            train: KLVAETrainConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the loss of a KL tokenizer on images `[B, H, W, C]` in [-1, 1].

  The KL term pulls every latent's Gaussian towards the standard normal (Kingma & Welling,
  Auto-Encoding Variational Bayes, 2013, appendix B). With the small weight of latent diffusion
  models it does not make the latents normal; it bounds their scale and preserves their noise, so
  that the decoder tolerates small errors of generated latents. Returns the loss, and the metrics of
  `error` and 'kl' (nats per channel of a latent).
  """
  posterior = kl_vae.encode(params, config, images)
  output = kl_vae.decode_unclipped(params, config, kl_vae.sample(config, posterior, key))
  value, metrics = error(output, images)
  kl = 0.5 * jnp.mean(jnp.square(posterior.mean) + jnp.exp(posterior.log_variance) - 1 -
                      posterior.log_variance)
  return value + train.kl_weight * kl, {**metrics, 'kl': kl}


@dataclasses.dataclass(frozen=True)
class VQTrainConfig:
  """Configuration of a VQ tokenizer's training.

  Attributes:
    optimizer: configuration of the optimiser.
    commitment_weight: weight of the commitment term.
    quantize_from: first step with quantisation; before it, the latents spread without.
    restart_every: steps between restarts of unused codebook vectors.
  """

  optimizer: OptimizerConfig = OPTIMIZER
  commitment_weight: float = 0.25
  quantize_from: int = 300
  restart_every: int = 50

  def __post_init__(self):
    fields.check(self, commitment_weight=fields.NOT_NEGATIVE, quantize_from=(0, fields.MOST))


def vq_start(config: vq.VQConfig, train: VQTrainConfig, params: Any = None) -> TrainState:
  """Returns the state before the first step, from parameters or from random ones.

  Its `extra` is the running usage `[codebook_size]` of the codebook vectors; 1 is uniform usage.
  """
  if params is None:
    params = vq.init(config, jax.random.key(train.optimizer.seed))
  return optimizer_lib.start(params, train.optimizer, extra=jnp.zeros(config.codebook_size))


def vq_loss(
    params: Any, config: vq.VQConfig, train: VQTrainConfig, images: jax.Array,
    quantized: jax.Array | bool = True,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the loss of a VQ tokenizer on images `[B, H, W, C]` in [-1, 1].

  Its terms pull codebook vectors and latents together (van den Oord et al., Neural Discrete
  Representation Learning, 2017, equation 3), between unit vectors as in LlamaGen. Without
  `quantized` the decoder reads the latents themselves. Returns the loss and its parts: those of
  `error`, 'commitment', and 'latents' `[B, h, w, codebook_dim]` and 'indices' `[B, h, w]`.
  """
  latents = vq.latents(params, config, images)
  indices = vq.quantize(params, config, jax.lax.stop_gradient(latents))
  vectors = vq.codebook(params, config)[indices]
  # Straight-through estimator: the decoder's gradient reaches the encoder unchanged.
  inputs = latents + jax.lax.stop_gradient(jnp.where(quantized, vectors - latents, 0.0))
  output = vq.decode_vectors(params, config, inputs)
  value, metrics = error(output, images)
  codebook_term = jnp.mean((vectors - jax.lax.stop_gradient(latents)) ** 2)
  commitment = jnp.mean((jax.lax.stop_gradient(vectors) - latents) ** 2)
  total = value + codebook_term + jnp.where(quantized, train.commitment_weight, 0.0) * commitment
  return total, {**metrics, 'commitment': commitment, 'latents': latents, 'indices': indices}


def vq_step(state: TrainState, images: jax.Array, config: vq.VQConfig, train: VQTrainConfig
            ) -> tuple[TrainState, dict[str, jax.Array]]:
  """Does one optimiser step on images `[B, H, W, C]`; jit with `config` and `train` static.

  Unused codebook vectors are moved onto latents of the batch (random restarts: Dhariwal et al.,
  Jukebox, 2020, section 3.1), because they have no gradient. Returns the next state and scalar
  metrics: 'loss', 'l1', 'psnr', 'commitment' and 'used', the fraction of used codebook vectors.
  """
  new_state, parts = optimizer_lib.step(state, lambda params: vq_loss(
      params, config, train, images, state.step >= train.quantize_from), train.optimizer)
  usage = _update_usage(state.extra, parts['indices'])
  params, usage = _restart(state.step, new_state.params, usage, parts['latents'], train)
  metrics = {name: parts[name] for name in ('loss', 'l1', 'psnr', 'commitment')}
  metrics['used'] = jnp.mean(usage >= _RESTART_BELOW)
  return new_state._replace(params=params, extra=usage), metrics


def _update_usage(usage: jax.Array, indices: jax.Array) -> jax.Array:
  """Updates the running usage `[codebook_size]` with the codes of a batch."""
  size = usage.shape[0]
  counts = jnp.zeros(size).at[indices.reshape(-1)].add(1.0)
  return 0.99 * usage + 0.01 * counts * size / indices.size


def _restart(step: jax.Array, params: Any, usage: jax.Array, latents: jax.Array,
             train: VQTrainConfig) -> tuple[Any, jax.Array]:
  """Moves unused vectors onto random latents; before step `quantize_from`, all vectors."""
  pool = latents.reshape(-1, latents.shape[-1])
  key = jax.random.fold_in(jax.random.key(train.optimizer.seed + 1), step)
  samples = pool[jax.random.randint(key, usage.shape, 0, pool.shape[0])]
  first = step == train.quantize_from - 1
  due = (step > train.quantize_from) & (step % train.restart_every == 0)
  due &= step < _RESTART_UNTIL * train.optimizer.num_steps
  unused = first | (due & (usage < _RESTART_BELOW))
  old = params['codebook']['embedding']
  embedding = jnp.where(unused[:, None], samples.astype(old.dtype), old)
  # A restarted vector counts as used until the next restart.
  return {**params, 'codebook': {'embedding': embedding}}, jnp.where(unused, 1.0, usage)
