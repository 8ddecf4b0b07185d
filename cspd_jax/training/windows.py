"""Windows that a corrector learns from, recorded while images are decoded.

Of every round a recorder keeps the main chain and the target's features along it. The image's final
tokens are the context that the next round should have had.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.core.random import row_keys
from cspd_jax.decoding.base import RoundResult
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


def along(windows: Windows) -> np.ndarray:
  """Returns the target's features `[N, T, S, F]` that predicted the tokens of the images.

  That of the first token, which no round has drawn, is 0.
  """
  images, count = windows.tokens.shape
  drafts = np.arange(windows.features.shape[2])
  # Drafts behind the end of an image are not accepted.
  result = np.zeros((images, count, *windows.features.shape[3:]), windows.features.dtype)
  for first, accepted, features in zip(
      windows.first.T, windows.accepted.T, np.moveaxis(windows.features, 1, 0)):
    at = first[:, None] + 1 + drafts
    image, draft = np.nonzero((drafts <= accepted[:, None]) & (at < count))
    result[image, at[image, draft]] = features[image, draft]
  return result


def concatenate(windows: list[Windows]) -> Windows:
  """Concatenates recordings, padded by rounds with -1 accepted drafts, as of complete images."""
  most = max(part.first.shape[1] for part in windows)

  def padded(name: str, x: np.ndarray) -> np.ndarray:
    widths = ((0, 0), (0, most - x.shape[1])) + ((0, 0),) * (x.ndim - 2)
    return x if name == 'tokens' else np.pad(
        x, widths, constant_values=-1 if name == 'accepted' else 0)

  return Windows(*(np.concatenate([padded(name, getattr(part, name)) for part in windows])
                   for name in Windows._fields))


class _Recorded(NamedTuple):
  """A drafter's state and the last round; fields as in `Windows`, per round."""

  inner: Any
  first: jax.Array
  accepted: jax.Array
  nodes: jax.Array
  features: jax.Array


def recording(decoder: Decoder) -> Decoder:
  """Returns the decoder with the last round in its state, too; it has a static tree."""
  drafter = decoder.drafter
  assert isinstance(drafter.tree, Tree), drafter.tree
  slots = drafter.tree.main_length + 1

  def recorded(inner: Any, result: RoundResult) -> _Recorded:
    # The result of the prefill has one node.
    fill = lambda x: jnp.pad(
        x[:, :slots], ((0, 0), (0, max(slots - x.shape[1], 0))) + ((0, 0),) * (x.ndim - 2))
    return _Recorded(
        inner, result.root, result.accepted, fill(result.nodes)[:, 1:],
        fill(jnp.moveaxis(result.features, 0, 2)).astype(jnp.float16))

  def init(context, condition, rng, result):
    if result.features is None:
      raise ValueError('The target returns no features, which a corrector learns from; use a '
                       'target with features.')
    rng, inner = drafter.init(context, condition, rng, result)
    return rng, recorded(inner, result)

  def propose(context, state, rng, root, start):
    rng, inner, draft = drafter.propose(context, state.inner, rng, root, start)
    return rng, state._replace(inner=inner), draft

  def update(context, state, rng, result):
    rng, inner = drafter.update(context, state.inner, rng, result)
    return rng, recorded(inner, result)

  return dataclasses.replace(
      decoder, drafter=drafter._replace(init=init, propose=propose, update=update))


def recorder(decoder: Decoder) -> Callable[..., Windows]:
  """Returns a function of a decoder's arguments that decodes images and records all rounds."""
  recorded = recording(decoder)
  jit = functools.partial(programs.jit, short_sums=True)
  start, next_round = jit(recorded.start), jit(recorded.round, donate_argnums=1)

  def record(params, condition, key, sampling, draft_params):
    batch = jax.tree.leaves(condition)[0].shape[0]
    state, rounds = start(params, condition, row_keys(key, batch), sampling, draft_params), []
    while np.any(np.asarray(state.count) < decoder.target.num_tokens):
      state = next_round(params, state, sampling, draft_params)
      rounds.append([np.asarray(getattr(state.drafter, name)) for name in Windows._fields[1:]])
    return Windows(np.asarray(decoder.finish(state).tokens),
                   *(np.stack(part, axis=1) for part in zip(*rounds)))

  return record
