"""`coupling.move`: its marginal, and how much it keeps.

Samples of 1e5 draws. A comparison of moments is in standard errors, below 4.5 of them for up to 15
moments: false alarms are rarer than 1e-4, and a shift by 0.025 deviations is detected in almost
every run. The tests of Kolmogorov and Smirnov against the exact distribution function have a
false-alarm rate of 1e-4 per test, the energy tests one of 0.005.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from cspd_jax.continuous import coupling
from cspd_jax.continuous.coupling import Gaussian
from cspd_jax.testing.exactness import energy_test
from tests.continuous import window_mutants

COUNT = 100000
PAIRS = {
    'equal': ((0.0, 1.0), (0.7, 1.0)), 'small': ((0.0, 0.0064), (0.003, 0.0064)),
    'wider': ((0.0, 1.0), (0.2, 1.6)), 'far and narrower': ((1.0, 2.0), (-3.0, 0.5)),
    'the same': ((0.0, 1.0), (0.0, 1.0)), 'close': ((0.0, 1.0), (0.0, 1.05)),
    'narrower': ((0.3, 1.3), (0.0, 1.0))}


def draw(seed, old, new, size, count=COUNT):
  """Draws from `old`, both Gaussians as arrays `[count, size]`, and the moved draws."""
  keys = jax.random.split(jax.random.key(seed), 3)
  shape = (count, size)
  wide = lambda kernel: Gaussian(*(
      jnp.broadcast_to(jnp.float32(leaf), shape) for leaf in kernel))
  old, new = wide(old), wide(new)
  x = old.mean + old.std * jax.random.normal(keys[0], shape)
  compared = coupling.compare(x, old, new, jax.random.normal(keys[1], shape))
  return np.asarray(x), compared, coupling.move(
      x, compared, -jax.random.exponential(keys[2], (count,)))


def unit(moved, new):
  """Moved draws in units of the new Gaussian: standard normal."""
  return (np.asarray(moved.x, np.float64) - np.asarray(new[0])) / np.asarray(new[1])


def moment(values):
  """The largest difference of a moment from that of standard normal numbers, in its errors."""
  size, error = values.shape[1], 1 / np.sqrt(len(values))
  covariance = np.abs(np.cov(values.T).reshape(size, size) - np.eye(size))
  return max(np.abs(values.mean(axis=0)).max() / error,
             (covariance / (error * np.sqrt(1 + np.eye(size)))).max(),
             np.abs((values**3).mean(axis=0)).max() / (np.sqrt(15) * error))


def overlap(old, new):
  """The largest probability of equal draws from two scalar Gaussians: the common area."""
  grid = np.linspace(-12, 12, 200001) * max(old[1], new[1]) + (old[0] + new[0]) / 2
  return np.trapezoid(np.minimum(*(stats.norm.pdf(grid, *one) for one in (old, new))), grid)


@pytest.mark.parametrize('size', [1, 3])
@pytest.mark.parametrize('name', PAIRS)
def test_the_result_follows_the_new_gaussian(name, size):
  old, new = PAIRS[name]
  x, _, moved = draw(1, old, new, size)
  assert moment(unit(moved, new)) < 4.5
  kept = np.asarray(moved.kept)
  assert (np.asarray(moved.x)[kept] == x[kept]).all()


@pytest.mark.slow
@pytest.mark.parametrize('name', PAIRS)
def test_distribution_functions(name):
  """Of a scalar, and of 16 numbers with unequal gaps and deviations: each, and their norm."""
  old, new = PAIRS[name]
  assert stats.kstest(unit(draw(2, old, new, 1)[2], new)[:, 0], 'norm').pvalue > 1e-4
  slope = np.linspace(0.5, 1, 16)
  old, new = (old[0], old[1] * slope), (new[0] * slope, new[1] * slope**1.5)
  values = unit(draw(3, old, new, 16, 20000)[2], new)
  alarm = 1e-4 / 17
  assert min(stats.kstest(column, 'norm').pvalue for column in values.T) > alarm
  assert stats.kstest(np.sum(values**2, axis=1), 'chi2', (16,)).pvalue > alarm
  expected = np.random.default_rng(4).standard_normal((1500, 16))
  assert energy_test(values[:1500], expected, permutations=199) > 0.005


@pytest.mark.parametrize('name', window_mutants.COMPARE)
@pytest.mark.parametrize('size', [1, 3])
def test_mutants_of_the_comparison_are_rejected(name, size, monkeypatch):
  window_mutants.install(window_mutants.COMPARE[name], monkeypatch)
  old, new = PAIRS['wider']
  assert moment(unit(draw(1, old, new, size)[2], new)) > 4.5


@pytest.mark.slow
@pytest.mark.parametrize('gap', [0.05, 0.5, 2.0])
@pytest.mark.parametrize('size', [1, 16])
def test_as_many_as_possible_are_kept(gap, size):
  """With equal deviations: the share is one minus the total variation."""
  _, _, moved = draw(2, (0.0, 0.4), (0.4 * gap / np.sqrt(size), 0.4), size)
  expected = special.erfc(gap / 2 / np.sqrt(2))
  if size == 1:
    assert abs(overlap((0.0, 0.4), (0.4 * gap, 0.4)) - expected) < 1e-6
  share = float(np.asarray(moved.kept).mean())
  assert abs(share - expected) < 4.5 * np.sqrt(expected * (1 - expected) / COUNT)


# At least this share of the overlap is kept, for a ratio of deviations and a gap between the means
# in units of the smaller one. Splitting the noise costs the rest.
SHARES = {(1.01, 0.0): 0.99, (1.05, 0.0): 0.98, (1.05, 0.5): 0.97, (1.6, 0.2): 0.88,
          (2.0, 1.0): 0.77, (4.0, 0.0): 0.61}


@pytest.mark.parametrize('ratio,gap', SHARES)
@pytest.mark.parametrize('wider', ['old', 'new'])
def test_unequal_deviations_keep_most_of_the_overlap(ratio, gap, wider):
  pair = (0.0, 1.0), (gap, ratio)
  old, new = pair[::-1] if wider == 'old' else pair
  share, most = float(np.asarray(draw(7, old, new, 1)[2].kept).mean()), overlap(old, new)
  error = np.sqrt(most * (1 - most) / COUNT)
  assert SHARES[ratio, gap] * most < share < most + 4.5 * error


def test_close_deviations_cost_little():
  """Deviations of 16 numbers that differ by 1 %: at least 90 % are kept."""
  moved = draw(3, (0.0, 1.0), (0.0, 1.01), 16)[2]
  assert np.asarray(moved.kept).mean() > 0.9
