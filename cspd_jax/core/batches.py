"""Divides many rows into batches of one size, so that one compiled program serves all of them."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

Progress = Callable[[int, int], None]  # `(done, total) -> None`, called with numbers of images.


def filled(count: int, size: int) -> Iterator[tuple[np.ndarray, int]]:
  """Divides `count` rows into batches of `size`.

  Yields the numbers `[size]` of the rows of a batch, and how many of them are new: the last batch
  repeats its last row.
  """
  for first in range(0, count, size):
    yield np.minimum(np.arange(first, first + size), count - 1), min(size, count - first)


def each(function: Callable[[np.ndarray], Any], count: int, size: int,
         progress: Progress | None = None) -> Iterator[Any]:
  """Calls `function(numbers [size])`, which returns a tree of arrays of rows, by `filled`.

  Yields the results of the new rows of a batch, as NumPy arrays; `progress` is called after every
  batch with the number of rows so far and in total.
  """
  for index, num_new in filled(count, size):
    result = leading(jax.device_get(function(index)), num_new)
    if progress is not None:
      progress(int(index[0]) + num_new, count)
    yield result


def mapped(function: Callable[[np.ndarray], Any], count: int, size: int,
           progress: Progress | None = None) -> Any:
  """Returns the results of `each`, concatenated."""
  return concatenated(list(each(function, count, size, progress)))


def concatenated(parts: list[Any]) -> Any:
  """Concatenates trees of arrays along their first axes, as NumPy arrays."""
  return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def padded(batch: np.ndarray, size: int) -> np.ndarray:
  """Returns a batch with its last row repeated, so that it has `size` rows."""
  return batch[np.minimum(np.arange(size), len(batch) - 1)]


def leading(tree: Any, count: int) -> Any:
  """Returns the first `count` rows of all arrays of a tree."""
  return jax.tree.map(lambda leaf: leaf[:count], tree)


def select(tree: Any, index: np.ndarray) -> Any:
  """Returns the rows at `index` of all arrays of a tree; scalars do not change."""
  return jax.tree.map(lambda leaf: leaf[index] if np.ndim(leaf) else leaf, tree)
