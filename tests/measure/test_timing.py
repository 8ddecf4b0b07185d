"""The timer with an artificial clock."""

import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core import programs
from cspd_jax.measure import timing
from tests.builders import models


@pytest.fixture
def clock(monkeypatch):
  """A clock that functions advance by adding to its only entry."""
  now = [0.0]
  monkeypatch.setattr(timing.time, 'perf_counter', lambda: now[0])
  return now


def _takes(clock, *seconds):
  """Returns a function whose calls last these times, in order; `left` holds the remaining ones."""
  left = list(seconds)

  def run():
    clock[0] += left.pop(0)
    return jnp.zeros(())

  run.left = left
  return run


def test_functions_take_turns_and_the_first_is_not_timed(clock):
  order = []
  runs = {name: (lambda name=name: order.append(name)) for name in ('a', 'b')}
  timing.measure(runs, 2)
  assert order == ['a', 'b'] * 3
  result = timing.measure({'a': _takes(clock, 9, 1, 4, 2), 'b': _takes(clock, 9, 5, 5, 5)}, 3)
  np.testing.assert_allclose(result['a'].seconds, [1, 4, 2])
  assert result['a'].median == 2 and result['b'].median == 5
  assert result['a'].quartiles == (1.5, 3.0)


def test_a_slow_function_is_timed_once(clock):
  slow, fast = _takes(clock, 30, 30), _takes(clock, 1, 1, 1, 1)
  result = timing.measure({'slow': slow, 'fast': fast}, 3, enough=10.0)
  assert len(result['slow'].seconds) == 1 and len(result['fast'].seconds) == 3
  assert not slow.left


@pytest.mark.parametrize('budget, turns', [(1.0, 1), (9.9, 1), (10.0, 2), (14.9, 2), (99.0, 4)])
def test_turns_end_with_the_budget(clock, budget, turns):
  runs = {'a': _takes(clock, 50, 2, 2, 2, 2), 'b': _takes(clock, 50, 3, 3, 3, 3)}
  result = timing.measure(runs, 4, budget=budget)
  assert len(result['a'].seconds) == len(result['b'].seconds) == turns


def test_turns_end_once_they_suffice(clock):
  seen = []
  result = timing.measure({'a': _takes(clock, 9, 1, 2, 3)}, 3, until=lambda seconds: (
      seen.append(list(seconds['a'])), len(seconds['a']) == 2)[1])
  assert result['a'].seconds.tolist() == [1, 2] and seen == [[1], [1, 2]]


def test_noise_is_what_the_machine_adds():
  """With several turns, images of different work are no noise."""
  one, work = np.array([[1.0, 1.2, 1.0, 0.8]]), np.array([[1.0, 2.0, 3.0, 2.0]])
  assert timing.noise(one) == pytest.approx(np.std(one, ddof=1) / 2)
  assert timing.noise(np.repeat(work, 2, axis=0)) == 0
  rng = np.random.default_rng(0)
  seen = [timing.noise(work + rng.normal(0, 0.1, (3, 4))) for _ in range(500)]
  assert np.mean(seen) == pytest.approx(0.1 / np.sqrt(12) / 2, rel=0.1)
  assert timing.noise(np.ones((1, 1))) is None


def test_without_warm_up(clock):
  progress = []
  result = timing.measure({'a': _takes(clock, 3, 1)}, 2, warmup=0,
                         progress=lambda *turns: progress.append(turns))
  assert result['a'].seconds.tolist() == [3, 1] and progress == [(1, 2), (2, 2)]


def test_compilation_apart():
  traces = []

  def double(x):
    traces.append(x.shape)
    return 2 * x

  run, seconds = programs.compiled(double, jnp.ones(3))
  assert traces == [(3,)] and seconds > 0
  np.testing.assert_array_equal(run(jnp.full(3, 2.0)), [4, 4, 4])
  assert len(traces) == 1


def test_images_without_valid_probabilities_are_not_compared():
  model = models.of_table()
  broken = model.with_params(model.params.at[1].set(np.nan))
  requests = {name: broken.images([0, 1], seed=7, decoder=name, batch_size=1)
              for name in ('vanilla', 'mc_sjd(window=3)')}
  with pytest.raises(ValueError, match="for 1 of 1 images .'1' with seed 7"):
    timing.compare(requests)


def test_decoders_that_are_not_timed_have_images():
  model, done = models.of_table(), []
  requests = {name: model.images([0, 1], decoder=name, batch_size=1)
              for name in ('vanilla', 'mc_sjd(window=3)')}
  compared = timing.compare(requests, untimed=('mc_sjd(window=3)',), repeats=2,
                            progress=lambda *steps: done.append(steps))
  timed, other = compared.values()
  assert timed.seconds.shape == (2,) and timed.timed_runs == 2
  assert other.seconds is None and len(other.sample.decoded.rounds) == 2
  assert done[-1] == (8, 8) and done == sorted(done)
  compared = timing.compare(requests, repeats=3, steady=np.inf)
  assert [one.timed_runs for one in compared.values()] == [1, 1]
  assert timed.noise is None and compared['mc_sjd(window=3)'].noise > 0
