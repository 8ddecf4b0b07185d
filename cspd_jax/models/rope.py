"""Rotary tables of positions in the sequence or in the grid of an image."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.models.transformer import Rope

# Maps positions `[R or 1, L]` int to rotary tables, which must be finite past the end of the image.
RopeFunction = Callable[[jax.Array], Rope]


def frequencies(count: int, base: float) -> np.ndarray:
  """Returns the rotary frequencies `1 / base**(i / count)`, `[count]` float32.

  The formula of the published code, `1.0 / base**(torch.arange(0, 2 * count, 2).float() /
  (2 * count))`, with rounding to float32 at the same steps. The last bit matters: it rotates
  position 9300 by 1e-3.
  """
  exponents = np.arange(count, dtype=np.float32) / np.float32(count)
  # NumPy's float32 power errs in the last bit more often than PyTorch's, which rounds correctly for
  # all but one number in a hundred; a float64 power achieves this on every processor.
  powers = np.float64(np.float32(base)) ** exponents.astype(np.float64)
  return np.float32(1) / powers.astype(np.float32)


def sequence_rope(head_dim: int, base: float) -> RopeFunction:
  """Returns a rotation by the position in the sequence; negative positions are treated as 0."""
  turns = frequencies(head_dim // 2, base)

  def rope(positions: jax.Array) -> Rope:
    angles = jnp.maximum(positions, 0)[..., None] * turns
    return Rope(jnp.cos(angles), jnp.sin(angles))

  return rope


def grid_rope(num_tokens: int, row_width: int, head_dim: int, base: float) -> RopeFunction:
  """Returns a rotation by row and column of an image token, half of the numbers each.

  Tables are zero at negative positions, which sets queries and keys to zero; tokens past the end
  use the last cell.
  """
  turns = frequencies(head_dim // 4, base)

  def rope(positions: jax.Array) -> Rope:
    cell = jnp.divmod(jnp.clip(positions, 0, num_tokens - 1), row_width)
    angles = jnp.concatenate([part[..., None] * turns for part in cell], axis=-1)
    image = (positions >= 0)[..., None]
    return Rope(jnp.where(image, jnp.cos(angles), 0), jnp.where(image, jnp.sin(angles), 0))

  return rope
