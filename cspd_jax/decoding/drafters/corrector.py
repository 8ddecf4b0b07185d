"""Correctors: cheap models of the target's tokens, read over a whole window at once.

A corrector drafts nothing by itself. `drafters.corrected` asks it what it says of a window in its
old and in its new context, and corrects the target's stale answers by the difference.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import contract
from cspd_jax.decoding.base import Env, Outcome, Target
from cspd_jax.decoding.drafters.model import check_grid
from cspd_jax.decoding.tree import chain

Memory = Any


class Corrector(NamedTuple):
  """A cheap causal model of the same tokens.

  Attributes:
    init: `(env, condition, outcome, length) -> memory`: what it remembers after the prefill of the
      target, with room for windows of `length` drafts.
    read: `(env, memory, root [B], tokens [B, L], start [B]) -> (logits [S, B, L + 1, V], memory)`.
      `root` is the last committed token, number `start`, and `tokens` are drafts behind it; entry
      `i` is for token number `start + 1 + i` and depends on the committed tokens, the root and
      `tokens[:, :i]` only. What lies past the end of the image must be finite.
    took: `(env, memory, outcome) -> memory` after a round of the target.
    check: `target -> None`; raises ValueError if it cannot correct for this target.
  """

  init: Callable[[Env, Any, Outcome, int], Memory]
  read: Callable[[Env, Memory, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Memory]]
  took: Callable[[Env, Memory, Outcome], Memory]
  check: Callable[[Target], None] = lambda target: None


class _ModelMemory(NamedTuple):
  """Attributes:
    cache: the model's cache; holds the committed tokens but the last two.
    previous: `[B]` the committed token before the root.
  """

  cache: Any
  previous: jax.Array


def from_model(small: Target) -> Corrector:
  """A smaller autoregressive model as a corrector; its parameters are the `draft_params`.

  Args:
    small: the model, over the target's vocabulary and grid.
  """

  def init(env, condition, outcome, length):
    _, _, cache = contract.prefill(
        small, env.params, condition, env.target.num_tokens + length + 1, 'corrector')
    return _ModelMemory(cache, outcome.tokens[:, 0])

  def read(env, memory, root, tokens, start):
    # The last two committed tokens are read again: the cache may hold a refused draft there. In
    # the first round there is one of them, and a filler goes to the end.
    first = (start == 0)[:, None]
    filler = jnp.zeros_like(root)[:, None]
    known = jnp.concatenate([root[:, None], tokens], axis=1)
    window = jnp.where(first, jnp.concatenate([known, filler], axis=1),
                       jnp.concatenate([memory.previous[:, None], known], axis=1))
    logits, _, cache = contract.score(
        small, env.params, memory.cache, window, jnp.maximum(start - 1, 0),
        chain(window.shape[1] - 1), 'corrector')
    logits = jnp.where(first[..., None], logits[:, :, :-1], logits[:, :, 1:])
    return logits, memory._replace(cache=cache)

  def took(env, memory, outcome):
    del env
    before = jnp.maximum(outcome.count - 2, 0)[:, None]
    return memory._replace(previous=jnp.take_along_axis(outcome.tokens, before, axis=1)[:, 0])

  return Corrector(init, read, took, functools.partial(check_grid, small, 'corrector'))
