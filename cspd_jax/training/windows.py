"""Windows that a corrected decoder met: what a corrector learns from.

While images are decoded, every round leaves its main chain and the target's answers along it; the
image's final tokens tell which context the next round should have had.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.random import row_keys
from cspd_jax.decoding.loop import Decoder


class Windows(NamedTuple):
  """Rounds of images; `N` images, `R` rounds, `L` drafts of the main chain.

  Attributes:
    tokens: `[N, T]` the images.
    first: `[N, R]` the number of the last committed token before a round.
    accepted: `[N, R]` drafts that the round accepted; -1 if the image was complete.
    nodes: `[N, R, L]` the main chain behind that token.
    features: `[N, R, L + 1, S, F]` the target's, behind that token and these nodes.
  """

  tokens: np.ndarray
  first: np.ndarray
  accepted: np.ndarray
  nodes: np.ndarray
  features: np.ndarray


class _Watched(NamedTuple):
  """A drafter's state, and the last round."""

  inner: Any
  first: jax.Array
  accepted: jax.Array
  nodes: jax.Array
  features: jax.Array


def watched(decoder: Decoder) -> Decoder:
  """The same decoder, whose drafter's state holds the last round too."""
  drafter, length = decoder.drafter, decoder.drafter.layout.tree.main_length

  def keep(inner, outcome):
    features = jnp.moveaxis(outcome.features, 0, 2)
    fill = lambda x, count: jnp.pad(
        x[:, :count], ((0, 0), (0, max(count - x.shape[1], 0))) + ((0, 0),) * (x.ndim - 2))
    return _Watched(
        inner, outcome.root, outcome.accepted,
        fill(outcome.nodes, length + 1)[:, 1:], fill(features, length + 1).astype(jnp.float16))

  def init(env, condition, rng, outcome):
    if outcome.features is None:
      raise ValueError('The target returns no features; a corrector learns from them.')
    rng, inner = drafter.init(env, condition, rng, outcome)
    return rng, keep(inner, outcome)

  def propose(env, state, rng, root, start):
    rng, inner, draft = drafter.propose(env, state.inner, rng, root, start)
    return rng, state._replace(inner=inner), draft

  def update(env, state, rng, outcome):
    rng, inner = drafter.update(env, state.inner, rng, outcome)
    return rng, keep(inner, outcome)

  return dataclasses.replace(
      decoder, drafter=drafter._replace(init=init, propose=propose, update=update))


def record(decoder: Decoder, params: Any, condition: Any, key: jax.Array, warp: Any,
           draft_params: Any, programs: dict | None = None) -> Windows:
  """Decodes one image per row of `condition` and records all rounds.

  Args:
    decoder: a decoder whose target has features.
    params: the target's parameters.
    condition: what the target's `prefill` takes.
    key: random key.
    warp: sampling options.
    draft_params: parameters of the drafter.
    programs: where compiled programs are kept between calls; None keeps none.
  """
  programs = {} if programs is None else programs
  if not programs:
    built = watched(decoder)
    programs['start'] = jax.jit(built.start)
    programs['round'] = jax.jit(built.round, donate_argnums=1)
  batch = jax.tree.leaves(condition)[0].shape[0]
  state = programs['start'](params, condition, row_keys(key, batch), warp, draft_params)
  rounds = []
  while np.any(np.asarray(state.count) < decoder.target.num_tokens):
    state = programs['round'](params, state, warp, draft_params)
    watch = state.drafter
    rounds.append([np.asarray(part) for part in (
        watch.first, watch.accepted, watch.nodes, watch.features)])
  parts = [np.stack(part, axis=1) for part in zip(*rounds)]
  return Windows(np.asarray(decoder.finish(state).tokens), *parts)


def joined(windows: list[Windows]) -> Windows:
  """Several recordings as one, with as many rounds as the longest has."""
  most = max(part.first.shape[1] for part in windows)
  pad = functools.partial(_padded, rounds=most)
  return Windows(*(np.concatenate([pad(name, part) for part in windows])
                   for name in Windows._fields))


def _padded(name: str, windows: Windows, rounds: int) -> np.ndarray:
  """A field with so many rounds; those added accepted -1 drafts, as after the image's end."""
  x = getattr(windows, name)
  if name == 'tokens':
    return x
  room = ((0, 0), (0, rounds - x.shape[1])) + ((0, 0),) * (x.ndim - 2)
  return np.pad(x, room, constant_values=-1 if name == 'accepted' else 0)
