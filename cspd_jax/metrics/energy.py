"""Energy distance between two sets of images, over all their conditions together.

`2 E|X - Y| - E|X - X'| - E|Y - Y'|` is 0 for equal distributions only (Székely & Rizzo, Energy
statistics, 2013). Here images come in pairs of one condition, and no distance is within a pair. So
the expectation is 0 for equal distributions even if every condition occurs once, and the two images
of a pair may then be exchanged, which gives an exact test. Differences that cancel between
conditions, such as exchanged prompts, are not seen. Independent samples of one distribution are
compared by `cspd_jax.testing.exactness.energy_test`.
"""

from typing import NamedTuple

import numpy as np

from cspd_jax.testing.exactness import distances


class Energy(NamedTuple):
  """An energy distance.

  Attributes:
    distance: without bias, so it may be below 0.
    standard_error: by the jackknife, over pairs; NaN for two pairs. Too large near a distance of 0,
      where `p_value` decides.
    p_value: the share of random exchanges within pairs with at least this distance.
  """

  distance: float
  standard_error: float
  p_value: float


def energy(first: np.ndarray, second: np.ndarray, *, exchanges: int = 9999, seed: int = 0
           ) -> Energy:
  """Compares two sets of images or other arrays `[N, ...]`, where numbers `i` have one condition.

  The p-value is at least `1 / (exchanges + 1)`. All pairwise distances are held in memory: a few
  thousand images are the limit. There are at least two, with finite values.
  """
  assert first.shape == second.shape and len(first) > 1, 'pairs'
  assert np.isfinite(first).all() and np.isfinite(second).all(), 'finite values'
  count = len(first)
  x, y = (np.asarray(part, np.float64).reshape(count, -1) for part in (first, second))
  between = distances(x, y)
  terms = between + between.T - distances(x, x) - distances(y, y)
  np.fill_diagonal(terms, 0)
  rows, total = terms.sum(axis=1), terms.sum()
  error = np.nan
  if count > 2:
    without = (total - 2 * rows) / ((count - 1) * (count - 2))
    error = np.sqrt((count - 1) / count * np.sum(np.square(without - without.mean())))
  signs = np.random.default_rng(seed).choice([-1.0, 1.0], (exchanges, count))
  # The tolerance counts exchanges that are equal up to rounding.
  as_large = np.sum(np.sum(signs @ terms * signs, axis=1) >= total - 1e-9 * np.abs(terms).sum())
  return Energy(float(total / (count * (count - 1))), float(error),
                float((1 + as_large) / (exchanges + 1)))
