"""A network that continues the target's features as a corrector (EAGLE, arXiv 2401.15077)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import contract
from cspd_jax.decoding.base import Env, Outcome, Params
from cspd_jax.decoding.drafters import network as network_lib
from cspd_jax.decoding.drafters.corrector import Corrector, Said, uncut
from cspd_jax.decoding.drafters.network import Network, NetworkState

# How fast the old error of a network that has not learned it loses its say; see `from_network`.
DECAY = 2.0
# Below this a squared length counts as none.
_TINY = 1e-20


class _Memory(NamedTuple):
  """Attributes:
    fresh: the committed tokens that the network has yet to read.
    tokens: `[B, L]` main chain of the last round behind its root.
    features: `[B, L, S, F]` the target's features that predicted them.
    root: `[B, 1, S, F]` the network's feature after the root.
  """

  fresh: NetworkState
  tokens: jax.Array
  features: jax.Array
  root: jax.Array


def from_network(network: Network, decay: float | None = None) -> Corrector:
  """A network that reads features; its parameters are the decoder's `draft_params`.

  It corrects features, per guidance stream and place, as the network has learned it or by
  `corrected_features`. Places are read with the corrected features of the read before.

  Args:
    network: the drafting network, trained for the target.
    decay: of `corrected_features`, at least 0. By default the network corrects by itself if it can,
      and with a decay of 2 otherwise.

  Raises:
    ValueError: if `decay` is negative.
  """
  if decay is not None and not decay >= 0:
    raise ValueError(f'decay is {decay}; it must be at least 0.')

  def init(env, condition, outcome, length):
    _, fresh = network_lib.init(network, length, 3 * length, env, condition, None, outcome)
    last = _rows_first(outcome.features)[:, -1:]
    return _Memory(fresh, jnp.repeat(outcome.tokens[:, :1], length, axis=1),
                   jnp.repeat(last, length, axis=1), last)

  def open_(env, memory, tokens, hints, start):
    fresh, length = memory.fresh, memory.tokens.shape[1]
    count = fresh.fresh[:, None]
    # Three runs of entries: the committed tokens, the old window and the new one but for its last
    # token, which leads out of it.
    runs = (length + 1, length, tokens.shape[1] - 1)
    run, step = np.repeat([0, 1, 2], runs), np.concatenate([np.arange(size) for size in runs])
    visible = (run[:, None] == run) & (step[:, None] >= step)
    is_committed = (run == 0) & (step < count)
    visible = visible | ((run == 2)[:, None] & is_committed[:, None])
    features, cache = contract.step(
        network, env.params, fresh.cache,
        jnp.concatenate([fresh.tokens, memory.tokens, tokens[:, :-1]], axis=1),
        jnp.concatenate([fresh.features, _streams_first(
            jnp.concatenate([memory.features, hints[:, :-1]], axis=1))], axis=2),
        start + 1 - fresh.fresh, step + jnp.where(run == 2, count, 0), visible)
    features = _rows_first(features)
    root = jnp.take_along_axis(features, (count - 1)[..., None, None], axis=1)
    root = root.astype(memory.root.dtype)
    said = jnp.concatenate([root, features[:, 2 * length + 1:]], axis=1)
    old = features[:, length + 1:2 * length + 1]
    return said, old, memory._replace(fresh=fresh._replace(cache=cache), root=root)

  def read(env, memory, tokens, hints, start):
    if (length := tokens.shape[1] - 1) == 0:
      return memory.root, memory
    features, cache = contract.step(
        network, env.params, memory.fresh.cache, tokens[:, :-1],
        _streams_first(hints[:, :-1]), start + 1, np.arange(length),
        np.tri(length, dtype=bool))
    said = jnp.concatenate([memory.root, _rows_first(features)], axis=1)
    return said, memory._replace(fresh=memory.fresh._replace(cache=cache))

  return Corrector(
      init, open_, read, _took, lambda outcome: _rows_first(outcome.features),
      functools.partial(_correct, network, decay),
      lambda target: network_lib.check(network, target))


def _took(env: Env, memory: _Memory, outcome: Outcome) -> _Memory:
  length = memory.tokens.shape[1]
  _, fresh = network_lib.update(env, memory.fresh, None, outcome)
  return memory._replace(
      fresh=fresh, tokens=outcome.nodes[:, 1:length + 1],
      features=_rows_first(outcome.features)[:, :length])


def _correct(network: Network, decay: float | None, env: Env, said: Said, old: Said, stale: Said,
             known: jax.Array, positions: jax.Array) -> tuple[jax.Array, Said]:
  features = correct(network, env.params, said, old, stale, known[..., None, None], decay)
  logits = contract.feature_logits(network, env.params, _streams_first(features))
  return uncut(env, logits, positions), features


def correct(network: Network, params: Params, new: jax.Array, old: jax.Array, stale: jax.Array,
            known: jax.Array, decay: float | None = None) -> jax.Array:
  """Features `[..., F]` of places, corrected where the target's stale answer is known.

  Args:
    network: as for `from_network`; `decay` too.
    params: its parameters.
    new: `[..., F]` what the network says in the new context.
    old: `[..., F]` what it said in the context of `stale`.
    stale: `[..., F]` the target's features there.
    known: `[..., 1]` whether it was asked; `new` is the answer elsewhere.
    decay: see there.
  """
  if network.correct is not None and decay is None:
    corrected = network.correct(params, new, old, stale)
  else:
    corrected = corrected_features(new, old, stale, DECAY if decay is None else decay)
  return jnp.where(known, corrected.astype(new.dtype), new)


def corrected_features(
    new: jax.Array, old: jax.Array, stale: jax.Array, decay: float | jax.Array) -> jax.Array:
  """Features `new + g (stale - old)`, with `g = exp(-decay |new - old|^2 / |old|^2)`, `[..., F]`.

  Args:
    new: `[..., F]` what the network says in the new context.
    old: `[..., F]` what it said in the context of `stale`.
    stale: `[..., F]` the target's features there.
    decay: how fast the old error loses its say where the network's answer changes, at least 0.
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
