"""Rotary tables of positions, in the sequence or in the grid of an image."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.models.transformer import Rope

# Positions `[R or 1, L]` int to rotary tables. Image tokens past the end must give finite numbers.
RopeFunction = Callable[[jax.Array], Rope]


def frequencies(count: int, base: float) -> np.ndarray:
  """Rotary frequencies `1 / base**(i / count)`, `[count]` float32.

  The formula of the published programs, `1.0 / base**(torch.arange(0, 2 * count, 2).float() /
  (2 * count))`, rounded to float32 where theirs is. The last bit matters: it turns a position of
  9300 by 1e-3.
  """
  exponents = np.arange(count, dtype=np.float32) / np.float32(count)
  # NumPy's power in float32 is off by a bit more often than PyTorch's, which rounds correctly but
  # for one number in a hundred; so does this one, on every processor.
  powers = np.float64(np.float32(base)) ** exponents.astype(np.float64)
  return np.float32(1) / powers.astype(np.float32)


def sequence_rope(head_dim: int, base: float) -> RopeFunction:
  """Rotation by the place in the sequence; negative positions count as 0."""
  turns = frequencies(head_dim // 2, base)

  def rope(positions):
    angles = jnp.maximum(positions, 0)[..., None] * turns
    return Rope(jnp.cos(angles), jnp.sin(angles))

  return rope


def grid_rope(num_tokens: int, row_width: int, head_dim: int, base: float) -> RopeFunction:
  """Rotation by row and column of an image token, half of the numbers each.

  Negative positions get zeros, which make queries and keys vanish; the last cell serves for
  tokens past the end.
  """
  turns = frequencies(head_dim // 4, base)

  def rope(positions):
    cell = jnp.divmod(jnp.clip(positions, 0, num_tokens - 1), row_width)
    angles = jnp.concatenate([part[..., None] * turns for part in cell], axis=-1)
    image = (positions >= 0)[..., None]
    return Rope(jnp.where(image, jnp.cos(angles), 0), jnp.where(image, jnp.sin(angles), 0))

  return rope
