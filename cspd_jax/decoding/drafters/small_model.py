"""A smaller autoregressive model as a corrector."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import contract
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.drafters.corrector import Corrector, distributions
from cspd_jax.decoding.drafters.model import check_grid
from cspd_jax.decoding.tree import chain


class _Memory(NamedTuple):
  """Attributes:
    cache: the model's cache; holds the committed tokens before the last round.
    nodes: `[B, L + 1]` main chain of the last round, its root first.
    first: `[B]` the number of that root.
    last: `[B, 2]` the last two committed tokens; the root and a filler if there is one only.
  """

  cache: Any
  nodes: jax.Array
  first: jax.Array
  last: jax.Array


def from_model(small: Target) -> Corrector:
  """A smaller autoregressive model; its parameters are the decoder's `draft_params`.

  Old and new window are read one after the other, for most of the committed tokens are
  among the old ones.

  Args:
    small: the model, over the target's vocabulary and grid.
  """

  def init(env, condition, outcome, length):
    _, _, cache = contract.prefill(
        small, env.params, condition, env.target.num_tokens + length + 1, 'corrector')
    token = outcome.tokens[:, :1]
    return _Memory(
        cache, jnp.repeat(token, length + 1, axis=1), jnp.zeros_like(token[:, 0]),
        jnp.pad(token, ((0, 0), (0, 1))))

  def score(env, cache, tokens, start):
    logits, _, cache = contract.score(
        small, env.params, cache, tokens, start, chain(tokens.shape[1] - 1), 'corrector')
    return logits, cache

  def open_(env, memory, tokens, start):
    old, cache = score(env, memory.cache, memory.nodes, memory.first)
    said, memory = read(env, memory._replace(cache=cache), tokens, start)
    return said, old[:, :, 1:], memory.first, memory

  def read(env, memory, tokens, start):
    # The last two committed tokens are read with the drafts: the cache has other ones.
    single = (start == 0)[:, None]
    root = jnp.where(single[:, 0], memory.last[:, 0], memory.last[:, 1])
    known = jnp.concatenate([root[:, None], tokens[:, :-1]], axis=1)
    window = jnp.where(single, jnp.pad(known, ((0, 0), (0, 1))),
                       jnp.concatenate([memory.last[:, :1], known], axis=1))
    logits, cache = score(env, memory.cache, window, jnp.maximum(start - 1, 0))
    said = jnp.where(single[..., None], logits[:, :, :-1], logits[:, :, 1:])
    return said, memory._replace(cache=cache)

  def took(env, memory, outcome):
    del env
    length = memory.nodes.shape[1] - 1
    before = jnp.maximum(outcome.count - 2, 0)[:, None] + jnp.arange(2)
    return memory._replace(
        nodes=outcome.nodes[:, :length + 1], first=outcome.root,
        last=jnp.take_along_axis(outcome.tokens, before, axis=1))

  return distributions(
      init, open_, read, took, functools.partial(check_grid, small, 'corrector'))
