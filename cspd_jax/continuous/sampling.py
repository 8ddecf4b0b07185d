"""The sampling options that continuous tokens have."""

import jax
import jax.numpy as jnp

from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.core import sampling as sampling_lib
from cspd_jax.core.sampling import SamplingParams

# In place of smaller temperatures, 0 included: the noise is far below all rounding errors, and no
# standard deviation of a kernel is rounded to 0, by which decoders could not divide.
SMALLEST = 2.0**-90


def check(sampling: SamplingParams, num_streams: int, num_rows: int | None = None) -> jax.Array:
  """Returns whether all values of a row `[B]` are in range, as `rows.check_options` does."""
  return sampling_lib.check(sampling, sampling_lib.CONTINUOUS, num_streams, num_rows)


def scale(sampling: SamplingParams, guidance: str, num_tokens: int, masked: jax.Array) -> jax.Array:
  """Returns the guidance scale `[B, n]` of tokens after whose step `masked` `[B, n]` are masked."""
  last = jnp.broadcast_to(per_row(sampling.guidance_scale, masked.shape[0]), masked.shape)
  return schedule_lib.guidance_scale(last, guidance, num_tokens, masked)


def per_row(value: jax.typing.ArrayLike, batch: int) -> jax.Array:
  """Broadcasts a scalar, or one value per row, to `[B, 1]` float32."""
  value = jnp.asarray(value, jnp.float32)
  return jnp.broadcast_to(value, (batch,))[:, None]
