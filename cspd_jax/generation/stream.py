"""Streams: images that are shown while they are decoded."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs, random as random_lib
from cspd_jax.generation import results
from cspd_jax.generation.request import Request
from cspd_jax.generation.results import Generated


class Partial:
  """Images that are still being decoded.

  Attributes:
    decoded: the decoder's result so far, NumPy arrays; tokens that are not committed are undefined.
    count: `[B]` number of committed tokens, including the prefix.
    complete: whether all images are complete.
    fixed: `[B, rows, columns]` bool, which tokens are committed.
  """

  def __init__(self, request: Request, decoded: Any, count: np.ndarray, complete: bool):
    self._request, self.decoded, self.count, self.complete = request, decoded, count, complete
    order = getattr(decoded, 'order', None)
    rank = np.arange(self._num_tokens)
    if order is not None:
      rank = np.argsort(order, axis=1)
    self.fixed = request.model.cells(rank < count[:, None])

  @property
  def _num_tokens(self) -> int:
    """Number of tokens of an image, including the prefix."""
    return self._request.model.prefix_length + self.decoded.round_of_token.shape[1]

  @property
  def images(self) -> np.ndarray:
    """The images so far, uint8 `[B, H, W, 3]`; grey where no token is committed."""
    images = self._request.result(self.decoded).images.copy()
    scale = [pixels // tokens for pixels, tokens in zip(images.shape[1:3], self.fixed.shape[1:])]
    shown = self.fixed.repeat(scale[0], axis=1).repeat(scale[1], axis=2)
    images[~shown] = 128
    return images

  @property
  def round_of_cell(self) -> np.ndarray:
    """The round `[B, rows, columns]` that committed a token of the grid; -1 if none has yet."""
    model = self._request.model
    rounds = np.pad(self.decoded.round_of_token, ((0, 0), (model.prefix_length, 0)))
    return np.where(self.fixed, model.cells(rounds), -1)

  def result(self) -> Generated:
    """Returns the complete images.

    Raises:
      ValueError: if they are not complete yet.
    """
    if not self.complete:
      raise ValueError(f'the images have {self.count.tolist()} tokens so far; iterate until '
                       '`complete` is True.')
    return self._request.result(self.decoded)

  def __repr__(self) -> str:
    # The grid does not contain the grammar's tokens.
    total = len(self.count) * self._num_tokens
    return (f'Partial({int(self.count.sum())} of {total} tokens of {len(self.count)} images, '
            f'round {int(np.max(self.decoded.rounds))})')

  def _repr_html_(self) -> str:
    """Displays the images so far in notebooks."""
    shown = [results.encoded(image) for image in self.images[:results.MOST_SHOWN]]
    return results.figures(repr(self), shown, self._request.titles)


def stream(request: Request, every: int) -> Iterator[Partial]:
  """Decodes the images of a request in one batch, and yields them every few rounds.

  Args:
    request: the request; the model's mesh is not used.
    every: rounds between two results, at least 1.

  Yields:
    The state of all images after the prefill and after every `every` rounds; the last one has the
    complete images.

  Raises:
    ValueError: if the model returns NaN or infinity for some images.
  """
  model, decoder = request.model, request.decoder
  _, condition, keys, sampling, draft_params = request.arguments(np.arange(len(request)))
  start, advance, finish = _pieces(request, every)
  state = start(
      model.params, condition, random_lib.row_keys(keys, len(request)), sampling, draft_params)
  while True:
    complete = bool(np.all(np.asarray(state.count) >= decoder.target.num_tokens))
    decoded = request.check_result(jax.device_get(finish(state)))
    yield Partial(request, decoded, np.asarray(state.count) + model.prefix_length, complete)
    if complete:
      return
    state = advance(model.params, state, sampling, draft_params)


def _pieces(request: Request, every: int) -> tuple[Callable, Callable, Callable]:
  """The compiled pieces of the decoder: its start, `every` rounds, and its result so far."""
  decoder, size = request.decoder, request.decoder.target.num_tokens

  def advance(params, state, sampling, draft_params):
    def more(carry):
      return (carry[0] < every) & jnp.any(carry[1].count < size)

    def step(carry):
      return carry[0] + 1, decoder.round(params, carry[1], sampling, draft_params)

    return jax.lax.while_loop(more, step, (jnp.int32(0), state))[1]

  text = str(request.specification)
  return programs.kept(
      request.model, request.program('stream', every),
      lambda: (programs.jit(decoder.start, label=f'the prefill of {text}'),
               programs.jit(advance, label=text), programs.jit(decoder.finish)))
