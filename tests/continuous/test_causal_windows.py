"""The distribution of `windows` on a causal model with a closed form, and mutants.

The tokens of `analytic.causal_chain` are jointly normal with a known mean and covariance.
Every test compares all 152 means and covariances of the 16 numbers of an image with the known
ones, in standard errors. For an exact decoder the largest is above `LIMIT` with a probability of
at most 7e-4, by the normal distribution and Bonferroni's inequality. With `ROWS` images a mean
that is off by 0.1 of a deviation, or a covariance by 0.15 of the deviations' product, is above it
in more than 99 % of all runs. The mutants are decoders with one mistake each, which the same
comparison rejects.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import decoders, schedule as schedule_lib
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.testing.proofs import analytic
from tests.continuous import window_mutants
from tests.marks import representative

ROWS, SIZE, LIMIT = 5000, 8, 4.6
SCALE, CLASSES = 1.5, (0.0, 1.2)
LABELS = jnp.arange(ROWS) % len(CLASSES)
SCHEDULES = {
    'flow': schedule_lib.flow(8), 'coarse': schedule_lib.flow(3, shift=2.0),
    'ending': schedule_lib.flow(8, last_step=0.1, last_deviation=0.2),
    'cosine': schedule_lib.make(8)}


def chain(schedule='flow', **options):
  return analytic.causal_chain(
      SIZE, schedule=SCHEDULES[schedule], means=CLASSES, **options)


def sample(build, model, seed=1, scale=1.0, labels=LABELS):
  decoder = build(model)
  return jax.jit(decoder)(model.params, labels, jax.random.key(seed), SamplingParams(scale))


def windows(window, kernels_per_call=2):
  return lambda model: decoders.windows(
      model.target, window, None, model.schedule, kernels_per_call=kernels_per_call,
      guidance='constant')


def mar(model):
  return decoders.mar(model.target, None, model.schedule, last_noise=True, guidance='constant')


def moments(model, label, scale=1.0):
  """Mean `[T C]` and covariance of the tokens of a `causal_chain`, if the last kernel has noise.

  Every kernel of the head is linear in the state and in the mean of the token, with a standard
  deviation that depends on neither. So the token is normal, with a variance and a multiple of the
  mean that follow kernel by kernel. Guided noise is that of a Gaussian with the guided mean; the
  `scale` of guidance is constant over the tokens.
  """
  params = analytic.LinearParams(*(np.asarray(leaf, np.float64) for leaf in model.params))
  gain, variance = _linear_chain(model.schedule, params.stds)
  size = params.mix.shape[0]
  mean = scale * params.means[label] + (1 - scale) * params.means[-1]
  # x = gain (mean + weights mix (x - mean)) + noise.
  weights = np.kron(params.weights, params.mix)
  gain, variance = np.repeat(gain, size), np.repeat(variance, size)
  solve = np.linalg.inv(np.eye(len(gain)) - gain[:, None] * weights)
  return solve @ (gain * mean * (1 - weights.sum(axis=1))), (solve * variance) @ solve.T


def _linear_chain(schedule, stds):
  """The multiple `[T]` of a token's mean, and its variance `[T]`, after all kernels."""
  square = stds * stds
  gain, variance = np.zeros_like(stds), np.ones_like(stds)
  for level in range(schedule.num_levels - 1, -1, -1):
    flow = np.isnan(schedule.alpha_bar[level])
    keep = schedule.steps[level] if flow else np.sqrt(schedule.alpha_bar[level])
    noise = 1 - keep if flow else np.sqrt(1 - schedule.alpha_bar[level])
    total = keep * keep * square + noise * noise
    # The head's answer is `of_x (x - keep mean)`, plus the mean if it is a velocity.
    of_x = ((keep * square if flow else 0) - noise * (1 if flow else -1)) / total
    of_mean = flow - of_x * keep
    weight = schedule.x0_to_mean[level]
    by_answer = -weight * schedule.eps_to_x0[level]
    by_x = weight * schedule.x_to_x0[level] + schedule.x_to_mean[level] + by_answer * of_x
    gain = by_x * gain + by_answer * of_mean
    least = np.exp(schedule.min_log_variance[level])
    added = least
    if not flow:
      added = (least if level else 0) + np.square(noise * weight) * square / total
    variance = by_x * by_x * variance + added
  return gain, variance


def deviation(tokens, model, scale=1.0, labels=LABELS):
  """The largest difference of a moment of tokens `[B, T, C]` from the exact one, in its errors."""
  flat, labels = np.asarray(tokens, np.float64).reshape(len(tokens), -1), np.asarray(labels)
  exact = [moments(model, label, scale) for label in range(len(CLASSES))]
  centred = flat - np.stack([mean for mean, _ in exact])[labels]
  covariance = exact[0][1]
  variance = np.diag(covariance)
  mean_error = np.sqrt(variance / len(flat))
  # Of a product of two normal numbers.
  product_error = np.sqrt((np.outer(variance, variance) + covariance**2) / len(flat))
  products = centred.T @ centred / len(flat)
  return max(np.abs(centred.mean(axis=0) / mean_error).max(),
             np.abs((products - covariance) / product_error).max())


@pytest.mark.slow
@pytest.mark.parametrize('schedule', SCHEDULES)
def test_moments_in_closed_form(schedule):
  """Of the sampler that defines them, and the sensitivity that the module states."""
  model = chain(schedule)
  tokens = np.asarray(sample(mar, model).tokens)
  assert deviation(tokens, model) < LIMIT
  _, covariance = moments(model, 0)
  if schedule == 'cosine':  # Its chains have the distribution of the clean tokens.
    assert abs(covariance[0, 0] - model.params.stds[0]**2) < 0.01
  std = np.sqrt(np.diag(covariance)).reshape(SIZE, -1)
  assert deviation(tokens + 0.1 * std, model) > LIMIT
  common = np.random.default_rng(0).standard_normal((ROWS, 1, 1))
  first_two = np.where(np.arange(SIZE) < 2, 1, 0)[:, None]
  assert deviation(tokens + np.sqrt(0.15) * std * first_two * common, model) > LIMIT


@pytest.mark.parametrize('schedule,window,kernels_per_call,scale', representative(
    [('flow', 2, 2, 1.0), ('flow', 4, 2, SCALE), ('flow', 8, 1, 1.0), ('flow', 8, 8, 1.0),
     ('coarse', 8, 2, 1.0), ('ending', 4, 3, SCALE), ('cosine', 4, 2, SCALE), ('cosine', 8, 1, 1.0),
     ('flow', 1, 2, 1.0)],
    ('flow', 4, 2, SCALE)))
def test_moments_of_windows(schedule, window, kernels_per_call, scale):
  model = chain(schedule, null=None if scale == 1 else 0.4)
  decoded = sample(windows(window, kernels_per_call), model, 2, scale)
  assert deviation(decoded.tokens, model, scale) < LIMIT
  rounds = np.asarray(decoded.rounds)
  assert rounds.min() >= -(-SIZE // window) and rounds.max() <= SIZE
  assert window == 1 or (len(np.unique(rounds)) > 1 and rounds.mean() < 0.9 * SIZE)


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(
    window_mutants.CAUSAL, 'parted chains go on as merged ones'))
def test_mutants_are_rejected(name, monkeypatch):
  window_mutants.install(window_mutants.CAUSAL[name], monkeypatch)
  model = chain()
  tokens = np.asarray(sample(windows(4), model, 6).tokens)
  assert np.isfinite(tokens).all() and deviation(tokens, model) > 1.2 * LIMIT
