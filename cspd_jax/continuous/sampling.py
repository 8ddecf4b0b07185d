"""Run-time options of a decoder of continuous tokens."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.core import rows


class Sampling(NamedTuple):
  """How the head's output becomes the distribution that is sampled.

  Every field is a scalar or has one value per row, `[B]`. All are run-time values: a change does
  not trigger a new compilation.

  Attributes:
    guidance_scale: guidance scale at the end of an image ('linear') or throughout ('constant'),
      see `schedule.guidance_scale`; 1 is no guidance.
    temperature: multiplies the standard deviation of every kernel; 0 makes the kernels
      deterministic. The first state of the chain is not scaled.
  """

  guidance_scale: jax.typing.ArrayLike = 1.0
  temperature: jax.typing.ArrayLike = 1.0


# The valid values of every field.
_LIMITS: dict[str, rows.Limit] = dict(
    guidance_scale=rows.IS_SCALE,
    temperature=(lambda x: (x >= 0) & (x <= 1e37), 'from 0 to 1e37'))
# In place of smaller temperatures, 0 included: the noise is far below all rounding errors, and no
# standard deviation of a kernel is rounded to 0, by which decoders could not divide.
SMALLEST = 2.0**-90


def check(sampling: Sampling, num_streams: int, num_rows: int | None = None) -> jax.Array:
  """Returns whether all values of a row `[B]` are in range, as `rows.check_options` does."""
  if not isinstance(sampling, Sampling):
    raise ValueError(f'sampling is {sampling!r:.80}; it must be a cspd_jax.continuous.Sampling, '
                     'such as Sampling(temperature=0.9).')
  limits = {name: [limit] for name, limit in _LIMITS.items()}
  if num_streams == 1:
    limits['guidance_scale'].append(rows.IS_UNGUIDED)
  return rows.check_options(sampling._asdict(), limits, num_rows)


def scale(sampling: Sampling, guidance: str, num_tokens: int, masked: jax.Array) -> jax.Array:
  """Returns the guidance scale `[B, n]` of tokens after whose step `masked` `[B, n]` are masked."""
  last = jnp.broadcast_to(per_row(sampling.guidance_scale, masked.shape[0]), masked.shape)
  return schedule_lib.guidance_scale(last, guidance, num_tokens, masked)


def per_row(value: jax.typing.ArrayLike, batch: int) -> jax.Array:
  """Broadcasts a scalar, or one value per row, to `[B, 1]` float32."""
  value = jnp.asarray(value, jnp.float32)
  return jnp.broadcast_to(value, (batch,))[:, None]
