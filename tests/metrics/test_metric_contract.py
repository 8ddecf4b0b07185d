"""The contract of all metrics, and their values for a sample of an enumerable model."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax import metrics
from cspd_jax.generation.stored_run import decode
from cspd_jax.measure import tables
from cspd_jax.metrics import base, image_scores, likelihood
from tests.builders import models


@pytest.fixture(scope='module')
def model():
  return models.of_table()


@pytest.fixture(scope='module')
def sample(model):
  prompts = [0, 1, 2, 0, 1]
  condition, sampling = model.condition(prompts), model.sampling()
  reference = base.Sample(
      decode(model.images(prompts * 2, decoder='sjd(window=3)', seed=1)),
      jnp.tile(condition, 2), sampling)
  return base.Sample(decode(model.images(prompts, decoder='sjd(window=3)')), condition, sampling,
                     reference, batch_size=2)


def test_mean_and_ratio():
  values = np.array([1.0, 2.0, 6.0])
  result = base.mean(values)
  assert result.mean == 3 and result.standard_error == pytest.approx(
      values.std(ddof=1) / math.sqrt(3))
  # The standard error of a ratio of means, to first order.
  rounds = np.array([3.0, 4.0, 5.0, 4.0])
  result = base.ratio(np.full(4, 8.0), rounds)
  assert result.mean == 2
  assert result.standard_error == pytest.approx(2 * rounds.std(ddof=1) / 2 / 4)


def test_ratio_has_the_spread_that_it_says():
  rng = np.random.default_rng(0)
  result = [base.ratio(a, b) for a, b in zip(
      rng.gamma(5, size=(400, 50)), rng.gamma(9, size=(400, 50)))]
  spread = np.std([value.mean for value in result])
  assert np.mean([value.standard_error for value in result]) == pytest.approx(spread, rel=0.15)


def test_unknown_measurements_are_none():
  assert base.entries({'a': base.Value(1.0, 0.5), 'b': base.UNKNOWN}) == {
      'a': 1.0, 'a_error': 0.5, 'b': None, 'b_error': None}
  assert math.isnan(base.mean(np.array([4.0])).standard_error)
  assert math.isnan(base.ratio(np.zeros(2), np.zeros(2)).mean)
  assert base.entries({'a': base.mean(np.array([1.0, np.inf]))}) == {'a': None, 'a_error': None}


def test_the_list():
  for tokens in ('discrete', 'continuous'):
    chosen = metrics.select(tokens)
    assert metrics.MAIN[tokens] in chosen
    assert len({metric.name for metric in chosen}) == len(chosen)
    assert len({metric.heading for metric in chosen}) == len(chosen)
    assert {metric.group for metric in chosen} <= {'work', 'bound', 'fidelity'}
    assert all(metric.meaning for metric in chosen)


def test_every_discrete_metric_is_told_and_shown(model, sample):
  chosen = metrics.select('discrete')
  row = metrics.entries(metrics.measure(chosen, sample, model))
  assert all(row[metric.name] is not None for metric in chosen)
  assert row['step_compression'] == pytest.approx(np.mean(4 / sample.decoded.rounds))
  assert row['accepted_length'] == pytest.approx(15 / (sample.decoded.rounds - 1).sum())
  assert row['tv_bound'] == row['tv_bound_per_token'] == 0
  cells = tables.cells(metrics.columns(chosen, errors=True), row)
  assert len(cells) == sum(metric.tabled for metric in chosen)
  assert all(' +- ' in cell for cell in cells)
  assert '-' not in tables.cells(metrics.columns(chosen), row)


@pytest.mark.slow
def test_likelihood_of_a_sample(model, sample):
  direct = jax.device_get(likelihood.likelihood(
      model.target(guided=False), model.params, sample.condition, sample.tokens, sample.sampling))
  result = likelihood.measured(sample, model)
  np.testing.assert_allclose(result.nll, direct.nll, rtol=1e-5)
  assert likelihood.NLL(sample, model).mean == pytest.approx(direct.nll.mean(), rel=1e-5)
  assert likelihood.NLL_EXCESS(sample, model).mean == pytest.approx(
      (direct.nll - direct.entropy).mean(), rel=1e-4)
  theirs = likelihood.measured(sample.reference, model).nll.reshape(2, 5).mean(0)
  assert likelihood.NLL_DIFFERENCE(sample, model).mean == pytest.approx(
      (direct.nll - theirs).mean(), rel=1e-4)


def test_networks_look_once_and_at_batches_of_one_size(model, sample):
  sizes = []

  def look(condition, tokens, sampling):
    sizes.append((len(condition), len(tokens)))
    return tokens

  fresh = dataclasses.replace(sample, _cache={})
  for _ in range(2):
    result = fresh.once('look', lambda: fresh.batched(look))
  np.testing.assert_array_equal(result, sample.tokens)
  assert sizes == [(2, 2)] * 3


def test_frechet_of_a_sample(model, sample):
  gaussian = lambda one: image_scores.gaussian(one.tokens[:, :2])
  assert image_scores.FRECHET(sample, model).mean == pytest.approx(
      image_scores.distance(gaussian(sample), gaussian(sample.reference)))
  alone = dataclasses.replace(sample, reference=None, _cache={})
  assert math.isnan(image_scores.FRECHET(alone, model).mean)
  assert math.isnan(likelihood.NLL_DIFFERENCE(alone, model).mean)
