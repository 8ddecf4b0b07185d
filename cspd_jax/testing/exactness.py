"""Statistical tests of samplers against distributions, and of two samples of vectors."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import compilations, fields, programs
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding.loop import Decoder
from cspd_jax.testing.tabular import Tabular

FALSE_ALARM = 1e-6  # Probability that a correct sampler fails, over all tests of a check together.


class ExactnessReport(NamedTuple):
  """How well samples fit a distribution.

  Attributes:
    tv: total variation between the empirical and the expected distribution.
    tv_expected: its mean for an exact sampler and the same number of samples.
    p_value: probability that an exact sampler fits no better, by a chi-squared test; if there are
      several tests, the smallest one, corrected for their number.
    samples: number of samples.
    passed: whether `p_value` is at least the allowed false-alarm rate.
  """

  tv: float
  tv_expected: float
  p_value: float
  samples: int
  passed: bool


def check_sampler(sample: Callable[[jax.Array, jax.Array], jax.Array], probs: np.ndarray,
                  vocab_size: int, *, samples: int = 2**19, batch_size: int = 2**14,
                  seed: int = 0, false_alarm: float = FALSE_ALARM, progress: bool = True
                  ) -> ExactnessReport:
  """Tests any sampler of sequences against their enumerated distributions.

  Rows of a batch have different classes, so that they advance at different speeds. Tests the joint
  distribution of the whole sequence and its class, and the independence of neighbouring rows.

  Args:
    sample: `(key, labels [B]) -> tokens [B, T]`; jit it yourself.
    probs: `[C, V**T]` distribution of a sequence for every class, in lexicographic order.
    vocab_size: `V`.
    samples: number of sequences, rounded up to whole batches of `batch_size`, which must be even.
    seed: seed of the keys.
    false_alarm: accepted probability that a correct sampler fails.
    progress: whether a line on stderr says what is done once that takes more than five seconds.

  Raises ValueError for sizes that do not fit, tokens outside the vocabulary, and as `fit`.
  """
  probs = np.asarray(probs, np.float64)
  num_classes, cells = probs.shape
  fields.require(
      batch_size > 0 and batch_size % 2 == 0, 'batch_size', batch_size, 'an even number')
  length = int(round(np.log(cells) / np.log(vocab_size))) if vocab_size > 1 else 0
  if vocab_size**length != cells or not length:
    raise ValueError(f'probs has {cells} sequences; with vocab_size {vocab_size} it must have a '
                     'power of it, which is at least 2.')
  radix_powers = vocab_size ** np.arange(length - 1, -1, -1)
  labels = np.arange(batch_size) % num_classes
  counts = np.zeros((num_classes, cells))
  pairs = np.zeros((vocab_size, vocab_size))
  batches = -(-samples // batch_size)
  doing = lambda: f'drawing sequences: {int(counts.sum())} of {batches * batch_size}'
  with compilations.told(doing, progress):
    for key in jax.random.split(jax.random.key(seed), batches):
      tokens = np.asarray(sample(key, jnp.asarray(labels)))
      if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f'sample returned tokens from {tokens.min()} to {tokens.max()}; they must '
                         f'be from 0 to {vocab_size - 1}.')
      np.add.at(counts, (labels, tokens @ radix_powers), 1)
      # Rows 2i and 2i + 1 of classes 0 and 1 (or 0 and 0): their last tokens.
      first = labels[::2] == 0
      np.add.at(pairs, (tokens[::2, -1][first], tokens[1::2, -1][first]), 1)

  whole = fit(counts.ravel(), (probs / probs.sum() * (
      counts.sum(axis=1, keepdims=True) * num_classes / counts.sum())).ravel())
  last = probs.reshape(num_classes, -1, vocab_size).sum(axis=1)
  other = last[1 % num_classes]
  pair = fit(pairs.ravel(), np.outer(last[0], other).ravel())
  p_value = min(1.0, 2 * min(whole.p_value, pair.p_value))
  return whole._replace(p_value=p_value, passed=p_value >= false_alarm)


def check_decoder(decoder: Decoder, tabular: Tabular, probs: np.ndarray,
                  sampling: SamplingParams = SamplingParams(), *,
                  draft_params=None, **kwargs) -> ExactnessReport:
  """Tests a decoder, built on `tabular.target`, through its jitted path.

  `probs` `[C, V**T]` are the expected distributions, `class_probs(tabular, sampling)`;
  `draft_params` are the drafter's, if any. Other arguments as for `check_sampler`.
  """
  decode = programs.jit(decoder, short_sums=True)
  sample = lambda key, labels: decode(tabular.params, labels, key, sampling, draft_params).tokens
  return check_sampler(sample, probs, tabular.vocab_size, **kwargs)


def class_probs(tabular: Tabular, sampling: SamplingParams = SamplingParams()) -> np.ndarray:
  """Returns the distribution of whole sequences for every class of a tabular model, `[C, V**T]`."""
  return np.stack([tabular.distribution(sampling,
                                        label) for label in range(tabular.params.shape[0])])


def fit(counts: np.ndarray, distribution: np.ndarray, min_expected: float = 5.0) -> ExactnessReport:
  """Pearson's chi-squared test of `counts` `[cells]` against `distribution` `[cells]`.

  Cells with fewer than `min_expected` expected samples are pooled. A single sample in a cell of
  probability zero refutes the distribution. Raises ValueError for other shapes or sums, and for so
  few samples that most of them are pooled.
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
    return ExactnessReport(float(tv), float(tv_expected), 0.0, int(samples), False)
  expected = distribution * samples
  large = expected >= min_expected
  if expected[large].sum() < samples / 2 and len(expected) > 1:
    raise ValueError(f'counts sum to {samples:.0f}, of which less than half are expected in cells '
                     f'of at least {min_expected:g}; draw more samples.')
  observed = np.append(counts[large], counts[~large].sum())
  expected = np.append(expected[large], expected[~large].sum())
  if expected[-1] < min_expected and len(expected) > 1:  # Too small even when pooled.
    observed = np.append(observed[:-2], observed[-2:].sum())
    expected = np.append(expected[:-2], expected[-2:].sum())
  # Unlike the likelihood ratio, its mean is the degrees of freedom also if few are expected.
  statistic, degrees = np.sum((observed - expected)**2 / expected), len(observed) - 1
  p_value = 1.0
  if degrees:
    with jax.enable_x64(True):
      p_value = float(jax.scipy.stats.chi2.sf(statistic, degrees))
  return ExactnessReport(float(tv), float(tv_expected), p_value, int(samples),
                         p_value >= FALSE_ALARM)


