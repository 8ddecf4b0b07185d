"""The nearest codebook rows of every token, for verifiers that accept latent neighbours."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

DISTANCES = ('l2', 'cosine', 'random')

# Number of distances in memory at a time: 64 MiB of float64.
_CHUNK = 2**23


def neighbour_table(codebook: np.ndarray, k: int, distance: str = 'l2', normalize: bool = False,
                    seed: int = 0) -> np.ndarray:
  """The `k` nearest other rows of every codebook row, the nearest first.

  Args:
    codebook: `[V, D]` embedding of every image token.
    k: neighbours per token, 1 to `V - 1`; the token itself does not count.
    distance: 'l2', 'cosine', or 'random': other rows in random order, as a control.
    normalize: divide rows by their norm first, for tokenizers that do so when they decode
      (LlamaGen's). LANTERN's released tables are not normalised.
    seed: seed of the 'random' order.

  Returns:
    `[V, k]` int32.

  Raises:
    ValueError: if the codebook is not a finite matrix, a row that needs a direction is zero, or an
      option is outside its range.
  """
  codebook = _check(codebook, k, distance, normalize)
  size = len(codebook)
  if normalize or distance == 'cosine':
    codebook = codebook / np.linalg.norm(codebook, axis=1, keepdims=True)
  squares, random = np.sum(codebook**2, axis=1), np.random.default_rng(seed)
  table, step = np.empty((size, k), np.int32), max(1, _CHUNK // size)
  for begin in range(0, size, step):
    rows = np.arange(begin, min(begin + step, size))
    if distance == 'random':
      far = random.random((len(rows), size))
    else:  # Without the row's own norm, which does not change the order.
      far = squares - 2 * codebook[rows] @ codebook.T
    far[np.arange(len(rows)), rows] = np.inf
    near = np.sort(np.argpartition(far, k - 1, axis=1)[:, :k], axis=1)
    order = np.argsort(np.take_along_axis(far, near, axis=1), axis=1, kind='stable')
    table[rows] = np.take_along_axis(near, order, axis=1)
  return table


def from_codebook(default: Callable[[int], int]) -> Callable[..., dict[str, Any]]:
  """Returns a function of a codebook and a verifier's arguments that computes `table` and `k`.

  Args:
    default: `V -> ` the number of neighbours if `k` is not specified.
  """

  def compute(codebook: np.ndarray | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    if codebook is None:
      raise ValueError(
          'codebook is None, but the verifier accepts neighbours in the codebook; pass that of the '
          "target's image tokenizer.")
    codebook = np.asarray(codebook)
    # The released residuals use one more neighbour.
    spare = str(arguments.get('residual')).startswith('released')
    most = len(codebook) - 1
    k = arguments.get('k')
    k = max(1, min(default(len(codebook)), most - spare)) if k is None else k
    width = min(k + spare, max(k, most))
    return {'table': _table(codebook.tobytes(), codebook.shape, codebook.dtype.str, width), 'k': k}

  return compute


@functools.lru_cache(maxsize=8)
def _table(codebook: bytes, shape: tuple[int, ...], dtype: str, k: int) -> np.ndarray:
  return neighbour_table(np.frombuffer(codebook, dtype).reshape(shape), k)


def embeddings(codebook: np.ndarray | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the codebook as `embeddings` if the arguments of `grouped` need distances in it."""
  if arguments.get('d_threshold') is None:
    return {}
  if codebook is None:
    raise ValueError(
        'codebook is None, but d_threshold needs distances in it; pass the codebook of the '
        "target's image tokenizer, or leave d_threshold out.")
  return {'embeddings': codebook}


def _check(codebook: np.ndarray, k: int, distance: str, normalize: bool) -> np.ndarray:
  """The codebook in float64; raises ValueError as `neighbour_table`."""
  codebook = np.asarray(codebook).astype(np.float64)
  if codebook.ndim != 2 or len(codebook) < 2 or not np.all(np.isfinite(codebook)):
    raise ValueError(
        f'codebook has shape {codebook.shape}; it must be a finite matrix [V, D] with at least '
        '2 rows.')
  if not 1 <= k < len(codebook):
    raise ValueError(
        f'k is {k}; a codebook of {len(codebook)} rows has 1 to {len(codebook) - 1} neighbours '
        'per token.')
  if distance not in DISTANCES:
    raise ValueError(f'distance is {distance!r}; it must be one of {", ".join(DISTANCES)}.')
  if normalize or distance == 'cosine':
    zero = np.flatnonzero(~codebook.any(axis=1))
    if zero.size:
      raise ValueError(
          f'codebook rows {zero[:8].tolist()} are zero and have no direction; use distance '
          "'l2' with normalize=False.")
  return codebook
