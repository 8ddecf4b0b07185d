"""Decodes many images with one decoder in batches; an interrupted run can be resumed.

Image `i` depends, up to rounding, only on the seed, `i` and its prompt, whatever the batch size.
With a folder, every finished batch is stored as a file, and the same call resumes an interrupted
run.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import sharding
from cspd_jax.core import programs, random as random_lib
from cspd_jax.core.spec import Spec
from cspd_jax.generation import memory, shards as shards_lib
from cspd_jax.generation.engines import Options

if TYPE_CHECKING:
  from cspd_jax.generation.model import Model

# `(done, total) -> None`, called with numbers of images.
Progress = Callable[[int, int], None]


def keys(seed: Any, numbers: np.ndarray | Sequence[int]) -> jax.Array:
  """Returns the random keys `[B]` of images.

  Args:
    seed: one integer or random key for all images; image `i` then has its key number `i`. Or one
      integer per image, which then has the first key of its own seed, or one pair of a seed and a
      number per image.
    numbers: numbers of the images, from 0.

  Raises:
    ValueError: for a seed that is not a whole number from 0 to 2^32 - 1.
  """
  index = np.asarray(numbers)
  if _is_key(seed):
    return jax.vmap(lambda i: jax.random.fold_in(seed, i))(index)
  if np.ndim(seed) == 0:
    return keys(random_lib.seed_key(seed), index)
  pairs = np.asarray(seed)[index % len(seed)].reshape(len(index), -1)
  number = pairs[:, 1] if pairs.shape[1] == 2 else np.zeros_like(index)
  return random_lib.image_keys(list(zip(pairs[:, 0], number)))


def _is_key(seed: Any) -> bool:
  return isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)


def filled(count: int, size: int) -> Iterator[tuple[np.ndarray, int]]:
  """Divides images into batches of one size, so that one compiled program serves all of them.

  Args:
    count: number of images.
    size: images per batch.

  Yields:
    The numbers `[size]` of the images of a batch, and how many of them are new: the last batch
    repeats its last image.
  """
  for first in range(0, count, size):
    yield np.minimum(np.arange(first, first + size), count - 1), min(size, count - first)


def leading(results: Any, count: int) -> Any:
  """Returns the results of the first `count` images of a batch."""
  return jax.tree.map(lambda leaf: leaf[:count], results)


def rows(tree: Any, index: np.ndarray) -> Any:
  """Returns the rows at `index` of all arrays of a tree; scalars do not change."""
  return jax.tree.map(lambda leaf: leaf[index] if np.ndim(leaf) else leaf, tree)


def divisible(mesh: jax.sharding.Mesh, count: int) -> np.ndarray:
  """Returns numbers of `count` images, filled up so that all groups of a mesh decode as many."""
  groups = mesh.shape[sharding.DATA]
  return next(filled(count, -(-count // groups) * groups))[0]


class BatchDecoder:
  """A decoder of a model bound to its parameters: `decode(condition, keys, sampling)`.

  It is compiled once per batch size and returns the decoder's result. The model caches the
  compiled decoder for later instances with the same specification. The images are divided over the
  model's mesh.

  Attributes:
    decoder: the decoder without parameters.
    specification: the specification that it was built from.
  """

  def __init__(self, model: 'Model', specification: str | Spec, sampling: Options):
    """Builds the decoder.

    Args:
      model: the model.
      specification: of the decoder.
      sampling: options like those of later calls; only whether they use guidance matters.

    Raises:
      ValueError: for a specification that is not supported.
    """
    self.specification = model.specification(specification)
    guided = programs.is_guided(sampling)
    self.decoder = model.decoder(self.specification, guided=guided)
    self._model, self._params, self._settled = model, model.params, model.engine.settled
    self._draft_params = model.draft_params(self.specification)
    mesh = model.mesh
    self._function = self.decoder if mesh is None else sharding.over_images(self.decoder, mesh)
    self._jitted = programs.kept(
        model, (str(self.specification), guided), lambda: programs.jit(
            self._function, label=str(self.specification)))

  def __call__(self, condition: Any, row_keys: jax.Array, sampling: Options) -> Any:
    mesh, count = self._model.mesh, len(row_keys)
    if mesh is None:
      return self._jitted(*self._arguments(condition, row_keys, sampling))
    decoded = self._jitted(*self._arguments(
        *rows((condition, row_keys, sampling), divisible(mesh, count))))
    return leading(sharding.gathered(decoded), count)

  def estimate(self, condition: Any, sampling: Options) -> memory.Estimate:
    """Estimates the memory that decoding needs; see `memory.estimate`."""
    return memory.estimate(
        self._model, self.specification, self.decoder, condition, self._settled(sampling),
        self._draft_params)

  def check_memory(self, condition: Any, sampling: Options, batch_size: int) -> None:
    """Raises ValueError if decoding `batch_size` images at once does not fit in memory."""
    memory.check(
        self._model, self.specification, self.estimate(condition, sampling), batch_size)

  def check(self, condition: Any, sampling: Options) -> None:
    """Raises ValueError for values that the decoder does not support."""
    self.decoder.check(condition, sampling)

  def checked_size(self, condition: Any, sampling: Options, batch_size: int | None, count: int
                   ) -> int:
    """Checks values and memory, and returns the number of images that are decoded together.

    Args:
      condition: of all images.
      sampling: the options.
      batch_size: the number, at most `count`; None selects as many as fit in memory.
      count: number of all images.
    """
    self.check(condition, sampling)
    size = (self.estimate(condition, sampling).most(count) if batch_size is None else
            min(batch_size, count))
    self.check_memory(condition, sampling, size)
    return size

  def compiled(self, condition: Any, row_keys: jax.Array, sampling: Options) -> programs.Compiled:
    """Returns the compiled program for arguments of these shapes, and its compilation time."""
    run_all, seconds = programs.compiled(
        self._function, *self._arguments(condition, row_keys, sampling),
        label=str(self.specification))
    return programs.Compiled(lambda *arguments: run_all(*self._arguments(*arguments)), seconds)

  def structure(self, condition: Any, row_keys: jax.Array, sampling: Options) -> Any:
    """Returns shapes and dtypes of the result."""
    return jax.eval_shape(self.decoder, *self._arguments(condition, row_keys, sampling))

  def _arguments(self, condition, row_keys, sampling):
    return self._params, condition, row_keys, self._settled(sampling), self._draft_params


def run(model: 'Model', decoder: str | Spec | Callable[..., Any], prompts: Any, **options: Any
        ) -> Any:
  """Decodes one image per prompt.

  Args:
    model: the model.
    decoder: as for `iterate`.
    prompts: one per image, as `model.condition` accepts them.
    **options: as for `iterate`.

  Returns:
    The decoder's results for all images, in the order of their prompts, as NumPy arrays.

  Raises:
    ValueError: as for `iterate`.
  """
  results = [decoded for _, decoded in iterate(model, decoder, prompts, **options)]
  return jax.tree.map(lambda *parts: np.concatenate(parts), *results)


def iterate(
    model: 'Model',
    decoder: str | Spec | Callable[..., Any],
    prompts: Any,
    *,
    seed: Any = 0,
    batch_size: int | None = 16,
    sampling: Options | None = None,
    folder: str | os.PathLike | None = None,
    progress: Progress | None = None,
    condition: Any = None,
) -> Iterator[tuple[int, Any]]:
  """Decodes one image per prompt, batch after batch, so that not all are in memory at once.

  Args:
    model: the model.
    decoder: a specification, a `BatchDecoder`, or any other function
      `(condition, keys, sampling) -> result` of a batch.
    prompts: one per image, as `model.condition` accepts them.
    seed: see `keys`.
    batch_size: images that are decoded together; None for as many as fit in memory, or as the
      run in `folder` has. The last batch is filled up with repeated images.
    sampling: options of `model.sampling`, numbers or one per image; None uses the defaults.
    folder: where finished batches are stored, or None. Batches that it already holds are not
      decoded again. It belongs to one run: the same model, decoder, prompts and options.
    progress: called after every batch.
    condition: of the prompts, if the caller has encoded them; None encodes them here.

  Yields:
    The number of the first image of a batch, and its result as NumPy arrays.

  Raises:
    ValueError: if there are no prompts, an option is not supported, a batch does not fit in
      memory, the folder holds another run, or the model returns NaN or infinity.
  """
  condition = model.condition(prompts) if condition is None else condition
  count = len(jax.tree.leaves(condition)[0])
  _check(count, seed, batch_size, decoder, folder)
  options = _options(model, sampling)
  decode = decoder if callable(decoder) else BatchDecoder(model, decoder, options)
  if batch_size is None and folder is not None:
    batch_size = shards_lib.batch_size_of(folder)
  size = min(batch_size or count, count)

  def arguments(index):
    return rows(condition, index), keys(seed, index), rows(options, index)

  shards = None
  if isinstance(decode, BatchDecoder):
    size = decode.checked_size(condition, options, batch_size, count)
    if folder:
      shards = shards_lib.Shards(
          folder, shards_lib.settings(
              model, decode.specification, condition, seed, size, options, prompts),
          decode.structure(*arguments(np.arange(size))))
  for index, num_new in filled(count, size):
    first, decoded = int(index[0]), _decoded(model, decode, arguments, index, num_new, shards)
    if progress is not None:
      progress(first + num_new, count)
    yield first, decoded


def _decoded(model: 'Model', decode: Callable[..., Any],
             arguments: Callable[[np.ndarray], tuple[Any, ...]], index: np.ndarray, num_new: int,
             shards: shards_lib.Shards | None) -> Any:
  """Returns the result of a batch, from its file in `shards` if there is one.

  Args:
    model: the model.
    decode: a `BatchDecoder` or a function.
    arguments: returns its arguments for the images of these numbers.
    index: numbers of the images.
    num_new: how many of them are new.
    shards: where finished batches are stored, or None.
  """
  first = int(index[0])
  decoded = shards.read(first, num_new) if shards else None
  if decoded is not None:
    return decoded
  decoded = leading(jax.device_get(decode(*arguments(index))), num_new)
  if isinstance(decode, BatchDecoder):
    model.engine.check_result(decoded, [f'number {first + number}' for number in range(num_new)])
  if shards:
    shards.write(first, decoded)
  return decoded


def _options(model: 'Model', sampling: Options | None) -> Options:
  """Returns sampling options, by default the model's; raises ValueError for another type."""
  options = model.sampling() if sampling is None else sampling
  if not isinstance(options, model.engine.options):
    raise ValueError(f'sampling is {sampling!r:.80}; pass model.sampling(...), such as '
                     'model.sampling(temperature=0.9).')
  return options


def _check(count: int, seed: Any, batch_size: int | None, decoder: Any, folder: Any) -> None:
  """Raises ValueError for arguments of `iterate` that are not supported."""
  if not count:
    raise ValueError('prompts is empty; pass at least one.')
  if batch_size is not None and batch_size < 1:
    raise ValueError(f'batch_size is {batch_size}; it must be at least 1.')
  if np.ndim(seed) and np.shape(seed) not in ((count,), (count, 2)):
    raise ValueError(f'seed has shape {np.shape(seed)}; it must be one integer, or one or two for '
                     f'each of the {count} prompts.')
  if not _is_key(seed):
    random_lib.checked_seeds(seed)
  if folder is not None and callable(decoder) and not isinstance(decoder, BatchDecoder):
    raise ValueError('folder is set, but decoder is a function; pass a specification, which '
                     'records what the folder holds.')
