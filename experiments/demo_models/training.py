"""The optimiser step of the models and of the KL tokenizer."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax

from cspd_jax.training import loop, optimizer as optimizer_lib
from cspd_jax.training.optimizer import OptimizerConfig, TrainState

# `(params, batch, key, config, train) -> (loss, scalar metrics)`.
Loss = Callable[[Any, Any, jax.Array, Any, Any], tuple[jax.Array, dict[str, jax.Array]]]


def step(
    state: TrainState, batch: Any, loss: Callable, optimizer: OptimizerConfig,
    decayed: Callable[[Any], Any] = optimizer_lib.matrices,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """Does one optimiser step.

  Args:
    state: state before the step.
    batch: a batch.
    loss: `(params, batch, key) -> (loss, scalar metrics)`.
    optimizer: configuration of the optimiser.
    decayed: function from the parameters to a tree of bool, True for those with weight decay.

  Returns:
    The next state and the scalar metrics 'loss', those of `loss`, and 'grad_norm'.
  """
  key = jax.random.fold_in(jax.random.key(optimizer.seed + 1), state.step)
  (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(state.params, batch, key)
  metrics = {'loss': value, **metrics, 'grad_norm': optax.tree.norm(grads)}
  return optimizer_lib.update(state, grads, optimizer, decayed=decayed), metrics


def jit_step(loss: Loss, config: Any, train: Any,
             decayed: Callable[[Any], Any] = optimizer_lib.matrices) -> Callable[[Any, Any], Any]:
  """Compiles `step` for a model and a training; `train` has an `optimizer`."""
  return loop.jit_step(
      step, functools.partial(loss, config=config, train=train), train.optimizer, decayed)