class SampleDistance(NamedTuple):
  """How far apart two samples are, in Kolmogorov-Smirnov (KS) statistics.

  Attributes:
    worst: the largest KS statistic over coordinates and projections.
    limit: bound that samples of the same distribution exceed with the false-alarm probability only.
    mean: the mean KS statistic; about 0.87 sqrt(1/n + 1/m) for samples of the same distribution.
    passed: whether `worst` is below `limit`.
  """

  worst: float
  limit: float
  mean: float
  passed: bool


def compare(first: np.ndarray, second: np.ndarray, *, projections: int = 24,
            false_alarm: float = 1e-3, seed: int = 0) -> SampleDistance:
  """Two-sample KS tests of all coordinates and of random projections.

  Projections, each scaled by the coordinates' spread, detect dependence between coordinates. The
  limit holds for all tests together (Bonferroni): for 30 tests at `1e-3` it is 1.2 times the 99.9 %
  value of a single test. The samples `[n, ...]` and `[m, ...]` are flattened to vectors; samples of
  the same distribution fail with probability `false_alarm`. Raises ValueError if the shapes differ,
  for values that are not finite, and for so few samples that none can fail.
  """
  first, second = _vectors(first, second)
  size = first.shape[1]
  directions = np.random.default_rng(seed).standard_normal((size, projections))
  directions /= np.maximum(second.std(axis=0), 1e-12)[:, None]
  directions = np.concatenate([np.eye(size), directions], axis=1)
  distances = np.array([
      ks_statistic(a, b) for a, b in zip((first @ directions).T, (second @ directions).T)])
  n, m = len(first), len(second)
  limit = np.sqrt(-0.5 * np.log(false_alarm / len(distances) / 2) * (1 / n + 1 / m))
  worst = distances.max()
  if limit >= 1:
    raise ValueError(f'{n} and {m} samples are too few: the limit of the statistic is {limit:.2f}, '
                     'which none exceeds; draw more samples.')
  return SampleDistance(float(worst), float(limit), float(distances.mean()), bool(worst < limit))


def _vectors(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Flattens two finite samples of the same shape to vectors; others raise ValueError."""
  if first.shape[1:] != second.shape[1:]:
    raise ValueError(f'samples have shapes {first.shape} and {second.shape}; '
                     'all but the first axis must agree.')
  if not (np.isfinite(first).all() and np.isfinite(second).all()):
    raise ValueError('samples have values that are NaN or infinite.')
  return (np.asarray(first, np.float64).reshape(len(first), -1),
          np.asarray(second, np.float64).reshape(len(second), -1))


def ks_statistic(first: np.ndarray, second: np.ndarray) -> float:
  """Largest distance between the empirical distribution functions of `[n]` and `[m]`."""
  first, second = np.sort(first), np.sort(second)
  points = np.concatenate([first, second])
  share = lambda x: np.searchsorted(x, points, side='right') / len(x)
  return float(np.max(np.abs(share(first) - share(second))))


def energy_test(first: np.ndarray, second: np.ndarray, *, permutations: int = 999,
                seed: int = 0) -> float:
  """A permutation test of whole vectors; with enough samples it detects any difference.

  The energy distance, twice the mean distance between the samples minus the mean distances within
  them, is 0 for equal distributions only (Székely & Rizzo, Energy statistics, 2013). All pairwise
  distances are held in memory: a few thousand samples are the limit. Samples and errors are as for
  `compare`. Returns the p-value, at least `1 / (permutations + 1)`.
  """
  n, m = len(first), len(second)
  pooled = np.concatenate(_vectors(first, second))
  distance = distances(pooled, pooled)
  rng = np.random.default_rng(seed)
  splits = np.zeros((permutations + 1, n + m))
  splits[0, :n] = 1  # The actual samples; the other rows are random splits.
  for row in splits[1:]:
    row[rng.permutation(n + m)[:n]] = 1
  to_first = splits @ distance
  within_first = np.sum(to_first * splits, axis=1)
  between = np.sum(to_first * (1 - splits), axis=1)
  within_second = distance.sum() - within_first - 2 * between
  statistics = 2 * between / (n * m) - within_first / n**2 - within_second / m**2
  # The tolerance counts splits that are equal up to rounding.
  as_large = np.sum(statistics[1:] >= statistics[0] - 1e-12)
  return float((1 + as_large) / (permutations + 1))


def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Returns the Euclidean distances `[N, M]` between vectors `[N, D]` and `[M, D]`."""
  squares = np.sum(x * x, axis=1)[:, None] + np.sum(y * y, axis=1) - 2 * x @ y.T
  return np.sqrt(np.maximum(squares, 0))
