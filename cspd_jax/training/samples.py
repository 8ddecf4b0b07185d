"""Images sampled from a target, the training data of its drafters and correctors."""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from cspd_jax.checkpoints import files, reading
from cspd_jax.generation import batches, prompts as prompts_lib
from cspd_jax.generation.model import Model

# Images per batch.
_BATCH = 64


def prompts_of(model: Model, path: str | None = None) -> Sequence[Any]:
  """Returns the prompts of a file with one prompt per line.

  Without a file, returns the model's own prompts, or general ones for a model of words.

  Raises:
    ValueError: if the file has no prompts.
  """
  if path is not None:
    return prompts_lib.listed(pathlib.Path(path))
  return model.prompts if len(model.prompts) else prompts_lib.general()


def sampled(model: Model, prompts: str | None, count: int, key: jax.Array, sampling: Any
            ) -> tuple[np.ndarray, np.ndarray]:
  """Samples images, with the prompts in turn.

  Args:
    model: a model of discrete tokens.
    prompts: file with one prompt per line, or None; see `prompts_of`.
    count: number of images.
    key: random key.
    sampling: sampling options, a `Warp`.

  Returns:
    Tokens `[N, T]` and the index `[N]` of every image's prompt, int32.

  Raises:
    ValueError: for invalid sampling options.
  """
  texts = prompts_of(model, prompts)
  indices = np.arange(count, dtype=np.int32) % len(texts)
  conditions = model.condition(texts)
  decoder = model.decoder('vanilla', guided=True)
  decoder.check(conditions, sampling)
  decode = jax.jit(decoder)
  parts = []
  for batch, size in batches.filled(count, min(_BATCH, count)):
    decoded = decode(model.params, select(conditions, indices[batch]),
                     jax.random.fold_in(key, batch[0]), sampling)
    parts.append(np.asarray(decoded.tokens)[:size])
    logging.info('images: %d of %d', batch[size - 1] + 1, count)
  return np.concatenate(parts), indices


def cached(path: pathlib.Path, model: Model, prompts: str | None, count: int, key: jax.Array,
           sampling: Any) -> tuple[np.ndarray, np.ndarray]:
  """Reads the images of a file; if it does not hold `count` images, samples and stores them first.

  Further arguments and result as for `sampled`.
  """
  if path.exists():
    stored = reading.arrays(path, files.REMAKE, needed=('tokens', 'labels'))
    if stored['tokens'].shape == (count, model.num_tokens) and stored['labels'].shape == (count,):
      return stored['tokens'], stored['labels']
  tokens, indices = sampled(model, prompts, count, key, sampling)
  files.write_arrays(path, dict(tokens=tokens, labels=indices))
  return tokens, indices


def select(conditions: Any, indices: np.ndarray) -> Any:
  """Returns the rows of `conditions` at `indices`."""
  return jax.tree.map(lambda leaf: leaf[indices], conditions)
