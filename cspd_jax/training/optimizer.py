"""AdamW with warm-up, a schedule and clipping: one configuration for every training."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import optax

from cspd_jax.core import fields

Params = Any


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Configuration of AdamW (arXiv:1711.05101), its schedule, the batches and the moving average.

  Attributes:
    num_steps: optimiser steps.
    batch_size: examples per step.
    learning_rate: learning rate after the warm-up.
    warmup_steps: steps of linear warm-up.
    cooldown_steps: steps at the end over which a constant learning rate falls linearly to 0; None
      for a cosine decay from the end of the warm-up to the last step.
    weight_decay: weight decay per step, relative to the learning rate.
    b2: decay rate of the second moments; that of the first moments is 0.9.
    max_norm: global norm to which larger gradients are clipped.
    ema_decay: decay rate of the moving average of the parameters after its first steps; None for
      no moving average.
    seed: seed of the parameters, the order of the examples and all random numbers of the steps.
  """

  num_steps: int = 2000
  batch_size: int = 16
  learning_rate: float = 1e-3
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
    if self.cooldown_steps is not None and self.cooldown_steps > self.num_steps:
      raise ValueError(f'cooldown_steps is {self.cooldown_steps}; it must be from 0 to num_steps, '
                       f'{self.num_steps}.')


def matrices(params: Params) -> Any:
  """Returns a tree of bool: True for parameters of at least two axes, which decay by default."""
  return jax.tree.map(lambda x: x.ndim > 1, params)


def optimizer(config: OptimizerConfig, decayed: Callable[[Params], Any] = matrices,
              ) -> optax.GradientTransformation:
  """Builds the optimiser.

  Args:
    config: its configuration.
    decayed: function from the parameters to a tree of bool, True for those with weight decay.
  """
  if config.cooldown_steps is None:
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, config.warmup_steps,
        max(config.num_steps, config.warmup_steps + 1))
  else:
    schedule = optax.join_schedules(
        [optax.linear_schedule(0.0, config.learning_rate, max(config.warmup_steps, 1)),
         optax.linear_schedule(config.learning_rate, 0.0, max(config.cooldown_steps, 1))],
        [config.num_steps - config.cooldown_steps])
  return optax.chain(
      optax.clip_by_global_norm(config.max_norm),
      optax.adamw(schedule, b1=0.9, b2=config.b2, weight_decay=config.weight_decay, mask=decayed))
