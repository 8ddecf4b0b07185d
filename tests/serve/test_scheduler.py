"""Images that come, leave and fail while others are decoded; each is that of `generate`."""

import queue
import random
import threading

import numpy as np
import pytest

pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from cspd_jax.generation.model import Partial
from cspd_jax.generation.slots import FinishedImage, Runner
from cspd_jax.serve.scheduler import ClosedError, DeviceError, FullError, ImageJob, Scheduler
from tests.serve import tiny

SPECS = (tiny.SEED_EXACT, 'vanilla')
WAIT = 300.0
COUNT = 15


@pytest.fixture
def started(model):
  """Returns a function that starts a scheduler, and ends those that it started."""
  schedulers = []

  def start(num_slots=3, queue=4, ready=True, specs=SPECS, fewer=()):
    runners = {spec: [Runner(model, count, decoder=spec) for count in (*fewer, num_slots)]
               for spec in specs}
    scheduler = Scheduler(
        {spec: [several] for spec, several in runners.items()}, queue=queue,
        warm_up={spec: tiny.request(model, decoder=spec) for spec in specs})
    scheduler.runners = {spec: several[-1] for spec, several in runners.items()}
    schedulers.append(scheduler)
    if ready:
      scheduler.start()
      _until(lambda: scheduler.state == 'ready')
    return scheduler

  yield start
  for scheduler in schedulers:
    scheduler.close()
    assert scheduler.join(WAIT)


def _until(condition):
  for _ in range(int(WAIT * 100)):
    if condition():
      return
    threading.Event().wait(0.01)
  raise AssertionError('too late')


def _held(runner):
  """Makes the steps of a runner wait for an event, which is returned."""
  go, step = threading.Event(), runner.step

  def held(rounds=1):
    assert go.wait(WAIT)
    return step(1)

  runner.step = held
  return go


def _value(scheduler, name, *labels):
  metric = getattr(scheduler.metrics, name)
  return (metric.labels(*labels) if labels else metric)._value.get()


def test_images_are_those_of_generate_whatever_else_is_decoded(model, started):
  """Also while others leave, fail, and are decoded by another decoder with other options.

  And while programs of fewer slots are compiled, and used.
  """
  scheduler, random_numbers = started(queue=100, fewer=(1, 2)), random.Random(0)
  results, jobs = queue.Queue(), []
  options = [{}, dict(top_k=2), dict(top_p=0.6, temperature=1.5)]
  for number in range(COUNT):
    prompt = ('cat', 'dog', 'cat', 'dog', 'nan')[number % 5]
    decoder = SPECS[number % 4 == 0]
    request = tiny.request(model, prompt, 7, number, decoder, **options[number % 3])
    job = ImageJob(request, decoder, lambda result, number=number: results.put((number, result)))
    jobs.append(job)
    scheduler.submit([job])
    if random_numbers.random() < 0.2:
      scheduler.cancel([random_numbers.choice(jobs)])
  scheduler.close()
  assert scheduler.join(WAIT) and scheduler.state == 'closed'
  done = dict(results.get() for _ in range(results.qsize()))
  assert len(done) >= COUNT / 2 and done.keys() | {
      number for number, job in enumerate(jobs) if job.cancelled} == set(range(COUNT))
  for number, result in done.items():
    request = jobs[number].images
    if request.titles == ['nan']:
      with pytest.raises(ValueError, match='the model returned no valid probabilities'):
        result.result()
      continue
    expected = model.generate(list(request.titles), seed=request.seeds, batch_size=1,
                              decoder=jobs[number].decoder, **options[number % 3])
    image = result.result()
    np.testing.assert_array_equal(image.tokens, expected.tokens)
    assert image.png(0) == expected.png(0)
  totals = [_value(scheduler, 'images', spec, outcome) for spec in SPECS
            for outcome in ('completed', 'cancelled', 'failed')]
  assert sum(totals) == COUNT and _value(scheduler, 'waiting') == 0
  assert all(_value(scheduler, 'busy', spec) == 0 for spec in SPECS)


def test_watched_images_and_images_that_are_cancelled(model, started):
  scheduler = started(num_slots=1)
  go, results = _held(scheduler.runners[SPECS[0]]), queue.Queue()
  first, second, third = (
      ImageJob(tiny.request(model, seed=seed), SPECS[0],
          lambda result, seed=seed: results.put((seed, result)), watched=seed == 2)
      for seed in range(3))
  scheduler.submit([first])
  scheduler.submit([second, third])
  _until(lambda: first.started)
  scheduler.cancel([first, second])  # One is in a slot, the other one waits.
  go.set()
  seen = []
  while not seen or not isinstance(seen[-1], FinishedImage):
    seed, result = results.get(timeout=WAIT)
    assert seed == 2
    seen.append(result)
  counts = [look.count.item() for look in seen[:-1]]
  assert len(counts) > 1 and counts == sorted(set(counts)) and counts[-1] < 9
  assert all(isinstance(look, Partial) for look in seen[:-1])
  assert _value(scheduler, 'images', SPECS[0], 'cancelled') == 2 and second.started is None


