"""A smaller autoregressive model as a corrector."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import contract
from cspd_jax.decoding.base import Cache, Condition, Env, Outcome, Target
from cspd_jax.decoding.drafters.corrector import Corrector, distributions
from cspd_jax.decoding.drafters.draft_model import check_grid
from cspd_jax.decoding.tree import chain


class _State(NamedTuple):
  """Attributes:
    cache: the model's cache; holds the committed tokens before the last round.
    nodes: `[B, L + 1]` main chain of the last round, its root first.
    first: `[B]` the number of that root.
    last: `[B, 2]` the last two committed tokens; the root and a filler if only one is committed.
  """

  cache: Cache
  nodes: jax.Array
  first: jax.Array
  last: jax.Array


def from_model(small: Target) -> Corrector:
  """A corrector from a smaller autoregressive model.

  The model's parameters are the decoder's `draft_params`. The old and the new window are scored one
  after the other, because most of the committed tokens are among the old ones.

  Args:
    small: the model, over the target's vocabulary and grid.
  """
  corrector = _ModelCorrector(small)
  return distributions(
      corrector.init, corrector.begin, corrector.score, _update,
      functools.partial(check_grid, small, 'corrector'))


@dataclasses.dataclass(frozen=True)
class _ModelCorrector:
  """The functions of `from_model`."""

  small: Target

  def init(self, env: Env, condition: Condition, outcome: Outcome, length: int) -> _State:
    _, _, cache = contract.prefill(
        self.small, env.params, condition, env.target.num_tokens + length + 1, 'corrector')
    token = outcome.tokens[:, :1]
    return _State(
        cache, jnp.repeat(token, length + 1, axis=1), jnp.zeros_like(token[:, 0]),
        jnp.pad(token, ((0, 0), (0, 1))))

  def begin(self, env: Env, state: _State, tokens: jax.Array, start: jax.Array
            ) -> tuple[jax.Array, jax.Array, jax.Array, _State]:
    old, cache = self._logits(env, state.cache, state.nodes, state.first)
    logits, state = self.score(env, state._replace(cache=cache), tokens, start)
    return logits, old[:, :, 1:], state.first, state

  def score(self, env: Env, state: _State, tokens: jax.Array, start: jax.Array
            ) -> tuple[jax.Array, _State]:
    # The last two committed tokens are read with the drafts, for the cache may hold rejected drafts
    # in their slots.
    single = (start == 0)[:, None]
    root = jnp.where(single[:, 0], state.last[:, 0], state.last[:, 1])
    nodes = jnp.concatenate([root[:, None], tokens[:, :-1]], axis=1)
    window = jnp.where(single, jnp.pad(nodes, ((0, 0), (0, 1))),
                       jnp.concatenate([state.last[:, :1], nodes], axis=1))
    logits, cache = self._logits(env, state.cache, window, jnp.maximum(start - 1, 0))
    logits = jnp.where(single[..., None], logits[:, :, :-1], logits[:, :, 1:])
    return logits, state._replace(cache=cache)

  def _logits(self, env: Env, cache: Cache, tokens: jax.Array, start: jax.Array
              ) -> tuple[jax.Array, Cache]:
    """Logits after every token of a chain, and the cache."""
    logits, _, cache = contract.score(
        self.small, env.params, cache, tokens, start, chain(tokens.shape[1] - 1), 'corrector')
    return logits, cache


def _update(env: Env, state: _State, outcome: Outcome) -> _State:
  del env
  length = state.nodes.shape[1] - 1
  before = jnp.maximum(outcome.count - 2, 0)[:, None] + jnp.arange(2)
  return state._replace(
      nodes=outcome.nodes[:, :length + 1], first=outcome.root,
      last=jnp.take_along_axis(outcome.tokens, before, axis=1))
