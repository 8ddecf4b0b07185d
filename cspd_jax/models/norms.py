"""Norms of activations, computed in float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp

# Added to the variance in the norms of attention heads, in all published models.
_HEAD_EPS = 1e-5


class RMSNorm(nn.Module):
  """Root-mean-square norm, computed in float32 and cast back before the scale is applied.

  The result has the dtype of the input, also with scales of a wider dtype.
  """

  eps: float

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
    return (wide.astype(x.dtype) * scale).astype(x.dtype)


class HeadNorm(nn.Module):
  """Layer norm of each attention head with its own scales and biases, computed in float32."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises `x` `[R, L, heads, E]`."""
    scale = self.param('scale', nn.initializers.ones, x.shape[-2:])
    bias = self.param('bias', nn.initializers.zeros, x.shape[-2:])
    # The variance is that of the centred values, so that on GPUs the norm is one kernel.
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + _HEAD_EPS)
    return wide.astype(x.dtype) * scale + bias
