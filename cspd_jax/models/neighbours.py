"""The next token from its neighbours in the image: a network without attention or cache.

It looks at the tokens to the left and above, those that are near in the image, and says what the
token between them may be. On its own it would paint wallpaper; as a corrector of a target's stale
answers (`drafters.corrected`) it tells what a changed neighbour changes. It needs nothing but
images that the target has sampled, so every checkpoint can have one.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.decoding.drafters.corrector import Corrector, distributions
from cspd_jax.decoding.drafters.draft_model import check_grid

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
    fields.check(self, num_tokens=(1, fields.MOST_SIDE**2))


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


class _State(NamedTuple):
  """Attributes:
    tokens: `[B, T']` the committed tokens; others behind them.
    nodes: `[B, L]` main chain of the last round behind its root.
    first: `[B]` the number of that root.
  """

  tokens: jax.Array
  nodes: jax.Array
  first: jax.Array


def corrector(config: NeighboursConfig) -> Corrector:
  """The network as a corrector; its parameters are the `draft_params`."""

  def init(env, condition, outcome, length):
    del env, condition
    token = outcome.tokens[:, :1]
    return _State(outcome.tokens, jnp.repeat(token, length, axis=1),
                   jnp.zeros_like(token[:, 0]))

  def forward(env, committed, tokens, first, start):
    """Logits of the tokens behind number `start`, where `tokens` begin at number `first`."""
    count = tokens.shape[1]
    image = jnp.pad(committed, ((0, 0), (0, count)))
    image = jax.vmap(jax.lax.dynamic_update_slice_in_dim, (0, 0, 0, None))(
        image, tokens, first, 0)
    positions = start[:, None] + 1 + jnp.arange(count)
    return logits(env.params, config, image, positions)[None]

  def begin(env, state, tokens, start):
    # One call: the images before and after the last round are so many rows.
    double = lambda old, new: jnp.concatenate([old, new])
    nodes, count = state.nodes, tokens.shape[1]
    tokens = jnp.pad(tokens, ((0, 0), (0, nodes.shape[1] - count)))
    both = forward(
        env, double(state.tokens, state.tokens), double(nodes, tokens),
        double(state.first, start) + 1, double(state.first + 1, start))
    old, prediction = jnp.split(both, 2, axis=1)
    return prediction[:, :, :count], old, state.first, state

  def score(env, state, tokens, start):
    return forward(env, state.tokens, tokens, start + 1, start), state

  def update(env, state, outcome):
    del env
    return _State(outcome.tokens, outcome.nodes[:, 1:state.nodes.shape[1] + 1],
                   outcome.root)

  return distributions(
      init, begin, score, update, functools.partial(check_grid, config, 'corrector'))
