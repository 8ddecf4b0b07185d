"""A network that continues the target's features as a corrector (EAGLE, arXiv 2401.15077)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import contract
from cspd_jax.decoding.base import Condition, Env, Outcome, Params
from cspd_jax.decoding.drafters import feature_network
from cspd_jax.decoding.drafters.corrector import Corrector, uncut
from cspd_jax.decoding.drafters.feature_network import Network, NetworkState

# The decay of `corrected_features` for a network that has not learned its own; see `from_network`.
DECAY = 2.0
# Squared lengths below this count as zero.
_TINY = 1e-20


class _State(NamedTuple):
  """Attributes:
    fresh: the committed tokens that the network has not read yet.
    tokens: `[B, L]` main chain of the last round without its root.
    features: `[B, L, S, F]` the target's features that predicted them.
    root: `[B, 1, S, F]` the network's feature after the root.
  """

  fresh: NetworkState
  tokens: jax.Array
  features: jax.Array
  root: jax.Array


def from_network(network: Network, decay: float | None = None) -> Corrector:
  """A corrector from a network that reads features; its parameters are the `draft_params`.

  It corrects features, per guidance stream and position, as the network has learned or by
  `corrected_features`. In every pass the network reads the corrected features of the pass before.

  Args:
    network: the drafting network, trained for the target.
    decay: of `corrected_features`, at least 0. By default the network's own learned correction is
      used if it has one, and `corrected_features` with a decay of 2 otherwise.

  Raises:
    ValueError: if `decay` is negative.
  """
  if decay is not None and not decay >= 0:
    raise ValueError(f'decay is {decay}; it must be at least 0.')
  corrector = _NetworkCorrector(network, decay)
  return Corrector(
      corrector.init, corrector.begin, corrector.score, _update,
      lambda outcome: _rows_first(outcome.features), corrector.correct,
      lambda target: feature_network.check(network, target))


@dataclasses.dataclass(frozen=True)
class _NetworkCorrector:
  """The functions of `from_network`."""

  network: Network
  decay: float | None

  def init(self, env: Env, condition: Condition, outcome: Outcome, length: int) -> _State:
    _, fresh = feature_network.init(
        self.network, length, 3 * length, env, condition, None, outcome)
    last = _rows_first(outcome.features)[:, -1:]
    return _State(fresh, jnp.repeat(outcome.tokens[:, :1], length, axis=1),
                  jnp.repeat(last, length, axis=1), last)

  def begin(self, env: Env, state: _State, tokens: jax.Array, estimate: jax.Array,
            start: jax.Array) -> tuple[jax.Array, jax.Array, _State]:
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
    features, cache = contract.step(
        self.network, env.params, fresh.cache,
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

  def score(self, env: Env, state: _State, tokens: jax.Array, estimate: jax.Array,
            start: jax.Array) -> tuple[jax.Array, _State]:
    if (length := tokens.shape[1] - 1) == 0:
      return state.root, state
    features, cache = contract.step(
        self.network, env.params, state.fresh.cache, tokens[:, :-1],
        _streams_first(estimate[:, :-1]), start + 1, np.arange(length),
        np.tri(length, dtype=bool))
    prediction = jnp.concatenate([state.root, _rows_first(features)], axis=1)
    return prediction, state._replace(fresh=state.fresh._replace(cache=cache))

  def correct(self, env: Env, prediction: jax.Array, old: jax.Array, stale: jax.Array,
              has_stale: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    features = correct(
        self.network, env.params, prediction, old, stale, has_stale[..., None, None], self.decay)
    logits = contract.feature_logits(self.network, env.params, _streams_first(features))
    return uncut(env, logits, positions), features


def _update(env: Env, state: _State, outcome: Outcome) -> _State:
  length = state.tokens.shape[1]
  _, fresh = feature_network.update(env, state.fresh, None, outcome)
  return state._replace(
      fresh=fresh, tokens=outcome.nodes[:, 1:length + 1],
      features=_rows_first(outcome.features)[:, :length])


def correct(network: Network, params: Params, new: jax.Array, old: jax.Array, stale: jax.Array,
            has_stale: jax.Array, decay: float | None = None) -> jax.Array:
  """Features `[..., F]` of positions, corrected where the target's stale features are available.

  Args:
    network: the drafting network, trained for the target.
    params: the network's parameters.
    new: `[..., F]` the network's features in the new context.
    old: `[..., F]` its features in the context of `stale`.
    stale: `[..., F]` the target's features in the old context.
    has_stale: `[..., 1]` whether `stale` is available; elsewhere the result is `new`.
    decay: of `corrected_features`, at least 0. By default the network's own learned correction is
      used if it has one, and `corrected_features` with a decay of 2 otherwise.
  """
  if network.correct is not None and decay is None:
    corrected = network.correct(params, new, old, stale)
  else:
    corrected = corrected_features(new, old, stale, DECAY if decay is None else decay)
  return jnp.where(has_stale, corrected.astype(new.dtype), new)


def corrected_features(
    new: jax.Array, old: jax.Array, stale: jax.Array, decay: float | jax.Array) -> jax.Array:
  """Features `new + g (stale - old)`, with `g = exp(-decay |new - old|^2 / |old|^2)`, `[..., F]`.

  Args:
    new: `[..., F]` the network's features in the new context.
    old: `[..., F]` its features in the context of `stale`.
    stale: `[..., F]` the target's features in the old context.
    decay: how fast the old error loses weight as `new` moves away from `old`, at least 0.
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
