"""The distribution of `windows` on models whose distribution has a closed form, and mutants.

The tokens of `analytic.gaussian_chain` are jointly normal with a known mean and covariance. Every
test compares all means and covariances of a sample with the known ones, in standard errors; the
largest of the 27 is above `LIMIT` with a probability of less than 1e-3 for an exact decoder. A
covariance that is off by 0.1 of a variance is detected in almost every run. The mutants are
decoders with one mistake each, which the same comparison rejects.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import decoders, schedule as schedule_lib
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.testing.exactness import energy_test
from cspd_jax.testing.proofs import analytic
from tests.continuous import window_mutants
from tests.marks import representative

ROWS, SIZE, LIMIT = 6000, 6, 4.5
MEANS = (0.0, 1.5)
LABELS = jnp.arange(ROWS) % len(MEANS)


def chain(levels):
  return analytic.gaussian_chain(SIZE, 0.8, schedule=schedule_lib.make(levels), means=MEANS)


def sample(decoder, params, seed=1, labels=LABELS, **options):
  return jax.jit(decoder)(params, labels, jax.random.key(seed), SamplingParams(**options))


def deviation(tokens):
  """The largest difference of a moment of tokens `[B, T]` from the known one, in its errors."""
  centred = tokens - np.asarray(MEANS)[np.asarray(LABELS)][:, None]
  distance = np.abs(np.arange(SIZE)[:, None] - np.arange(SIZE))
  covariance = 0.8**distance
  mean_error = np.sqrt(1 / len(tokens))
  # Of a product of two normal numbers of variance 1.
  product_error = np.sqrt((1 + covariance**2) / len(tokens))
  products = centred.T @ centred / len(tokens)
  return max(np.abs(centred.mean(axis=0) / mean_error).max(),
             np.abs((products - covariance) / product_error).max())


@pytest.mark.slow
@pytest.mark.parametrize('window,levels,kernels_per_call', representative(
    [(1, 12, 2), (2, 4, 2), (3, 12, 2), (4, 12, 1), (4, 12, 2), (4, 12, 3), (4, 12, 12),
     (SIZE, 4, 2), (SIZE, 12, 2)], (4, 12, 2), (SIZE, 4, 2)))
def test_moments_are_those_of_the_model(window, levels, kernels_per_call):
  model = chain(levels)
  decoded = sample(decoders.windows(model.target, window, None, model.schedule,
                                    kernels_per_call=kernels_per_call), model.params)
  assert deviation(np.asarray(decoded.tokens)[..., 0]) < LIMIT
  rounds = np.asarray(decoded.rounds)
  assert rounds.max() <= SIZE and rounds.min() >= -(-SIZE // window)
  if window == 1:
    assert (rounds == SIZE).all()
  else:
    assert rounds.mean() < 0.8 * SIZE and len(np.unique(rounds)) > 1, 'rows advance on their own'


@pytest.mark.slow
def test_steps_of_several_tokens():
  """The distribution of three steps differs from that of six, and windows of it are exact."""
  model = chain(8)
  windows = np.asarray(sample(decoders.windows(
      model.target, 4, 3, model.schedule, kernels_per_call=2), model.params, 4).tokens)[..., 0]
  mar = functools.partial(decoders.mar, last_noise=True)
  steps = np.asarray(sample(mar(model.target, 3, model.schedule), model.params, 5).tokens)[..., 0]
  error = np.sqrt(4 / ROWS)
  assert np.abs(np.cov(windows.T) - np.cov(steps.T)).max() < LIMIT * error
  assert deviation(steps) > 1.5 * LIMIT


MIXTURE = analytic.mixtures(jax.random.key(3), 4, 3, schedule=schedule_lib.make(6), guided=True,
                            components=2)


@pytest.mark.slow
@pytest.mark.parametrize('window', representative([2, 4], 4))
def test_mixtures_with_guidance_and_a_temperature(window):
  """Whole images of 12 numbers against `mar`; the test detects a shift by 0.2 deviations."""
  labels, options = jnp.arange(1200) % 3, dict(guidance_scale=1.7, temperature=0.9)
  build = lambda decoder, seed: np.asarray(sample(
      decoder, MIXTURE.params, seed, labels, **options).tokens).reshape(1200, -1)
  tokens = build(decoders.windows(MIXTURE.target, window, None, MIXTURE.schedule), 1)
  expected = build(decoders.mar(MIXTURE.target, None, MIXTURE.schedule, last_noise=True), 2)
  assert energy_test(tokens, expected, permutations=199) > 0.01
  assert energy_test(tokens + 0.2 * expected.std(axis=0), expected,
                     permutations=199) <= 0.01


@pytest.mark.slow
def test_learned_deviations_that_depend_on_the_state():
  """The old chains are far from the new ones, and deviations differ by up to a factor of two."""
  old, new = (analytic.variance_chain(2, 5, mean=mean, slope=1.5) for mean in (0.0, 0.4))
  rows = 10000
  labels, rng = jnp.zeros(rows, int), jax.random.key(0)
  decoder = decoders.windows(old.target, 2, None, old.schedule)
  state = jax.jit(decoder.start)(old.params, labels, row_keys(rng, rows))
  # Round 1 under the parameters of the old model, the rest under those of the new one: the second
  # token is that of the new one.
  state = jax.jit(decoder.round)(old.params, state)
  for _ in range(2):
    state = jax.jit(decoder.round)(new.params, state)
  order = np.asarray(state.decoded.order)
  second = np.asarray(state.decoded.tokens)[np.arange(rows), order[:, 1], 0]
  kept = np.asarray(state.decoded.tests.accepted)[np.arange(rows), order[:, 1]].mean()
  expected = np.asarray(sample(decoders.mar(new.target, None, new.schedule, last_noise=True),
                               new.params, 7, labels).tokens)[:, 1, 0]
  assert 0.1 < kept < 0.9
  assert np.max(np.abs(np.searchsorted(np.sort(second), np.sort(expected)) -
                       np.arange(rows))) / rows < 1.95 * np.sqrt(2 / rows)


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(
    window_mutants.MASKED, 'one token too many'))
def test_mutants_are_rejected(name, monkeypatch):
  window_mutants.install(window_mutants.MASKED[name], monkeypatch)
  model = chain(12)
  # There is more ahead of a short window.
  window = 2 if 'ahead' in name else 4
  decoded = sample(decoders.windows(
      model.target, window, None, model.schedule, kernels_per_call=2), model.params, seed=6)
  tokens = np.asarray(decoded.tokens)[..., 0]
  assert np.isfinite(tokens).all() and deviation(tokens) > LIMIT


class TestResult:
  """Counts and unhappy paths."""

  def test_counts_and_rows_that_do_not_depend_on_each_other(self):
    """Bit for bit in a batch of one shape, whatever the other rows hold."""
    model = chain(6)
    decoder = decoders.windows(model.target, 3, None, model.schedule)
    run, keys = jax.jit(decoder), jax.random.split(jax.random.key(6), 24)
    decoded = run(model.params, LABELS[:12], keys[:12])
    accepted = np.asarray(decoded.accepted)
    assert (accepted @ np.arange(accepted.shape[1]) == SIZE).all()
    assert (accepted.sum(axis=1) == decoded.rounds).all() and accepted[:, 4:].sum() == 0
    calls = np.asarray(decoded.costs.head_calls)
    assert ((calls > 0).sum(axis=1) == decoded.rounds).all()
    kernels = decoded.kernels
    assert (np.asarray(kernels.accepted) <= np.asarray(kernels.tested)).all()
    assert np.asarray(decoded.tv_bound).max() == 0 and decoder.verifier.exact
    for other in range(12, 24, 4):
      mixed = jnp.concatenate([keys[:4], jnp.roll(keys[other:other + 4], 1), keys[8:12]])
      second = run(model.params, LABELS[:12], mixed)
      for name in ('tokens', 'rounds', 'accepted', 'order'):
        for rows in (slice(0, 4), slice(8, 12)):
          np.testing.assert_array_equal(getattr(decoded, name)[rows], getattr(second, name)[rows])

  @pytest.mark.parametrize('change,message', [
      (dict(window=2), 'state has chains of 4 tokens and 6 levels; .* 6 tokens and 6 levels'),
      (dict(schedule=schedule_lib.make(4)), 'state has chains of 6 tokens and 4 levels'),
      (None, 'state has no chains; this decoder requires 6 tokens and 6 levels')])
  def test_the_state_of_another_decoder_is_refused(self, change, message):
    model = chain(6)
    options = dict(window=3, schedule=model.schedule)
    decoder = decoders.windows(model.target, **options)
    other = decoders.mar(model.target, None, model.schedule) if change is None else (
        decoders.windows(model.target, **options | change))
    state = other.start(model.params, LABELS[:2], row_keys(jax.random.key(0), 2))
    with pytest.raises(ValueError, match=message):
      decoder.round(model.params, state)
