"""Run-time options of a decoder of continuous tokens."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.base import Condition, Target


class Sampling(NamedTuple):
  """How the head's output becomes the distribution that is sampled.

  Every field is a scalar or has one value per row, `[B]`; all are run-time values:
  changing them does not compile anew.

  Attributes:
    guidance_scale: scale that the guidance reaches at the end of an image, or keeps
      throughout, as the decoder's guidance schedule says; 1 is no guidance.
    temperature: multiplies the standard deviation of every kernel. The first state
      of the chain is not scaled.
  """

  guidance_scale: jax.typing.ArrayLike = 1.0
  temperature: jax.typing.ArrayLike = 1.0


def check(condition: Condition, sampling: Sampling, *models: Target) -> None:
  """Raises ValueError for what the models cannot work with. For concrete values.

  Args:
    condition: what every model's `transform` takes, with leading axis `B`.
    sampling: the options.
    *models: the target and, if there is one, the draft model.
  """
  for model in models:
    model.check_condition(condition)
  num_rows = jax.tree.leaves(condition)[0].shape[0]
  scale, temperature = map(np.asarray, sampling)
  for name, value in sampling._asdict().items():
    if np.shape(value) not in ((), (num_rows,)):
      raise ValueError(f'{name} has shape {np.shape(value)}; it must be a number or, for these '
                       f'{num_rows} rows, have shape ({num_rows},).')
  if not np.all(np.isfinite(scale)):
    raise ValueError(f'guidance_scale is {scale}; it must be finite.')
  if not np.all(np.isfinite(temperature) & (temperature > 0)):
    raise ValueError(f'temperature is {temperature}; it must be finite and above 0.')
  if models[0].num_streams == 1 and np.any(scale != 1):
    raise ValueError(
        f'guidance_scale is {scale}, but the model has no null condition to guide away from; '
        'set guidance_scale to 1 or build the target with guidance.')


def check_guidance(guidance: str) -> None:
  """Raises ValueError if there is no such guidance schedule."""
  if guidance not in schedule_lib.GUIDANCE_SCHEDULES:
    raise ValueError(f'guidance is {guidance!r}; it must be one of: '
                     f'{", ".join(schedule_lib.GUIDANCE_SCHEDULES)}.')


def scale(sampling: Sampling, guidance: str, num_tokens: int, hidden: jax.Array) -> jax.Array:
  """Returns the guidance scale `[B, n]` of tokens after whose step `hidden` `[B, n]` are hidden."""
  last = jnp.broadcast_to(per_row(sampling.guidance_scale, hidden.shape[0]), hidden.shape)
  return schedule_lib.guidance_scale(last, guidance, num_tokens, hidden)


def per_row(value: jax.typing.ArrayLike, batch: int) -> jax.Array:
  """Gives every row a value, `[B, 1]` float32, from a scalar or from one value per row."""
  value = jnp.asarray(value, jnp.float32)
  return jnp.broadcast_to(value, (batch,))[:, None]
