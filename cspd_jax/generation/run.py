"""Runs a request: decodes its images and yields them by number, in one of several modes.

Image `i` depends, up to rounding, only on its seed, number and prompt, whatever the mode and the
batch size; log-probabilities and `Decoded.tv_bound` may differ in their last bits.
"""

import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from cspd_jax.core import batches, programs
from cspd_jax.decoding import refill
from cspd_jax.decoding.loop import Decoder
from cspd_jax.files import run_folder
from cspd_jax.generation import identity
from cspd_jax.generation.request import Request


def run(request: Request, folder: str | os.PathLike | None = None
        ) -> Iterator[tuple[np.ndarray, Any]]:
  """Decodes the images of a request, `batch_size` at once.

  If there are more images than that, a row whose image is complete starts the next image
  (`decoding.refill`) where that saves rounds. A decoder without drafts requires the same number of
  rounds for every image, and continuous tokens and several devices do not support refill; these
  decode batch after batch, with the last batch filled up, and with a mesh divide every batch over
  its groups of devices.

  Args:
    request: the request.
    folder: where finished batches are stored, or None. Batches that it already holds are not
      decoded again. It belongs to one run: the same model, decoder, prompts and options.

  Yields:
    Numbers of images, and the decoder's result for these, NumPy arrays; in total, all images.

  Raises:
    ValueError: if the model returns NaN or infinity for some images, or the folder holds another
      run.
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
  """Decodes all images of a request.

  Args:
    request: the request.
    progress: called with the number of finished images and the number of all images.
    folder: as for `run`.

  Returns:
    The decoder's result for all images, in their order, NumPy arrays.

  Raises:
    ValueError: as for `run`.
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
  stored = run_folder.Run(folder, identity.settings(
      request.model, request.specification, request.condition, _recorded(request.seeds), size,
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


def _recorded(seeds: Any) -> Any:
  """Returns the seeds of a request, or the one under which all images are numbered."""
  if isinstance(seeds, jax.Array) or len({seed for seed, _ in seeds}) > 1 or (
      [number for _, number in seeds] != list(range(len(seeds)))):
    return seeds
  return seeds[0][0]


def refilled(request: Request) -> Iterator[refill.Finished]:
  """Decodes the images of a request in `batch_size` slots; a slot that is free starts the next one.

  Args:
    request: of a decoder of discrete tokens on one device.

  Yields:
    The images that became complete, which are not checked, as NumPy arrays.
  """
  model, decoder, size = request.model, request.decoder, request.batch_size
  assert isinstance(decoder, Decoder)
  jitted = programs.kept(
      model, request.program('slots', size),
      lambda: refill.jitted(decoder, size, str(request.specification)))
  return refill.run(
      jitted, model.params, len(request), request.inputs, request.draft_params)
