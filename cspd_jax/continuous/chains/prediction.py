"""Predicts the kernels of chains that have parted from those for which the head was evaluated.

The head's answer at a state predicts its kernels at all close states of the same level. The token
that it expects moves with the state, and how far is the same for all heads, roughly: the slope

    sqrt(alpha_bar)            of a diffusion
    t / (t^2 + (1 - t)^2)      of a flow at time t

is that of the best linear prediction of a token of variance 1 from its noisy state, about that of
the normalised tokens on which heads are trained.

How much the last answer differs from its prediction is added to the predicted noise of all later
levels, where it is about the same. This requires a call whose `L` states are all of one chain; a
chain with fewer drafts is complete after the call unless one of them failed. A token without an old
chain is drafted as in `head_drafter`.

Predictions determine the speed only, never the distribution. In the shape descriptions, `N` is the
number of tokens, `K` of kernels, in the order in which they run, and `L` of states per call.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import head as head_lib, head_drafter, schedule as schedule_lib
from cspd_jax.continuous.coupling import Gaussian
from cspd_jax.continuous.head_drafter import Frozen
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.core import rows


class Predicted(NamedTuple):
  """Gaussian kernels of mean `offset + slope x` for a state `x`."""

  offset: jax.Array  # `[..., C]`.
  slope: jax.Array  # `[..., 1]`.
  std: jax.Array  # `[..., C]`.


class Last(NamedTuple):
  """The last state of a chain that a call of the head evaluated, if it had drafts for all `L`."""

  # `[N]` the kernel; `K` if the chain had fewer drafts, and the rest is meaningless.
  index: jax.Array
  x: jax.Array  # `[N, C]` the state.
  predicted: jax.Array  # `[N, C]` mean of the predicted kernel.
  kernel: head_lib.Kernel  # The true kernel, `[N, C]`.


def kernel(predicted: Predicted, x: jax.Array) -> Gaussian:
  """Returns the predicted kernels of states `x` `[..., C]`."""
  return Gaussian(predicted.offset + predicted.slope * x, predicted.std)


def start(schedule: Schedule, rho: np.ndarray, temperature: jax.Array, first: jax.Array,
          x: jax.Array, true: Gaussian, exist: jax.Array) -> Predicted:
  """Returns the predictions `[N, K]` before any draft.

  Tokens that `exist` `[N]` have an old chain, with states `x` and kernels `true` `[N, K, C]`; the
  others start from `first` `[N, C]`. `rho` is the blend of the head's drafter.
  """
  frozen = head_drafter.frozen_start(first)
  return rows.where(exist, _close(schedule, x, true),
                    _extrapolated(schedule, rho, temperature, frozen))


def learn(schedule: Schedule, rho: np.ndarray, temperature: jax.Array, predicted: Predicted,
          exist: jax.Array, called: jax.Array, x: jax.Array, true: Gaussian, last: Last
          ) -> Predicted:
  """Returns the predictions `[N, K]` after a call of the head at the kernels `called` `[N, K]`.

  That of a kernel depends on answers to the states before it and before earlier kernels only.
  `true` `[N, K, C]` are the true kernels at the states `x` `[N, K, C]`, `last` is the last of them;
  the other arguments are as for `start`.
  """
  levels = schedule.num_levels
  level = levels - 1 - jnp.minimum(last.index, levels - 1)
  frozen = Frozen(last.kernel.eps, schedule_lib.predict_x0(
      schedule, level, last.x, last.kernel.eps), last.kernel.v)
  # The weight of the noise in the mean: an error of the mean is carried as one of the noise.
  weight = jnp.asarray(schedule.x0_to_mean * schedule.eps_to_x0, jnp.float32)
  error = (last.kernel.mean - last.predicted) / weight[level][:, None]
  carried = predicted._replace(offset=predicted.offset + weight[::-1, None] * error[:, None])
  behind = jnp.arange(levels) > last.index[:, None]
  later = rows.where(exist, carried, _extrapolated(schedule, rho, temperature, frozen))
  return rows.where(called, _close(schedule, x, true), rows.where(behind, later, predicted))


def _close(schedule: Schedule, x: jax.Array, true: Gaussian) -> Predicted:
  """Predicts from the true kernels at states `x` of the same level, all `[N, K, C]`."""
  if schedule.is_flow:
    time = schedule.steps
    token = time / (time**2 + (1 - time)**2)
  else:
    token = np.sqrt(schedule.alpha_bar)
  slope = schedule.x_to_mean + schedule.x0_to_mean * token
  slope = jnp.asarray(slope[::-1, None], jnp.float32)  # `[K, 1]`, by kernel.
  return Predicted(true.mean - slope * x, jnp.broadcast_to(slope, (*x.shape[:2], 1)), true.std)


def _extrapolated(schedule: Schedule, rho: np.ndarray, temperature: jax.Array, frozen: Frozen
                  ) -> Predicted:
  """Predicts as `head_drafter` does from the answer `frozen` `[N, C]`, `[N, K, C]`."""
  level = jnp.arange(schedule.num_levels - 1, -1, -1)
  frozen = jax.tree.map(lambda leaf: leaf[:, None], frozen)
  zero = jnp.zeros((1, len(level), 1), jnp.float32)
  mean, std = head_drafter.draft_kernel(schedule, rho, frozen, zero, level)
  slope = head_drafter.slope(schedule, rho, level)
  return Predicted(mean, jnp.broadcast_to(slope, (*mean.shape[:2], 1)),
                   temperature[:, None, None] * std)
