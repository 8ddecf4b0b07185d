"""Recipe of the shipped MAR models: KL tokenizer, latents, target and draft model.

In the training of a model a random part of an image's tokens is hidden and the diffusion head
learns to denoise them. The loss is the squared error of the predicted noise, plus the variational
bound for the learned variance alone. For some images the label is replaced by the null class, as
classifier-free guidance requires. The optimiser is the published one: AdamW with warm-up to a
constant learning rate, without weight decay of biases, norms and the head. `MARTrainConfig` has
further options for short trainings, which are off by default.

References: Li et al., Autoregressive Image Generation without Vector Quantization, 2024
(arXiv:2406.11838), sections 3.2 and 4; Nichol & Dhariwal, Improved Denoising Diffusion
Probabilistic Models, 2021 (arXiv:2102.09672), section 3.1.
"""

import dataclasses
import math
import sys
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.core import fields
from cspd_jax.models import kl_vae, mar
from cspd_jax.training import optimizer as optimizer_lib
from cspd_jax.training.optimizer import OptimizerConfig, TrainState
from experiments.demo_models import photos as photos_lib, stages


@dataclasses.dataclass(frozen=True)
class MARTrainConfig:
  """Configuration of a MAR model's training; the defaults are the published values, if any.

  Attributes:
    optimizer: of the optimiser; weight decay applies to the transformer's matrices and tables.
    dropout: dropout rate of the transformer.
    min_hidden: smallest fraction of hidden tokens; the fraction has a normal distribution around 1,
      truncated to `[min_hidden, 1]`.
    hidden_deviation: standard deviation of that normal distribution before truncation.
    drop_rate: probability that an image's label is replaced by the null class.
    draws: number of diffusion steps and noises per hidden token and optimiser step; several,
      because the head costs little compared with the transformer.
    last_share: fraction of the draws that are moved to the last diffusion step, 999.
    last_weight: weight of the squared error at that step, for the head's parameters. The sampler's
      first kernel multiplies an error of the noise by 316, so the head must predict very precisely
      that the state is all noise, which a short training with equal weights does not learn.
    sine_positions: whether the position tables are initialised with sines and cosines of row and
      column. From the published initialization, almost zero, a short training learns the colours of
      an image but not which tokens are adjacent.
  """

  optimizer: OptimizerConfig = OptimizerConfig(
      learning_rate=1e-4, cooldown_steps=0, weight_decay=0.02, max_norm=3.0, ema_decay=0.9999)
  dropout: float = 0.1
  min_hidden: float = 0.7
  hidden_deviation: float = 0.25
  drop_rate: float = 0.1
  draws: int = 4
  last_share: float = 0.0
  last_weight: float = 1.0
  sine_positions: bool = False

  def __post_init__(self):
    fields.check(
        self, min_hidden=fields.BELOW_1, dropout=fields.BELOW_1, drop_rate=fields.SHARES,
        last_share=fields.SHARES)


class Draws(NamedTuple):
  """The random numbers of one loss; `M` is `MARTrainConfig.draws`."""

  hidden: jax.Array  # `[B, T]` bool, the hidden tokens, the same number for every image.
  drop: jax.Array  # `[B]` bool, True for the null class.
  step: jax.Array  # `[M, B, T]` int, diffusion steps from 0 to 999.
  noise: jax.Array  # `[M, B, T, C]` standard normal noise.


def draw(key: jax.Array, shape: tuple[int, int, int], train: MARTrainConfig) -> Draws:
  """Draws the random numbers for tokens of `shape` `(B, T, C)`."""
  batch, length, _ = shape
  keys = jax.random.split(key, 6)
  rate = 1 + train.hidden_deviation * jax.random.truncated_normal(
      keys[0], (train.min_hidden - 1) / train.hidden_deviation, 0.0)
  ranks = jnp.argsort(jax.random.uniform(keys[1], (batch, length)), axis=1)
  repeated = (train.draws, batch, length)
  last = jax.random.bernoulli(keys[5], train.last_share, repeated)
  step = jax.random.randint(keys[3], repeated, 0, schedule_lib.NUM_STEPS)
  return Draws(
      hidden=ranks < jnp.ceil(length * rate),
      drop=jax.random.bernoulli(keys[2], train.drop_rate, (batch,)),
      step=jnp.where(last, schedule_lib.NUM_STEPS - 1, step),
      noise=jax.random.normal(keys[4], (train.draws, *shape)))


