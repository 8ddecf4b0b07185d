"""Schedules of masked diffusion: noise levels, mask lengths and guidance.

The noise process has 1000 steps; sampling keeps some of them, called levels,
and walks from the last level to level 0. Level `i` holds a state
`sqrt(alpha_bar_i) x0 + sqrt(1 - alpha_bar_i) noise`; kernel `i` takes it to level
`i - 1`, and kernel 0 to the token. Tables are made once, in NumPy float64.

References: Nichol & Dhariwal, Improved Denoising Diffusion Probabilistic Models,
2021 (arXiv:2102.09672), for the cosine schedule, the learned range of variances
(equation 15) and respacing; Li et al., Autoregressive Image Generation without
Vector Quantization, 2024 (arXiv:2406.11838), for its use on tokens; Chang et
al., MaskGIT, 2022 (arXiv:2202.04200), for the mask lengths.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Steps of the full noise process, which the diffusion head was trained on.
NUM_STEPS = 1000
# Levels by default, as in MAR.
DEFAULT_LEVELS = 100
# How the guidance scale changes over an image.
GUIDANCE_SCHEDULES = ('linear', 'constant')


class Schedule(NamedTuple):
  """Coefficients of every level, each `[num_levels]`, float64 but for `steps`.

  Attributes:
    steps: the level's step in the full process, int32: what the head is given.
    alpha_bar: share of the token in the variance of a state.
    beta: variance that one step of the shortened process adds.
    x_to_x0: `sqrt(1 / alpha_bar)`.
    eps_to_x0: `sqrt(1 / alpha_bar - 1)`: `x0 = x_to_x0 x - eps_to_x0 eps`.
    x0_to_mean: weight of `x0` in the kernel's mean; 1 at level 0.
    x_to_mean: weight of the state in the kernel's mean; 0 at level 0.
    min_log_variance: least log-variance of the kernel: that of the noise process
      given the token. Level 0 has none and borrows that of level 1.
    max_log_variance: its greatest log-variance, `log(beta)`.
  """

  steps: np.ndarray
  alpha_bar: np.ndarray
  beta: np.ndarray
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


def make(num_levels: int = DEFAULT_LEVELS) -> Schedule:
  """The cosine schedule with `num_levels` of its steps kept.

  Args:
    num_levels: 2 to 1000; 1000 is the process the head was trained on.

  Raises:
    ValueError: if `num_levels` is out of range.
  """
  if not 2 <= num_levels <= NUM_STEPS:
    raise ValueError(f'num_levels is {num_levels}; it must be from 2 to {NUM_STEPS}.')
  steps = _kept_steps(num_levels)
  kept = np.cumprod(1 - _cosine_betas())[steps]
  beta = 1 - kept / np.append(1.0, kept[:-1])
  alpha_bar = np.cumprod(1 - beta)
  previous = np.append(1.0, alpha_bar[:-1])
  variance = beta * (1 - previous) / (1 - alpha_bar)
  return Schedule(
      steps=steps, alpha_bar=alpha_bar, beta=beta,
      x_to_x0=np.sqrt(1 / alpha_bar), eps_to_x0=np.sqrt(1 / alpha_bar - 1),
      x0_to_mean=beta * np.sqrt(previous) / (1 - alpha_bar),
      x_to_mean=(1 - previous) * np.sqrt(1 - beta) / (1 - alpha_bar),
      min_log_variance=np.log(np.append(variance[1], variance[1:])),
      max_log_variance=np.log(beta))


def of(schedule: Schedule | int) -> Schedule:
  """A schedule as it is, or the cosine schedule with so many levels.

  Raises:
    ValueError: if that number is out of range.
  """
  return schedule if isinstance(schedule, Schedule) else make(schedule)


def _cosine_betas() -> np.ndarray:
  """Variances that the steps of the full process add, `[1000]` float64."""
  ratio = np.cos((np.arange(NUM_STEPS + 1) / NUM_STEPS + 0.008) / 1.008 * np.pi / 2)**2
  return np.minimum(1 - ratio[1:] / ratio[:-1], 0.999)


def _kept_steps(num_levels: int) -> np.ndarray:
  """Evenly spaced steps from the first to the last, `[num_levels]` int32."""
  stride, position, steps = (NUM_STEPS - 1) / (num_levels - 1), 0.0, []
  for _ in range(num_levels):
    steps.append(round(position))
    position += stride  # Added up, not multiplied: the rounding errors decide some steps.
  return np.array(steps, np.int32)


def diffuse(schedule: Schedule, level: jax.Array, x0: jax.Array, noise: jax.Array) -> jax.Array:
  """The state `[..., C]` at `level` `[...]` of tokens and standard normal noise `[..., C]`."""
  keep = np.sqrt(schedule.alpha_bar), np.sqrt(1 - schedule.alpha_bar)
  return _at(keep[0], level) * x0 + _at(keep[1], level) * noise


def predict_x0(schedule: Schedule, level: jax.Array, x: jax.Array, eps: jax.Array) -> jax.Array:
  """The token `[..., C]` that state `x` at `level` `[...]` is made of if `eps` is its noise."""
  return _at(schedule.x_to_x0, level) * x - _at(schedule.eps_to_x0, level) * eps


def mean(schedule: Schedule, level: jax.Array, x: jax.Array, x0: jax.Array) -> jax.Array:
  """Mean `[..., C]` of the kernel at `level` `[...]` for state `x` and predicted token `x0`."""
  return _at(schedule.x0_to_mean, level) * x0 + _at(schedule.x_to_mean, level) * x


def log_variance(schedule: Schedule, level: jax.Array, v: jax.Array) -> jax.Array:
  """Log-variance `[..., C]` of the kernel at `level` `[...]` for the head's output `v`."""
  share = (v + 1) / 2
  return (share * _at(schedule.max_log_variance, level) +
          (1 - share) * _at(schedule.min_log_variance, level))


