"""Frechet distance between two sets of images, in the features of their own tokenizer.

The usual distance takes Inception features (FID). Here the network is the encoder of the
VQ tokenizer that made the images, before quantisation: it comes with every model, and nothing
has to be downloaded. What it sees is what the tokens can say, so the distance tells whether
two decoders of one model draw the same images. It says nothing about how good they are, and
the numbers of two tokenizers cannot be compared, nor with an FID.

The features are few on purpose: mean and standard deviation of every channel over an image,
16 numbers with LlamaGen's 8 channels. A covariance of so few can be estimated from some
hundred images, while the 2048 numbers of an FID need tens of thousands. The estimate from few
images is too large on average; compare it with that of as many images of the same decoder.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.metrics import base
from cspd_jax.metrics.base import Metric
from cspd_jax.models import vq


class Gaussian(NamedTuple):
  """Attributes:
    mean: `[F]` float64.
    covariance: `[F, F]` float64.
  """

  mean: np.ndarray
  covariance: np.ndarray


def features(params: Any, config: vq.VQConfig, images: jax.Array) -> jax.Array:
  """Pooled latents of a tokenizer.

  Args:
    params: the tokenizer's parameters.
    config: its sizes.
    images: `[B, H, W, C]` in [-1, 1]; see `vq.latents`.

  Returns:
    `[B, 2 codebook_dim]` float32: means, then standard deviations over the grid.
  """
  latents = vq.latents(params, config, images)
  return jnp.concatenate([jnp.mean(latents, axis=(1, 2)), jnp.std(latents, axis=(1, 2))], axis=-1)


def gaussian(points: np.ndarray) -> Gaussian:
  """Mean and unbiased covariance of `points` `[N, F]`.

  Raises:
    ValueError: if there are fewer than 2 points, or they are not finite.
  """
  points = np.asarray(points, np.float64)
  if points.ndim != 2 or len(points) < 2 or not points.size or not np.isfinite(points).all():
    raise ValueError(
        f'points have shape {points.shape}; they must be finite, [N, F], with N of at least 2.')
  mean = points.mean(axis=0)
  away = points - mean
  return Gaussian(mean, away.T @ away / (len(points) - 1))


def distance(a: Gaussian, b: Gaussian) -> float:
  """The squared Wasserstein-2 distance, `|m_a - m_b|^2 + tr(A + B - 2 (A B)^(1/2))`.

  `A B` has the eigenvalues of the symmetric `A^(1/2) B A^(1/2)`, and the trace of its root is
  the sum of their roots (Dowson and Landau, 1982; Heusel et al., arXiv 1706.08500).

  Raises:
    ValueError: if the two have features of different number.
  """
  if a.mean.shape != b.mean.shape:
    raise ValueError(
        f'a has {a.mean.size} features and b {b.mean.size}; they must come from one network.')
  values, vectors = np.linalg.eigh(a.covariance)
  root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T  # Rounding may go below 0.
  common = np.linalg.eigvalsh(root @ b.covariance @ root)
  spread = np.trace(a.covariance) + np.trace(b.covariance)
  spread -= 2 * np.sum(np.sqrt(np.maximum(common, 0)))
  return float(np.sum((a.mean - b.mean)**2) + max(spread, 0))


def noise(sets: np.ndarray, reference: Gaussian) -> tuple[float, float]:
  """How far samples of one size are from a reference although the distribution is the same.

  Args:
    sets: `[K, N, F]` features of `K` samples of the reference's own decoder, with other
      keys and of the size that will be compared.
    reference: from more samples of that decoder.

  Returns:
    Mean and standard deviation of the `K` distances.

  Raises:
    ValueError: if there are fewer than 2 sets.
  """
  if len(sets) < 2:
    raise ValueError(f'sets has {len(sets)} samples; their spread needs at least 2.')
  found = [distance(gaussian(points), reference) for points in sets]
  return float(np.mean(found)), float(np.std(found, ddof=1))


def of_sample(sample: base.Sample, model: Any) -> np.ndarray | None:
  """The features of a sample's images, `[N, F]`, computed once; None without an encoder."""
  tokenizer = model.tokenizer
  if tokenizer is None or tokenizer.features is None:
    return None
  run = programs.kept(model, 'features', lambda: jax.jit(
      lambda params, tokens: tokenizer.features(params, tokenizer.decode(params, tokens))))
  return sample.once('features', lambda: sample.batched(
      lambda condition, tokens, sampling: run(tokenizer.params, tokens)))


def _frechet(sample: base.Sample, model: Any) -> base.Value:
  own = of_sample(sample, model)
  if own is None or sample.reference is None or len(own) < 2:
    return base.UNKNOWN
  return base.Value(distance(gaussian(own), sample.reference.once(
      'gaussian', lambda: gaussian(of_sample(sample.reference, model)))))


FRECHET = Metric(
    'frechet', 'Frechet', '{:.4f}', _frechet, group='fidelity',
    meaning="distance to the target's own images in the features of the tokenizer's encoder; hold "
    'it against the distance that noise alone makes')
