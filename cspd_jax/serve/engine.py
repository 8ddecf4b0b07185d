"""The thread that owns the device: a bounded queue of images, and slots that they join and leave.

  engine = Engine({'vanilla': Runner(model, 8, decoder='vanilla')}, queue=64)
  engine.start()
  engine.submit([Job(request, 'vanilla', print)])
  engine.close()

Images join and leave between two steps of a few rounds. Those of several decoders take turns, step
by step. An image does not depend on the others, whichever come, leave or fail.
"""

import collections
import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import prometheus_client

from cspd_jax.core import programs, progress
from cspd_jax.generation.request import Request
from cspd_jax.generation.runner import Finished, Runner

# Seconds of a step: long enough for the host to cost little, short enough for an image to join, to
# leave or to be watched without delay.
_STEP = 0.05
_MOST_ROUNDS = 64
# Failed steps after which the engine gives up, if no image has been completed in between.
_MOST_FAILURES = 3
# The last images of a decoder, whose seconds predict those of the images in the queue.
_RECENT = 32
# OpenAI's clients follow a Retry-After of up to a minute, and choose a shorter time themselves if
# it is longer.
_LONGEST_RETRY = 60
# Limits of the histograms of seconds.
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class FullError(Exception):
  """The queue has no room for the images; the `ahead` in it need about `retry_after` seconds."""

  def __init__(self, ahead: int, retry_after: int):
    are, s = ('is', '') if ahead == 1 else ('are', 's')
    super().__init__(f'{ahead} image{s} {are} ahead, and the queue has no room for more; try again '
                     f'in {retry_after} second{"" if retry_after == 1 else "s"}.')
    self.retry_after = retry_after


class ClosedError(Exception):
  """The engine accepts no images: it is not ready yet, or it is closed or has failed."""


class DeviceError(Exception):
  """A step failed, for example because the device is out of memory."""


class Metrics:
  """The counters of a server for Prometheus, with those of its process, changed by any thread.

  Seconds are those from the request of an image. `passes` are what the device does, `image_passes`
  what images need: a pass over eight busy slots is one of `passes`, and one for each of the eight.
  """

  def __init__(self) -> None:
    self._registry = registry = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)

    def metric(kind: Any, name: str, text: str, *labels: str, **more: Any) -> Any:
      return kind(f'cspd_{name}', text, labels, registry=registry, **more)

    counter = functools.partial(metric, prometheus_client.Counter)
    gauge = functools.partial(metric, prometheus_client.Gauge)
    histogram = functools.partial(metric, prometheus_client.Histogram, buckets=_SECONDS)
    self.requests = counter('requests', 'Answered requests for images.', 'status')
    self.images = counter('images', 'Images that left.', 'decoder', 'outcome')
    self.waiting = gauge('images_waiting', 'Images without a slot.')
    self.busy = gauge('slots_busy', 'Slots in use.', 'decoder')
    self.slots = gauge('slots', 'All slots.', 'decoder')
    self.passes = counter(
        'passes', 'Forward passes of the target, each over all slots of a decoder, busy or not; '
        'prefills, one for each image, are not counted.', 'decoder')
    self.tokens = counter('tokens', 'Tokens of completed images.', 'decoder')
    self.image_passes = counter(
        'image_passes', 'Forward passes of the target that completed images needed, prefills '
        'included, summed over the images; tokens per pass are cspd_tokens_total divided by it.',
        'decoder')
    self.queue_seconds = histogram('queue_seconds', 'Time to a slot.')
    self.image_seconds = histogram('image_seconds', 'Time to a complete image.', 'decoder')

  def text(self) -> tuple[bytes, str]:
    """Returns all values in Prometheus' text format, and its content type."""
    return prometheus_client.generate_latest(self._registry), prometheus_client.CONTENT_TYPE_LATEST


@dataclasses.dataclass(eq=False)
class Job:
  """An image that is to be decoded.

  Attributes:
    request: of one image.
    decoder: the name of its runner.
    listener: called in the engine's thread, which it must not block: with a `run.Partial` after
      every step, if the image is watched, and once at the end, with a `runner.Finished`, a
      `DeviceError`, or a `ClosedError` after `Engine.abandon`. After `Engine.cancel` it is not
      called.
    watched: whether the listener is called after every step, which is one round then.
    created: the time of its creation, of `time.monotonic`, and `started` that of its slot.
  """

  request: Request
  decoder: str
  listener: Callable[[Any], None]
  watched: bool = False
  created: float = dataclasses.field(default_factory=time.monotonic)
  started: float | None = None
  cancelled: bool = False


@dataclasses.dataclass
class _Batch:
  """A runner and the images in its slots, for the engine's thread.

  `per_step` are the rounds of a step at most. `recent` are the seconds of the last images, from
  slot to completion, which other threads read with the engine's lock; before one is complete,
  `first` are those that the first will have needed, by the tokens that it has.
  """

  name: str
  runner: Runner
  size: int
  jobs: dict[int, Job] = dataclasses.field(default_factory=dict)
  rounds: dict[int, int] = dataclasses.field(default_factory=dict)
  per_step: int = 1
  recent: collections.deque[float] = dataclasses.field(
      default_factory=lambda: collections.deque(maxlen=_RECENT))
  first: float = 0.0


