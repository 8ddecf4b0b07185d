"""Correctors: cheap models of the target's tokens that score a whole window at once.

One is built from a smaller autoregressive model, from a network that continues the target's
features (EAGLE, arXiv 2401.15077), or from functions of one's own.

A corrector does not draft on its own. `drafters.corrected` has it score positions in their old and
in their new context, and correct the target's stale predictions by the difference.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts, fields
from cspd_jax.core.contracts import check_part
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.base import Cache, Condition, DecodeContext, Params, RoundResult, Target
from cspd_jax.decoding.drafters import feature_network
from cspd_jax.decoding.drafters.draft_model import score_with_previous
from cspd_jax.decoding.drafters.feature_network import Network, NetworkState
from cspd_jax.decoding.tree import chain

State = Any  # The corrector's own state between calls: any pytree whose leaves have a leading `B`.
# Predictions for positions: any pytree of arrays `[B, n, ...]` that determines their distributions.
Prediction = Any

_TINY = 1e-20  # Below this a probability does not matter, but its logarithm would.


class Corrector(NamedTuple):
  """A cheap causal model of the target's tokens.

  In a round, `start` is the number of the root, the last committed token, and entry `i` of a window
  is for token number `start + 1 + i`. `tokens` `[B, L]` are the drafts, `estimate` is an estimate
  of the target's prediction for each of them. Entries past the end of the image must be finite.

  Attributes:
    init: `(context, condition, result, length) -> state`: the state after the target's prefill,
      with room for windows of `L = length` drafts.
    begin: `(context, state, tokens, estimate, start [B]) -> (prediction, old, state)`: reads the
      tokens that the last round committed, scores the window of the last round and the new one.
      `prediction` `[B, L, ...]`: entry `i` predicts `tokens[:, i]` and depends on the committed
      tokens, `tokens[:, :i]` and `estimate[:, :i]` only. `old` `[B, L, ...]`: entry `i` predicts
      the token after node `i + 1` of the last round's main chain, and depends on what is attached
      to that node and to earlier positions only.
    score: `(context, state, tokens, estimate, start) -> (prediction, state)`: scores the new window
      again. Here and in `begin`, `tokens` and `estimate` may have the first `n` of the `L`
      positions; `prediction` is then `[B, n, ...]` with the same dependencies.
    update: `(context, state, result) -> state` after a round of the target.
    target_prediction: maps a result to the target's prediction after every node `[B, N + 1, ...]`.
    correct: `(context, prediction, old, stale, has_stale, positions) -> (probs, estimate)`: the
      corrected distributions `[B, n, V]` of positions, before cuts, and the corrected predictions
      they are computed from. `stale` are predictions of the target, `old` are the corrector's in
      the same context; both are meaningful where `has_stale` `[B, n]`. Works entry by entry.
    check: `target -> None`; raises ValueError if the corrector does not fit this target.
  """

  init: Callable[[DecodeContext, Condition, RoundResult, int], State]
  begin: Callable[[DecodeContext, State, jax.Array, Prediction, jax.Array],
                  tuple[Prediction, Prediction, State]]
  score: Callable[[DecodeContext, State, jax.Array, Prediction, jax.Array],
                  tuple[Prediction, State]]
  update: Callable[[DecodeContext, State, RoundResult], State]
  target_prediction: Callable[[RoundResult], Prediction]
  correct: Callable[[DecodeContext, Prediction, Prediction, Prediction, jax.Array, jax.Array],
                    tuple[jax.Array, Prediction]]
  check: Callable[[Target], None] = lambda target: None


def distributions(
    init: Callable[[DecodeContext, Condition, RoundResult, int], State],
    begin: Callable[[DecodeContext, State, jax.Array, jax.Array],
                    tuple[jax.Array, jax.Array, jax.Array, State]],
    score: Callable[[DecodeContext, State, jax.Array, jax.Array], tuple[jax.Array, State]],
    update: Callable[[DecodeContext, State, RoundResult], State],
    check: Callable[[Target], None]) -> Corrector:
  """Builds a corrector that corrects distributions and does not read estimates.

  Its predictions are logits `[S, B, L, V]`; `S` is 1 if the model has no null condition. The
  arguments as for `Corrector`, but `begin` is `(context, state, tokens, start) ->
  (prediction, old, first [B], state)`, where `first` is the number of the last round's root, and
  `score` is `(context, state, tokens, start) -> (prediction, state)`.
  """

  def begin_uncut(context, state, tokens, estimate, start):
    logits, old, first, state = begin(context, state, tokens, start)
    return (uncut(context, logits, _positions(start, logits)),
            uncut(context, old, _positions(first + 1, old)), state)

  def score_uncut(context, state, tokens, estimate, start):
    logits, state = score(context, state, tokens, start)
    return uncut(context, logits, _positions(start, logits)), state

  def correct(context, prediction, old, stale, has_stale, positions):
    return (corrected_probs(prediction, old, stale, has_stale),) * 2

  return Corrector(
      init, begin_uncut, score_uncut, update, lambda result: result.uncut, correct, check)


def corrected_probs(new: jax.Array, old: jax.Array, stale: jax.Array,
                    has_stale: jax.Array) -> jax.Array:
  """Corrected distributions `[..., V]`: `log q = log new + g (log stale - log old)`.

  `new` and `old` are the corrector's in the new context and in the one of `stale`, the target's;
  `g = sum_x min(new(x), old(x))`. Where `has_stale` `[...]` is False the result is `new`.
  """
  agreement = jnp.sum(jnp.minimum(new, old), axis=-1, keepdims=True)
  log = lambda probs: jnp.log(jnp.maximum(probs, _TINY))
  corrected = jax.nn.softmax(log(new) + agreement * (log(stale) - log(old)))
  return jnp.where(has_stale[..., None], corrected, new)


def uncut(context: DecodeContext, logits: jax.Array, positions: jax.Array) -> jax.Array:
  """Guided distributions `[B, n, V]` before cuts, at temperature 1 if the decode is greedy."""
  return warp_lib.probabilities(logits, warp_lib.without_cuts(context.sampling), positions)


def _positions(start: jax.Array, logits: jax.Array) -> jax.Array:
  """Numbers `[B, n]` of the tokens after token number `start`."""
  return start[:, None] + 1 + jnp.arange(logits.shape[2])


class _ModelState(NamedTuple):
  """The state between two rounds."""

  cache: Cache  # The model's cache; holds the committed tokens before the last round.
  nodes: jax.Array  # `[B, L + 1]` main chain of the last round, its root first.
  first: jax.Array  # `[B]` the number of that root.
  last: jax.Array  # `[B, 2]` the last two committed tokens; a filler and the root if it is alone.


def from_model(small: Target) -> Corrector:
  """A corrector from a smaller autoregressive model, over the target's vocabulary and grid.

  The model's parameters are the decoder's `draft_params`. The old and the new window are scored one
  after the other, because most of the committed tokens are among the old ones.
  """
  check_part('small', small, Target)

  def init(context, condition, result, length):
    _, _, cache = contracts.prefill(
        small, context.params, condition, context.target.num_tokens + length + 1, 'corrector')
    token = result.tokens[:, :1]
    return _ModelState(
        cache, jnp.repeat(token, length + 1, axis=1), jnp.zeros_like(token[:, 0]),
        jnp.pad(token, ((0, 0), (1, 0))))

  def begin(context, state, tokens, start):
    old, _, cache = contracts.score(small, context.params, state.cache, state.nodes, state.first,
                                   chain(state.nodes.shape[1] - 1), 'corrector')
    logits, state = score(context, state._replace(cache=cache), tokens, start)
    return logits, old[:, :, 1:], state.first, state

  def score(context, state, tokens, start):
    nodes = jnp.concatenate([state.last[:, 1:], tokens[:, :-1]], axis=1)
    logits, cache = score_with_previous(
        small, context, state.cache, state.last[:, 0], nodes, start, 'corrector')
    return logits, state._replace(cache=cache)

  return distributions(
      init, begin, score, _update_model,
      functools.partial(contracts.check_sizes, small, 'corrector', contracts.SHARED_SIZES))


def _update_model(context: DecodeContext, state: _ModelState, result: RoundResult) -> _ModelState:
  length = state.nodes.shape[1] - 1
  before = jnp.maximum(result.count - 2, 0)[:, None] + jnp.arange(2)
  return state._replace(
      nodes=result.nodes[:, :length + 1], first=result.root,
      last=jnp.take_along_axis(result.tokens, before, axis=1))


# The decay of `corrected_features` for a network that has not learned its own; see `from_network`.
DECAY = 2.0


class _NetworkState(NamedTuple):
  """The state between two rounds."""

  fresh: NetworkState  # The committed tokens that the network has not read yet.
  tokens: jax.Array  # `[B, L]` main chain of the last round without its root.
  features: jax.Array  # `[B, L, S, F]` the target's features that predicted them.
  root: jax.Array  # `[B, 1, S, F]` the network's feature after the root.


def from_network(network: Network, decay: float | None = None) -> Corrector:
  """A corrector from a network that reads features; its parameters are the `draft_params`.

  It corrects features, per guidance stream and position, as the network has learned or by
  `corrected_features`. In every pass the network reads the corrected features of the pass before.
  With a `decay`, finite and at least 0 (else ValueError), or for a network without a learned
  correction, that is `corrected_features`, whose decay is then 2 by default.
  """
  fields.require(decay is None or 0 <= decay < np.inf, 'decay', decay, 'finite and at least 0')
  check_part('network', network, Network)
  corrector = _NetworkCorrector(network, decay)
  return Corrector(
      corrector.init, corrector.begin, corrector.score, _update_network,
      lambda result: _rows_first(result.features), corrector.correct,
      feature_network.check(network))


@dataclasses.dataclass(frozen=True)
class _NetworkCorrector:
  """The functions of `from_network`."""

  network: Network
  decay: float | None

  def init(self, context: DecodeContext, condition: Condition, result: RoundResult,
           length: int) -> _NetworkState:
    _, fresh = feature_network.init(
        self.network, length, 3 * length, context, condition, None, result)
    last = _rows_first(result.features)[:, -1:]
    return _NetworkState(fresh, jnp.repeat(result.tokens[:, :1], length, axis=1),
                         jnp.repeat(last, length, axis=1), last)

  def begin(self, context: DecodeContext, state: _NetworkState, tokens: jax.Array,
            estimate: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array, _NetworkState]:
    fresh, length = state.fresh, state.tokens.shape[1]
    count = fresh.fresh[:, None]
    # Three segments of entries: the committed tokens, the old window, and the new window without
    # its last token, which predicts a token past the window.
    sizes = (length + 1, length, tokens.shape[1] - 1)
    segment = np.repeat([0, 1, 2], sizes)
    step = np.concatenate([np.arange(size) for size in sizes])
    visible = (segment[:, None] == segment) & (step[:, None] >= step)
    is_committed = (segment == 0) & (step < count)
    visible = visible | ((segment == 2)[:, None] & is_committed[:, None])
    features, cache = contracts.step(
        self.network, context.params, fresh.cache,
        jnp.concatenate([fresh.tokens, state.tokens, tokens[:, :-1]], axis=1),
        jnp.concatenate([fresh.features, _streams_first(
            jnp.concatenate([state.features, estimate[:, :-1]], axis=1))], axis=2),
        start + 1 - fresh.fresh, step + jnp.where(segment == 2, count, 0), visible)
    features = _rows_first(features)
    root = jnp.take_along_axis(features, (count - 1)[..., None, None], axis=1)
    root = root.astype(state.root.dtype)
    prediction = jnp.concatenate([root, features[:, 2 * length + 1:]], axis=1)
    old = features[:, length + 1:2 * length + 1]
    return prediction, old, state._replace(fresh=fresh._replace(cache=cache), root=root)

  def score(self, context: DecodeContext, state: _NetworkState, tokens: jax.Array,
            estimate: jax.Array, start: jax.Array) -> tuple[jax.Array, _NetworkState]:
    if (length := tokens.shape[1] - 1) == 0:
      return state.root, state
    features, cache = contracts.step(
        self.network, context.params, state.fresh.cache, tokens[:, :-1],
        _streams_first(estimate[:, :-1]), start + 1, np.arange(length), np.tri(length, dtype=bool))
    prediction = jnp.concatenate([state.root, _rows_first(features)], axis=1)
    return prediction, state._replace(fresh=state.fresh._replace(cache=cache))

  def correct(self, context: DecodeContext, prediction: jax.Array, old: jax.Array, stale: jax.Array,
              has_stale: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    features = correct(
        self.network, context.params, prediction, old, stale, has_stale[..., None, None],
        self.decay)
    logits = contracts.feature_logits(self.network, context.params, _streams_first(features))
    return uncut(context, logits, positions), features


def _update_network(context: DecodeContext, state: _NetworkState,
                    result: RoundResult) -> _NetworkState:
  length = state.tokens.shape[1]
  _, fresh = feature_network.update(context, state.fresh, None, result)
  return state._replace(
      fresh=fresh, tokens=result.nodes[:, 1:length + 1],
      features=_rows_first(result.features)[:, :length])


def correct(network: Network, params: Params, new: jax.Array, old: jax.Array, stale: jax.Array,
            has_stale: jax.Array, decay: float | None = None) -> jax.Array:
  """Features `[..., F]` of positions, corrected where the target's stale features are available.

  The arguments of `corrected_features` and, `[..., 1]`, whether `stale` is available. Without a
  decay, the network's own learned correction is used if it has one, else a decay of `DECAY`.
  """
  if network.correct is not None and decay is None:
    corrected = network.correct(params, new, old, stale)
  else:
    corrected = corrected_features(new, old, stale, DECAY if decay is None else decay)
  return jnp.where(has_stale, corrected.astype(new.dtype), new)


def corrected_features(
    new: jax.Array, old: jax.Array, stale: jax.Array, decay: float | jax.Array) -> jax.Array:
  """Features `new + g (stale - old)`, with `g = exp(-decay |new - old|^2 / |old|^2)`, `[..., F]`.

  `new` and `old` are the network's features in the new context and in the context of `stale`, the
  target's; `decay` is how fast the old error loses weight as `new` moves away from `old`.
  """
  square = lambda x: jnp.sum(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
  gain = jnp.exp(-decay * square(new - old) / jnp.maximum(square(old), _TINY))
  return new + (gain * (stale - old)).astype(new.dtype)


def _rows_first(features: jax.Array) -> jax.Array:
  """`[S, B, n, F]` as `[B, n, S, F]`."""
  return jnp.moveaxis(features, 0, 2)


def _streams_first(features: jax.Array) -> jax.Array:
  """`[B, n, S, F]` as `[S, B, n, F]`."""
  return jnp.moveaxis(features, 2, 0)