def test_a_full_queue_refuses_and_a_closed_scheduler_completes_what_it_has(model, started):
  scheduler = started(num_slots=2, queue=3, ready=False)
  results = queue.Queue()
  jobs = lambda count, decoder=SPECS[0]: [
      ImageJob(tiny.request(model, seed=seed, decoder=decoder), decoder, results.put)
      for seed in range(count)]
  with pytest.raises(ClosedError, match='is compiling'):
    scheduler.submit(jobs(1))
  go = [_held(runner) for runner in scheduler.runners.values()]
  scheduler._warm_up = {}
  scheduler.start()
  _until(lambda: scheduler.state == 'ready')
  with pytest.raises(ValueError, match='n is 6; this server accepts at most 5 images at once'):
    scheduler.submit(jobs(6))
  with pytest.raises(ValueError, match='it must be of 1 image by'):
    scheduler.submit([ImageJob(tiny.request(model, decoder='vanilla'), SPECS[0], results.put)])
  scheduler.submit(jobs(4))
  scheduler.submit(jobs(1))
  full = '5 images are ahead, and the queue has no room for more; try again in'
  with pytest.raises(FullError, match=f'{full} 1 second[.]'):  # No step has been measured.
    scheduler.submit(jobs(1))
  decoder = scheduler._stages[SPECS[0]][-1]
  for seconds, expected in ((4.4, 11), (2.4, 6), (0.01, 1), (1e3, 60)):  # Five images, two slots.
    if expected == 11:  # By the tokens of the first image.
      decoder.first = seconds
    else:
      decoder.recent.extend([seconds] * 32)
    with pytest.raises(FullError, match=f'{full} {expected} second') as caught:
      scheduler.submit(jobs(1))
    assert caught.value.retry_after == expected
  scheduler.submit(jobs(2, 'vanilla'))  # Its slots are free.
  scheduler.close()
  with pytest.raises(ClosedError, match='is closed'):
    scheduler.submit(jobs(1))
  for event in go:
    event.set()
  assert scheduler.join(WAIT) and results.qsize() == 7


def test_a_failing_round_answers_its_images_and_the_scheduler_continues_until_it_fails_again(
    model, started, capsys):
  scheduler, results = started(), queue.Queue()
  runner, submit = scheduler.runners[SPECS[0]], lambda count: scheduler.submit(
      [ImageJob(tiny.request(model, 'dog', seed), SPECS[0], results.put) for seed in range(count)])
  step, join, failing = runner.step, runner.join, ['step']
  expected = model.generate('dog', decoder=SPECS[0], batch_size=1).tokens

  def fails(name, function):
    def call(*arguments):
      if name in failing:
        raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory\nwith a long dump')
      return function(*arguments)
    return call

  runner.step, runner.join = fails('step', step), fails('join', join)
  for failing[:] in (['step'], ['join']):
    submit(3)
    assert all(isinstance(results.get(timeout=WAIT), DeviceError) for _ in range(3))
    failing.clear()
    submit(1)
    np.testing.assert_array_equal(results.get(timeout=WAIT).result().tokens, expected)
  failing[:] = ['step']
  for _ in range(2):
    submit(2)
    assert all(isinstance(results.get(timeout=WAIT), DeviceError) for _ in range(2))
  submit(5)  # Two of them wait, and are answered as well.
  assert all(isinstance(results.get(timeout=WAIT), DeviceError) for _ in range(5))
  assert scheduler.join(WAIT) and scheduler.state == 'failed'
  with pytest.raises(ClosedError, match='is failed'):
    submit(1)
  errors = capsys.readouterr().err
  assert 'failed, and with it 3 images (RuntimeError: RESOURCE_EXHAUSTED: Out of memory)' in errors
  assert 'the server stops' in errors and 'dump' not in errors and 'dog' not in errors


def test_the_seconds_of_the_first_image_are_predicted_by_its_tokens(model, started):
  scheduler = started(num_slots=1, queue=0)
  batch, done, steps = tiny.batch(scheduler, SPECS[1]), queue.Queue(), []
  step, go = batch.runner.step, threading.Event()

  def slow(rounds=1):
    steps.append(len(steps))
    go.wait(WAIT if len(steps) == 4 else 0.25)
    return step(1)

  batch.runner.step = slow
  job = lambda: ImageJob(tiny.request(model, decoder=SPECS[1]), SPECS[1], done.put)
  scheduler.submit([job()])
  _until(lambda: len(steps) == 4)  # The first token is there at once, the others of nine slowly.
  with pytest.raises(FullError) as caught:
    scheduler.submit([job()])
  assert 2 <= caught.value.retry_after <= 20
  go.set()
  assert isinstance(done.get(timeout=WAIT), FinishedImage)
