"""The next token from its neighbours in the image: a network without attention or cache.

It looks at the tokens to the left and above, those that are near in the image, and says what the
token between them may be. On its own it would paint wallpaper; as a corrector of a target's stale
answers (`drafters.corrected`) it tells what a changed neighbour changes. It needs nothing but
images that the target has sampled, so every checkpoint can have one.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding.drafters.corrector import Corrector
from cspd_jax.decoding.drafters.model import check_grid

Params = Any
# Rows above and columns to the right of the neighbours, the nearest first.
OFFSETS = ((0, -1), (1, 0), (1, 1), (1, -1), (0, -2), (2, 0), (1, 2))


@dataclasses.dataclass(frozen=True)
class NeighboursConfig:
  """Sizes of the network.

  Attributes:
    vocab_size: `V`.
    num_tokens: `T`, tokens of an image.
    row_width: tokens of an image row.
    dim: width of a token's embedding.
    hidden_dim: width of the two hidden layers.
  """

  vocab_size: int = 16384
  num_tokens: int = 256
  row_width: int = 16
  dim: int = 64
  hidden_dim: int = 384

  def __post_init__(self):
    for field in dataclasses.fields(self):
      if getattr(self, field.name) < 1:
        raise ValueError(f'{field.name} is {getattr(self, field.name)}; it must be at least 1.')


class Neighbours(nn.Module):
  """Maps the tokens of neighbours `[..., 7]`, `V` where there is none, to logits `[..., V]`."""

  config: NeighboursConfig

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    config = self.config
    x = nn.Embed(config.vocab_size + 1, config.dim, name='embedding')(tokens)
    x = x.reshape(*x.shape[:-2], -1)
    for i in range(2):
      x = jax.nn.silu(nn.Dense(config.hidden_dim, name=f'hidden_{i}')(x))
    output = self.param(
        'output', nn.initializers.zeros, (config.hidden_dim, config.vocab_size))
    return jnp.matmul(x, output, preferred_element_type=jnp.float32)


def init(config: NeighboursConfig, key: jax.Array) -> Params:
  """Float32 parameters that predict the uniform distribution."""
  return jax.jit(Neighbours(config).init)(key, jnp.zeros((1, len(OFFSETS)), jnp.int32))['params']


def logits(params: Params, config: NeighboursConfig, image: jax.Array,
           positions: jax.Array) -> jax.Array:
  """Logits of tokens given the tokens before them.

  Args:
    params: parameters of the network.
    config: its sizes.
    image: `[B, R]` tokens in raster order; those before a position are read.
    positions: `[B, n]` number of each token.

  Returns:
    `[B, n, V]` float32.
  """
  up, right = np.array(OFFSETS).T
  width = config.row_width
  column = positions[..., None] % width + right
  source = positions[..., None] - up * width + right
  is_there = (source >= 0) & (column >= 0) & (column < width)
  source = jnp.clip(source, 0, image.shape[1] - 1)
  near = jax.vmap(lambda row, index: row[index])(image, source)
  return Neighbours(config).apply(
      {'params': params}, jnp.where(is_there, near, config.vocab_size))


def corrector(config: NeighboursConfig) -> Corrector:
  """The network as a corrector; its parameters are the `draft_params`.

  What it remembers is the committed tokens.
  """

  def read(env, memory, root, tokens, start):
    known = jnp.concatenate([root[:, None], tokens], axis=1)
    image = jnp.pad(memory, ((0, 0), (0, known.shape[1])))
    image = jax.vmap(jax.lax.dynamic_update_slice_in_dim, (0, 0, 0, None))(image, known, start, 0)
    positions = start[:, None] + 1 + jnp.arange(known.shape[1])
    return logits(env.params, config, image, positions)[None], memory

  return Corrector(
      init=lambda env, condition, outcome, length: outcome.tokens, read=read,
      took=lambda env, memory, outcome: outcome.tokens,
      check=functools.partial(check_grid, config, 'corrector'))
