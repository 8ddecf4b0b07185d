"""Training step of a class-conditional LlamaGen model on token sequences.

Cross-entropy of every token given the label and the tokens before it. For some images the label is
replaced by the null class, which is what guidance needs (Ho & Salimans, Classifier-Free Diffusion
Guidance, 2021). AdamW with warm-up and a cosine schedule; the shipped parameters are an exponential
moving average over the steps.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cspd_jax.models import llamagen
from cspd_jax.training import state as state_lib
from cspd_jax.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class ARTrainConfig:
  """Optimisation of an autoregressive model.

  Attributes:
    num_steps: optimiser steps.
    batch_size: images per step.
    learning_rate: peak of the cosine schedule.
    warmup_steps: steps of linear warm-up.
    weight_decay: of AdamW, on matrices only.
    drop_rate: probability that an image's label is replaced by the null class.
    ema_decay: of the moving average, once it has run for a while.
    seed: of the parameters, the order of the images and the dropped labels.
  """

  num_steps: int = 2000
  batch_size: int = 16
  learning_rate: float = 1e-3
  warmup_steps: int = 100
  weight_decay: float = 0.05
  drop_rate: float = 0.1
  ema_decay: float = 0.99
  seed: int = 0

  def __post_init__(self):
    state_lib.check(self)


def init(config: llamagen.LlamaGenConfig, train: ARTrainConfig) -> TrainState:
  """The state before the first step."""
  params = llamagen.init(config, jax.random.key(train.seed))
  return state_lib.start(params, state_lib.optimizer(train), averaged=True)


def nll(
    params,
    config: llamagen.LlamaGenConfig,
    tokens: jax.Array,
    labels: jax.Array,
    drop_mask: jax.Array | None = None,
) -> jax.Array:
  """Negative log-likelihood `[B, T]` in nats of tokens `[B, T]` with labels `[B]`.

  Where `drop_mask` `[B]` is True the label is replaced by the null class.
  """
  logits = llamagen.logits(params, config, labels, tokens, drop_mask=drop_mask)
  return optax.softmax_cross_entropy_with_integer_labels(logits, tokens)


def step(
    state: TrainState,
    batch: tuple[jax.Array, jax.Array],
    config: llamagen.LlamaGenConfig,
    train: ARTrainConfig,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """One optimiser step; jit with `config` and `train` static.

  Args:
    state: the state to start from.
    batch: tokens `[B, T]` and labels `[B]`, int32.
    config: the model's sizes.
    train: the optimisation.

  Returns:
    The next state and the scalar metrics 'loss' (nats per token) and 'grad_norm'.
  """
  tokens, labels = batch
  key = jax.random.fold_in(jax.random.key(train.seed + 1), state.step)
  drop_mask = jax.random.bernoulli(key, train.drop_rate, labels.shape)

  def loss(params):
    return jnp.mean(nll(params, config, tokens, labels, drop_mask))

  value, grads = jax.value_and_grad(loss)(state.params)
  metrics = {'loss': value, 'grad_norm': optax.tree.norm(grads)}
  return state_lib.update(state, grads, state_lib.optimizer(train), train.ema_decay), metrics


def batch_of(
    tokens: jax.Array,
    labels: jax.Array,
    seed: int,
    index: int,
    batch_size: int,
) -> tuple[jax.Array, jax.Array]:
  """Batch number `index` of an endless, reshuffled pass over `tokens` `[N, T]`, `labels` `[N]`.

  The same arguments give the same batch, so a continued run sees what it would have seen.

  Raises:
    ValueError: if `batch_size` exceeds the number of sequences.
  """
  if batch_size > tokens.shape[0]:
    raise ValueError(
        f'batch_size is {batch_size}, but there are only {tokens.shape[0]} sequences; '
        'use a smaller batch or tokenise more crops.')
  per_epoch = tokens.shape[0] // batch_size
  epoch, position = divmod(index, per_epoch)
  order = np.random.default_rng([seed, epoch]).permutation(tokens.shape[0])
  picks = order[position * batch_size:(position + 1) * batch_size]
  return tokens[picks], labels[picks]
