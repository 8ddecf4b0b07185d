"""Runs a request: decodes its images and yields them by number, in one of several modes.

Image `i` depends, up to rounding, only on its seed, number and prompt, whatever the mode and the
batch size; log-probabilities and `Decoded.tv_bound` may differ in their last bits. `settings`
determine the results of a run; `stream` shows images while they are decoded.
"""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import batches, programs, random as random_lib
from cspd_jax.core.spec import Spec
from cspd_jax.decoding import refill, specification as specification_lib
from cspd_jax.decoding.loop import Decoder
from cspd_jax.files import atomic, matrices, run_folder
from cspd_jax.generation import results
from cspd_jax.generation.base import BaseModel
from cspd_jax.generation.engines import Options
from cspd_jax.generation.request import Request
from cspd_jax.generation.results import Generated


def run(request: Request, folder: str | os.PathLike | None = None
        ) -> Iterator[tuple[np.ndarray, Any]]:
  """Decodes the images of a request, `batch_size` at once.

  If there are more images than that, a row whose image is complete starts the next image
  (`decoding.refill`) where that saves rounds. A decoder without drafts requires the same number of
  rounds for every image, and continuous tokens and several devices do not support refill; these
  decode batch after batch, with the last batch filled up, and with a mesh divide every batch over
  its groups of devices.

  Finished batches are stored in the folder, and those that it holds are not decoded again; it
  belongs to one run: the same model, decoder, prompts and options. Another run in it, and NaN or
  infinity of the model, raise ValueError.

  Yields:
    Numbers of images, and the decoder's result for these, NumPy arrays; in total, all images.
  """
  if folder is not None:
    yield from _stored(request, folder)
  elif request.refills:
    for group in refilled(request):
      yield group.image, request.pick(group.image).check_result(group.decoded)
  else:
    for index, num_new in batches.filled(len(request), request.batch_size):
      yield index[:num_new], _batch(request, index, num_new)


def decode(request: Request, progress: batches.Progress | None = None,
           folder: str | os.PathLike | None = None) -> Any:
  """Returns the decoder's result for all images, in their order; arguments and errors as for `run`.

  `progress` is called with the number of finished images and the number of all images.
  """
  numbers, parts = np.zeros(0, int), []
  for index, decoded in run(request, folder):
    numbers = np.concatenate([numbers, index])
    parts.append(decoded)
    if progress is not None and len(index):
      progress(len(numbers), len(request))
  decoded, order = batches.concatenated(parts), np.argsort(numbers)
  if np.array_equal(order, np.arange(len(order))):
    return decoded  # Batches come in order, and may be too large to be copied once more.
  return jax.tree.map(lambda leaf: leaf[order], decoded)


def _batch(request: Request, index: np.ndarray, num_new: int) -> Any:
  """Returns the checked result of the first `num_new` images of a batch."""
  decoded = batches.leading(jax.device_get(request.bound(index)()), num_new)
  return request.pick(index[:num_new]).check_result(decoded)


def _stored(request: Request, folder: str | os.PathLike) -> Iterator[tuple[np.ndarray, Any]]:
  """Yields batches, from their files in `folder` if there are some."""
  size, first_batch = request.batch_size, np.zeros(request.batch_size, int)
  stored = run_folder.Run(folder, settings(
      request.model, request.specification, request.condition, recorded(request.seeds), size,
      request.sampling, request.prompts))
  structure = jax.eval_shape(request.function, *request.arguments(first_batch))
  for index, num_new in batches.filled(len(request), size):
    name = f'batch_{index[0]:07d}.npz'
    shape_of = lambda leaf, count=num_new: jax.ShapeDtypeStruct(
        (count, *leaf.shape[1:]), leaf.dtype)
    decoded = stored.read(name, jax.tree.map(shape_of, structure))
    if decoded is None:
      decoded = _batch(request, index, num_new)
      stored.write(name, decoded)
    yield index[:num_new], decoded


def recorded(seeds: Any) -> Any:
  """Returns the seeds of a request, or the one under which all images are numbered."""
  if isinstance(seeds, jax.Array) or len({seed for seed, _ in seeds}) > 1 or (
      [number for _, number in seeds] != list(range(len(seeds)))):
    return seeds
  return seeds[0][0]


def refilled(request: Request) -> Iterator[refill.Finished]:
  """Decodes images of discrete tokens in `batch_size` slots; a free one starts the next image.

  Yields the images that became complete, which are not checked, as NumPy arrays.
  """
  model, decoder, size = request.model, request.decoder, request.batch_size
  assert isinstance(decoder, Decoder)
  jitted = programs.kept(
      model, request.program('slots', size),
      lambda: refill.jitted(decoder, size, str(request.specification)))
  return refill.run(jitted, model.params, len(request), request.inputs, request.draft_params)


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
    self._num_tokens = request.model.prefix_length + decoded.round_of_token.shape[1]  # Per image.
    order = getattr(decoded, 'order', None)
    rank = np.arange(self._num_tokens) if order is None else np.argsort(order, axis=1)
    self.fixed = request.model.cells(rank < count[:, None])

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
    """Returns the complete images; raises ValueError if they are not complete yet."""
    if not self.complete:
      raise ValueError(f'the images have {self.count.tolist()} tokens so far; iterate until '
                       '`complete` is True.')
    return self._request.result(self.decoded)

  def __repr__(self) -> str:
    # The grid does not contain the grammar's tokens.
    total = len(self.count) * self._num_tokens
    return (f'Partial({int(self.count.sum())} of {total} tokens of {len(self.count)} images, '
            f'forward pass {int(np.max(self.decoded.rounds))})')

  def _repr_html_(self) -> str:
    """Displays the images so far in notebooks."""
    images = () if self._request.model.handover is not None else self.images[:results.MOST_SHOWN]
    shown = [results.encoded(image) for image in images]
    return results.figures(repr(self), shown, self._request.titles)


