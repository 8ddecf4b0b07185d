"""A network that continues the target's features: its contract, and its cache between rounds.

It reads a token together with the feature that predicted it, and predicts the next feature; the
target's head turns that into a distribution (EAGLE, arXiv 2401.15077). The network's cache holds
the target's true features of all committed tokens; predicted features are used while drafting only.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts
from cspd_jax.decoding.base import (
  Cache,
  Condition,
  DecodeContext,
  Params,
  RngState,
  RoundResult,
  Target,
)


class Network(NamedTuple):
  """A drafting network as pure functions; shapes as in `base.Target`.

  Its sequence is one token behind the target's: entry `C - 1 + k` pairs image token `k` with the
  feature that predicted it, so entry `C - 1` pairs token 0 with the feature of the condition's last
  token.

  Attributes:
    prefill: `(params, condition, features [S, B, C, F], num_slots) -> cache`: reads all but the
      last of the features of the condition's tokens; `num_slots` slots are for image tokens.
    step: `(params, cache, tokens [B, n], features [S, B, n, F], start [B], depth, visible) ->
      (features [S, B, n, F], cache)`. Entry `i` is image token number `start + depth[i]` (`[n]` or
      `[B, n]`) with the feature that predicted it. `visible`, bool `[n, m]` or `[B, n, m]`: which
      of the `m` newest slots, from slot `start` on, each entry sees; the `n` entries are written to
      the last `n` of them. All slots before `start` are seen. Returns predictions of the target's
      features for the tokens that follow.
    logits: `(params, features [S, B, n, F]) -> logits [S, B, n, V]`: the target's head.
    vocab_size: `V`.
    num_tokens: tokens of an image.
    correct: `(params, new, old, stale) -> features`, all `[..., F]`, entry by entry: a learned
      correction of stale features, see `drafters.from_network`; None if the network has none.
  """

  prefill: Callable[[Params, Condition, jax.Array, int], Cache]
  step: Callable[[Params, Cache, jax.Array, jax.Array, jax.Array, Any, Any],
                 tuple[jax.Array, Cache]]
  logits: Callable[[Params, jax.Array], jax.Array]
  vocab_size: int
  num_tokens: int
  correct: Callable[[Params, jax.Array, jax.Array, jax.Array], jax.Array] | None = None


class NetworkState(NamedTuple):
  """The state between two rounds."""

  cache: Cache  # The network's cache: entries of all committed tokens but the newest.
  tokens: jax.Array  # `[B, D + 1]` the newest committed tokens, the last of them the root.
  features: jax.Array  # `[S, B, D + 1, F]` the target's features that predicted them.
  fresh: jax.Array  # `[B]` how many of these are valid.


def check(network: Network) -> Callable[[Target], None]:
  """Returns a check that the network has a target's vocabulary and image length."""
  return functools.partial(
      contracts.check_sizes, network, 'drafting network', ('vocab_size', 'num_tokens'))


def init(network: Network, max_depth: int, tree_slots: int, context: DecodeContext,
         condition: Condition, rng: RngState, result: RoundResult
         ) -> tuple[RngState, NetworkState]:
  """The state after the prefill, with `tree_slots` slots for the nodes of a tree."""
  features = contracts.check_features(result.features, context.params)
  slots = context.target.num_tokens + max(max_depth, tree_slots) + 1
  cache = network.prefill(context.params, condition, features, slots)
  room = ((0, 0), (0, 0), (0, max_depth), (0, 0))
  return rng, NetworkState(
      cache, tokens=jnp.pad(result.tokens[:, :1], room[1:3]),
      features=jnp.pad(features[:, :, -1:], room),
      fresh=jnp.ones_like(result.count))


def catch_up(context: DecodeContext, network: Network, state: NetworkState,
             start: jax.Array) -> tuple[jax.Array, Cache]:
  """Reads the tokens that the last round committed; `start` `[B]` is the root's position.

  Returns the features after the root, `[S, B, 1, F]`, and the cache with these tokens in it.
  """
  length = state.tokens.shape[1]
  features, cache = contracts.step(
      network, context.params, state.cache, state.tokens, state.features, start + 1 - state.fresh,
      np.arange(length), np.tri(length, dtype=bool))
  last = jnp.maximum(state.fresh - 1, 0)[None, :, None, None]
  return jnp.take_along_axis(features, last, axis=2), cache


def update(context: DecodeContext, state: NetworkState, rng: RngState,
           result: RoundResult) -> tuple[RngState, NetworkState]:
  """Stores the target's features along the accepted path."""
  first = result.root + 1
  numbers = first[:, None] + jnp.arange(state.tokens.shape[1])
  last = result.tokens.shape[1] - 1
  return rng, NetworkState(
      state.cache,
      tokens=jnp.take_along_axis(result.tokens, jnp.minimum(numbers, last), axis=1),
      features=jnp.take_along_axis(result.features, result.path[None, :, :, None], axis=2),
      fresh=result.accepted + 1)
