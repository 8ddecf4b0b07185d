"""Predictions from known costs and counts, the search for candidates, and measurements."""

import dataclasses

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax import sharding
from cspd_jax.measure import tuning
from cspd_jax.measure.bench import Bench
from tests.families import tiny


def _run(tokens, rounds, seconds):
  return tuning.TimedRun('one', tokens, 1.0, np.asarray(rounds), seconds, 1)


def test_a_batch_ends_with_its_last_row():
  rounds = np.array([4, 2, 6])
  assert tuning.last_row(rounds, 1) == pytest.approx(4)
  # The maximum is 2 for one of the nine pairs, 4 for three and 6 for five.
  assert tuning.last_row(rounds, 2) == pytest.approx((2 + 3 * 4 + 5 * 6) / 9)
  assert tuning.last_row(rounds, 500) == pytest.approx(6)
  drawn = np.random.default_rng(0).choice(rounds, (100_000, 5)).max(axis=1)
  assert tuning.last_row(rounds, 5) == pytest.approx(drawn.mean(), rel=0.01)


def test_rounds_times_cost_over_images():
  run = _run(4, [10, 10, 20], 0.5)
  assert tuning.predict(run, 1, 1.0) == pytest.approx((40 / 3, 0.5, 20 / 3))
  # The maximum of eight images is 20 rounds unless all have 10; a round is four times longer.
  rounds = 20 - 10 * (2 / 3) ** 8
  assert tuning.predict(run, 8, 4.0) == pytest.approx((rounds, 2.0, rounds * 2.0 / 8))


def test_rows_of_a_queue_take_the_next_image():
  assert tuning.queue_rounds([5], 4, 9) == 3 * 4 and tuning.queue_rounds([5], 4, 4) == 4
  rounds = np.array([4, 2, 6])
  # One row decodes all images; with a row per image it is a batch, whose rounds include a prefill.
  assert tuning.queue_rounds(rounds, 1, 50) == pytest.approx(50 * 3, rel=0.02)
  assert tuning.queue_rounds(rounds, 5, 5) == pytest.approx(
      tuning.last_row(rounds, 5) - 1, rel=0.05)
  assert 50 * 3 / 5 < tuning.queue_rounds(rounds, 5, 50) < 10 * (tuning.last_row(rounds, 5) - 1)


def test_a_queue_has_the_prefills_of_its_groups():
  run = _run(4, [11], 0.5)
  # Eight rows and twenty images in ten groups: three times ten rounds, and ten prefills.
  result = tuning.predict(run, 8, 2.0, 20, prefill=0.25)
  assert result.round_seconds == 1.0
  assert result.seconds == pytest.approx((30 * 1.0 + 10 * 0.25) / 20)
  assert result.rounds == pytest.approx(result.seconds * 8)


def _search(lines, costs, variants=lambda text: []):
  asked = []

  def seconds(text):
    asked.append(text)
    return costs.get(text)

  return tuning.search(lines, variants, seconds), asked


def test_longer_rounds_are_left_out_once_they_are_slower_for_every_number_of_images():
  costs = {'a4': {1: 3.0, 8: 1.0}, 'a8': {1: 2.0, 8: 2.0}, 'a16': {1: 2.1, 8: 3.0},
           'a32': {1: 4.0, 8: 4.0}, 'b': {1: 9.0, 8: 9.0}}
  result, asked = _search([['a4', 'a8', 'a16', 'a32', 'a64'], ['b']], costs)
  assert asked == ['a4', 'a8', 'a16', 'a32', 'b']
  assert list(result.left_out) == ['a64'] and 'a32' in result.left_out['a64']
  assert tuning.ranked(result.seconds, 1)[:2] == ['a8', 'a16']
  assert tuning.ranked(result.seconds, 8)[:2] == ['a4', 'a8']


def test_decoders_near_the_best_are_searched_further():
  costs = {'a4': {1: 2.0}, 'a8': {1: 1.0}, 'b4': {1: 1.2}, 'c4': {1: 5.0}, 'a8!': {1: 0.9},
           'b4!': {1: 2.0}, 'c4!': {1: 0.1}}
  result, asked = _search([['a4', 'a8'], ['b4'], ['c4']], costs, lambda text: [f'{text}!'])
  assert asked == ['a4', 'a8', 'b4', 'c4', 'a8!', 'b4!']
  assert tuning.ranked(result.seconds, 1)[0] == 'a8!' and not result.left_out


def test_candidates_after_the_time_is_up_are_named():
  result, _ = _search([['a', 'b'], ['c', 'a']], {'a': {1: 1.0}})
  assert list(result.seconds) == ['a']
  assert result.left_out == {'b': 'the time limit was reached', 'c': 'the time limit was reached'}


@pytest.mark.slow
def test_measurements_are_of_the_images_of_the_bench(tmp_path):
  model = cspd_jax.load(tiny.saved(tmp_path / 'beach'))
  bench = Bench(model, ['sea', 'sky', 'sand'], sampling=model.sampling(guidance_scale=1))
  pace = tuning.pace(bench, 2)
  run = tuning.short_run(bench, 'mc_sjd(window=3)', 2, pace)
  assert run.tokens == bench.tokens_per_round(run.decoder) == 3 and run.seconds > 0
  # Three images fill one and a half batches, so a fourth is added; the others are the bench's.
  assert run.rounds.shape == (4,)
  np.testing.assert_array_equal(run.rounds[:3], bench.sample(run.decoder).decoded.rounds)
  # If the machine was a thousand times slower at the start, so is the predicted candidate.
  slower = tuning.short_run(bench, run.decoder, 2, pace._replace(seconds=1000 * pace.seconds))
  assert slower.seconds > 30 * run.seconds
  assert run.accepted == pytest.approx(15 * 4 / (run.rounds - 1).sum())
  growth = tuning.growth(bench, 3, [2, 4], 1)
  assert growth[2] == 1 and growth[4] > 0 and tuning.growth(bench, 3, [2], 1) == {2: 1.0}
  # Three images in two rows are a queue, unless all rows of the decoder end together.
  lengths = {text: tuning.queue_length(bench, text, 2) for text in (run.decoder, 'vanilla')}
  assert lengths == {run.decoder: 3, 'vanilla': 0}
  assert tuning.queue_length(bench, run.decoder, 3) == 0
  one = sharding.make_mesh(1, 1, devices=jax.devices()[:1])
  divided = Bench(dataclasses.replace(model, mesh=one), bench.prompts)
  assert tuning.queue_length(divided, run.decoder, 2) == 0, 'a mesh decodes batch after batch'
  assert tuning.prefill(bench, 2, pace, 1) > 0
  result = bench.queue(run.decoder, 2)()
  assert sorted(np.concatenate([some.image for some in result])) == [0, 1, 2]
  timed = tuning.measure(bench, list(lengths), 2, 1)
  assert list(timed) == list(lengths) and all(seconds > 0 for seconds in timed.values())
