"""The denoising chains of a window's tokens, which a round leaves to the next one.

In the shape descriptions, `K` is the number of kernels, in the order in which they run: kernel `i`
is that of level `K - 1 - i`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous.coupling import Gaussian


class Chains(NamedTuple):
  """Chains of tokens.

  Attributes:
    states: `[..., K, C]` the state after every kernel; the last is the token.
    kernels: the Gaussians that they were drawn from, `[..., K, C]`.
    exist: `[...]` bool; the other leaves are meaningless where it is False.
  """

  states: jax.Array
  kernels: Gaussian
  exist: jax.Array

  @property
  def tokens(self) -> jax.Array:
    """The tokens `[..., C]`."""
    return self.states[..., -1, :]


class Memory(NamedTuple):
  """The chains of a round, for the next one.

  Attributes:
    chains: `[B, W]` the chains of the round, by rank.
    committed: `[B]` how many of them, the first ones, the round has committed.
  """

  chains: Chains
  committed: jax.Array

  def left(self) -> Chains:
    """Returns the chains `[B, W]` from the first that is not committed; the last do not exist."""
    width = self.chains.exist.shape[1]
    index = self.committed[:, None] + jnp.arange(width)
    moved = jax.tree.map(lambda leaf: jax.vmap(lambda row, i: row[i])(
        leaf, jnp.minimum(index, width - 1)), self.chains)
    return moved._replace(exist=moved.exist & (index < width))


def empty(num_levels: int, token_dim: int, *shape: int) -> Chains:
  """Returns chains of `shape` that do not exist."""
  states = jnp.zeros((*shape, num_levels, token_dim), jnp.float32)
  return Chains(states, Gaussian(states, jnp.ones_like(states)), jnp.zeros(shape, bool))
