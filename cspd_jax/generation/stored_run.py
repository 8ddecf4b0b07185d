"""Runs that are kept in a folder, and what determines their results.

Finished batches are stored, so that a run that was stopped continues; `settings` identify it.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import batches, matrices
from cspd_jax.decoding import specification as specification_lib
from cspd_jax.files import atomic, run_folder
from cspd_jax.generation import cascade, decode as decode_lib, options
from cspd_jax.generation.images import Images


def run(images: Images, folder: str | os.PathLike) -> Iterator[tuple[np.ndarray, Any]]:
  """Decodes images batch after batch, as `Sampler.batches` yields them.

  Finished batches are stored in the folder, and those that it holds are not decoded again; it
  belongs to one run: the same model, decoder, prompts and options. Another run in it, and NaN or
  infinity of the model, raise ValueError.
  """
  sampler, size = images.sampler, images.batch_size
  stored = run_folder.Run(folder, settings(images))
  structure = jax.eval_shape(
      sampler.function, *sampler.arguments(images, np.zeros(size, int)))
  for index, num_new in batches.filled(len(images), size):
    name = f'batch_{index[0]:07d}.npz'
    shape_of = lambda leaf, count=num_new: jax.ShapeDtypeStruct(
        (count, *leaf.shape[1:]), leaf.dtype)
    decoded = stored.read(name, jax.tree.map(shape_of, structure))
    if decoded is None:
      decoded = decode_lib.batch(images, index, num_new)
      stored.write(name, decoded)
    yield index[:num_new], decoded


def decode(images: Images, progress: batches.Progress | None = None,
           folder: str | os.PathLike | None = None) -> Any:
  """Returns as `decode.decoded`, with finished batches in a folder, unless that is None."""
  if folder is None:
    return decode_lib.decoded(images, progress)
  return decode_lib.gathered(run(images, folder), len(images), progress)


def _recorded(seeds: Any) -> Any:
  """Returns the seeds of images, or the one under which all images are numbered."""
  if isinstance(seeds, jax.Array) or len({seed for seed, _ in seeds}) > 1 or (
      [number for _, number in seeds] != list(range(len(seeds)))):
    return seeds
  return seeds[0][0]


# The most numbers of an array that are fetched from a device to be compared.
_FETCHED = 1 << 20


def batch_size_of(folder: str | os.PathLike, finished: bool = True) -> int | None:
  """Returns the batch size of the run in a folder, also a `finished` one; None without a run."""
  size = run_folder.stored_run(folder, finished).get('batch_size')
  return size if type(size) is int and size >= 1 else None


def settings(images: Any) -> dict[str, Any]:
  """Returns the settings that determine the results of a run, also of a cascade."""
  *before, images = cascade.in_turn(images)
  sampler, prompts, condition = images.sampler, images.prompts, images.condition
  model, seed = sampler.model, _recorded(images.seeds)
  is_words = isinstance(prompts, list) and all(isinstance(prompt, str) for prompt in prompts)
  reads_codebook = specification_lib.reads_codebook(sampler.specification)
  has_floats = any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(condition))
  prior = dict(prior=settings(before[0])) if before else {}
  return prior | dict(
      model=model.name, cache_dtype=model.cache_dtype, parameters=fingerprint(model.params),
      grid=list(model.grid), config=digest_of(repr(model.config)),
      decoder=str(sampler.specification), draft_parameters=fingerprint(sampler.draft_params),
      codebook=fingerprint(model.codebook) if reads_codebook else None,
      sampling=atomic.plain(options.named(model.table, images.sampling)),
      seed=(fingerprint(jax.random.key_data(seed)) if isinstance(seed, jax.Array) else
            atomic.plain(seed)),
      # Features of words may differ in their last bits when the network is compiled again.
      prompts=(digest_of(json.dumps(prompts) + fingerprint(model.prompt_kind.params))
               if has_floats and is_words else fingerprint(condition)),
      prefix=fingerprint(condition.tokens) if model.prefix_length else None,
      batch_size=images.batch_size)


def network_digest(config: Any, params: Any) -> str:
  """Returns a short digest of a network: its config and its parameters."""
  return digest_of(repr(config) + fingerprint(params))


def weights(model: Any) -> dict[str, str]:
  """Returns short digests of a model's parameters by part, which reports keep."""
  parts = dict(target=model.params) | {name: draft.params for name, draft in model.drafts.items()}
  if isinstance(model, cascade.Cascade):
    parts['prior'] = model.prior.params
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
