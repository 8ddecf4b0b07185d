"""The sampling options that continuous tokens have."""

import functools
import operator

import jax
import jax.numpy as jnp

from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.core import rows
from cspd_jax.core.sampling import SamplingParams

# The valid values of every field.
_LIMITS: dict[str, rows.Limit] = dict(
    guidance_scale=rows.IS_SCALE,
    temperature=(lambda x: (x >= 0) & (x <= 1e37), 'from 0 to 1e37'))
# In place of smaller temperatures, 0 included: the noise is far below all rounding errors, and no
# standard deviation of a kernel is rounded to 0, by which decoders could not divide.
SMALLEST = 2.0**-90


def check(sampling: SamplingParams, num_streams: int, num_rows: int | None = None) -> jax.Array:
  """Returns whether all values of a row `[B]` are in range, as `rows.check_options` does."""
  if not isinstance(sampling, SamplingParams):
    raise ValueError(f'sampling is {sampling!r:.80}; it must be a cspd_jax.SamplingParams, such as '
                     'SamplingParams(temperature=0.9).')
  limits = {name: [limit] for name, limit in _LIMITS.items()}
  for name, default in SamplingParams._field_defaults.items():
    if name not in _LIMITS and getattr(sampling, name) is not None:
      limits[name] = [(functools.partial(operator.eq, default), f'{default}, because continuous '
                       'tokens have no such option; leave it out')]
  if num_streams == 1:
    limits['guidance_scale'].append(rows.IS_UNGUIDED)
  return rows.check_options(sampling._asdict(), limits, num_rows)


def scale(sampling: SamplingParams, guidance: str, num_tokens: int, masked: jax.Array) -> jax.Array:
  """Returns the guidance scale `[B, n]` of tokens after whose step `masked` `[B, n]` are masked."""
  last = jnp.broadcast_to(per_row(sampling.guidance_scale, masked.shape[0]), masked.shape)
  return schedule_lib.guidance_scale(last, guidance, num_tokens, masked)


def per_row(value: jax.typing.ArrayLike, batch: int) -> jax.Array:
  """Broadcasts a scalar, or one value per row, to `[B, 1]` float32."""
  value = jnp.asarray(value, jnp.float32)
  return jnp.broadcast_to(value, (batch,))[:, None]
