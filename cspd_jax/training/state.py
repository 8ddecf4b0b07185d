"""The state that all training steps share: parameters, optimiser state and moving average."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cspd_jax.training.optimizer import OptimizerConfig, matrices, optimizer

Params = Any


class TrainState(NamedTuple):
  """State before and after a training step.

  Attributes:
    step: steps done, int32.
    params: parameters of the network.
    opt_state: state of the optimiser.
    average: moving average of `params`; None without one.
    extra: further state of the step, or None.
  """

  step: jax.Array
  params: Params
  opt_state: Any
  average: Params | None = None
  extra: Any = None


def start(params: Params, config: OptimizerConfig, *,
          decayed: Callable[[Params], Any] = matrices, extra: Any = None) -> TrainState:
  """Returns the state before the first step.

  Args:
    params: initial parameters.
    config: configuration of the optimiser.
    decayed: function from the parameters to a tree of bool, True for those with weight decay.
    extra: further state of the step.
  """
  # A step donates the memory of its input, so the average needs memory of its own.
  average = None if config.ema_decay is None else jax.tree.map(jnp.copy, params)
  return TrainState(
      jnp.int32(0), params, optimizer(config, decayed).init(params), average, extra)


def update(state: TrainState, grads: Params, config: OptimizerConfig, *,
           decayed: Callable[[Params], Any] = matrices) -> TrainState:
  """Applies one step of the optimiser.

  Args:
    state: state before the step.
    grads: gradients of its parameters.
    config: configuration of the optimiser.
    decayed: function from the parameters to a tree of bool, True for those with weight decay.

  Returns:
    The state after the step.
  """
  updates, opt_state = optimizer(config, decayed).update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  average = state.average
  if config.ema_decay is not None:
    # Early on the average follows fast, so that the initial parameters are forgotten.
    share = jnp.maximum(1 - config.ema_decay, 9 / (10 + state.step.astype(jnp.float32)))
    average = optax.incremental_update(params, average, share)
  return TrainState(state.step + 1, params, opt_state, average, state.extra)
