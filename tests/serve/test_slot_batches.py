"""Programs of several numbers of slots: which one an image joins, and that it stays there."""

import math
import queue
import types

import numpy as np
import pytest

pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from cspd_jax.generation import memory
from cspd_jax.generation.slots import Runner
from cspd_jax.serve import server, slot_batches, wire
from cspd_jax.serve.scheduler import ImageJob, Scheduler
from tests.serve import tiny
from tests.serve.running import WAIT, until

SPEC = tiny.SEED_EXACT


def _decoder(*sizes):
  return slot_batches.DecoderBatches(SPEC, [types.SimpleNamespace(free=size) for size in sizes])


def _sizes(decoder, count):
  return [batch.size for batch in decoder.fitting(count)]


def test_the_smallest_program_that_is_worth_it():
  decoder = _decoder(8, 1, 4, 2)
  assert [_sizes(decoder, count) for count in (1, 2, 3, 8)] == [
      [1, 2, 4, 8], [2, 4, 8], [4, 8], [8]]
  largest = decoder.batches[-1]
  assert largest.state == 'ready' and decoder.size == 8
  largest.pace = 0.8
  assert _sizes(decoder, 1) == [1, 2, 4, 8]  # The others are not measured.
  for paces, worth in (((0.1, 0.2, 0.4), [1, 2, 4, 8]), ((0.78, 0.78, 0.79), [8]),
                       ((0.39, 0.4, 0.41), [4, 8]), ((0.3, 0.4, math.inf), [1, 2, 4, 8])):
    for batch, pace in zip(decoder.batches, paces):
      batch.pace = pace
    assert _sizes(decoder, 1) == worth, paces
  decoder.batches[0].state = 'failed'
  assert _sizes(decoder, 1) == [2, 4, 8]


def test_as_many_images_are_expected_as_a_moment_ago(monkeypatch):
  decoder, clock = _decoder(8), types.SimpleNamespace(now=0.0)
  monkeypatch.setattr(slot_batches.time, 'monotonic', lambda: clock.now)
  for now, count, expected in ((10, 5, 5), (10.5, 4, 5), (10.9, 1, 5), (11.1, 1, 1), (11.2, 2, 2),
                               (12.1, 2, 2), (13, 1, 2), (13.2, 1, 1)):
    clock.now = now
    assert decoder.expected(count) == expected, now


@pytest.fixture
def scheduler(model):
  runners = [Runner(model, size, decoder=SPEC) for size in (1, 4)]
  scheduler = Scheduler({SPEC: [runners]}, queue=4, warm_up={SPEC: tiny.request(model)})
  yield scheduler
  scheduler.close()
  assert scheduler.join(WAIT)


def _decoded(scheduler, model, *seeds):
  """Submits images together; returns their jobs and the results, when all are there."""
  results = queue.Queue()
  jobs = [ImageJob(tiny.request(model, seed=seed), SPEC,
              lambda result, seed=seed: results.put((seed, result))) for seed in seeds]
  scheduler.submit(jobs)
  done = dict(results.get(timeout=WAIT) for _ in seeds)
  return jobs, [done[seed] for seed in seeds]


def test_images_join_the_smallest_program_and_stay_there(model, scheduler, monkeypatch):
  monkeypatch.setattr(slot_batches, '_MEMORY', 0.0)
  monkeypatch.setattr(slot_batches, '_WORTH', math.inf)
  scheduler.start()
  until(lambda: scheduler.state == 'ready')
  small, large = scheduler._stages[SPEC][-1].batches
  (first,), _ = _decoded(scheduler, model, 1)
  assert first.slots == 4 and small.state != 'new'  # While the program for one is compiled.
  until(lambda: small.state == 'ready' and b'cspd_compiling 0.0' in scheduler.metrics.text()[0])
  (second,), (alone,) = _decoded(scheduler, model, 1)
  assert second.slots == 1
  expected = model.generate('cat', seed=1, decoder=SPEC, batch_size=1)
  assert alone.result().png(0) == expected.png(0)
  # Others come while it is decoded: it keeps its program, and they join another one.
  results, steps, step = queue.Queue(), [], small.runner.step
  job = ImageJob(tiny.request(model, seed=1), SPEC, results.put)
  others = [ImageJob(tiny.request(model, seed=seed), SPEC, results.put) for seed in (2, 3)]

  def stepping(rounds=1):
    if not steps:
      scheduler.submit(others)
    steps.append(list(small.jobs))
    return step(1)

  small.runner.step = stepping
  scheduler.submit([job])
  done = [results.get(timeout=WAIT) for _ in range(3)]
  assert [job.slots, *(one.slots for one in others)] == [1, 4, 4] and len(steps) > 1
  tokens = {result.image.seeds[0][0]: result.decoded.tokens for result in done}
  for seed in (1, 2, 3):
    np.testing.assert_array_equal(
        tokens[seed], model.generate('cat', seed=seed, decoder=SPEC, batch_size=1).tokens)


def test_a_program_that_cannot_be_compiled_is_not_used(model, scheduler, capsys):
  small = scheduler._stages[SPEC][-1].batches[0]

  def failing(requests):
    raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory')

  small.runner.join = failing
  scheduler.start()
  until(lambda: scheduler.state == 'ready')
  for _ in range(2):
    (job,), (result,) = _decoded(scheduler, model, 1)
    assert job.slots == 4 and result.result().tokens.shape == (1, 9)
    until(lambda: small.state == 'failed')
  errors = capsys.readouterr().err
  assert errors.count('in the background') == 1
  assert f'{SPEC} for 1 slot cannot be compiled, and more slots are used (RuntimeError' in errors


def test_programs_that_a_server_has(model, monkeypatch):
  served = wire.serving(model, (SPEC, 'vanilla'))
  sizes = lambda slots, **options: [
      [batch.size for batch in stages[-1].batches] for stages in server.make_scheduler(
          served, slots=slots, queue=1, **options)._stages.values()]
  assert sizes(1) == [[1]] * 2 and sizes(6) == [[1, 2, 4, 6]] * 2 and sizes(8) == [[1, 2, 4, 8]] * 2
  assert sizes(8, fixed_slots=True) == [[8]] * 2
  needs = [Runner(model, 8, decoder=spec).estimate(tiny.request(model, decoder=spec))
           for spec in served.decoders]
  for count, expected in ((8, [8]), (9, [1, 8]), (11, [1, 2, 8]), (15, [1, 2, 4, 8])):
    monkeypatch.setattr(memory, 'free', lambda devices, count=count: memory.needed_of_slots(
        needs, count))
    assert sizes(8) == [expected] * 2
