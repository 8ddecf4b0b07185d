"""AdamW or Muon with warm-up, a schedule and clipping, and the state that all trainings share."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from cspd_jax.core import fields

Params = Any

# Parts of the names of parameters that AdamW trains where Muon trains the rest.
_ADAMW = ('embed', 'codebook', 'norm', 'bias', 'scale', 'output', 'position', 'mask_token',
          'conv_in', 'conv_out')


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Configuration of AdamW (arXiv:1711.05101) or Muon, schedule, batches and moving average.

  Attributes:
    num_steps: optimiser steps.
    batch_size: examples per step.
    learning_rate: learning rate of AdamW after the warm-up.
    muon_learning_rate: learning rate of Muon (https://kellerjordan.github.io/posts/muon) after the
      warm-up, for the weights of the layers; AdamW, with Nesterov's momentum, then trains
      embeddings, output layer, norms and biases. None trains everything by AdamW.
    warmup_steps: steps of linear warm-up.
    cooldown_steps: steps at the end over which a constant learning rate falls linearly to 0; None
      for a cosine decay from the end of the warm-up to the last step.
    weight_decay: weight decay per step, relative to the learning rate.
    b2: decay rate of the second moments; the first moments' is 0.9.
    max_norm: global norm to which larger gradients are clipped.
    ema_decay: decay rate of the moving average of the parameters after its first steps; None for
      none.
    seed: seed of the parameters, the order of the examples and all random numbers of the steps.
  """

  num_steps: int = 2000
  batch_size: int = 16
  learning_rate: float = 1e-3
  muon_learning_rate: float | None = None
  warmup_steps: int = 100
  cooldown_steps: int | None = None
  weight_decay: float = 0.01
  b2: float = 0.95
  max_norm: float = 1.0
  ema_decay: float | None = 0.99
  seed: int = 0

  def __post_init__(self):
    fields.check(
        self, warmup_steps=(0, fields.MOST), cooldown_steps=(0, fields.MOST),
        weight_decay=fields.NOT_NEGATIVE, b2=fields.BELOW_1, ema_decay=fields.SHARES,
        seed=fields.SEEDS)
    rest = self.num_steps - self.warmup_steps
    fields.require(rest >= 0, 'warmup_steps', self.warmup_steps,
                   f'at most {self.num_steps}, all steps')
    fields.require((self.cooldown_steps or 0) <= rest, 'cooldown_steps', self.cooldown_steps,
                   f'at most {rest}, the steps after warm-up')


def with_num_steps(config: OptimizerConfig, num_steps: int) -> OptimizerConfig:
  """Returns the configuration with another number of steps.

  The warm-up takes at most half of them, and the cooldown at most the others.
  """
  warmup = min(config.warmup_steps, num_steps // 2)
  cooldown = config.cooldown_steps and min(config.cooldown_steps, num_steps - warmup)
  return dataclasses.replace(
      config, num_steps=num_steps, warmup_steps=warmup, cooldown_steps=cooldown)


def matrices(params: Params) -> Any:
  """Returns a tree of bool: True for parameters of at least two axes, which decay by default."""
  return jax.tree.map(lambda x: x.ndim > 1, params)


def optimizer(config: OptimizerConfig, decayed: Callable[[Params], Any] = matrices,
              ) -> optax.GradientTransformation:
  """Builds the optimiser; `decayed` returns a tree of bool, True for those with weight decay."""
  if config.muon_learning_rate is None:
    update = optax.adamw(schedule(config, config.learning_rate), b1=0.9, b2=config.b2,
                         weight_decay=config.weight_decay, mask=decayed)
  else:
    update = contrib.muon(
        schedule(config, config.muon_learning_rate), weight_decay=config.weight_decay,
        weight_decay_mask=decayed, adam_b1=0.9, adam_b2=config.b2,
        adam_weight_decay=config.weight_decay,
        adam_learning_rate=schedule(config, config.learning_rate),
        muon_weight_dimension_numbers=muon_axes)
  return optax.chain(optax.clip_by_global_norm(config.max_norm), update)


def schedule(config: OptimizerConfig, learning_rate: float) -> optax.Schedule:
  """Returns the learning rate by step, with `learning_rate` after the warm-up."""
  if config.cooldown_steps is None:
    return optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, config.warmup_steps,
        max(config.num_steps, config.warmup_steps + 1))
  return optax.join_schedules(
      [optax.linear_schedule(0.0, learning_rate, config.warmup_steps) if config.warmup_steps
       else optax.constant_schedule(learning_rate),
       optax.linear_schedule(learning_rate, 0.0, max(config.cooldown_steps, 1))],
      [config.num_steps - config.cooldown_steps])


def muon_axes(params: Params) -> Any:
  """Returns the axes of each parameter as a matrix for Muon, or None for AdamW.

  Attention weights `[width, heads, head width]` and `[heads, head width, width]` are matrices from
  or to the width, which is at least the head width; convolutions `[height, width, in, out]` to the
  output.
  """
  def axes(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator='.')
    if leaf.ndim < 2 or any(part in name for part in _ADAMW):
      return None
    inputs = 1 if leaf.ndim == 3 and leaf.shape[0] >= leaf.shape[2] else leaf.ndim - 1
    return contrib.MuonDimensionNumbers(tuple(range(inputs)), tuple(range(inputs, leaf.ndim)))

  return jax.tree_util.tree_map_with_path(axes, params)


class TrainState(NamedTuple):
  """State before and after a training step; `step` steps are done.

  `average` is the moving average of the parameters, None without one, and `extra` further state.
  """

  step: jax.Array
  params: Params
  opt_state: Any
  average: Params | None = None
  extra: Any = None

  @property
  def result(self) -> Params:
    """The parameters that a training returns: the average, or without one the last ones."""
    return self.params if self.average is None else self.average


def start(params: Params, config: OptimizerConfig, *,
          decayed: Callable[[Params], Any] = matrices, extra: Any = None) -> TrainState:
  """Returns the state before the first step; `extra` and `decayed` as for state and `optimizer`."""
  # A step donates the memory of its input, so the average needs memory of its own.
  average = None if config.ema_decay is None else jax.tree.map(jnp.copy, params)
  return TrainState(jnp.int32(0), params, optimizer(config, decayed).init(params), average, extra)


def step(state: TrainState, loss: Callable[[Params], tuple[jax.Array, dict[str, Any]]],
         config: OptimizerConfig, *, decayed: Callable[[Params], Any] = matrices
         ) -> tuple[TrainState, dict[str, Any]]:
  """Does one optimiser step; `loss` returns the loss of parameters, and metrics.

  Returns the next state, and the metrics 'loss', `loss`'s own, and 'grad_norm'.
  """
  (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
  metrics = {'loss': value, **metrics, 'grad_norm': optax.tree.norm(grads)}
  return update(state, grads, config, decayed=decayed), metrics


def update(state: TrainState, grads: Params, config: OptimizerConfig, *,
           decayed: Callable[[Params], Any] = matrices) -> TrainState:
  """Applies one step of the optimiser to the state; `decayed` as for `optimizer`."""
  updates, opt_state = optimizer(config, decayed).update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  average = state.average
  if config.ema_decay is not None:
    # Early on the average follows fast, so that the initial parameters are forgotten.
    share = jnp.maximum(1 - config.ema_decay, 9 / (10 + state.step.astype(jnp.float32)))
    average = optax.incremental_update(params, average, share)
  return TrainState(state.step + 1, params, opt_state, average, state.extra)
