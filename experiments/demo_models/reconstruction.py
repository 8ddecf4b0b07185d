"""Reconstruction error and optimiser of the tokenizers' training steps."""

import jax
import jax.numpy as jnp

from cspd_jax.training.optimizer import OptimizerConfig

# Tokenizers are trained without weight decay and without a moving average.
OPTIMIZER = OptimizerConfig(
    num_steps=5000, batch_size=4, weight_decay=0.0, b2=0.99, ema_decay=None)


def error(
    output: jax.Array, images: jax.Array, gradient_weight: float,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the reconstruction term of a tokenizer's loss, without an adversary.

  It is the absolute error of the pixels and of their horizontal and vertical differences, which
  preserves sharp edges.

  Args:
    output: `[B, H, W, C]` output of the decoder before clipping.
    images: `[B, H, W, C]` in [-1, 1].
    gradient_weight: weight of the error of the differences of adjacent pixels.

  Returns:
    The loss term, and the metrics 'l1' and 'psnr' (decibels for pixel values in [0, 1]).
  """
  difference = output - images
  l1 = jnp.mean(jnp.abs(difference))
  edges = sum(jnp.mean(jnp.abs(jnp.diff(difference, axis=axis))) for axis in (1, 2))
  mean_square = jnp.mean((jnp.clip(output, -1, 1) - images) ** 2) / 4
  return l1 + gradient_weight * edges, {'l1': l1, 'psnr': -10 * jnp.log10(mean_square)}
