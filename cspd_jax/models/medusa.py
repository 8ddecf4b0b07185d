"""Medusa heads: predict several next tokens from one feature of the target (arXiv 2401.10774).

Medusa head `h` applies a residual block to the feature that predicted token `k` and predicts token
`k + 1 + h` with an output matrix of its own. Medusa heads depend neither on each other's tokens nor
on token `k`. In the shape descriptions `H` is the number of Medusa heads, `F` the width of a
feature and `V` the size of the vocabulary.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.core import fields, matrices
from cspd_jax.models.ends import Ends
from cspd_jax.models.layers import Linear

Params = Any


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
  """Sizes of a set of Medusa heads.

  Attributes:
    num_heads: `H`, number of tokens that are predicted after the target's next token.
    dim: `F`, the target's width.
    vocab_size: `V`.
  """

  num_heads: int = 4
  dim: int = 1280
  vocab_size: int = 16384

  def __post_init__(self):
    fields.check(self, num_heads=(1, fields.MOST_LAYERS))


class Head(nn.Module):
  """One Medusa head: maps a feature `x` to the logits `(x + silu(W x + b)) U`, float32."""

  config: MedusaConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    residual = Linear(self.config.dim, kernel_init=nn.initializers.zeros, name='residual')
    output = matrices.parameter(
        self, 'output', nn.initializers.normal(0.02), (self.config.dim, self.config.vocab_size))
    return matrices.einsum('...d,dv->...v', x + jax.nn.silu(residual(x)), output,
                           preferred_element_type=jnp.float32)


class Medusa(nn.Module):
  """All Medusa heads of a target."""

  config: MedusaConfig

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Returns logits `[..., H, V]` of features `[..., F]`."""
    logits = [Head(self.config, name=f'head_{h}')(features) for h in range(self.config.num_heads)]
    return jnp.stack(logits, axis=-2)


def init(config: MedusaConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters: residual blocks that add zero, random output matrices."""
  return jax.jit(Medusa(config).init)(key, jnp.zeros((1, config.dim)))['params']


def from_target(target: Ends, target_params: Params, config: MedusaConfig) -> Params:
  """Initialises float32 parameters with which every Medusa head repeats the target's distribution.

  The output matrix is copied, and 0 for tokens that only the target's grammar sets; a head of the
  target that is no matrix of these sizes raises ValueError.
  """
  if target.matrix is None:
    raise ValueError('the head of the target is not one matrix, from which Medusa heads are '
                     'initialised; train an EAGLE drafter for this target.')
  output = target.matrix(target_params)
  sizes = output.shape[0], max(output.shape[1], target.vocab_size)
  if sizes != (config.dim, config.vocab_size):
    raise ValueError(f'dim and vocab_size are {(config.dim, config.vocab_size)}; those of the '
                     f'target are {sizes}.')
  output = jnp.pad(jnp.asarray(output), ((0, 0), (0, config.vocab_size - output.shape[1])))
  params = init(config, jax.random.key(0))
  return {name: {**head, 'output': jnp.array(output, jnp.float32)} for name, head in params.items()}


def heads(params: Params, features: jax.Array) -> jax.Array:
  """Returns logits `[..., H, V]`, float32, of features `[..., F]`; see the module's docstring."""
  dim, vocab_size = params['head_0']['output'].shape
  config = MedusaConfig(len(params), dim, vocab_size)
  return Medusa(config).apply({'params': params}, features)
