"""What all training steps share: the state, the optimiser and the moving average."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cspd_jax.core import fields

Params = Any


class TrainState(NamedTuple):
  """What a step changes.

  Attributes:
    step: steps done, int32.
    params: parameters of the network.
    opt_state: state of the optimiser.
    average: moving average of `params`, or None where the last parameters are the ones to use.
    extra: what else the step keeps, or None.
  """

  step: jax.Array
  params: Params
  opt_state: Any
  average: Params | None = None
  extra: Any = None


# Of the numbers that most settings have; what is not named is above 0.
_RANGES: dict[str, fields.Range] = dict(
    warmup_steps=(0, fields.MOST), weight_decay=fields.NOT_NEGATIVE, ema_decay=fields.SHARES,
    drop_rate=fields.SHARES, seed=fields.SEEDS)


def check(train: Any, **ranges: fields.Range) -> None:
  """Checks every field of training settings, in their `__post_init__`; see `core.fields.check`.

  Args:
    train: the settings.
    **ranges: of numbers that are its own.

  Raises:
    ValueError: for the first field of another type or outside its range.
  """
  fields.check(train, **_RANGES | ranges)


def matrices(params: Params) -> Any:
  """Which parameters have two axes or more, bool: those that decay, unless a step says others."""
  return jax.tree.map(lambda x: x.ndim > 1, params)


def optimizer(
    train: Any,
    *,
    cooldown_steps: int | None = None,
    clip: float = 1.0,
    b2: float = 0.95,
    decayed: Callable[[Params], Any] = matrices,
) -> optax.GradientTransformation:
  """AdamW (arXiv 1711.05101) with linear warm-up.

  Args:
    train: the settings; its `learning_rate` is the peak, `warmup_steps` and `num_steps` say when.
      Its `weight_decay`, none if it has no such field, is per unit of the learning rate.
    cooldown_steps: steps at the end over which a constant rate falls to 0 on a line. None means a
      cosine from the warm-up to the end.
    clip: largest norm of a step's gradients.
    b2: decay of the second moments; that of the first is 0.9.
    decayed: parameters to a tree of bool, those that decay.
  """
  if cooldown_steps is None:
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, train.learning_rate, train.warmup_steps, max(train.num_steps, train.warmup_steps + 1))
  else:
    schedule = optax.join_schedules(
        [optax.linear_schedule(0.0, train.learning_rate, max(train.warmup_steps, 1)),
         optax.linear_schedule(train.learning_rate, 0.0, max(cooldown_steps, 1))],
        [train.num_steps - cooldown_steps])
  return optax.chain(
      optax.clip_by_global_norm(clip),
      optax.adamw(schedule, b1=0.9, b2=b2, weight_decay=getattr(train, 'weight_decay', 0.0),
                  mask=decayed))


def start(
    params: Params, tx: optax.GradientTransformation, *, averaged: bool = False, extra: Any = None,
) -> TrainState:
  """The state before the first step; `averaged` says whether there is a moving average."""
  # A step gives its input's memory to its output, so the average needs memory of its own.
  average = jax.tree.map(jnp.copy, params) if averaged else None
  return TrainState(jnp.int32(0), params, tx.init(params), average, extra)


def update(
    state: TrainState, grads: Params, tx: optax.GradientTransformation, ema_decay: float = 0.0,
) -> TrainState:
  """The state after a step with these gradients.

  Args:
    state: the state before.
    grads: gradients of its parameters.
    tx: the optimiser.
    ema_decay: of the moving average, once it has run for a while.
  """
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  average = state.average
  if average is not None:
    # Early on the average follows fast, so that the first parameters are forgotten.
    share = jnp.maximum(1 - ema_decay, 9 / (10 + state.step.astype(jnp.float32)))
    average = optax.incremental_update(params, average, share)
  return TrainState(state.step + 1, params, opt_state, average, state.extra)
