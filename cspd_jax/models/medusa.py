"""Medusa heads: several next tokens at once from one feature of the target (arXiv 2401.10774).

Head `h` adds a residual block to the feature that predicted token `k` and predicts token
`k + 1 + h` with an output matrix of its own. The heads do not see each other's tokens, nor token
`k`. In the shape descriptions `H` is the number of heads, `F` the width of a feature and `V` the
size of the vocabulary.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.core import fields
from cspd_jax.decoding.drafters.medusa import Heads
from cspd_jax.models.ends import Ends

Params = Any


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
  """Sizes of a set of heads.

  Attributes:
    num_heads: `H`, tokens that are predicted beyond the target's own.
    dim: `F`, the target's width.
    vocab_size: `V`.
  """

  num_heads: int = 4
  dim: int = 1280
  vocab_size: int = 16384

  def __post_init__(self):
    fields.check(self, num_heads=(1, fields.MOST_LAYERS))


class Head(nn.Module):
  """Maps a feature `x` to the logits `(x + silu(W x + b)) U`, float32."""

  config: MedusaConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    residual = nn.Dense(self.config.dim, kernel_init=nn.initializers.zeros, name='residual')
    output = self.param(
        'output', nn.initializers.normal(0.02), (self.config.dim, self.config.vocab_size))
    return jnp.matmul(x + jax.nn.silu(residual(x)), output, preferred_element_type=jnp.float32)


class Medusa(nn.Module):
  """All heads."""

  config: MedusaConfig

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Logits `[..., H, V]` of features `[..., F]`."""
    logits = [Head(self.config, name=f'head_{h}')(features) for h in range(self.config.num_heads)]
    return jnp.stack(logits, axis=-2)


def init(config: MedusaConfig, key: jax.Array) -> Params:
  """Float32 parameters: residual blocks that add nothing, random output matrices."""
  return jax.jit(Medusa(config).init)(key, jnp.zeros((1, config.dim)))['params']


def from_target(target: Ends, target_params: Params, config: MedusaConfig) -> Params:
  """Float32 parameters with which every head repeats the target's own distribution.

  Args:
    target: the target's embedding and head.
    target_params: its parameters; the output matrix is copied.
    config: the sizes.

  Raises:
    ValueError: if the target's head is no matrix of these sizes.
  """
  if target.matrix is None:
    raise ValueError('the head of the target is not one matrix, of which Medusa heads begin as '
                     'copies; train an EAGLE drafter for it.')
  output = target.matrix(target_params)
  if output.shape != (config.dim, config.vocab_size):
    raise ValueError(
        f'dim and vocab_size are {(config.dim, config.vocab_size)}; the output matrix of the '
        f'target has {output.shape}.')
  params = init(config, jax.random.key(0))
  return {name: {**head, 'output': jnp.array(output, jnp.float32)}
          for name, head in params.items()}


def heads(params: Params, features: jax.Array) -> jax.Array:
  """Logits `[..., H, V]`, float32, of features `[..., F]`; head `h` is for token `k + 1 + h`."""
  dim, vocab_size = params['head_0']['output'].shape
  config = MedusaConfig(len(params), dim, vocab_size)
  return Medusa(config).apply({'params': params}, features)


def drafting_heads(config: MedusaConfig) -> Heads:
  """The heads for `decoding.drafters.medusa`."""
  return Heads(heads, config.num_heads, config.vocab_size)
