"""Goodness of fit: whether a sample follows a distribution."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Fit(NamedTuple):
  """How well counts fit a distribution.

  Attributes:
    tv: total variation between the empirical and the expected distribution.
    tv_expected: its mean for an exact sampler and the same number of samples.
    p_value: of the G-test; the probability that an exact sampler fits no better.
    samples: number of samples.
  """

  tv: float
  tv_expected: float
  p_value: float
  samples: int


def fit(counts: np.ndarray, distribution: np.ndarray, min_expected: float = 5.0) -> Fit:
  """G-test (log-likelihood ratio) of `counts` `[cells]` against `distribution` `[cells]`.

  Cells with fewer than `min_expected` expected samples are pooled. A single sample in a cell of
  probability zero refutes the distribution.

  Raises:
    ValueError: if the shapes differ or the distribution is not normalised.
  """
  counts, distribution = np.asarray(counts, np.float64), np.asarray(distribution, np.float64)
  if counts.shape != distribution.shape or counts.ndim != 1:
    raise ValueError(
        f'counts and distribution have shapes {counts.shape} and {distribution.shape}; both must '
        'be [cells].')
  if abs(distribution.sum() - 1) > 1e-6 or distribution.min() < 0:
    raise ValueError(
        f'distribution sums to {distribution.sum()} with minimum {distribution.min()}; it must sum '
        'to 1, with no entry below 0.')
  samples = counts.sum()
  tv = 0.5 * np.abs(counts / samples - distribution).sum()
  # E|X - np| of a binomial, in its normal approximation.
  tv_expected = 0.5 * np.sqrt(2 / np.pi * distribution * (1 - distribution) / samples).sum()
  if np.any(counts[distribution == 0] > 0):
    return Fit(float(tv), float(tv_expected), 0.0, int(samples))
  expected = distribution * samples
  large = expected >= min_expected
  observed = np.append(counts[large], counts[~large].sum())
  expected = np.append(expected[large], expected[~large].sum())
  if expected[-1] < min_expected and len(expected) > 1:  # Too small even when pooled.
    observed = np.append(observed[:-2], observed[-2:].sum())
    expected = np.append(expected[:-2], expected[-2:].sum())
  ratio = np.log(observed / expected, out=np.zeros_like(observed), where=observed > 0)
  g = 2 * np.sum(observed * ratio)
  return Fit(float(tv), float(tv_expected), chi2_sf(g, len(observed) - 1), int(samples))


def chi2_sf(statistic: float, degrees: int) -> float:
  """Upper tail of the chi-square distribution, in double precision."""
  if degrees < 1:
    return 1.0
  with jax.enable_x64(True):
    return float(jax.scipy.special.gammaincc(
        jnp.float64(degrees / 2), jnp.float64(max(statistic, 0) / 2)))
