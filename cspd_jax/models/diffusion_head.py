"""The diffusion head of MAR: a small network that denoises one token (arXiv 2406.11838).

NextStep-1's flow head (arXiv 2508.10711) is the same network without variances.

In the shape descriptions, `N` is any number of states, `L` of levels, `R` of modulations, `C` the
length of a token, `D` the width of the transformer, `W` the diffusion head's and `M` the
number of rows of a modulation: three per block, and two for the output.

At full precision, float32 products do not use the tensor cores of a GPU, which multiply an order of
magnitude faster, and require six passes on a TPU. If the matrix is stored in bfloat16, three
products in bfloat16 are enough: a float32 number is the sum of three bfloat16 numbers,
and the products of two bfloat16 numbers are exact in float32, in which they are summed.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

NORM_EPS = 1e-6
_TIME_FEATURES = 256
_TABLE = nn.initializers.normal(0.02)
_XAVIER = nn.initializers.xavier_uniform()


def num_parts(num_layers: int) -> int:
  """Returns `M`, the rows of a modulation."""
  return 3 * num_layers + 2


def outputs(out: jax.Array, token_dim: int) -> tuple[jax.Array, jax.Array]:
  """Splits the output of the last layer `[N, C or 2 C]` into noise and variance, both `[N, C]`."""
  if out.shape[1] == token_dim:
    return out, jnp.zeros_like(out)
  return out[:, :token_dim], out[:, token_dim:]


class Head(nn.Module):
  """Predicts noise and variance of a state from its step and the transformer's `z`, in float32.

  A residual network on the state; the step and `z` shift, scale and gate each block (the adaLN of
  DiT, arXiv 2212.09748).

  Attributes:
    width: `W`.
    num_layers: residual blocks.
    token_dim: `C`.
    learned_variance: whether the head predicts variances; else `v` is 0 at every state.
  """

  width: int
  num_layers: int
  token_dim: int
  learned_variance: bool = True

  def setup(self):
    width, zeros = self.width, nn.initializers.zeros
    exact = dict(dtype=jnp.float32, promote_dtype=promote_dtype, dot_general=dot_general)

    def dense(features, init=_XAVIER):
      return nn.Dense(features, kernel_init=init, **exact)

    def norm(**options):
      return nn.LayerNorm(epsilon=NORM_EPS, use_fast_variance=False, dtype=jnp.float32, **options)

    def layers(build):
      return [build() for _ in range(self.num_layers)]

    self.state = dense(width)
    self.time_in, self.time_out = dense(width, _TABLE), dense(width, _TABLE)
    self.condition = dense(width)
    # One matrix for all blocks and the output: one product, without a concatenation of kernels.
    self.modulation = nn.DenseGeneral(
        (num_parts(self.num_layers), width), kernel_init=zeros, **exact)
    self.norm = layers(norm)
    self.mlp_in, self.mlp_out = (layers(lambda: dense(width)) for _ in range(2))
    self.out_norm = norm(use_scale=False, use_bias=False)
    self.out = dense((1 + self.learned_variance) * self.token_dim, zeros)

  def modulate(self, step: jax.Array, z: jax.Array) -> jax.Array:
    """Returns `[N, L, M, W]`, see `continuous.base.Modulation.make`.

    These are shift, scale and gate of every block, then shift and scale of the output.
    """
    return self.modulation(jax.nn.silu(self._times(step) + self.condition(z)[:, None]))

  def apply_modulated(self, x: jax.Array, modulation: jax.Array, row: jax.Array
                      ) -> tuple[jax.Array, jax.Array]:
    """Returns the noise and `v` of states, whose `modulation` is `[R, M, W]`."""
    # Gathering whole rows of a table is much faster than gathering its entries.
    return self._apply(x, modulation.at[row].get(mode='promise_in_bounds'))

  def _apply(self, x: jax.Array, modulation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Runs the network on states `[N, C]` with one modulation `[N, M, W]` each."""
    row = lambda number: modulation[:, number]
    h = self.state(x)
    for i, (norm, mlp_in, mlp_out) in enumerate(zip(self.norm, self.mlp_in, self.mlp_out)):
      shift, scale, gate = map(row, range(3 * i, 3 * i + 3))
      inner = norm(h) * (1 + scale) + shift
      h = h + gate * mlp_out(jax.nn.silu(mlp_in(inner)))
    shift, scale = row(-2), row(-1)
    return outputs(self.out(self.out_norm(h) * (1 + scale) + shift), self.token_dim)

  def __call__(
      self, x: jax.Array, step: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the noise and `v` of states."""
    y = jax.nn.silu(self._times(step) + self.condition(z))
    return self._apply(x, self.modulation(y))

  def _times(self, step: jax.Array) -> jax.Array:
    """Embeds steps `[L]` as `[L, W]`."""
    return self.time_out(jax.nn.silu(self.time_in(_time_features(step))))


def _time_features(step: jax.Array) -> jax.Array:
  """Cosines, then sines, of steps `[N]` at 128 frequencies, `[N, 256]` float32."""
  half = _TIME_FEATURES // 2
  # Rounded to float32 where the published code rounds; otherwise angles, which reach 999, are off
  # by 1e-4.
  exponents = np.float32(-math.log(10000)) * np.arange(half, dtype=np.float32) / np.float32(half)
  frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
  angles = step[:, None].astype(jnp.float32) * frequencies
  return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


# The sign, exponent and first bits of the mantissa of float32 numbers, which are a bfloat16 number.
_FIRST_BITS = np.uint32(0xffff0000)


def parts(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Splits float32 numbers into bfloat16 numbers whose sum they are, the smallest first.

  Numbers below 1e-33 lose their last bits.
  """
  def first_bits(x: jax.Array) -> jax.Array:
    # XLA may omit a conversion to bfloat16 and back.
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) & _FIRST_BITS
    return jax.lax.bitcast_convert_type(bits, jnp.float32)

  high = first_bits(x)
  middle = first_bits(x - high)
  low, middle, high = (part.astype(jnp.bfloat16) for part in (x - high - middle, middle, high))
  return low, middle, high


def promote_dtype(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, *, dtype: Any,
                  inexact: bool = True) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Promotes the inputs of a layer except for the kernel; for `promote_dtype` of Flax layers."""
  return x.astype(dtype), kernel, None if bias is None else bias.astype(dtype)


def dot_general(x: jax.Array, kernel: jax.Array, dimension_numbers: Any, precision: Any = None
                ) -> jax.Array:
  """Multiplies `x` `[..., K]` float32 and a matrix `[K, ...]`; for `dot_general` of Flax layers.

  A bfloat16 matrix is multiplied in bfloat16 on GPUs and TPUs, every other as float32, at
  `precision`.
  """
  def plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.dot_general(x, kernel.astype(x.dtype), dimension_numbers, precision)

  if kernel.dtype != jnp.bfloat16:
    return plain(x, kernel)
  return jax.lax.platform_dependent(x, kernel, cuda=_split, tpu=_split, default=plain)


def _split(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Multiplies the three parts of `x`, and adds the results."""
  product = lambda x: jax.lax.dot_general(
      x, kernel, (((x.ndim - 1,), (0,)), ((), ())),
      precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32)
  if kernel.ndim == 2:  # One kernel for all parts.
    low, middle, high = product(jnp.stack(parts(x)))
  else:  # Results larger than their inputs: one of them is added as it is computed.
    low, middle, high = map(product, parts(x))
  return low + middle + high
