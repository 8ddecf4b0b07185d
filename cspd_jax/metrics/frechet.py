"""Frechet distance between two sets of images, in the features of their own tokenizer.

The usual Frechet distance (FID) uses Inception features. This one uses the encoder of the VQ
tokenizer that decoded the images, before quantisation: every model includes it, so nothing has to
be downloaded. Its features cover what tokens can represent, so the distance measures whether two
decoders of one model draw from the same distribution. It does not measure image quality, and its
values are not comparable with an FID or across tokenizers.

There are deliberately few features: mean and standard deviation of every channel over an image,
16 numbers with LlamaGen's 8 channels. A few hundred images suffice to estimate their covariance,
while the 2048 features of an FID need tens of thousands. The estimate from few images is biased
upwards; compare it with that of equally many images of the same decoder.
"""

from typing import NamedTuple

import jax
import numpy as np

from cspd_jax.core import programs
from cspd_jax.generation.model import Model
from cspd_jax.metrics import base
from cspd_jax.metrics.base import Metric

# Features of an image in batches of other sizes differ by less than this share.
_ROUNDING = 1e-4


class Gaussian(NamedTuple):
  """Mean and covariance of features.

  Attributes:
    mean: `[F]` float64.
    covariance: `[F, F]` float64.
  """

  mean: np.ndarray
  covariance: np.ndarray


def gaussian(points: np.ndarray) -> Gaussian:
  """Returns the mean and unbiased covariance of `points` `[N, F]`.

  Raises:
    ValueError: if there are fewer than 2 points, or they are not finite.
  """
  points = np.asarray(points, np.float64)
  if points.ndim != 2 or len(points) < 2 or not points.size or not np.isfinite(points).all():
    raise ValueError(
        f'points have shape {points.shape}; they must be finite, [N, F], with N of at least 2.')
  mean = points.mean(axis=0)
  centered = points - mean
  return Gaussian(mean, centered.T @ centered / (len(points) - 1))


def distance(a: Gaussian, b: Gaussian) -> float:
  """Returns the squared Wasserstein-2 distance, `|m_a - m_b|^2 + tr(A + B - 2 (A B)^(1/2))`.

  `A B` has the eigenvalues of the symmetric `A^(1/2) B A^(1/2)`, and the trace of its square root
  is the sum of their square roots (Dowson and Landau, 1982; Heusel et al., arXiv 1706.08500).

  Raises:
    ValueError: if the two have different numbers of features.
  """
  if a.mean.shape != b.mean.shape:
    raise ValueError(
        f'a has {a.mean.size} features and b {b.mean.size}; compute both with the same network.')
  values, vectors = np.linalg.eigh(a.covariance)
  root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T  # Rounding may make them negative.
  common = np.linalg.eigvalsh(root @ b.covariance @ root)
  spread = np.trace(a.covariance) + np.trace(b.covariance)
  spread -= 2 * np.sum(np.sqrt(np.maximum(common, 0)))
  return float(np.sum((a.mean - b.mean)**2) + max(spread, 0))


def are_equal(a: Gaussian, b: Gaussian) -> bool:
  """Whether the moments are those of the same points, up to rounding.

  Those of different points differ more: the means of `N` by about `std / sqrt(N)`.
  """
  if a.mean.shape != b.mean.shape:
    return False
  variance = max(np.diag(a.covariance).max(), np.diag(b.covariance).max())
  return bool(np.abs(a.mean - b.mean).max() <= _ROUNDING * np.sqrt(variance) and
              np.abs(a.covariance - b.covariance).max() <= _ROUNDING * variance)


def of_sample(sample: base.Sample, model: Model) -> np.ndarray | None:
  """Returns the features of a sample's images, `[N, F]`, cached; None without an encoder."""
  tokenizer = model.tokenizer
  if tokenizer is None or tokenizer.features is None:
    return None
  decode, encode = tokenizer.decode, tokenizer.features
  run = programs.kept(model, 'features', lambda: jax.jit(
      lambda params, tokens: encode(params, decode(params, tokens))))
  return sample.once('features', lambda: sample.batched(
      lambda condition, tokens, sampling: run(tokenizer.params, tokens)))


def _frechet(sample: base.Sample, model: Model) -> base.Value:
  points, reference = of_sample(sample, model), sample.reference
  if points is None or reference is None or len(points) < 2:
    return base.UNKNOWN
  return base.Value(distance(gaussian(points), reference.once(
      'gaussian', lambda: gaussian(np.asarray(of_sample(reference, model))))))


FRECHET = Metric(
    'frechet', 'Frechet', '{:.4f}', _frechet, group='fidelity',
    meaning="distance to the target's own images in the features of the tokenizer's encoder; "
    'compare it with the distance due to noise alone')
