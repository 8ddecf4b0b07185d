"""Recordings of a corrected decoder's windows, the training data of a corrector.

While images are decoded, every round records its main chain and the target's features along it.
The image's final tokens are the context that the next round should have had.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.random import row_keys
from cspd_jax.decoding.base import Draft, Drafter, Env, Outcome, RngState
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.tree import Tree


class Windows(NamedTuple):
  """Recorded rounds of `N` images: `R` rounds per image, `L` drafts in the main chain.

  Attributes:
    tokens: `[N, T]` tokens of the images.
    first: `[N, R]` index of the last committed token before a round.
    accepted: `[N, R]` number of drafts that the round accepted; -1 if the image was complete.
    nodes: `[N, R, L]` drafts of the main chain, behind that token.
    features: `[N, R, L + 1, S, F]` features of the target, behind that token and these drafts.
  """

  tokens: np.ndarray
  first: np.ndarray
  accepted: np.ndarray
  nodes: np.ndarray
  features: np.ndarray


class _Recorded(NamedTuple):
  """A drafter's state and the last round; the fields are those of `Windows`, per round."""

  inner: Any
  first: jax.Array
  accepted: jax.Array
  nodes: jax.Array
  features: jax.Array


@dataclasses.dataclass(frozen=True)
class _Recorder:
  """The functions of a drafter whose state also holds the last round, of `length` drafts."""

  drafter: Drafter
  length: int

  def _record(self, inner: Any, outcome: Outcome) -> _Recorded:
    features = jnp.moveaxis(outcome.features, 0, 2)
    # The outcome of the prefill has one node.
    fill = lambda x, count: jnp.pad(
        x[:, :count], ((0, 0), (0, max(count - x.shape[1], 0))) + ((0, 0),) * (x.ndim - 2))
    return _Recorded(
        inner, outcome.root, outcome.accepted, fill(outcome.nodes, self.length + 1)[:, 1:],
        fill(features, self.length + 1).astype(jnp.float16))

  def init(self, env: Env, condition: Any, rng: RngState, outcome: Outcome
           ) -> tuple[RngState, _Recorded]:
    """Returns the state after the prefill."""
    if outcome.features is None:
      raise ValueError('The target returns no features, which a corrector learns from; use a '
                       'target with features.')
    rng, inner = self.drafter.init(env, condition, rng, outcome)
    return rng, self._record(inner, outcome)

  def propose(self, env: Env, state: _Recorded, rng: RngState, root: jax.Array, start: jax.Array
              ) -> tuple[RngState, _Recorded, Draft]:
    """Returns the drafts of a round."""
    rng, inner, draft = self.drafter.propose(env, state.inner, rng, root, start)
    return rng, state._replace(inner=inner), draft

  def update(self, env: Env, state: _Recorded, rng: RngState, outcome: Outcome
             ) -> tuple[RngState, _Recorded]:
    """Returns the state after a round."""
    rng, inner = self.drafter.update(env, state.inner, rng, outcome)
    return rng, self._record(inner, outcome)


def recording(decoder: Decoder) -> Decoder:
  """Returns the decoder with a drafter whose state also holds the last round.

  Raises ValueError if the topology of the drafts differs from round to round.
  """
  drafter = decoder.drafter
  if not isinstance(drafter.tree, Tree):
    raise ValueError(f'decoder has drafts of {drafter.tree}; use a decoder with a static tree.')
  recorder = _Recorder(drafter, drafter.tree.main_length)
  return dataclasses.replace(decoder, drafter=drafter._replace(
      init=recorder.init, propose=recorder.propose, update=recorder.update))


def record(decoder: Decoder, params: Any, condition: Any, key: jax.Array, warp: Any,
           draft_params: Any, programs: dict[str, Callable] | None = None) -> Windows:
  """Decodes one image per row of `condition` and records all rounds.

  The target returns features. Calls with the same decoder share compiled `programs`, unless it is
  None.
  """
  programs = {} if programs is None else programs
  if not programs:
    recorder = recording(decoder)
    programs['start'] = jax.jit(recorder.start)
    programs['round'] = jax.jit(recorder.round, donate_argnums=1)
  batch = jax.tree.leaves(condition)[0].shape[0]
  state = programs['start'](params, condition, row_keys(key, batch), warp, draft_params)
  rounds = []
  while np.any(np.asarray(state.count) < decoder.target.num_tokens):
    state = programs['round'](params, state, warp, draft_params)
    last = state.drafter
    rounds.append([np.asarray(part) for part in (
        last.first, last.accepted, last.nodes, last.features)])
  parts = [np.stack(part, axis=1) for part in zip(*rounds)]
  return Windows(np.asarray(decoder.finish(state).tokens), *parts)


def concatenate(windows: list[Windows]) -> Windows:
  """Concatenates recordings of different images, padded to the largest number of rounds."""
  most = max(part.first.shape[1] for part in windows)
  pad = functools.partial(_padded, rounds=most)
  return Windows(*(np.concatenate([pad(name, part) for part in windows])
                   for name in Windows._fields))


def _padded(name: str, windows: Windows, rounds: int) -> np.ndarray:
  """Pads a field to `rounds` rounds; the new ones have -1 accepted drafts, as complete images."""
  x = getattr(windows, name)
  if name == 'tokens':
    return x
  widths = ((0, 0), (0, rounds - x.shape[1])) + ((0, 0),) * (x.ndim - 2)
  return np.pad(x, widths, constant_values=-1 if name == 'accepted' else 0)
