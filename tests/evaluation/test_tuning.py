"""Predictions from given costs and counts, the search for candidates, and what is measured."""

import numpy as np
import pytest

import cspd_jax
from cspd_jax.evaluation import tuning
from cspd_jax.evaluation.bench import Bench
from tests.families import tiny


def _run(tokens, rounds, seconds):
  return tuning.Run('one', tokens, 1.0, np.asarray(rounds), seconds, 1)


def test_a_batch_ends_with_its_last_row():
  rounds = np.array([4, 2, 6])
  assert tuning.last_row(rounds, 1) == pytest.approx(4)
  # Of the nine pairs one has 2 for its largest, three have 4, five have 6.
  assert tuning.last_row(rounds, 2) == pytest.approx((2 + 3 * 4 + 5 * 6) / 9)
  assert tuning.last_row(rounds, 500) == pytest.approx(6)
  drawn = np.random.default_rng(0).choice(rounds, (100_000, 5)).max(axis=1)
  assert tuning.last_row(rounds, 5) == pytest.approx(drawn.mean(), rel=0.01)


def test_rounds_times_cost_over_images():
  run = _run(4, [10, 10, 20], 0.5)
  assert tuning.predict(run, 1, 1.0) == pytest.approx((40 / 3, 0.5, 20 / 3))
  # Of eight images, 20 rounds are the most unless all have 10; a round takes four times longer.
  rounds = 20 - 10 * (2 / 3) ** 8
  assert tuning.predict(run, 8, 4.0) == pytest.approx((rounds, 2.0, rounds * 2.0 / 8))


def _search(lines, costs, further=lambda text: []):
  asked = []

  def seconds(text):
    asked.append(text)
    return costs.get(text)

  return tuning.search(lines, further, seconds), asked


def test_longer_rounds_are_left_out_once_they_are_slower_for_every_number_of_images():
  costs = {'a4': {1: 3.0, 8: 1.0}, 'a8': {1: 2.0, 8: 2.0}, 'a16': {1: 2.1, 8: 3.0},
           'a32': {1: 4.0, 8: 4.0}, 'b': {1: 9.0, 8: 9.0}}
  found, asked = _search([['a4', 'a8', 'a16', 'a32', 'a64'], ['b']], costs)
  assert asked == ['a4', 'a8', 'a16', 'a32', 'b']
  assert list(found.left_out) == ['a64'] and 'a32' in found.left_out['a64']
  assert tuning.ranked(found.seconds, 1)[:2] == ['a8', 'a16']
  assert tuning.ranked(found.seconds, 8)[:2] == ['a4', 'a8']


def test_what_is_near_the_best_is_looked_at_more_closely():
  costs = {'a4': {1: 2.0}, 'a8': {1: 1.0}, 'b4': {1: 1.2}, 'c4': {1: 5.0}, 'a8!': {1: 0.9},
           'b4!': {1: 2.0}, 'c4!': {1: 0.1}}
  found, asked = _search([['a4', 'a8'], ['b4'], ['c4']], costs, lambda text: [f'{text}!'])
  assert asked == ['a4', 'a8', 'b4', 'c4', 'a8!', 'b4!']
  assert tuning.ranked(found.seconds, 1)[0] == 'a8!' and not found.left_out


def test_candidates_after_the_time_is_up_are_named():
  found, _ = _search([['a', 'b'], ['c', 'a']], {'a': {1: 1.0}})
  assert list(found.seconds) == ['a']
  assert found.left_out == {'b': 'the time was up', 'c': 'the time was up'}


def test_measurements_are_of_the_images_of_the_bench(tmp_path):
  model = cspd_jax.load(tiny.saved(tmp_path / 'beach'))
  bench = Bench(model, ['sea', 'sky', 'sand'], sampling=model.sampling(guidance_scale=1))
  pace = tuning.pace(bench, 2)
  run = tuning.short_run(bench, 'mc_sjd(window=3)', 2, pace)
  assert run.tokens == tuning.tokens(bench, run.decoder) == 3 and run.seconds > 0
  # Three images fill a batch and a half, so there is one more; the first are those of the bench.
  assert run.rounds.shape == (4,)
  np.testing.assert_array_equal(run.rounds[:3], bench.sample(run.decoder).decoded.rounds)
  # Were the machine a thousand times slower at first than now, so were the candidate.
  slower = tuning.short_run(bench, run.decoder, 2, pace._replace(seconds=1000 * pace.seconds))
  assert slower.seconds > 30 * run.seconds
  assert run.accepted == pytest.approx(15 * 4 / (run.rounds - 1).sum())
  growth = tuning.growth(bench, 3, [2, 4], 1)
  assert growth[2] == 1 and growth[4] > 0 and tuning.growth(bench, 3, [2], 1) == {2: 1.0}
  assert list(tuning.measure(bench, [run.decoder], 2, 1)) == [run.decoder]
