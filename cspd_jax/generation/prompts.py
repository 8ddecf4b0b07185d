"""Converts the prompts and seeds that callers pass to lists."""

import collections.abc
import io
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cspd_jax.checkpoints import reading, store

if TYPE_CHECKING:
  from cspd_jax.generation.model import Model


def listed(prompts: Any) -> Any:
  """Returns a list of prompts.

  Args:
    prompts: a prompt, a list of them, or a `pathlib.Path` to a file with one per line. Another
      type, such as embeddings, is returned unchanged.

  Raises:
    ValueError: if the list is empty or a set, names and numbers are mixed, or the file cannot be
      read.
  """
  if isinstance(prompts, collections.abc.Set):
    raise ValueError(f'prompts is a {type(prompts).__name__}, which has no order, and an image '
                     'depends on the number of its prompt; pass a list.')
  if isinstance(prompts, (float, np.floating, bytes, collections.abc.Iterator)):
    raise ValueError(f'prompts is {prompts!r:.80}; it must be a prompt, a list of them, or a '
                     'pathlib.Path to a file with one per line.')
  if isinstance(prompts, os.PathLike):
    return _lines(pathlib.Path(prompts))
  if isinstance(prompts, (str, int, np.integer)):
    prompts = [prompts]
  if isinstance(prompts, (range, np.ndarray, jax.Array)) and np.ndim(prompts) < 2:
    prompts = np.asarray(prompts).tolist()
    prompts = prompts if isinstance(prompts, list) else [prompts]
  if type(prompts) not in (list, tuple):
    return prompts
  if not prompts:
    raise ValueError('prompts is empty; pass at least one.')
  kinds = {isinstance(prompt, str) for prompt in prompts}
  if len(kinds) > 1:
    raise ValueError(f'prompts mixes names and numbers ({list(prompts)[:8]}); pass only names, or '
                     'only numbers.')
  for prompt in prompts:
    if isinstance(prompt, str) and not _is_text(prompt):
      raise ValueError(f'prompts holds {prompt!r:.80}, which is not Unicode text.')
  return list(prompts)


def _is_text(prompt: str) -> bool:
  """Whether a prompt is free of bytes that the terminal could not decode."""
  try:
    prompt.encode()
    return True
  except UnicodeEncodeError:
    return False


def _lines(path: pathlib.Path) -> list[str]:
  text = reading.text(path, 'pass a file with one prompt per line', 'prompts')
  # Editors on Windows begin a file with this mark. `str.splitlines` also splits at characters that
  # a prompt may hold.
  lines = [line.strip() for line in io.StringIO(text.removeprefix('\ufeff'), newline=None)]
  if not any(lines):
    raise ValueError(f'prompts is {str(path)!r}, a file without prompts; write one per line.')
  return [line for line in lines if line]


def seeds(seed: Any, count: int) -> list[tuple[int, int]]:
  """Returns, per image `[count]`, its seed and its number under that seed.

  Args:
    seed: an integer, under which the images are numbered, or one integer per image, or a pair of
      a seed and a number per image, which reproduces any image of a larger set.
    count: number of images.

  Raises:
    ValueError: for anything else.
  """
  several = isinstance(seed, (Sequence, np.ndarray, jax.Array)) and np.ndim(seed) in (1, 2)
  pairs = several and np.ndim(seed) == 2 and np.shape(seed)[1] == 2
  values = list(np.asarray(seed).reshape(-1).tolist()) if several else [seed]
  for value in values:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not (
        0 <= value < 2**32):
      raise ValueError(f'seed is {seed!r}; it must be a whole number from 0 to {2**32 - 1}, or '
                       f'one for each of {count} images.')
  if not several:
    return [(int(seed), i) for i in range(count)]
  if len(values) != count * (1 + pairs):
    raise ValueError(f'seed has {len(values)} numbers for {count} images; pass one per image, or a '
                     'single one.')
  return list(zip(values[::2], values[1::2])) if pairs else [(value, 0) for value in values]


def general() -> list[str]:
  """Returns prompts in words on many subjects, for models without prompts of their own."""
  return _lines(store.ASSETS / 'prompts.txt')


def unknown_words(model: 'Model', prompts: Any, count: int) -> list[list[str]]:
  """Returns the words `[count]` of prompts that a model does not know; none of other conditions."""
  if not isinstance(prompts, list) or not all(isinstance(prompt, str) for prompt in prompts):
    return [[] for _ in range(count)]
  words = {prompt: model.conditions.unknown_words(prompt) for prompt in dict.fromkeys(prompts)}
  return [words[prompt] for prompt in prompts]
