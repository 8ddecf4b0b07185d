"""Scores of two sets of images from their features.

Most need Inception features. The constants are the evaluators': 3 neighbours for precision
and recall (Kynkaanniemi et al., arXiv:1904.06991), and the splits of the inception score (Salimans
et al., arXiv:1606.03498). Distances have float32 precision; ADM's evaluator computes them in
float16.

The metric `frechet` uses the encoder of the VQ tokenizer that decoded the images, before
quantisation, so that nothing has to be downloaded. Its features cover what tokens can represent:
the distance measures whether two decoders of one model draw from the same distribution, not image
quality, and its values are not comparable with an FID or across tokenizers. There are deliberately
few features: mean and standard deviation of every channel over an image, 16 numbers with LlamaGen's
8 channels, whose covariance a few hundred images suffice to estimate. The estimate from few images
is biased upwards; compare it with equally many images of the same decoder.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.generation.model import Model
from cspd_jax.metrics import base

_NEIGHBOURS = 3
_ROWS = 1024
# The least images of precision and recall, and splits of the inception score of torch-fidelity.
LEAST_IMAGES, SPLITS = _NEIGHBOURS + 1, 10


def inception_score(logits: np.ndarray, split: int | None) -> float:
  """Returns the inception score, the mean of `exp(mean KL(p(y | x), p(y)))` over splits.

  Logits are `[N, classes]`, without the bias. A split is this many images in their order, as in
  ADM's evaluator; None shuffles the images, at least 10, with the seed 2020 and takes 10 splits, as
  torch-fidelity does.
  """
  logits = np.asarray(logits, np.float64)
  assert split is not None or len(logits) >= SPLITS, 'an image per split'
  log_p = logits - logits.max(axis=1, keepdims=True)
  log_p = log_p - np.log(np.exp(log_p).sum(axis=1, keepdims=True))
  if split is None:
    log_p = log_p[np.random.RandomState(2020).permutation(len(log_p))]
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
  """Returns precision and recall of pool features `[N, F]` of samples and `[M, F]` of a reference.

  That is the share of samples within the manifold of the reference, and the share of the reference
  within the manifold of the samples. A manifold is the union of spheres around its points, each up
  to its third neighbour. There are at least 4 images of each.
  """
  assert min(len(samples), len(reference)) >= LEAST_IMAGES, 'enough neighbours'
  # Around the origin, squared distances lose no digits to large norms.
  center = reference.mean(axis=0)
  samples, reference = samples - center, reference - center
  return _within(samples, reference), _within(reference, samples)


def _within(points: np.ndarray, manifold: np.ndarray) -> float:
  radii_of, is_within = _compiled()
  radii = _by_rows(lambda rows: radii_of(rows, manifold), manifold)
  return float(np.mean(_by_rows(lambda rows: is_within(rows, manifold, radii), points)))


def _by_rows(function, points: np.ndarray) -> np.ndarray:
  return np.concatenate([function(points[i:i + _ROWS]) for i in range(0, len(points), _ROWS)])


@functools.cache  # Not where the module is imported: the options depend on the device.
def _compiled() -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
  return programs.jit(_radii), programs.jit(_is_within)


def _radii(rows: jax.Array, manifold: jax.Array) -> jax.Array:
  """Squared distances to the third neighbours; the nearest point is the row itself."""
  return -jax.lax.top_k(-_squared_distances(rows, manifold), _NEIGHBOURS + 1)[0][:, -1]


def _is_within(rows: jax.Array, manifold: jax.Array, radii: jax.Array) -> jax.Array:
  return jnp.any(_squared_distances(rows, manifold) <= radii, axis=1)


def _squared_distances(a: jax.Array, b: jax.Array) -> jax.Array:
  norm = functools.partial(jnp.sum, axis=1)
  products = jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)
  return jnp.maximum(norm(a * a)[:, None] - 2 * products + norm(b * b)[None], 0)


# Features of an image in batches of other sizes differ by less than this share.
_ROUNDING = 1e-4


class FeatureMoments(NamedTuple):
  """Mean `[F]` and covariance `[F, F]` of features, float64."""

  mean: np.ndarray
  covariance: np.ndarray


def gaussian(points: np.ndarray) -> FeatureMoments:
  """Returns mean and unbiased covariance of 2 or more finite `points` `[N, F]`, or ValueError."""
  points = np.asarray(points, np.float64)
  if points.ndim != 2 or len(points) < 2 or not points.size or not np.isfinite(points).all():
    raise ValueError(
        f'points have shape {points.shape}; they must be finite, [N, F], with N of at least 2.')
  mean = points.mean(axis=0)
  centered = points - mean
  return FeatureMoments(mean, centered.T @ centered / (len(points) - 1))


def distance(a: FeatureMoments, b: FeatureMoments) -> float:
  """Returns the squared Wasserstein-2 distance, `|m_a - m_b|^2 + tr(A + B - 2 (A B)^(1/2))`.

  `A B` has the eigenvalues of the symmetric `A^(1/2) B A^(1/2)`, and the trace of its square root
  is the sum of their square roots (Dowson and Landau, 1982; Heusel et al., arXiv 1706.08500).
  """
  values, vectors = np.linalg.eigh(a.covariance)
  root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T  # Rounding may make them negative.
  common = np.linalg.eigvalsh(root @ b.covariance @ root)
  spread = np.trace(a.covariance) + np.trace(b.covariance)
  spread -= 2 * np.sum(np.sqrt(np.maximum(common, 0)))
  return float(np.sum((a.mean - b.mean)**2) + max(spread, 0))


def are_equal(a: FeatureMoments, b: FeatureMoments) -> bool:
  """Whether the moments are of the same points, up to rounding.

  Those of different points differ more: the means of `N` by about `std / sqrt(N)`.
  """
  if a.mean.shape != b.mean.shape:
    return False
  variance = max(np.diag(a.covariance).max(), np.diag(b.covariance).max())
  return bool(np.abs(a.mean - b.mean).max() <= _ROUNDING * np.sqrt(variance) and
              np.abs(a.covariance - b.covariance).max() <= _ROUNDING * variance)


def sample_features(sample: base.Sample, model: Model) -> np.ndarray | None:
  """Returns the features of a sample's images, `[N, F]`, cached; None without an encoder."""
  tokenizer = model.tokenizer
  if tokenizer is None or tokenizer.features is None:
    return None
  decode, encode = tokenizer.decode, tokenizer.features
  run = programs.get_or_build(model.kept.programs, 'features', lambda: programs.jit(
      lambda params, tokens: encode(params, decode(params, tokens))))
  return sample.once('features', lambda: sample.batched(
      lambda condition, tokens, sampling: run(tokenizer.params, tokens)))


def _frechet(sample: base.Sample, model: Model) -> base.Value:
  points, reference = sample_features(sample, model), sample.reference
  if points is None or reference is None or len(points) < 2:
    return base.UNKNOWN
  return base.Value(distance(gaussian(points), reference.once(
      'gaussian', lambda: gaussian(np.asarray(sample_features(reference, model))))))


FRECHET = base.Metric(
    'frechet', 'Frechet', '{:.4f}', _frechet, group='fidelity',
    meaning="distance to the target's own images in the features of the tokenizer's encoder; "
    'compare it with the distance due to noise alone')
