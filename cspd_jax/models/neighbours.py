"""The neighbours network: predicts a token from nearby tokens, without attention or a cache.

Its inputs are the nearest tokens to the left and above in the image, and where a small image comes
first, its token at the same place. Its own samples would only repeat local texture; as the
corrector of a target's stale distributions (`drafters.corrected`) it predicts how they change when
a nearby token changes. It is trained on images that the target has sampled and needs nothing else,
so it is available for every checkpoint.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts, fields, matrices
from cspd_jax.decoding.base import DecodeContext, RoundResult
from cspd_jax.decoding.drafters.correctors import Corrector, distributions
from cspd_jax.models.layers import Linear

Params = Any
# Nearby tokens, the nearest first: rows above and columns to the right of the predicted token.
OFFSETS = ((0, -1), (1, 0), (1, 1), (1, -1), (0, -2), (2, 0), (1, 2))


@dataclasses.dataclass(frozen=True)
class NeighboursConfig:
  """Sizes of the network.

  Attributes:
    vocab_size: `V`.
    num_tokens: `T`, tokens of an image.
    row_width: tokens of an image row.
    small: rows and columns of a small image before that image, for targets that draw both; its
      token at the place of the predicted one is an input too. (0, 0) without one.
    dim: width of a token's embedding.
    hidden_dim: width of the two hidden layers.
  """

  vocab_size: int = 16384
  num_tokens: int = 256
  row_width: int = 16
  small: tuple[int, ...] = (0, 0)
  dim: int = 64
  hidden_dim: int = 384

  def __post_init__(self):
    fields.check(self, num_tokens=(1, fields.MOST_SIDE**2), small=(0, fields.MOST_SIDE))
    fields.require(len(self.small) == 2 and math.prod(self.small) + self.row_width <=
                   self.num_tokens, 'small', self.small,
                   'two numbers, rows and columns of fewer tokens than num_tokens')

  @property
  def num_inputs(self) -> int:
    """The number of tokens that the network reads."""
    return len(OFFSETS) + (self.small != (0, 0))


class Neighbours(nn.Module):
  """Maps nearby tokens `[..., n]`, `V` for those outside the image, to logits `[..., V]`."""

  config: NeighboursConfig

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    config = self.config
    x = nn.Embed(config.vocab_size + 1, config.dim, name='embedding')(tokens)
    x = x.reshape(*x.shape[:-2], -1)
    for i in range(2):
      x = jax.nn.silu(Linear(config.hidden_dim, name=f'hidden_{i}')(x))
    output = matrices.parameter(
        self, 'output', nn.initializers.zeros, (config.hidden_dim, config.vocab_size))
    return matrices.einsum('...d,dv->...v', x, output, preferred_element_type=jnp.float32)


def init(config: NeighboursConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters that predict the uniform distribution."""
  inputs = jnp.zeros((1, config.num_inputs), jnp.int32)
  return jax.jit(Neighbours(config).init)(key, inputs)['params']


def logits(params: Params, config: NeighboursConfig, image: jax.Array,
           positions: jax.Array) -> jax.Array:
  """Predicts tokens at `positions` `[B, n]` of images `[B, R]`, `[B, n, V]` float32."""
  return Neighbours(config).apply({'params': params}, nearby(config, image, positions)[0])


