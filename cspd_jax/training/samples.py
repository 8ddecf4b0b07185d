"""Images sampled from a target, the training data of its drafters and correctors."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from cspd_jax.core import batches, fields, progress, sampling as sampling_lib
from cspd_jax.core.sampling import SamplingFlags, SamplingParams
from cspd_jax.core.spec import Spec
from cspd_jax.decoding.base import Decoded
from cspd_jax.files import atomic, npz, output, reading
from cspd_jax.generation import options, prompts as prompts_lib, stored_run
from cspd_jax.generation.images import Images, fitted
from cspd_jax.generation.model import Model
from cspd_jax.training.optimizer import OptimizerConfig

_BATCH = 64  # The most images per batch.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled(SamplingFlags):
  """The target of a recipe, and the prompts, sampling options and seed of its images.

  The measured distributions have these options too; None uses the target's own.

  Attributes:
    target: the model that the network is trained for: a shipped name or a folder.
    prompts: file with one prompt per line for the images; None for the target's own prompts.
    seed: seed of the images.
  """

  target: str = 'demo'
  prompts: str | None = None
  seed: int = 0

  def __post_init__(self):
    sampling_lib.check_flags(self, seed=fields.SEEDS)


Recipe = TypeVar('Recipe', bound=Sampled)


def sampling(recipe: Sampled, model: Model) -> SamplingParams:
  """Returns the sampling options of a recipe; raises ValueError for models of continuous tokens."""
  options = model.sampling(**{name: getattr(recipe, name) for name in SamplingParams._fields})
  assert isinstance(options, SamplingParams)  # Continuous tokens have fewer options.
  return options


def completed(recipe: Recipe, model: Model) -> Recipe:
  """Returns a recipe whose sampling options are numbers; arguments and errors as for `sampling`."""
  options = atomic.plain(sampling(recipe, model)._asdict())
  return dataclasses.replace(recipe, **options)


def prompts_of(model: Model, path: str | None = None) -> Sequence[Any]:
  """Returns the prompts in a file, by line, or ValueError; for None the model's or general ones."""
  if path is not None:
    return prompts_lib.listed(pathlib.Path(path))
  return model.prompts if len(model.prompts) else prompts_lib.general()


def identity(recipe: Sampled, model: Model) -> dict[str, Any]:
  """Returns what determines a training: fields of the recipe, of files and the model the contents.

  So a file that was changed is another training, and one that was moved is the same.
  """
  contents: dict[str, Any] = dict(
      target=stored_run.fingerprint(model.params),
      prompts=stored_run.digest_of(repr(list(prompts_of(model, recipe.prompts)))))
  if (images := getattr(recipe, 'images', None)) is not None:
    data = reading.data(images, 'write it again', 'images')
    contents['images'] = hashlib.sha256(data).hexdigest()
  return dataclasses.asdict(recipe) | contents


def check_sizes(drafter: Any, model: Model, sizes: Mapping[str, Any]) -> None:
  """Raises ValueError unless the configuration of a drafter has the sizes that a model requires."""
  for name, expected in sizes.items():
    value = getattr(drafter, name)
    fields.require(value == expected, f'drafter.{name}', value,
                   f'{expected!r}, as for the target {model.name!r}')


def check_batch_size(name: str, optimizer: OptimizerConfig, num_images: int) -> None:
  """Raises ValueError if there are fewer images than the batches of optimiser `name` hold."""
  fields.require(optimizer.batch_size <= num_images, f'{name}.batch_size', optimizer.batch_size,
                 f'from 1 to {num_images}, the number of images')


