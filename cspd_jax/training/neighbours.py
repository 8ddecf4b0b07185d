"""Training of the neighbours corrector on images sampled from a target.

It takes about a minute on two CPU cores.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.core import compiling, fields
from cspd_jax.models import neighbours
from cspd_jax.training import state as state_lib
from cspd_jax.training.loop import batch_of
from cspd_jax.training.optimizer import OptimizerConfig
from cspd_jax.training.state import TrainState

Params = Any

# The optimiser that suits the shipped correctors.
OPTIMIZER = OptimizerConfig(
    num_steps=1500, learning_rate=2e-3, warmup_steps=50, weight_decay=0.05)


@dataclasses.dataclass(frozen=True)
class NeighboursTrainConfig:
  """Configuration of the training.

  Attributes:
    optimizer: configuration of the optimiser; `num_steps` is an upper bound.
    evaluate_every: steps between evaluations on the held-out images.
    patience: number of evaluations without a better result after which training stops.
  """

  optimizer: OptimizerConfig = OPTIMIZER
  evaluate_every: int = 100
  patience: int = 3

  def __post_init__(self):
    fields.check(self)


def fit(config: neighbours.NeighboursConfig, train: NeighboursTrainConfig, tokens: np.ndarray,
        held_out: np.ndarray) -> tuple[Params, list[float]]:
  """Trains the network with early stopping.

  Args:
    config: configuration of the network.
    train: configuration of the training.
    tokens: `[N, T]` int32, images sampled from the target.
    held_out: `[M, T]` int32, further images sampled from the target.

  Returns:
    The parameters with the lowest loss on the held-out images, and that loss in nats per token at
    every evaluation.
  """
  optimizer = train.optimizer
  state = state_lib.start(neighbours.init(config, jax.random.key(optimizer.seed)), optimizer)
  step = jax.jit(compiling.labelled(
      'a training step', lambda state, batch: _step(state, batch, config, optimizer)),
                 donate_argnums=0)
  loss = jax.jit(lambda params, batch: nll(params, config, batch))
  best, losses = state.params, []
  for index in range(optimizer.num_steps):
    batch, _ = batch_of(tokens, tokens, optimizer.seed, index, optimizer.batch_size)
    state = step(state, batch)
    if (index + 1) % train.evaluate_every and index + 1 < optimizer.num_steps:
      continue
    losses.append(float(np.mean([
        loss(state.average, held_out[i:i + optimizer.batch_size])
        for i in range(0, len(held_out) - optimizer.batch_size + 1, optimizer.batch_size)])))
    logging.info('step %d: %.4f nats per token of the held-out images', index + 1, losses[-1])
    if losses[-1] == min(losses):
      best = jax.tree.map(jnp.copy, state.average)
    elif len(losses) - 1 - int(np.argmin(losses)) >= train.patience:
      break
  return best, losses


def nll(params: Params, config: neighbours.NeighboursConfig, tokens: jax.Array) -> jax.Array:
  """Computes the mean negative log-likelihood of images `[B, T]` in nats per token."""
  positions = jnp.broadcast_to(jnp.arange(config.num_tokens), tokens.shape)
  log_probs = jax.nn.log_softmax(neighbours.logits(params, config, tokens, positions))
  return -jnp.mean(jnp.take_along_axis(log_probs, tokens[..., None], axis=-1))


def _step(state: TrainState, tokens: jax.Array, config: neighbours.NeighboursConfig,
          optimizer: OptimizerConfig) -> TrainState:
  grads = jax.grad(nll)(state.params, config, tokens)
  return state_lib.update(state, grads, optimizer)
