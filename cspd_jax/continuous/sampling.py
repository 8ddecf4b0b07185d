"""Run-time options of a decoder of continuous tokens."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import schedule as schedule_lib


class Sampling(NamedTuple):
  """How the head's output becomes the distribution that is sampled.

  Every field is a scalar or has one value per row, `[B]`. All are run-time values: a change does
  not trigger a new compilation.

  Attributes:
    guidance_scale: guidance scale at the end of an image ('linear') or throughout ('constant'),
      see `schedule.guidance_scale`; 1 is no guidance.
    temperature: multiplies the standard deviation of every kernel. The first state of the chain is
      not scaled.
  """

  guidance_scale: jax.typing.ArrayLike = 1.0
  temperature: jax.typing.ArrayLike = 1.0


def check(sampling: Sampling, num_streams: int, num_rows: int) -> None:
  """Raises ValueError for options out of range. For concrete values only.

  Args:
    sampling: the options.
    num_streams: `S` of the target.
    num_rows: `B`.
  """
  check_type(sampling)
  scale, temperature = map(np.asarray, sampling)
  for name, value in sampling._asdict().items():
    if np.shape(value) not in ((), (num_rows,)):
      raise ValueError(f'{name} has shape {np.shape(value)}; it must be a number or, for these '
                       f'{num_rows} rows, have shape ({num_rows},).')
  if not np.all(np.isfinite(scale)):
    raise ValueError(f'guidance_scale is {scale}; it must be finite.')
  if not np.all(np.isfinite(temperature) & (temperature > 0)):
    raise ValueError(f'temperature is {temperature}; it must be finite and above 0.')
  if num_streams == 1 and np.any(scale != 1):
    raise ValueError(
        f'guidance_scale is {scale}, but the model has no null condition to guide away from; '
        'set guidance_scale to 1 or build the target with guidance.')


def check_type(sampling: Sampling) -> None:
  """Raises ValueError for options of another type, also while they are traced."""
  if not isinstance(sampling, Sampling):
    raise ValueError(f'sampling is {sampling!r:.80}; it must be a cspd_jax.continuous.Sampling, '
                     'such as Sampling(temperature=0.9).')


def check_guidance(guidance: str) -> None:
  """Raises ValueError unless `guidance` names a guidance schedule."""
  if guidance not in schedule_lib.GUIDANCE_SCHEDULES:
    raise ValueError(f'guidance is {guidance!r}; it must be one of: '
                     f'{", ".join(schedule_lib.GUIDANCE_SCHEDULES)}.')


def scale(sampling: Sampling, guidance: str, num_tokens: int, masked: jax.Array) -> jax.Array:
  """Returns the guidance scale `[B, n]` of tokens after whose step `masked` `[B, n]` are masked."""
  last = jnp.broadcast_to(per_row(sampling.guidance_scale, masked.shape[0]), masked.shape)
  return schedule_lib.guidance_scale(last, guidance, num_tokens, masked)


def per_row(value: jax.typing.ArrayLike, batch: int) -> jax.Array:
  """Broadcasts a scalar, or one value per row, to `[B, 1]` float32."""
  value = jnp.asarray(value, jnp.float32)
  return jnp.broadcast_to(value, (batch,))[:, None]
