"""Schedules of diffusion and flow heads: noise levels, mask lengths and guidance.

The noise process has 1000 steps; sampling uses some of them, called levels, from the last level to
level 0. A state at level `i` is `sqrt(alpha_bar_i) x0 + sqrt(1 - alpha_bar_i) noise`; kernel `i`
turns it into a state at level `i - 1`, and kernel 0 into the token. A flow has times instead of
steps: a state at time `t` is `t x0 + (1 - t) noise`. Tables are computed once, in NumPy float64.

References: Nichol & Dhariwal, Improved Denoising Diffusion Probabilistic Models, 2021
(arXiv:2102.09672), for the cosine schedule, the learned range of variances (equation 15) and
respacing; Li et al., Autoregressive Image Generation without Vector Quantization, 2024
(arXiv:2406.11838), for its use on tokens; Chang et al., MaskGIT, 2022 (arXiv:2202.04200), for the
mask lengths; NextStep Team, NextStep-1, 2025 (arXiv:2508.10711), and its code for flow heads.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields

NUM_STEPS = 1000  # Steps of the full noise process that the diffusion head was trained on.
DEFAULT_LEVELS = 100  # Default number of levels, as in MAR.
# How the guidance scale changes over an image; see `guidance_scale`.
GUIDANCE_SCHEDULES = ('linear', 'constant')


class Schedule(NamedTuple):
  """Coefficients of every level, each `[num_levels]`, float64 but for the steps of `make`.

  Attributes:
    steps: the head's input: the level's step in the full process, int32, or the time of a flow.
    alpha_bar: share of the token in the variance of a state; NaN for a flow.
    x_to_x0: `sqrt(1 / alpha_bar)`; 1 for a flow.
    eps_to_x0: `sqrt(1 / alpha_bar - 1)`: `x0 = x_to_x0 x - eps_to_x0 eps`. For a flow `eps` is the
      velocity and this is `t - 1`.
    x0_to_mean: weight of `x0` in the kernel's mean; 1 at level 0 of `make`.
    x_to_mean: weight of the state in the kernel's mean; 0 at level 0 of `make`.
    min_log_variance: smallest log-variance of the kernel, which the noise process has given the
      token. It does not exist at level 0, which uses the one of level 1.
    max_log_variance: largest log-variance of the kernel, which the noise of the step has. In a
      flow all kernels of a level have one variance, and both bounds are equal.
  """

  steps: np.ndarray
  alpha_bar: np.ndarray
  x_to_x0: np.ndarray
  eps_to_x0: np.ndarray
  x0_to_mean: np.ndarray
  x_to_mean: np.ndarray
  min_log_variance: np.ndarray
  max_log_variance: np.ndarray

  @property
  def num_levels(self) -> int:
    """Number of kernels between pure noise and a token."""
    return len(self.steps)

  @property
  def is_flow(self) -> bool:
    """Whether `flow` made the levels."""
    return bool(np.isnan(self.alpha_bar[0]))


def make(num_levels: int = DEFAULT_LEVELS) -> Schedule:
  """Returns the cosine schedule, respaced to `num_levels` of its steps: 2 to 1000.

  1000 is the process that the head was trained on. Raises ValueError for other numbers.
  """
  _check_levels(num_levels)
  steps = _respaced_steps(num_levels)
  # The variances that the steps of the full process add.
  ratio = np.cos((np.arange(NUM_STEPS + 1) / NUM_STEPS + 0.008) / 1.008 * np.pi / 2)**2
  respaced = np.cumprod(1 - np.minimum(1 - ratio[1:] / ratio[:-1], 0.999))[steps]
  beta = 1 - respaced / np.append(1.0, respaced[:-1])
  alpha_bar = np.cumprod(1 - beta)
  previous = np.append(1.0, alpha_bar[:-1])
  variance = beta * (1 - previous) / (1 - alpha_bar)
  return Schedule(
      steps=steps, alpha_bar=alpha_bar, x_to_x0=np.sqrt(1 / alpha_bar),
      eps_to_x0=np.sqrt(1 / alpha_bar - 1),
      x0_to_mean=beta * np.sqrt(previous) / (1 - alpha_bar),
      x_to_mean=(1 - previous) * np.sqrt(1 - beta) / (1 - alpha_bar),
      min_log_variance=np.log(np.append(variance[1], variance[1:])),
      max_log_variance=np.log(beta))


def _check_levels(num_levels: int) -> None:
  fields.check_whole('num_levels', num_levels, f'a whole number from 2 to {NUM_STEPS}', 2,
                     NUM_STEPS)


def _respaced_steps(num_levels: int) -> np.ndarray:
  """Returns evenly spaced steps from the first to the last, `[num_levels]` int32."""
  stride, next_step, steps = (NUM_STEPS - 1) / (num_levels - 1), 0.0, []
  for _ in range(num_levels):
    steps.append(round(next_step))
    next_step += stride  # A running sum, as in the original code: its rounding decides some steps.
  return np.array(steps, np.int32)


def flow(num_levels: int, *, shift: float = 1.0, last_step: float | None = None,
         last_deviation: float | None = None) -> Schedule:
  """Returns the schedule of a flow head, whose output is a velocity, as NextStep-1 samples it.

  Kernel `i`, at time `t` and of length `d`, with the head's guided velocity `u` and standard normal
  `w`, is `x + (u + (1 - t) score) d + sqrt(2 (1 - t) d) w`, where `(1 - t) score = t u - x`: the
  Euler step of the stochastic differential equation that has the marginals of the flow. Raises
  ValueError for values out of range.

  Args:
    num_levels: 2 to 1000.
    shift: maps a time `s` to `s / (shift - (shift - 1) s)`; above 1 there are more levels near the
      noise, where `s` is 0.
    last_step: length of the last kernel, from 0 to 1, whose mean is `x + last_step u`, a step of
      the flow itself; the other times divide `1 - last_step` equally before the shift. NextStep-1
      uses 0.04; with None, as in NextStep-1.1, the last kernel is like the others.
    last_deviation: standard deviation of the last kernel's noise, in place of
      `sqrt(2 (1 - t) d)`. Published samplers with a `last_step` add none, as decoders do without
      `last_noise`; 0 makes the last kernel deterministic for all decoders.
  """
  _check_levels(num_levels)
  fields.require(0 < shift < math.inf, 'shift', shift, 'a positive number')
  fields.require(last_step is None or 0 < last_step < 1, 'last_step', last_step,
                 'above 0 and below 1, or None')
  fields.require(last_deviation is None or 0 <= last_deviation < math.inf, 'last_deviation',
                 last_deviation, 'at least 0, or None')
  grid = (np.linspace(0, 1, num_levels + 1)[:-1] if last_step is None
          else np.linspace(0, 1 - last_step, num_levels))
  times = grid / (shift - (shift - 1) * grid)
  last_length = 1 - times[-1] if last_step is None else last_step
  times, length = times[::-1], np.append(np.diff(times), last_length)[::-1]
  # How much of the state is replaced: none in a step of the flow itself.
  renewal = length.copy()
  variance = 2 * (1 - times) * length
  if last_step is not None:
    renewal[0] = 0
  if last_deviation is not None:
    variance[0] = last_deviation**2
  x0_to_mean = (length + renewal * times) / (1 - times)
  with np.errstate(divide='ignore'):  # A deviation of 0.
    log_variance = np.log(variance)
  return Schedule(
      steps=times, alpha_bar=np.full(num_levels, np.nan), x_to_x0=np.ones(num_levels),
      eps_to_x0=times - 1, x0_to_mean=x0_to_mean, x_to_mean=1 - renewal - x0_to_mean,
      min_log_variance=log_variance, max_log_variance=log_variance)


def learned(schedule: Schedule) -> bool:
  """Returns whether the head chooses the kernels' variances, within the schedule's range."""
  return bool(np.any(schedule.min_log_variance != schedule.max_log_variance))


def noise_steps(schedule: Schedule) -> np.ndarray:
  """Returns the step `[num_levels]` of the cosine process with the noise of every level.

  It is the level's own step, but for a flow, whose states are compared after they are scaled.
  """
  if not schedule.is_flow:
    return schedule.steps
  angle = np.arctan2(1 - schedule.steps, schedule.steps)
  return NUM_STEPS * (1.008 * angle / (np.pi / 2) - 0.008)


def diffuse(schedule: Schedule, level: jax.Array, x0: jax.Array, noise: jax.Array) -> jax.Array:
  """Returns the state `[..., C]` at `level` `[...]` of tokens and normal noise; NaN for a flow."""
  token_weight, noise_weight = np.sqrt(schedule.alpha_bar), np.sqrt(1 - schedule.alpha_bar)
  return _at(token_weight, level) * x0 + _at(noise_weight, level) * noise


def predict_x0(schedule: Schedule, level: jax.Array, x: jax.Array, eps: jax.Array) -> jax.Array:
  """Returns the token `[..., C]` of state `x` at `level` `[...]` if `eps` is its noise."""
  return _at(schedule.x_to_x0, level) * x - _at(schedule.eps_to_x0, level) * eps


def mean(schedule: Schedule, level: jax.Array, x: jax.Array, x0: jax.Array) -> jax.Array:
  """Returns the kernel's mean `[..., C]` at `level` `[...]`, state `x`, predicted token `x0`."""
  return _at(schedule.x0_to_mean, level) * x0 + _at(schedule.x_to_mean, level) * x


