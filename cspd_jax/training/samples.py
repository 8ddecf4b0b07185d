"""Images that a target has sampled: what everything that drafts for it learns from."""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from cspd_jax.checkpoints import files, reading
from cspd_jax.generation import batches

# Images that the target samples at once.
_BATCH = 64


def prompts_of(model: Any, path: str | None = None) -> Sequence[Any]:
  """The prompts of a file with one per line, or those of the model itself.

  Raises:
    ValueError: if there are none.
  """
  if path is not None:
    text = reading.text(path, 'give a file with one prompt per line', 'prompts')
    found: Sequence[Any] = [line.strip() for line in text.splitlines() if line.strip()]
    if not found:
      raise ValueError(f'prompts is {path!r}, a file without prompts; write one per line.')
    return found
  if not len(model.prompts):
    raise ValueError(f'prompts is none, and model {model.name!r} has none of its own; give a file '
                     'with one per line.')
  return model.prompts


def sampled(model: Any, prompts: str | None, count: int, key: jax.Array, sampling: Any
            ) -> tuple[np.ndarray, np.ndarray]:
  """Samples images of all prompts in turn.

  Args:
    model: a `generation.Model` of discrete tokens.
    prompts: file of what it is asked for, or None; see `prompts_of`.
    count: number of images.
    key: random key.
    sampling: options of a `Warp`.

  Returns:
    Tokens `[N, T]` and the number of every image's prompt `[N]`, int32.

  Raises:
    ValueError: for options that cannot be.
  """
  asked = prompts_of(model, prompts)
  numbers = np.arange(count, dtype=np.int32) % len(asked)
  conditions = model.condition(asked)
  decoder = model.decoder('vanilla', guided=True)
  decoder.check(conditions, sampling)
  decode = jax.jit(decoder)
  parts = []
  for index, kept in batches.filled(count, min(_BATCH, count)):
    decoded = decode(model.params, pick(conditions, numbers[index]),
                     jax.random.fold_in(key, index[0]), sampling)
    parts.append(np.asarray(decoded.tokens)[:kept])
    logging.info('images: %d of %d', index[kept - 1] + 1, count)
  return np.concatenate(parts), numbers


def kept(path: pathlib.Path, model: Any, prompts: str | None, count: int, key: jax.Array,
         sampling: Any) -> tuple[np.ndarray, np.ndarray]:
  """The images of a file; they are sampled and stored there first if it does not hold so many.

  Arguments but for `path` and result as for `sampled`.
  """
  if path.exists():
    stored = reading.arrays(path, files.REMAKE, needed=('tokens', 'labels'))
    if stored['tokens'].shape == (count, model.num_tokens) and stored['labels'].shape == (count,):
      return stored['tokens'], stored['labels']
  tokens, numbers = sampled(model, prompts, count, key, sampling)
  files.write_arrays(path, dict(tokens=tokens, labels=numbers))
  return tokens, numbers


def pick(conditions: Any, numbers: np.ndarray) -> Any:
  """The conditions of the prompts of these numbers."""
  return jax.tree.map(lambda leaf: leaf[numbers], conditions)