def nearby(config: NeighboursConfig, image: jax.Array, positions: jax.Array
           ) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the tokens `[B, n, k]` near `positions` `[B, n]` of images `[B, R]`.

  `V` is in the place of those outside the image. Also returns where they are, `[B, n, k]`, and
  which of them are inside the image.
  """
  if config.small == (0, 0):
    source, in_image = _near(positions, config.row_width, jnp)
  else:
    source = jnp.asarray(_near_in_two(config))[jnp.clip(positions, 0, config.num_tokens - 1)]
    in_image = source >= 0
  near = jax.vmap(lambda row, index: row[index])(image, jnp.clip(source, 0, image.shape[1] - 1))
  return jnp.where(in_image, near, config.vocab_size), source, in_image


def _near(positions: Any, width: int, library: Any) -> tuple[Any, Any]:
  """Returns the places `[..., 7]` of nearby tokens, and which of them are in the image."""
  up, right = np.array(OFFSETS).T
  column = positions[..., None] % width + right
  source = positions[..., None] - up * width + right
  return source, (source >= 0) & (column >= 0) & (column < width)


def _near_in_two(config: NeighboursConfig) -> np.ndarray:
  """Returns the places `[T, 8]` of nearby tokens in the own image and of the small one, or -1.

  A token of the small image, and one behind the last whole row, has none of the last kind.
  """
  rows, columns = config.small
  first, width = rows * columns, config.row_width
  height = (config.num_tokens - first) // width
  parts = []
  for start, size, row_width in ((0, first, columns), (first, config.num_tokens - first, width)):
    source, in_image = _near(np.arange(size), row_width, np)
    parts.append(np.where(in_image, start + source, -1))
  below = np.full(config.num_tokens, -1)
  below[first:first + height * width] = small_cells(config.small, height, width)
  return np.concatenate([np.concatenate(parts), below[:, None]], axis=1).astype(np.int32)


def small_cells(small: tuple[int, ...], height: int, width: int) -> np.ndarray:
  """Returns the tokens `[height width]` of a small image at the positions of a larger one's."""
  rows, columns = small
  row, column = np.indices((height, width)).reshape(2, -1)
  return (row * rows // height) * columns + column * columns // width


class _State(NamedTuple):
  """Committed tokens `[B, T']`, main chain `[B, L]` of the last round, and its first position."""

  tokens: jax.Array
  nodes: jax.Array
  first: jax.Array


def corrector(config: NeighboursConfig) -> Corrector:
  """Returns the network as a corrector; its parameters are the `draft_params`."""

  def init(context: DecodeContext, condition: Any, result: RoundResult, length: int) -> _State:
    token = result.tokens[:, :1]
    return _State(result.tokens, jnp.repeat(token, length, axis=1), jnp.zeros_like(token[:, 0]))

  def predict(context: DecodeContext, committed: jax.Array, tokens: jax.Array, first: jax.Array,
              start: jax.Array) -> jax.Array:
    """Predicts the tokens after position `start`; `tokens` are written from `first` on."""
    count = tokens.shape[1]
    image = jnp.pad(committed, ((0, 0), (0, count)))
    image = jax.vmap(jax.lax.dynamic_update_slice_in_dim, (0, 0, 0, None))(image, tokens, first, 0)
    positions = start[:, None] + 1 + jnp.arange(count)
    return logits(context.params, config, image, positions)[None]

  def begin(context: DecodeContext, state: _State, tokens: jax.Array, start: jax.Array
            ) -> tuple[jax.Array, jax.Array, jax.Array, _State]:
    # One call: the images before and after the last round are concatenated along the batch.
    both = lambda old, new: jnp.concatenate([old, new])
    nodes, count = state.nodes, tokens.shape[1]
    tokens = jnp.pad(tokens, ((0, 0), (0, nodes.shape[1] - count)))
    predicted = predict(
        context, both(state.tokens, state.tokens), both(nodes, tokens),
        both(state.first, start) + 1, both(state.first + 1, start))
    old, new = jnp.split(predicted, 2, axis=1)
    return new[:, :, :count], old, state.first, state

  def score(context: DecodeContext, state: _State, tokens: jax.Array, start: jax.Array
           ) -> tuple[jax.Array, _State]:
    return predict(context, state.tokens, tokens, start + 1, start), state

  def update(context: DecodeContext, state: _State, result: RoundResult) -> _State:
    return _State(result.tokens, result.nodes[:, 1:state.nodes.shape[1] + 1], result.root)

  return distributions(
      init, begin, score, update,
      functools.partial(contracts.check_sizes, config, 'corrector', contracts.SHARED_SIZES))