def log_variance(schedule: Schedule, level: jax.Array, v: jax.Array) -> jax.Array:
  """Returns the kernel's log-variance `[..., C]` at `level` `[...]` for the head's output `v`.

  From -1 to 1, not clipped, `v` locates the log-variance in its range.
  """
  share = (v + 1) / 2
  return (share * _at(schedule.max_log_variance, level) +
          (1 - share) * _at(schedule.min_log_variance, level))


def posterior(
    schedule: Schedule, level: jax.Array, x: jax.Array, eps: jax.Array, v: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Returns the kernel from `level` to the level below: mean and standard deviation `[..., C]`.

  The next state is `mean + std * noise`. MAR's sampler multiplies `std` by the temperature and adds
  no noise at level 0, where the token is the mean. `eps` is the predicted noise of the states `x`,
  guided if there is guidance; `v` is as for `log_variance`.
  """
  x0 = predict_x0(schedule, level, x, eps)
  return mean(schedule, level, x, x0), jnp.exp(0.5 * log_variance(schedule, level, v))


def _at(table: np.ndarray, level: jax.Array) -> jax.Array:
  """Returns the entries `[..., 1]` float32 of a table at `level` `[...]`."""
  return jnp.asarray(table, jnp.float32)[level][..., None]


def mask_lengths(num_tokens: int, num_iter: int) -> tuple[int, ...]:
  """Returns how many tokens are still masked after each of `num_iter` steps; the last is 0.

  The length falls as a quarter of a cosine and by at least one per step, so the first steps commit
  few tokens. With `num_iter == num_tokens` every step commits one. Raises ValueError if `num_iter`
  is not from 1 to `num_tokens`.
  """
  check_length('num_iter', num_iter, num_tokens)
  lengths, length = [], num_tokens
  for k in range(1, num_iter):
    length = min(length - 1, math.floor(num_tokens * math.cos(math.pi / 2 * k / num_iter)))
    lengths.append(length)
  return (*lengths, 0)


def blocks(num_tokens: int, block_length: int, prefix_share: float) -> tuple[tuple[int, int], ...]:
  """Returns the ranks `(first, stop)` of CSpD's blocks; the target decodes the first one alone.

  It has a share `prefix_share` of the tokens and one more, so at least one; the others end at
  multiples of `block_length`. Raises ValueError if `block_length` is not from 1 to `num_tokens` or
  `prefix_share` not from 0 to 1.
  """
  check_length('block_length', block_length, num_tokens)
  fields.require(0 <= prefix_share <= 1, 'prefix_share', prefix_share, 'from 0 to 1')
  first = min(math.floor(prefix_share * num_tokens) + 1, num_tokens)
  stops = [k + 1 for k in range(first, num_tokens) if k % block_length == 0 or k == num_tokens - 1]
  return tuple(zip([0, first, *stops[:-1]], [first, *stops]))


def check_length(name: str, length: int, num_tokens: int) -> None:
  """Raises ValueError, with `name`, unless `length` is from 1 to the number of tokens."""
  words = f'a whole number from 1 to the number of tokens, {num_tokens}'
  fields.check_whole(name, length, words, 1, num_tokens)


def guidance_scale(
    scale: jax.typing.ArrayLike, schedule: str, num_tokens: int, masked: jax.typing.ArrayLike,
) -> jax.Array:
  """Returns the guidance scale of tokens, float32, in the shape of `masked`; 1 is no guidance.

  'linear' rises from about 1 to `scale` as tokens are committed; 'constant' is `scale` throughout.
  `masked` is how many of `num_tokens` are masked after the step. The last step, after which none
  is, counts as if one were, as published: the scale stays just below `scale`. Raises ValueError if
  `schedule` is not one of `GUIDANCE_SCHEDULES`.
  """
  fields.check_choice('guidance', schedule, GUIDANCE_SCHEDULES)
  masked = jnp.asarray(masked)
  if schedule == 'constant':
    return jnp.full(masked.shape, scale, jnp.float32)
  share = (num_tokens - jnp.maximum(masked, 1)) / num_tokens
  return (1 + (scale - 1) * share).astype(jnp.float32)
