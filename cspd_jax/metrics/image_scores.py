"""Scores of two sets of images from their Inception features.

The constants are those of the evaluators: 3 neighbours for precision and recall (Kynkaanniemi et
al., arXiv:1904.06991), and the splits of the inception score (Salimans et al., arXiv:1606.03498).
Distances have float32 precision; ADM's evaluator computes them in float16.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

_NEIGHBOURS = 3
_ROWS = 1024
_SEED = 2020
# The least images of precision and recall, and splits of the inception score of torch-fidelity.
LEAST_IMAGES, SPLITS = _NEIGHBOURS + 1, 10


def inception_score(logits: np.ndarray, split: int | None) -> float:
  """Returns the inception score, the mean of `exp(mean KL(p(y | x), p(y)))` over splits.

  Args:
    logits: `[N, classes]`, without the bias.
    split: images per split, in their order, as in ADM's evaluator. None shuffles the images with
      the seed 2020 and takes 10 splits, as torch-fidelity does.

  Raises:
    ValueError: for fewer than 10 images if split is None.
  """
  logits = np.asarray(logits, np.float64)
  if split is None and len(logits) < SPLITS:
    raise ValueError(f'logits are those of {len(logits)} images; torch-fidelity requires at least '
                     f'{SPLITS}, one per split.')
  log_p = logits - logits.max(axis=1, keepdims=True)
  log_p = log_p - np.log(np.exp(log_p).sum(axis=1, keepdims=True))
  if split is None:
    log_p = log_p[np.random.RandomState(_SEED).permutation(len(log_p))]
  ends = bounds(len(log_p), split)
  return float(np.mean([_score(log_p[a:b]) for a, b in zip(ends[:-1], ends[1:], strict=True)]))


def bounds(count: int, split: int | None) -> list[int]:
  """Returns where the splits of the inception score of `count` images begin and end."""
  if split is None:
    return [i * count // SPLITS for i in range(SPLITS + 1)]
  return [*range(0, count, split), count]


def _score(log_p: np.ndarray) -> float:
  p = np.exp(log_p)
  marginal = np.log(np.maximum(p.mean(axis=0), np.finfo(np.float64).tiny))  # It may underflow.
  return float(np.exp((p * (log_p - marginal)).sum(axis=1).mean()))


def precision_recall(samples: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
  """Returns precision and recall.

  Args:
    samples: `[N, F]` pool features of generated images.
    reference: `[M, F]` pool features of other images.

  Returns:
    The share of samples within the manifold of the reference, and that of the reference within the
    manifold of the samples. A manifold is the union of spheres around its points, each up to its
    third neighbour.

  Raises:
    ValueError: for fewer than 4 images, or different numbers of features.
  """
  for name, points in (('samples', samples), ('reference', reference)):
    if len(points) < LEAST_IMAGES:
      raise ValueError(f'{name} has {len(points)} images; precision and recall require at least '
                       f'{LEAST_IMAGES}.')
  if samples.shape[1] != reference.shape[1]:
    raise ValueError(f'samples has {samples.shape[1]} features and reference '
                     f'{reference.shape[1]}; compute both with the same network.')
  return _within(samples, reference), _within(reference, samples)


def _within(points: np.ndarray, manifold: np.ndarray) -> float:
  """The share of points within a manifold."""
  radii = _by_rows(lambda rows: _radii(rows, manifold), manifold)
  return float(np.mean(_by_rows(lambda rows: _is_within(rows, manifold, radii), points)))


def _by_rows(function, points: np.ndarray) -> np.ndarray:
  return np.concatenate([function(points[i:i + _ROWS]) for i in range(0, len(points), _ROWS)])


@jax.jit
def _radii(rows: jax.Array, manifold: jax.Array) -> jax.Array:
  """Squared distances to the third neighbours; the nearest point is the row itself."""
  return -jax.lax.top_k(-_squared_distances(rows, manifold), _NEIGHBOURS + 1)[0][:, -1]


@jax.jit
def _is_within(rows: jax.Array, manifold: jax.Array, radii: jax.Array) -> jax.Array:
  return jnp.any(_squared_distances(rows, manifold) <= radii, axis=1)


def _squared_distances(a: jax.Array, b: jax.Array) -> jax.Array:
  norm = functools.partial(jnp.sum, axis=1)
  products = jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)
  return jnp.maximum(norm(a * a)[:, None] - 2 * products + norm(b * b)[None], 0)
