"""The runner: many images with one decoder, in batches, to be stopped and continued.

Image `i` depends on the seed, `i` and its prompt only, whatever the batch size is. With a
folder every finished batch is a file, and the same call goes on where a stopped one was.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs, random as random_lib
from cspd_jax.generation import shards as shards_lib

# `(done, total) -> None`, called with numbers of images.
Progress = Callable[[int, int], None]


def keys(seed: Any, numbers: np.ndarray | Sequence[int]) -> jax.Array:
  """Gives images their random keys, `[B]`.

  Args:
    seed: an integer or a random key of all images, of which image `i` has the key `i`. Or one
      integer per image, which has the first key of its own seed, or one pair of a seed and a
      number per image.
    numbers: of the images, from 0.
  """
  index = np.asarray(numbers)
  if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
    return jax.vmap(lambda i: jax.random.fold_in(seed, i))(index)
  if np.ndim(seed) == 0:
    return keys(jax.random.key(seed), index)
  own = np.asarray(seed, np.uint32)[index % len(seed)].reshape(len(index), -1)
  number = own[:, 1] if own.shape[1] == 2 else np.zeros_like(index)
  return random_lib.image_keys(list(zip(own[:, 0], number)))


def filled(count: int, size: int) -> Iterator[tuple[np.ndarray, int]]:
  """Divides images into batches of one size, so that one compiled program serves all of them.

  Args:
    count: images.
    size: images of a batch.

  Yields:
    Numbers `[size]` of the images of a batch, and how many of them count: the last batch repeats
    its last image.
  """
  for first in range(0, count, size):
    yield np.minimum(np.arange(first, first + size), count - 1), min(size, count - first)


def leading(results: Any, count: int) -> Any:
  """The results of the first images of a batch."""
  return jax.tree.map(lambda leaf: leaf[:count], results)


class Program:
  """A decoder of a model with its parameters: `program(condition, keys, sampling)`.

  It is compiled once per batch size, and returns what the decoder returns. The model keeps
  the compiled decoder for the next program of the same specification.

  Attributes:
    decoder: the decoder itself.
    specification: what it was built from.
  """

  def __init__(self, model: Any, specification: Any, sampling: Any):
    """Builds the decoder.

    Args:
      model: a `generation.Model`.
      specification: of the decoder.
      sampling: options like those that it will be called with; whether they ask for guidance
        counts.

    Raises:
      ValueError: for a specification that cannot work.
    """
    self.specification = model.specification(specification)
    guided = programs.is_guided(sampling)
    self.decoder = model.decoder(self.specification, guided=guided)
    self._params, self._settled = model.params, model.engine.settled
    self._draft_params = model.draft_params(self.specification)
    self._jitted = programs.kept(
        model, (str(self.specification), guided), lambda: programs.jit(self.decoder))

  def __call__(self, condition: Any, row_keys: jax.Array, sampling: Any) -> Any:
    return self._jitted(*self._arguments(condition, row_keys, sampling))

  def check(self, condition: Any, sampling: Any) -> None:
    """Raises ValueError for values that cannot work."""
    self.decoder.check(condition, sampling)

  def compiled(self, condition: Any, row_keys: jax.Array, sampling: Any) -> programs.Compiled:
    """The compiled program for arguments like these, and how long it took to compile."""
    run_all, seconds = programs.compiled(
        self.decoder, *self._arguments(condition, row_keys, sampling))
    return programs.Compiled(lambda *given: run_all(*self._arguments(*given)), seconds)

  def structure(self, condition: Any, row_keys: jax.Array, sampling: Any) -> Any:
    """Shapes and dtypes of the result."""
    return jax.eval_shape(self.decoder, *self._arguments(condition, row_keys, sampling))

  def _arguments(self, condition, row_keys, sampling):
    return self._params, condition, row_keys, self._settled(sampling), self._draft_params


def run(
    model: Any,
    decoder: Any,
    prompts: Any,
    *,
    seed: Any = 0,
    batch_size: int = 16,
    sampling: Any = None,
    folder: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Any:
  """Decodes one image per prompt.

  Args:
    model: a `generation.Model`.
    decoder: a specification, a `Program`, or any other function
      `(condition, keys, sampling) -> result` for a batch.
    prompts: one per image, as `model.condition` takes them.
    seed: see `keys`.
    batch_size: images that are decoded together. The last batch is filled up with further images,
      so that one program is compiled.
    sampling: of `model.sampling`, each option a number or one per image; the model's defaults
      if None.
    folder: where finished batches are kept, or None. It is made if necessary, and batches that it
      holds already are not decoded again. It belongs to one run: the same model, decoder,
      prompts and options.
    progress: called after every batch.

  Returns:
    What the decoder returns, of all images in the order of their prompts, as NumPy arrays.

  Raises:
    ValueError: if there is nothing to do, an option cannot work, the folder holds another run, or
      the model's numbers are no probabilities.
  """
  batches = [decoded for _, decoded in iterate(
      model, decoder, prompts, seed=seed, batch_size=batch_size, sampling=sampling, folder=folder,
      progress=progress)]
  return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


def iterate(
    model: Any,
    decoder: Any,
    prompts: Any,
    *,
    seed: Any = 0,
    batch_size: int = 16,
    sampling: Any = None,
    folder: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[int, Any]]:
  """Decodes batch after batch, for those who do not want to hold all images at once.

  Arguments and errors are those of `run`.

  Yields:
    The number of the first image of a batch, and what the decoder returned of the batch as NumPy
    arrays.
  """
  condition = model.condition(prompts)
  count = len(jax.tree.leaves(condition)[0])
  _check(count, seed, batch_size)
  sampling = model.sampling() if sampling is None else sampling
  program = decoder if callable(decoder) else Program(model, decoder, sampling)
  size = min(batch_size, count)

  def arguments(index):
    pick = lambda leaf: leaf[index] if np.ndim(leaf) else leaf
    return jax.tree.map(pick, condition), keys(seed, index), jax.tree.map(pick, sampling)

  if isinstance(program, Program):
    program.check(condition, sampling)
  elif folder is not None:
    raise ValueError('folder is given, but decoder is a function; give a specification, which '
                     'tells what the folder holds.')
  shards = folder and shards_lib.Shards(
      folder, shards_lib.settings(
          model, program.specification, condition, seed, size, sampling, prompts),
      program.structure(*arguments(np.arange(size))))
  for index, kept in filled(count, size):
    first = int(index[0])
    decoded = shards.read(first, kept) if shards else None
    if decoded is None:
      decoded = leading(jax.device_get(program(*arguments(index))), kept)
      if isinstance(program, Program):
        model.engine.check_result(
            decoded, [f'number {first + number}' for number in range(kept)])
      if shards:
        shards.write(first, decoded)
    if progress is not None:
      progress(first + kept, count)
    yield first, decoded


def _check(count: int, seed: Any, batch_size: int) -> None:
  """Raises ValueError for arguments of `run` that cannot work."""
  if not count:
    raise ValueError('prompts is empty; give at least one.')
  if batch_size < 1:
    raise ValueError(f'batch_size is {batch_size}; it must be at least 1.')
  if np.ndim(seed) and np.shape(seed) not in ((count,), (count, 2)):
    raise ValueError(f'seed has shape {np.shape(seed)}; it must be one integer, or one or two for '
                     f'each of the {count} prompts.')
