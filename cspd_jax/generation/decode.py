"""Ways to decode images: in batches, in slots that start the next image, and as a stream.

A sampler says what is compiled; these functions run it. All of them give an image the same tokens.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import result as continuous
from cspd_jax.core import (
  batches,
  compilations,
  fields,
  programs,
  progress as progress_lib,
  random as random_lib,
)
from cspd_jax.core.batches import Progress
from cspd_jax.core.decoder import AnyDecoder
from cspd_jax.decoding import continuous_batching
from cspd_jax.generation import pixels, results
from cspd_jax.generation.images import Images
from cspd_jax.generation.results import Generated


def generate(images: Any, progress: Progress | bool | None = None) -> Generated:
  """Decodes `Images` or `CascadeImages`; `progress` is as for `Model.generate`."""
  fields.require(
      progress is None or isinstance(progress, bool) or callable(progress), 'progress', progress,
      'True for a progress bar, or a function of the numbers of finished images and of all images')
  sampler = images.sampler
  if progress is True:
    with compilations.reported(), progress_lib.bar('generating') as show:
      show(0, len(images))
      return sampler.result(images, decoded(images, show))
  done = 0

  def count(now: int, total: int) -> None:
    nonlocal done
    done = now

  doing = lambda: f'generating with {sampler.text}, {done} of {len(images)} images are complete'
  with compilations.told(doing, progress is None):
    return sampler.result(images, decoded(images, progress or count))


def decoded(images: Any, progress: Progress | None = None) -> Any:
  """Returns the decoder's result for all images, in their order, as NumPy arrays.

  `progress` is called with the number of finished images and of all images. NaN or infinity of
  the model raises ValueError.
  """
  return gathered(images.sampler.batches(images), len(images), progress)


def gathered(parts: Iterator[tuple[np.ndarray, Any]], count: int, progress: Progress | None = None
             ) -> Any:
  """Returns the results of `count` images in their order; see `decoded`."""
  numbers, results_of = np.zeros(0, int), []
  for index, part in parts:
    numbers = np.concatenate([numbers, index])
    results_of.append(part)
    if progress is not None and len(index):
      progress(len(numbers), count)
  order = np.argsort(numbers)
  if len(results_of) > 1:
    results_of = [batches.concatenated(results_of)]
  if np.array_equal(order, np.arange(len(order))):
    return results_of[0]  # Batches come in order, and may be too large to be copied once more.
  return jax.tree.map(lambda leaf: leaf[order], results_of[0])


def batch(images: Images, index: np.ndarray, num_new: int) -> Any:
  """Returns the checked result of the first `num_new` images of a batch."""
  result = batches.leading(jax.device_get(images.sampler.bound(images, index)()), num_new)
  return images.sampler.check_result(images.pick(index[:num_new]), result)


def refilled(images: Images) -> Iterator[continuous_batching.Finished]:
  """Decodes images of discrete tokens in `batch_size` slots; a free one starts the next image.

  Yields the images that became complete, which are not checked, as NumPy arrays.
  """
  sampler, size = images.sampler, images.batch_size
  sampler.check_rounding(images.condition, size)
  return continuous_batching.run(sampler.jitted_slots(size), sampler.model.params, len(images),
                                 images.inputs, sampler.draft_params)


def check_valid(decoder: AnyDecoder, decoded: Any, names: Sequence[str]) -> None:
  """Raises ValueError if the model failed to decode some of the images `names`."""
  if invalid := [name for name, is_valid in zip(names, decoded.valid) if not is_valid]:
    shown = ', '.join(invalid[:8])
    shown += f' and {len(invalid) - 8} more' if len(invalid) > 8 else ''
    raise ValueError(
        f'the model returned {decoder.failure} for {len(invalid)} of {len(names)} images '
        f'({shown}). Look for NaN and infinity in its parameters, or load it with a wider dtype.')


def check_stream(every: Any, options: Mapping[str, Any]) -> None:
  """Raises ValueError for arguments of `Model.stream` that are not supported."""
  fields.check_whole('every', every, 'a whole number, at least 1', least=1)
  if 'batch_size' in options:
    raise ValueError(f"batch_size is {options['batch_size']!r}, but all images of a stream are "
                     'decoded at once; leave it out.')


def stream(images: Images, every: int, progress: bool = False) -> Iterator['Partial']:
  """Decodes in one batch, without a mesh, and yields the images every few rounds.

  The first is after the prefill, the last has the complete images. NaN or infinity of the model
  raises ValueError. `progress` is as for `Model.stream`.
  """
  sampler, count = images.sampler, len(images)
  model, size = sampler.model, sampler.decoder.target.num_tokens
  sampler.check_rounding(images.condition, count)
  start, go_on, finish = _stepped(sampler, every)
  condition, keys, sampling = images.inputs(np.arange(count))
  doing = lambda: f'decoding with {sampler.text}'
  with compilations.told(doing, progress):
    state = start(model.params, condition, random_lib.row_keys(keys, count), sampling,
                  sampler.draft_params)
  while True:
    complete = bool(np.all(np.asarray(state.count) >= size))
    result = sampler.check_result(images, jax.device_get(finish(state)))
    yield Partial(images, result, np.asarray(state.count) + model.prefix_length, complete)
    if complete:
      return
    with compilations.told(doing, progress):
      state = go_on(model.params, state, sampling, sampler.draft_params)
    progress = False  # It is compiled.


def _stepped(sampler: Any, every: int) -> tuple[Callable[..., Any], ...]:
  """Returns the jitted prefill, `rounds` and end of a stream, which the model keeps."""
  decoder = sampler.decoder
  jit = functools.partial(
      programs.jit, short_sums=True, inspect=sampler.kernel_check('stream', every))
  return programs.get_or_build(
      sampler.model.kept.programs, sampler.program_key('stream', every),
      lambda: (jit(decoder.start, label=f'the prefill of {sampler.text}'),
               jit(rounds(decoder, every), label=sampler.text),
               programs.jit(decoder.finish, short_sums=True)))


def rounds(decoder: Any, every: int) -> Callable[..., Any]:
  """Returns `(params, state, sampling, draft_params) -> state` after `every` rounds, or the end."""
  size = decoder.target.num_tokens

  def advance(params, state, sampling, draft_params):
    def more(carry):
      return (carry[0] < every) & jnp.any(carry[1].count < size)

    def step(carry):
      return carry[0] + 1, decoder.round(params, carry[1], sampling, draft_params)

    return jax.lax.while_loop(more, step, (jnp.int32(0), state))[1]

  return advance


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Partial:
  """Images that are still being decoded.

  Attributes:
    of: the images.
    decoded: the decoder's result so far, NumPy arrays; tokens that are not committed are undefined.
    count: `[B]` number of committed tokens, including the prefix.
    complete: whether all images are complete.
    to_result: `decoded -> Generated` of complete images; None for their sampler's.
    next_size: height and width of the images that a second model will draw from these tokens, in
      pixels; None if these are the tokens of the images. See `Cascade`.
  """

  of: Images
  decoded: Any
  count: np.ndarray
  complete: bool
  # Of a `Cascade` only.
  to_result: Callable[[Any], Generated] | None = None
  next_size: tuple[int, int] | None = None

  @property
  def is_prior(self) -> bool:
    """Whether these are tokens of the first of two models, before the image has any."""
    return self.next_size is not None

  @property
  def num_tokens(self) -> int:
    """Number of tokens of an image, including the prefix."""
    return self.of.sampler.model.prefix_length + self.decoded.round_of_token.shape[1]

  @property
  def fixed(self) -> np.ndarray:
    """Which tokens are committed, bool `[B, rows, columns]`."""
    in_order = not isinstance(self.decoded, continuous.Decoded)
    rank = np.arange(self.num_tokens) if in_order else np.argsort(self.decoded.order, axis=1)
    return pixels.cells(self.of.sampler.model, rank < self.count[:, None])

  @property
  def images(self) -> np.ndarray:
    """The images so far, uint8 `[B, H, W, 3]`; grey where no token is committed."""
    if self.next_size is not None:
      return np.full((len(self.count), *self.next_size, 3), 128, np.uint8)
    images, fixed = self.of.sampler.result(self.of, self.decoded).images.copy(), self.fixed
    scale = [pixels // tokens for pixels, tokens in zip(images.shape[1:3], fixed.shape[1:])]
    images[~fixed.repeat(scale[0], axis=1).repeat(scale[1], axis=2)] = 128
    return images

  @property
  def round_of_cell(self) -> np.ndarray:
    """The round `[B, rows, columns]` that committed a token of the grid; -1 if none has yet."""
    model = self.of.sampler.model
    of_tokens = np.pad(self.decoded.round_of_token, ((0, 0), (model.prefix_length, 0)))
    return np.where(self.fixed, pixels.cells(model, of_tokens), -1)

  def result(self) -> Generated:
    """Returns the complete images; raises ValueError if they are not complete yet."""
    if not self.complete:
      raise ValueError(f'the images have {self.count.tolist()} tokens so far; iterate until '
                       '`complete` is True.')
    if self.to_result is not None:
      return self.to_result(self.decoded)
    return self.of.sampler.result(self.of, self.decoded)

  def __repr__(self) -> str:
    # The grid does not contain the grammar's tokens.
    total = len(self.count) * self.num_tokens
    of = ' of the prior' if self.is_prior else ''
    return (f'Partial({int(self.count.sum())} of {total} tokens{of} of {len(self.count)} images, '
            f'forward pass {int(np.max(self.decoded.rounds))})')

  def _repr_html_(self) -> str:
    """Displays the images so far in notebooks."""
    has_pixels = self.of.sampler.model.handover is None
    images = self.images[:results.MOST_SHOWN] if has_pixels else ()
    shown = [results.encoded(image) for image in images]
    return results.figures(repr(self), shown, self.of.titles)