class Engine:
  """Decodes images in a thread of its own with runners by name, which only it uses from now on.

  At most `queue` images wait for a slot. `metrics` is what it counts, and `state` is 'compiling'
  the programs of the requests `warm_up`, by the names of their runners; 'ready'; 'closed', when it
  accepts no images and completes those that it has; or 'failed'.
  """

  def __init__(self, runners: Mapping[str, Runner], *, queue: int,
               warm_up: Mapping[str, Request] | None = None):
    self.metrics, self.state = Metrics(), 'compiling'
    self._batches = {name: _Batch(name, runner, runner.free) for name, runner in runners.items()}
    self._queue, self._warm_up = queue, warm_up or {}
    # Guards the state, and the fields below.
    self._changed = threading.Condition()
    self._waiting: list[Job] = []
    self._unfinished = dict.fromkeys(runners, 0)
    self._failures, self._abandoned = 0, False
    self._thread: threading.Thread | None = None
    for name, batch in self._batches.items():
      self.metrics.slots.labels(name).set(batch.size)
      self.metrics.busy.labels(name).set(0)

  def start(self, on_end: Callable[[], None] = lambda: None) -> None:
    """Starts the thread, which first compiles; it calls `on_end` at its end."""
    self._thread = threading.Thread(target=self._run, args=(on_end,), daemon=True)
    self._thread.start()

  def submit(self, jobs: Sequence[Job]) -> None:
    """Accepts all of the images, of one decoder, or none.

    Raises FullError if too many images wait, ClosedError if the engine accepts none, and ValueError
    for requests that the runner refuses, or too many for an empty queue.
    """
    batch = self._batches[jobs[0].decoder]
    for job in jobs:
      batch.runner.check(job.request)
    with self._changed:
      self._unfinished = self._with(batch.name, len(jobs))
      self._waiting += jobs
      self.metrics.waiting.set(self._without_slot(self._unfinished))
      self._changed.notify()

  def check_room(self, decoder: str, count: int) -> None:
    """Raises as `submit` does if it could not accept images now, whatever they are."""
    with self._changed:
      self._with(decoder, count)

  def _with(self, decoder: str, count: int) -> dict[str, int]:
    """The numbers of unfinished images with some more of a decoder; raises if it is too many."""
    most = self._queue + self._batches[decoder].size
    if count > most:
      raise ValueError(f'n is {count}; this server accepts at most {most} images at once.')
    if self.state != 'ready':
      raise ClosedError(f'the server is {self.state}.')
    unfinished = self._unfinished | {decoder: self._unfinished[decoder] + count}
    if self._without_slot(unfinished) > self._queue:
      raise FullError(sum(self._unfinished.values()), self._retry_after())
    return unfinished

  def _retry_after(self) -> int:
    """The seconds after which the images of now are complete, at least one.

    Decoders take turns, so that the time of an image, from its slot on, holds the turns of others.
    """
    each = {name: float(np.mean(batch.recent)) if batch.recent else batch.first
            for name, batch in self._batches.items()}
    seconds = max(self._unfinished[name] * each[name] / batch.size
                  for name, batch in self._batches.items())
    return min(_LONGEST_RETRY, max(1, math.ceil(seconds)))

  def cancel(self, jobs: Sequence[Job]) -> None:
    """Removes images; those that have a slot leave it before the next step."""
    with self._changed:
      for job in jobs:
        job.cancelled = True
      self._changed.notify()

  def close(self) -> None:
    """Accepts no further images; the thread ends when those that it has are complete."""
    with self._changed:
      if self.state != 'failed':
        self.state = 'closed'
      self._changed.notify()

  def abandon(self) -> None:
    """Ends the images that are not complete after the step that runs, besides what `close` does."""
    self.close()
    with self._changed:
      self._abandoned = True
      self._changed.notify()

  @property
  def left(self) -> int:
    """Number of images that are accepted and not complete."""
    with self._changed:
      return sum(self._unfinished.values())

  def join(self, timeout: float | None = None) -> bool:
    """Waits for the thread to end; returns whether it has."""
    if self._thread is not None:
      self._thread.join(timeout)
    return self._thread is None or not self._thread.is_alive()

  def _without_slot(self, unfinished: Mapping[str, int]) -> int:
    return sum(max(0, unfinished[name] - batch.size) for name, batch in self._batches.items())

  def _run(self, on_end: Callable[[], None]) -> None:
    try:
      # A prefill and a round for each, and the image tokenizer.
      with programs.reported(2 * len(self._warm_up) + 1):
        for name, request in self._warm_up.items():
          _warm_up(self._batches[name].runner, request)
      with self._changed:
        if self.state == 'compiling':
          self.state = 'ready'
          progress.note('The server is ready.')
      while self._wait():
        for batch in self._batches.values():
          self._turn(batch)
      self._end(self._unfinished_jobs(), 'cancelled', ClosedError(
          'the server ends before the image is complete'))
    except Exception as error:
      progress.note(f'error: the server stops, because decoding fails ({_reason(error)}).')
      with self._changed:
        self.state = 'failed'
      self._end(self._unfinished_jobs(), 'failed', DeviceError('decoding fails'))
    finally:
      on_end()

  def _unfinished_jobs(self) -> list[Job]:
    """Removes the images that wait or have a slot, and returns them."""
    with self._changed:
      jobs, self._waiting = self._waiting, []
    for batch in self._batches.values():
      jobs += batch.jobs.values()
      batch.jobs.clear()
    return jobs

  def _wait(self) -> bool:
    """Waits until there are images; returns False if none is to be decoded any more."""
    with self._changed:
      self._changed.wait_for(lambda: any(self._unfinished.values()) or self.state == 'closed')
      return any(self._unfinished.values()) and not self._abandoned

  def _turn(self, batch: _Batch) -> None:
    """Runs a step of one runner, with the images that join and without those that leave."""
    with self._changed:
      free = batch.size - len(batch.jobs) + sum(job.cancelled for job in batch.jobs.values())
      left = [job for job in self._waiting if job.cancelled]
      joining = [job for job in self._waiting
                 if not job.cancelled and job.decoder == batch.name][:free]
      removed = {*left, *joining}
      self._waiting = [job for job in self._waiting if job not in removed]
    self._end(left, 'cancelled')
    try:
      for slot in [slot for slot, job in batch.jobs.items() if job.cancelled]:
        batch.runner.leave(slot)
        self._end([batch.jobs.pop(slot)], 'cancelled')
      if joining:
        self._join(batch, joining)
        joining = []
      if batch.jobs:
        self._step(batch)
    except Exception as error:
      failed = [*joining, *batch.jobs.values()]
      batch.jobs.clear()
      batch.runner.clear()
      self._end(failed, 'failed', DeviceError('decoding failed'))
      self._failures += 1
      if self._failures >= _MOST_FAILURES:
        raise
      progress.note(f'error: a step of {batch.name} failed, and with it {len(failed)} images '
                    f'({_reason(error)}).')
    self.metrics.busy.labels(batch.name).set(len(batch.jobs))

  def _join(self, batch: _Batch, jobs: Sequence[Job]) -> None:
    for slot, job in zip(batch.runner.join([job.request for job in jobs]), jobs):
      batch.jobs[slot], batch.rounds[slot], job.started = job, 1, time.monotonic()
      self.metrics.queue_seconds.observe(job.started - job.created)
    self.metrics.busy.labels(batch.name).set(len(batch.jobs))

  def _step(self, batch: _Batch) -> None:
    start, runner, count = time.monotonic(), batch.runner, 0
    is_watched = any(job.watched for job in batch.jobs.values())
    for event in runner.step(1 if is_watched else batch.per_step):
      count = max(count, event.rounds - batch.rounds[event.slot])
      batch.rounds[event.slot] = event.rounds
      job = batch.jobs[event.slot]
      if not batch.recent and event.num_tokens:
        assert job.started is not None
        batch.first = ((time.monotonic() - job.started) * runner.model.num_tokens
                       / event.num_tokens)
      if job.watched and not event.complete and not job.cancelled:
        job.listener(runner.look(event.slot))
    self.metrics.passes.labels(batch.name).inc(count)
    for done in runner.finished():
      self._complete(batch, batch.jobs.pop(done.slot), done)
    seconds = time.monotonic() - start
    batch.per_step = max(1, min(_MOST_ROUNDS, int(_STEP * max(count, 1) / max(seconds, 1e-6))))

  def _complete(self, batch: _Batch, job: Job, done: Finished) -> None:
    assert job.started is not None
    now, metrics = time.monotonic(), self.metrics
    is_valid = bool(done.decoded.valid[0])
    self._failures = 0
    with self._changed:
      batch.recent.append(now - job.started)
    if is_valid:
      metrics.image_seconds.labels(batch.name).observe(now - job.created)
      metrics.tokens.labels(batch.name).inc(done.decoded.tokens.shape[1])
      metrics.image_passes.labels(batch.name).inc(int(done.decoded.rounds[0]))
    self._end([job], 'completed' if is_valid else 'failed', done)

  def _end(self, jobs: Sequence[Job], outcome: str, result: Any = None) -> None:
    """Forgets images that have left, and passes the result to those that were not cancelled."""
    with self._changed:
      for job in jobs:
        self._unfinished[job.decoder] -= 1
      self.metrics.waiting.set(self._without_slot(self._unfinished))
    for job in jobs:
      self.metrics.images.labels(job.decoder, 'cancelled' if job.cancelled else outcome).inc()
      if not job.cancelled:
        job.listener(result)


def _warm_up(runner: Runner, request: Request) -> None:
  slot, = runner.join([request])
  runner.step()
  _ = runner.look(slot).images  # Compiles the image tokenizer.
  runner.leave(slot)


def _reason(error: Exception) -> str:
  """Returns type and first line of an error of the device; no request's text is in it."""
  first = str(error).strip().partition('\n')[0]
  return f'{type(error).__name__}: {first:.300}'