def posterior(
    schedule: Schedule, level: jax.Array, x: jax.Array, eps: jax.Array, v: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """The kernel from `level` to the level below.

  The next state is `mean + std * noise`. MAR's sampler multiplies `std` by the
  temperature and adds no noise at level 0: the token is the mean there.

  Args:
    schedule: the levels.
    level: `[...]` int, one per state.
    x: `[..., C]` states at that level.
    eps: `[..., C]` their predicted noise, guided if there is guidance.
    v: `[..., C]` place of the log-variance in its range, not clipped.

  Returns:
    mean and standard deviation, `[..., C]` float32 each.
  """
  x0 = predict_x0(schedule, level, x, eps)
  return mean(schedule, level, x, x0), jnp.exp(0.5 * log_variance(schedule, level, v))


def _at(table: np.ndarray, level: jax.Array) -> jax.Array:
  """Entries `[..., 1]` float32 of a table at `level` `[...]`."""
  return jnp.asarray(table, jnp.float32)[level][..., None]


def mask_lengths(num_tokens: int, num_iter: int) -> tuple[int, ...]:
  """How many tokens are still hidden after each of `num_iter` steps; the last is 0.

  The length falls as a quarter of a cosine and by at least one per step, so few
  tokens are fixed at first. With `num_iter == num_tokens` it is one per step.

  Raises:
    ValueError: if `num_iter` is not from 1 to `num_tokens`.
  """
  if not 1 <= num_iter <= num_tokens:
    raise ValueError(
        f'num_iter is {num_iter}; it must be from 1 to the number of tokens, {num_tokens}.')
  lengths, length = [], num_tokens
  for k in range(1, num_iter):
    length = min(length - 1, math.floor(num_tokens * math.cos(math.pi / 2 * k / num_iter)))
    lengths.append(length)
  return (*lengths, 0)


def blocks(num_tokens: int, block_length: int, prefix_share: float) -> tuple[tuple[int, int], ...]:
  """The places `(first, stop)` of CSpD's blocks, the first one fixed by the target alone.

  Args:
    num_tokens: `T`.
    block_length: `gamma`.
    prefix_share: share of the tokens; one more than this share is fixed by the target, so at
      least one.

  Raises:
    ValueError: if `block_length` is not from 1 to `num_tokens` or `prefix_share` not from 0 to 1.
  """
  check_length('block_length', block_length, num_tokens)
  check_prefix_share(prefix_share)
  first = min(math.floor(prefix_share * num_tokens) + 1, num_tokens)
  stops = [k + 1 for k in range(first, num_tokens) if k % block_length == 0 or k == num_tokens - 1]
  return tuple(zip([0, first, *stops[:-1]], [first, *stops]))


def check_length(name: str, length: int, num_tokens: int) -> None:
  """Raises ValueError, with `name`, unless so many tokens can be drafted per round."""
  if not 1 <= length <= num_tokens:
    raise ValueError(f'{name} is {length}; at least 1 token must be drafted per round and at most '
                     f'all of an image, {num_tokens}.')


def check_prefix_share(prefix_share: float) -> None:
  """Raises ValueError unless it is a share."""
  if not 0 <= prefix_share <= 1:
    raise ValueError(f'prefix_share is {prefix_share}; it must be from 0 to 1.')


def guidance_scale(
    scale: float, schedule: str, num_tokens: int, hidden: jax.Array | int,
) -> jax.Array:
  """The guidance scale of tokens, float32, in the shape of `hidden`.

  Args:
    scale: 1 is no guidance.
    schedule: 'linear' goes from about 1 to `scale` as the tokens get fixed;
      'constant' is `scale` throughout.
    num_tokens: tokens of an image.
    hidden: how many of them are hidden after the step. The step that fixes the
      last ones counts as leaving one, as published: the scale stays just below `scale`.

  Raises:
    ValueError: if there is no such schedule.
  """
  if schedule not in GUIDANCE_SCHEDULES:
    raise ValueError(
        f'schedule is {schedule!r}; it must be one of: {", ".join(GUIDANCE_SCHEDULES)}.')
  hidden = jnp.asarray(hidden)
  if schedule == 'constant':
    return jnp.full(hidden.shape, scale, jnp.float32)
  share = (num_tokens - jnp.maximum(hidden, 1)) / num_tokens
  return (1 + (scale - 1) * share).astype(jnp.float32)