def token_losses(
    x0: jax.Array, step: jax.Array, noise: jax.Array, x: jax.Array, eps: jax.Array, v: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Computes the two terms of the diffusion loss per token.

  The states `x` `[..., C]` are `schedule.diffuse` of tokens `x0` and `noise` at a `step` `[...]` of
  the full process; the head predicts the noise `eps` and the variance `v`. Returns the squared
  error of the noise, and the variational bound in bits per dimension, which has no gradient with
  respect to `eps`; `[...]` each.
  """
  full = schedule_lib.make(schedule_lib.NUM_STEPS)
  mean, _ = schedule_lib.posterior(full, step, x, jax.lax.stop_gradient(eps), v)
  log_variance = schedule_lib.log_variance(full, step, v)
  true_mean = schedule_lib.mean(full, step, x, x0)
  true_log_variance = schedule_lib.log_variance(full, step, -jnp.ones_like(v))
  divergence = 0.5 * (log_variance - true_log_variance - 1 + jnp.exp(
      true_log_variance - log_variance) + (true_mean - mean)**2 * jnp.exp(-log_variance))
  bound = jnp.where(
      (step == 0)[..., None], _discretized_nll(x0, mean, 0.5 * log_variance), divergence)
  return jnp.mean((eps - noise)**2, axis=-1), jnp.mean(bound, axis=-1) / math.log(2)


def _discretized_nll(x: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
  """Computes the negative log-likelihood in nats of `x` as one of 256 pixel values in [-1, 1]."""
  # Tokens are not pixels, but the published loss treats them as such.
  def cdf(offset):
    scaled = (x - mean + offset) * jnp.exp(-log_std)
    return 0.5 * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (scaled + 0.044715 * scaled**3)))

  above, below = cdf(1 / 255), cdf(-1 / 255)
  mass = jnp.where(x < -0.999, above, jnp.where(x > 0.999, 1 - below, above - below))
  return -jnp.log(jnp.maximum(mass, 1e-12))


def loss(
    params: Any, config: mar.MARConfig, tokens: jax.Array, labels: jax.Array, draws: Draws, *,
    last_weight: float = 1.0, dropout: float = 0.0, dropout_key: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the training loss of scaled latents `[B, T, C]` with labels `[B]`.

  Options are those of `MARTrainConfig`; the key is required unless the rate of dropout is 0.
  Returns the loss, averaged over the hidden tokens, and its terms: 'mse', without weights, 'vlb',
  and 'last_mse', at the last diffusion step only (0 without a draw there).
  """
  model = mar.MAR(config, dropout)
  rngs = None if dropout_key is None else {'dropout': dropout_key}
  z = model.apply({'params': params}, labels, draws.drop, tokens, ~draws.hidden, rngs=rngs,
                  method='transform')
  full = schedule_lib.make(schedule_lib.NUM_STEPS)
  x0 = jnp.broadcast_to(tokens, draws.noise.shape).astype(jnp.float32)
  x = schedule_lib.diffuse(full, draws.step, x0, draws.noise)
  is_last = draws.step == schedule_lib.NUM_STEPS - 1
  # The weight is for the head only: its prediction for pure noise does not depend on `z`, and large
  # errors there would dominate the transformer's gradients from the other steps. (Its gradient from
  # the bound at this step, almost 0, is divided as well.)
  fixed = jax.lax.stop_gradient(z)
  z = fixed + (z - fixed) / jnp.where(is_last, last_weight, 1.0)[..., None]
  eps, v = model.apply(
      {'params': params}, x.reshape(-1, config.token_dim), draws.step.reshape(-1),
      z.reshape(-1, z.shape[-1]), method='denoise')
  terms = token_losses(x0, draws.step, draws.noise, x, eps.reshape(x.shape), v.reshape(x.shape))
  weight = draws.hidden / (jnp.sum(draws.hidden) * x.shape[0])
  mse, vlb = (jnp.sum(term * weight) for term in terms)
  at_last = weight * is_last
  last = jnp.sum(terms[0] * at_last)
  metrics = {'mse': mse, 'vlb': vlb, 'last_mse': last / jnp.maximum(jnp.sum(at_last), 1e-9)}
  return mse + vlb + (last_weight - 1) * last, metrics


def decayed(params: Any) -> Any:
  """Returns a tree of bool: False for the head's parameters, biases and norms."""
  return jax.tree_util.tree_map_with_path(
      lambda path, _: path[0].key != 'head' and path[-1].key not in ('bias', 'scale'), params)


def _sines(config: mar.MARConfig) -> np.ndarray:
  """Returns the position embeddings `[T, D]` of masked autoencoders (arXiv:2111.06377), a quarter
  each of sine and cosine of row and column.
  """
  quarter = -(-config.dim // 4)
  frequencies = 100.0**(-np.arange(quarter) / quarter)
  rows, columns = (axis.reshape(-1, 1) * frequencies
                   for axis in np.mgrid[:config.height, :config.width])
  parts = [np.sin(rows), np.cos(rows), np.sin(columns), np.cos(columns)]
  return np.concatenate(parts, axis=1)[:, :config.dim].astype(np.float32)


def start(config: mar.MARConfig, train: MARTrainConfig) -> TrainState:
  """Returns the state before the first step."""
  params = mar.init(config, jax.random.key(train.optimizer.seed))
  if train.sine_positions:
    sines = _sines(config)
    for table in ('encoder_positions', 'decoder_positions', 'z_positions'):
      params[table] = params[table].at[:, -config.num_tokens:].set(sines)
  return optimizer_lib.start(params, train.optimizer, decayed=decayed)


def batch_loss(params: Any, batch: tuple[jax.Array, jax.Array], key: jax.Array,
               config: mar.MARConfig, train: MARTrainConfig
               ) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the loss of tokens `[B, T, C]` and labels `[B]` with random numbers of its own."""
  tokens, labels = batch
  draw_key, dropout_key = jax.random.split(key)
  return loss(
      params, config, tokens, labels, draw(draw_key, tokens.shape, train),
      last_weight=train.last_weight, dropout=train.dropout, dropout_key=dropout_key)


@dataclasses.dataclass(frozen=True)
class MARRecipe(stages.Latents):
  """Recipe of MAR models."""

  family: ClassVar[str] = 'mar'
  training: ClassVar[Any] = sys.modules[__name__]
  without: ClassVar[str] = '_no_label'

  target: mar.MARConfig
  target_train: MARTrainConfig
  draft: mar.MARConfig | None = None
  draft_train: MARTrainConfig | None = None

  def _fitting(self, tokenizer: kl_vae.KLVAEConfig, side: int, config: mar.MARConfig
               ) -> dict[str, Any]:
    return {'patch_size': self.target.patch_size, 'height': side // config.patch_size,
            'width': side // config.patch_size, 'num_classes': len(photos_lib.NAMES),
            'token_dim': tokenizer.z_channels * config.patch_size**2}
