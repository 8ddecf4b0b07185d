"""Fits the neighbours corrector to images that a target has sampled; a minute on two cores."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.models import neighbours
from cspd_jax.training import state as state_lib
from cspd_jax.training.loop import batch_of
from cspd_jax.training.state import TrainState

Params = Any


@dataclasses.dataclass(frozen=True)
class NeighboursTrainConfig:
  """Optimisation of the network.

  Attributes:
    num_steps: optimiser steps at most.
    batch_size: images per step.
    learning_rate: peak of the cosine schedule.
    warmup_steps: steps of linear warm-up.
    weight_decay: of AdamW, on matrices only.
    ema_decay: of the moving average, whose parameters are the result.
    evaluate_every: steps between looks at the held-out images.
    patience: looks without a better result after which it stops.
    seed: of the parameters and the order of the images.
  """

  num_steps: int = 1500
  batch_size: int = 16
  learning_rate: float = 2e-3
  warmup_steps: int = 50
  weight_decay: float = 0.05
  ema_decay: float = 0.99
  evaluate_every: int = 100
  patience: int = 3
  seed: int = 0

  def __post_init__(self):
    state_lib.check(self)


def fit(config: neighbours.NeighboursConfig, train: NeighboursTrainConfig, tokens: np.ndarray,
        held_out: np.ndarray) -> tuple[Params, list[float]]:
  """Fits the network with early stopping.

  Args:
    config: its sizes.
    train: the optimisation.
    tokens: `[N, T]` int32, images that the target has sampled.
    held_out: `[M, T]` others.

  Returns:
    The parameters that were best on the held-out images, and their loss (nats per token) at every
    look.
  """
  tx = state_lib.optimizer(train)
  state = state_lib.start(
      neighbours.init(config, jax.random.key(train.seed)), tx, averaged=True)
  step = jax.jit(lambda state, batch: _step(state, batch, config, train, tx), donate_argnums=0)
  loss = jax.jit(lambda params, batch: nll(params, config, batch))
  best, losses = state.params, []
  for index in range(train.num_steps):
    batch, _ = batch_of(tokens, tokens, train.seed, index, train.batch_size)
    state = step(state, batch)
    if (index + 1) % train.evaluate_every and index + 1 < train.num_steps:
      continue
    losses.append(float(np.mean([
        loss(state.average, held_out[i:i + train.batch_size])
        for i in range(0, len(held_out) - train.batch_size + 1, train.batch_size)])))
    logging.info('step %d: %.4f nats per token of other images', index + 1, losses[-1])
    if losses[-1] == min(losses):
      best = jax.tree.map(jnp.copy, state.average)
    elif len(losses) - 1 - int(np.argmin(losses)) >= train.patience:
      break
  return best, losses


def nll(params: Params, config: neighbours.NeighboursConfig, tokens: jax.Array) -> jax.Array:
  """Mean negative log-likelihood of images `[B, T]`, nats per token."""
  positions = jnp.broadcast_to(jnp.arange(config.num_tokens), tokens.shape)
  log_probs = jax.nn.log_softmax(neighbours.logits(params, config, tokens, positions))
  return -jnp.mean(jnp.take_along_axis(log_probs, tokens[..., None], axis=-1))


def _step(state: TrainState, tokens: jax.Array, config: neighbours.NeighboursConfig,
          train: NeighboursTrainConfig, tx: Any) -> TrainState:
  grads = jax.grad(nll)(state.params, config, tokens)
  return state_lib.update(state, grads, tx, train.ema_decay)