def stream(request: Request, every: int) -> Iterator[Partial]:
  """Decodes a request in one batch, without its mesh, and yields its images every few rounds.

  The first is after the prefill, the last has the complete images. NaN or infinity of the model
  raises ValueError.
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

  text, jit = str(request.specification), functools.partial(programs.jit, short_sums=True)
  return programs.kept(
      request.model, request.program('stream', every),
      lambda: (jit(decoder.start, label=f'the prefill of {text}'), jit(advance, label=text),
               jit(decoder.finish)))


# The most numbers of an array that are fetched from a device to be compared.
_FETCHED = 1 << 20


def batch_size_of(folder: str | os.PathLike, finished: bool = True) -> int | None:
  """Returns the batch size of the run in a folder, also a `finished` one; None without a run."""
  size = run_folder.stored_run(folder, finished).get('batch_size')
  return size if type(size) is int and size >= 1 else None


def settings(model: BaseModel, specification: Spec, condition: Any, seed: Any, batch_size: int,
             sampling: Options, prompts: Any = None) -> dict[str, Any]:
  """Returns the settings that determine the results of a run.

  `seed` is one seed, or one per image; `prompts` are None if only the condition is available.
  """
  is_words = isinstance(prompts, list) and all(isinstance(prompt, str) for prompt in prompts)
  # Only discrete tokens have a codebook, and only some of their decoders read it.
  reads_codebook = model.codebook is not None and specification_lib.reads_codebook(specification)
  has_floats = any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(condition))
  return dict(
      model=model.name, cache_dtype=model.cache_dtype, parameters=fingerprint(model.params),
      grid=list(model.grid), config=digest_of(repr(model.config)), decoder=str(specification),
      draft_parameters=fingerprint(model.draft_params(specification)),
      codebook=fingerprint(model.codebook) if reads_codebook else None,
      sampling=atomic.plain(sampling._asdict()),
      seed=(fingerprint(jax.random.key_data(seed)) if isinstance(seed, jax.Array) else
            atomic.plain(seed)),
      # Features of words may differ in their last bits when the network is compiled again.
      prompts=(digest_of(json.dumps(prompts) + fingerprint(model.conditions.params))
               if has_floats and is_words else fingerprint(condition)),
      prefix=fingerprint(condition.tokens) if model.prefix_length else None,
      batch_size=batch_size)


def network_digest(config: Any, params: Any) -> str:
  """Returns a short digest of a network: its config and its parameters."""
  return digest_of(repr(config) + fingerprint(params))


def weights(model: BaseModel) -> dict[str, str]:
  """Returns short digests of a model's parameters by part, which reports keep."""
  parts = dict(target=model.params) | {name: draft.params for name, draft in model.drafts.items()}
  if model.tokenizer is not None:
    parts['tokenizer'] = model.tokenizer.params
  return {name: fingerprint(parts[name]) for name in sorted(parts)}


def fingerprint(arrays: Any) -> str:
  """Returns a short digest of shapes, dtypes and every number of a tree of arrays."""
  digest = hashlib.sha256()
  for path, leaf in matrices.arrays(arrays):
    digest.update(f'{path} {leaf.shape} {leaf.dtype}'.encode())
    digest.update(np.asarray(leaf if leaf.size <= _FETCHED else _checksum(leaf)).tobytes())
  return digest.hexdigest()[:16]


@jax.jit
def _checksum(numbers: jax.Array) -> jax.Array:
  """Returns a sum of the bits modulo 2**32, in which each number has an odd weight of its own.

  So it changes with any one number. It is computed where the array is.
  """
  if numbers.dtype == bool:  # The mask of many prompts.
    numbers = numbers.astype(jnp.uint8)
  wide = jnp.dtype(numbers.dtype).itemsize > 4
  unsigned = jnp.uint32 if wide else f'uint{8 * jnp.dtype(numbers.dtype).itemsize}'
  bits = jax.lax.bitcast_convert_type(numbers, unsigned).astype(jnp.uint32)
  strides = np.cumprod((1, *bits.shape[:0:-1]))[::-1].astype(np.uint64) % 2**32
  weights = sum(jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * np.uint32(stride)
                for axis, stride in enumerate(strides))
  return jnp.sum(bits * (2 * weights + 1), dtype=jnp.uint32)


def digest_of(text: str) -> str:
  """Returns a short digest of a text."""
  return hashlib.sha256(text.encode()).hexdigest()[:16]
