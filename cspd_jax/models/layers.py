"""Layers of several networks: norms, computed in float32, and the layer of vision transformers."""

import functools
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.core import matrices

XAVIER = nn.initializers.xavier_uniform()
# By the names in configs; 'gelu_tanh' approximates 'gelu' by tanh.
ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    'gelu': functools.partial(jax.nn.gelu, approximate=False),
    'gelu_tanh': functools.partial(jax.nn.gelu, approximate=True),
    'quick_gelu': lambda x: x * jax.nn.sigmoid(1.702 * x),
    'silu': jax.nn.silu}
# Added to the variance in the norms of attention heads, in all published models.
_HEAD_EPS = 1e-5


class Linear(nn.Module):
  """Applies a matrix, which may be a `matrices.OutputMajor`, and a bias, as `flax.linen.Dense`."""

  dim: int
  use_bias: bool = True
  kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    kernel = matrices.parameter(self, 'kernel', self.kernel_init, (x.shape[-1], self.dim))
    result = matrices.einsum('...d,de->...e', x, kernel)
    if self.use_bias:
      result = result + self.param('bias', nn.initializers.zeros, (self.dim,))
    return result


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
    # The variance is of the centred values, so that on GPUs the norm is one kernel.
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + _HEAD_EPS)
    return wide.astype(x.dtype) * scale + bias


def layer_norm(epsilon: float, name: str | None = None) -> nn.LayerNorm:
  """Returns a layer norm whose variance is of the centred values."""
  return nn.LayerNorm(epsilon=epsilon, use_fast_variance=False, name=name)


class VisionLayer(nn.Module):
  """A pre-norm layer of a vision transformer, with biases: attention, then a network.

  Attributes:
    num_heads: attention heads.
    ffn_dim: hidden width of the network.
    norm_eps: added to the variance in the norms.
    activation: of the network, a key of `ACTIVATIONS`.
    dropout: rate of the dropout.
  """

  num_heads: int
  ffn_dim: int
  norm_eps: float
  activation: str = 'gelu'
  dropout: float = 0.0

  @nn.compact
  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Runs the layer on `x` `[R, L, D]`; `mask` `[R or 1, 1, L or 1, L]` bool is what rows see."""
    dim, heads = x.shape[-1], self.num_heads
    drop = nn.Dropout(self.dropout, deterministic=self.dropout == 0)
    # Separate query, key and value kernels, initialised as thirds of a Xavier-uniform fused kernel.
    third = nn.initializers.variance_scaling(0.5, 'fan_avg', 'uniform')

    normed = layer_norm(self.norm_eps, 'attention_norm')(x)
    query, key, value = (
        nn.DenseGeneral((heads, dim // heads), kernel_init=third, name=name)(normed)
        for name in ('query', 'key', 'value'))
    scores = jnp.einsum('rqhe,rkhe->rhqk', query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores * (dim // heads)**-0.5, -jnp.inf)
    weights = drop(jax.nn.softmax(scores, axis=-1).astype(x.dtype))
    attended = jnp.einsum('rhqk,rkhe->rqhe', weights, value)
    out = nn.DenseGeneral(dim, axis=(-2, -1), kernel_init=XAVIER, name='out')(attended)
    x = x + drop(out)

    h = nn.Dense(self.ffn_dim, kernel_init=XAVIER, name='mlp_in')(
        layer_norm(self.norm_eps, 'mlp_norm')(x))
    h = nn.Dense(dim, kernel_init=XAVIER, name='mlp_out')(drop(ACTIVATIONS[self.activation](h)))
    return x + drop(h)