def stored(path: str, model: Model, prompts: str | None, count: int
           ) -> tuple[np.ndarray, np.ndarray]:
  """Reads the first `count` images of a file, an .npz with `tokens` `[N, T]` of `Model.tokens`.

  Returns them as `sampled` does: image `i` has prompt `i`, the prompts in turn. Another shape,
  fewer images, and tokens that the model does not have raise ValueError.
  """
  tokens = npz.arrays(path, 'write it again', needed=('tokens',), only=('tokens',))['tokens']
  length, most = model.num_tokens, model.target(guided=False).vocab_size
  if tokens.ndim != 2 or tokens.shape[1] != length or len(tokens) < count:
    raise ValueError(f'images is {path!r}, with tokens of shape {tokens.shape}; it must have at '
                     f'least {count} images of {length} tokens.')
  if tokens.dtype.kind not in 'iu' or tokens.min() < 0 or tokens.max() >= most:
    raise ValueError(f'images is {path!r}, with {tokens.dtype} tokens from {tokens.min()} to '
                     f'{tokens.max()}; they must be integers from 0 to {most - 1}.')
  return (tokens[:count].astype(np.int32),
          np.arange(count, dtype=np.int32) % len(prompts_of(model, prompts)))


def _exact_default(model: Model, batch_size: int) -> Spec:
  """The model's default decoder if it is exact, or else one that is."""
  default = model.specification(batch_size=batch_size)
  try:
    guarantee = model.decoder(default).guarantee
  except ValueError:  # Its window is longer than the image.
    return model.specification('vanilla')
  if guarantee.is_exact:
    return default
  return model.specification(options.default(
      model.table, None, (), model.devices[0], batch_size))


def images(model: Model, prompts: Sequence[Any], count: int, sampling: Any, *, seed: Any,
            decoder: str | Spec | None = None, batch_size: int | None = None,
            max_batch_size: int = _BATCH, folder: str | os.PathLike | None = None) -> Images:
  """Returns `count` images to be sampled, with the prompts in turn.

  None uses the decoder of the run in `folder`, which may have been interrupted, or
  else the model's default if that is exact, or the one of models without a default. The batch size
  that None uses is the run's, or as many as fit in memory, at most `max_batch_size`. Invalid
  sampling options, and a batch that does not fit in memory, raise ValueError.
  """
  if batch_size is None and folder is not None:
    batch_size = stored_run.batch_size_of(folder)
  if decoder is None and folder is not None:
    decoder = output.settings(pathlib.Path(folder)).get('decoder')
  prompts, turns = prompts[:count], np.arange(count) % len(prompts)
  if decoder is None:
    decoder = _exact_default(model, min(count, batch_size or max_batch_size))
  sampler = model.sampler(decoder, batch_size=batch_size, sampling=sampling)
  return fitted(sampler.images(
      [prompts[int(i)] for i in turns], seed=seed, slots=False, pixels=False,
      condition=batches.select(model.condition(prompts), turns)).with_batch_size(
          count if batch_size is not None else max_batch_size))


def sampled(model: Model, prompts: str | None, count: int, key: jax.Array, sampling: Any,
            folder: str | os.PathLike | None = None) -> tuple[np.ndarray, np.ndarray]:
  """Samples `count` images, with the prompts in turn: tokens `[N, T]` and the index `[N]` of every
  image's prompt, int32.

  Finished batches are stored in `folder`, unless it is None, so that an interrupted call can be
  repeated. Invalid sampling options, a folder of another run, and too little memory for an image
  raise ValueError.
  """
  texts = prompts_of(model, prompts)
  chosen = images(model, texts, count, sampling, seed=key, folder=folder)
  with progress.bar('sampling') as show:
    decoded = stored_run.decode(chosen, show, folder)
  return np.asarray(decoded.tokens, np.int32), np.arange(count, dtype=np.int32) % len(texts)


def decoded(recipe: Sampled, model: Model, decoder: str, count: int) -> Decoded:
  """Returns what a decoder makes of images of another seed than a recipe's, to measure on."""
  return stored_run.decode(images(
      model, prompts_of(model, recipe.prompts), count, sampling(recipe, model),
      seed=(recipe.seed + 1) % 2**32, decoder=decoder, max_batch_size=count))
