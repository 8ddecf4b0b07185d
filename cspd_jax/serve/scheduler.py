"""The thread that owns the device: a bounded queue of images, and slots that they join and leave.

  scheduler = Scheduler({'vanilla': [[Runner(model, 8, decoder='vanilla')]]}, queue=64)
  scheduler.start()
  scheduler.submit([ImageJob(images, 'vanilla', print)])
  scheduler.close()

Images join and leave between two steps of a few rounds. Those of several decoders take turns, step
by step. An image does not depend on the others, whichever come, leave or fail, but for the number
of slots of the program that it joins; see `slot_batches`.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cspd_jax.core import compilations, progress
from cspd_jax.generation.images import Images
from cspd_jax.generation.slots import FinishedImage, Runner
from cspd_jax.serve.metrics import Metrics
from cspd_jax.serve.slot_batches import DecoderBatches, ImageJob, SlotBatch

# Seconds of a step: long enough for the host to cost little, short enough for an image to join, to
# leave or to be watched without delay.
_STEP = 0.1
_MOST_ROUNDS = 64
# Failed steps after which the scheduler gives up, if no image has been completed in between.
_MOST_FAILURES = 3
# The priority of a thread that compiles while images are decoded, the lowest of Linux.
_LOWEST = 19
# OpenAI's clients follow a Retry-After of up to a minute, and choose a shorter time themselves if
# it is longer.
_LONGEST_RETRY = 60


class FullError(Exception):
  """The queue has no room for the images; the `ahead` in it need about `retry_after` seconds."""

  def __init__(self, ahead: int, retry_after: int):
    are, s = ('is', '') if ahead == 1 else ('are', 's')
    super().__init__(f'{ahead} image{s} {are} ahead, and the queue has no room for more; try again '
                     f'in {retry_after} second{"" if retry_after == 1 else "s"}.')
    self.retry_after = retry_after


class ClosedError(Exception):
  """The scheduler accepts no images: it is not ready yet, or it is closed or has failed."""


class DeviceError(Exception):
  """A step failed, for example because the device is out of memory."""


class Scheduler:
  """Decodes images in a thread of its own.

  At most as many images as the largest runner has slots are decoded, and at most `queue` wait.

  Attributes:
    metrics: what it counts.
    state: 'compiling': it compiles the largest programs, with the images in `warm_up`; 'ready';
      'closed': it accepts no images and completes those that it has; or 'failed'. The other
      programs are compiled in the background when one of them is the smallest that suffices.
  """

  def __init__(self, runners: Mapping[str, Sequence[Sequence[Runner]]], *, queue: int,
               warm_up: Mapping[str, Any] | None = None):
    """Takes runners by name of a decoder, which only the scheduler uses from now on.

    A name has the runners of each model that draws in turn: of one, or of a prior and one behind
    it. Those of a model have one decoder and several numbers of free slots. `warm_up` are images by
    name.
    """
    self.metrics, self.state = Metrics(), 'compiling'
    self._stages = {name: [
        DecoderBatches(name, several, is_prior=stage < len(stages) - 1)
        for stage, several in enumerate(stages)] for name, stages in runners.items()}
    self._queue, self._warm_up = queue, warm_up or {}
    # Guards the state, and the fields below.
    self._changed = threading.Condition()
    self._waiting: list[ImageJob] = []
    self._unfinished = dict.fromkeys(runners, 0)
    self._failures, self._abandoned = 0, False
    self._thread: threading.Thread | None = None
    self._compiling: threading.Thread | None = None  # Of the last program in the background.
    self.metrics.compiling.set_function(lambda: self._is_compiling)
    for name, stages in self._stages.items():
      self.metrics.slots.labels(name).set(stages[-1].size)
      self.metrics.busy.labels(name).set(0)

  def start(self, on_end: Callable[[], None] = lambda: None) -> None:
    """Starts the thread, which first compiles; it calls `on_end` at its end."""
    self._thread = threading.Thread(target=self._run, args=(on_end,), daemon=True)
    self._thread.start()

  def submit(self, jobs: Sequence[ImageJob]) -> None:
    """Accepts all of the images, of one decoder, or none.

    Raises FullError if too many images wait, ClosedError if the scheduler accepts none, and
    ValueError for requests that the runner refuses, or too many for an empty queue.
    """
    name = jobs[0].decoder
    for stage in self._stages[name]:
      for job in jobs:
        stage.batches[-1].runner.check(stage.part(job.images))
    with self._changed:
      self._unfinished = self._with(name, len(jobs))
      self._waiting += jobs
      self.metrics.waiting.set(self._without_slot(self._unfinished))
      self._changed.notify()

  def most(self, decoder: str) -> int:
    """Returns how many images of a decoder are accepted when there are no others."""
    return self._queue + self._stages[decoder][-1].size

  def check_room(self, decoder: str, count: int) -> None:
    """Raises as `submit` does if it could not accept images now, whatever they are."""
    with self._changed:
      self._with(decoder, count)

  def _with(self, decoder: str, count: int) -> dict[str, int]:
    """The numbers of unfinished images with some more of a decoder; raises if it is too many."""
    if count > (most := self.most(decoder)):
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
    seconds = max(
        self._unfinished[name] * sum(stage.seconds for stage in stages) / stages[-1].size
        for name, stages in self._stages.items())
    return min(_LONGEST_RETRY, max(1, math.ceil(seconds)))

  def cancel(self, jobs: Sequence[ImageJob]) -> None:
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
    """Waits for the threads to end, at most `timeout` seconds each; returns whether they have."""
    threads = [thread for thread in (self._thread, self._compiling) if thread is not None]
    for thread in threads:
      thread.join(timeout)
    return not any(thread.is_alive() for thread in threads)

  @property
  def _all(self) -> list[DecoderBatches]:
    """The batches of all names."""
    return [stage for stages in self._stages.values() for stage in stages]

  def _without_slot(self, unfinished: Mapping[str, int]) -> int:
    return sum(max(0, unfinished[name] - stages[-1].size)
               for name, stages in self._stages.items())

  def _run(self, on_end: Callable[[], None]) -> None:
    try:
      # A prefill and a round for each, and the image tokenizer.
      with compilations.reported(2 * len(self._all) + 1):
        for name, image in self._warm_up.items():
          for stage in self._stages[name]:
            _warm_up(stage.batches[-1].runner, stage.part(image))
      with self._changed:
        if self.state == 'compiling':
          self.state = 'ready'
          progress.note('The server is ready.')
      while self._wait():
        for decoder in self._all:
          self._turn(decoder)
      self._end(self._unfinished_jobs(), 'cancelled', ClosedError(
          'the server ends before the image is complete'))
    except Exception as error:
      progress.note(f'error: the server stops, because decoding fails ({_reason(error)}).')
      with self._changed:
        self.state = 'failed'
      self._end(self._unfinished_jobs(), 'failed', DeviceError('decoding fails'))
    finally:
      on_end()

  def _unfinished_jobs(self) -> list[ImageJob]:
    """Removes the images that wait or have a slot, and returns them."""
    with self._changed:
      jobs, self._waiting = self._waiting, []
    for decoder in self._all:
      jobs += decoder.jobs
      for batch in decoder.batches:
        batch.jobs.clear()
    return jobs

  def _wait(self) -> bool:
    """Waits until there are images; returns False if none is to be decoded any more."""
    with self._changed:
      self._changed.wait_for(lambda: any(self._unfinished.values()) or self.state == 'closed')
      return any(self._unfinished.values()) and not self._abandoned

  def _turn(self, decoder: DecoderBatches) -> None:
    """Runs a step of each of a decoder's batches, the images that wait joining one of them."""
    with self._changed:
      running = sum(not job.cancelled for job in decoder.jobs)
      left = [job for job in self._waiting if job.cancelled]
      joining = [job for job in self._waiting
                 if not job.cancelled and (job.decoder, job.waits_for_prior) == (
                     decoder.name, decoder.is_prior)][:decoder.size - running]
      removed = {*left, *joining}
      self._waiting = [job for job in self._waiting if job not in removed]
    self._end(left, 'cancelled')
    count = running + len(joining)
    chosen = self._chosen(decoder, decoder.expected(count)) if joining else None
    if chosen is not None:  # The first one: an error of another may end all that have a slot.
      self._advance(decoder, chosen, joining)
    for batch in decoder.batches:
      if batch.jobs and batch is not chosen:
        self._advance(decoder, batch, [])
    decoder.expected(count)  # Those that are complete now may be followed by as many.
    self._count_busy(decoder.name)

  def _count_busy(self, name: str) -> None:
    self.metrics.busy.labels(name).set(sum(len(stage.jobs) for stage in self._stages[name]))

  @property
  def _is_compiling(self) -> bool:
    """Whether a program is compiled in the background."""
    return self._compiling is not None and self._compiling.is_alive()

  def _chosen(self, decoder: DecoderBatches, count: int) -> SlotBatch:
    """Returns the smallest batch for `count` images that is compiled, and lets a better one be."""
    fitting = decoder.fitting(count)
    image = self._warm_up.get(decoder.name) if self.state == 'ready' else None
    if fitting[0].state == 'new' and image is not None and not self._is_compiling:
      fitting[0].state = 'compiling'
      self._compiling = threading.Thread(
          target=_compile, args=(decoder.name, fitting[0], decoder.part(image)), daemon=True)
      self._compiling.start()
    return next(batch for batch in fitting if batch.state == 'ready')

  def _advance(self, decoder: DecoderBatches, batch: SlotBatch,
               joining: Sequence[ImageJob]) -> None:
    """Runs a step of one batch, with the images that join and without those that leave."""
    try:
      for slot in [slot for slot, job in batch.jobs.items() if job.cancelled]:
        batch.runner.leave(slot)
        self._end([batch.jobs.pop(slot)], 'cancelled')
      if joining:
        self._join(decoder, batch, joining)
        joining = []
      if batch.jobs:
        self._step(decoder, batch)
    except Exception as error:
      failed = [*joining, *batch.jobs.values()]
      batch.jobs.clear()
      batch.runner.clear()
      self._end(failed, 'failed', DeviceError('decoding failed'))
      self._failures += 1
      if self._failures >= _MOST_FAILURES:
        raise
      progress.note(f'error: a step of {decoder.name} failed, and with it {len(failed)} images '
                    f'({_reason(error)}).')

  def _join(self, decoder: DecoderBatches, batch: SlotBatch, jobs: Sequence[ImageJob]) -> None:
    joined = batch.runner.join([decoder.part(job.images, job.drawn) for job in jobs])
    for slot, job in zip(joined, jobs):
      batch.jobs[slot], batch.rounds[slot] = job, 1
      job.started, job.slots = time.monotonic(), batch.size
      if job.drawn is None:  # Behind a prior it has waited already.
        self.metrics.queue_seconds.observe(job.started - job.created)
    self._count_busy(decoder.name)

  def _step(self, decoder: DecoderBatches, batch: SlotBatch) -> None:
    start, runner, count = time.monotonic(), batch.runner, 0
    is_watched = any(job.watched for job in batch.jobs.values())
    for event in runner.step(1 if is_watched else batch.per_step):
      count = max(count, event.rounds - batch.rounds[event.slot])
      batch.rounds[event.slot] = event.rounds
      job = batch.jobs[event.slot]
      if not decoder.recent and event.num_tokens:
        assert job.started is not None
        decoder.first = ((time.monotonic() - job.started) * runner.model.num_tokens
                       / event.num_tokens)
      if job.watched and not event.complete and not job.cancelled:
        look = runner.look(event.slot)
        job.listener(job.images.before(look) if decoder.is_prior else look)
    self.metrics.passes.labels(decoder.name).inc(count)
    for done in runner.finished():
      self._complete(decoder, batch.jobs.pop(done.slot), done)
    seconds = time.monotonic() - start
    if count:
      batch.pace = min(batch.pace, seconds / count)
    batch.per_step = max(1, min(_MOST_ROUNDS, int(_STEP * max(count, 1) / max(seconds, 1e-6))))

  def _complete(self, decoder: DecoderBatches, job: ImageJob, done: FinishedImage) -> None:
    assert job.started is not None
    now, metrics = time.monotonic(), self.metrics
    is_valid = bool(done.decoded.valid[0])
    self._failures = 0
    with self._changed:
      decoder.recent.append(now - job.started)
    if is_valid and decoder.is_prior:
      with self._changed:
        job.drawn = done
        self._waiting.insert(0, job)  # Before those that have not begun.
      return
    if is_valid:
      metrics.image_seconds.labels(decoder.name).observe(now - job.created)
      metrics.tokens.labels(decoder.name).inc(done.decoded.tokens.shape[1])
      metrics.image_passes.labels(decoder.name).inc(int(done.decoded.rounds[0]))
    self._end([job], 'completed' if is_valid else 'failed', job.finished(done))

  def _end(self, jobs: Sequence[ImageJob], outcome: str, result: Any = None) -> None:
    """Forgets images that have left, and passes the result to those that were not cancelled."""
    with self._changed:
      for job in jobs:
        self._unfinished[job.decoder] -= 1
      self.metrics.waiting.set(self._without_slot(self._unfinished))
    for job in jobs:
      self.metrics.images.labels(job.decoder, 'cancelled' if job.cancelled else outcome).inc()
      if not job.cancelled:
        job.listener(result)


def _warm_up(runner: Runner, image: Images) -> None:
  slot, = runner.join([image])
  runner.step()
  _ = runner.look(slot).images  # Compiles the image tokenizer.
  runner.leave(slot)


def _compile(name: str, batch: SlotBatch, image: Images) -> None:
  """Compiles a batch's programs in a thread of its own, which alone uses it until it is ready."""
  if sys.platform == 'linux':  # Elsewhere, the whole process has one priority.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
  slots = f'{batch.size} slot{"" if batch.size == 1 else "s"}'
  start = time.monotonic()
  progress.note(f'compiling {name} for {slots} in the background...')
  try:
    _warm_up(batch.runner, image)
    batch.state = 'ready'
    progress.note(f'compiled {name} for {slots} in {time.monotonic() - start:.1f} s')
  except Exception as error:
    batch.runner.clear()
    batch.state = 'failed'
    progress.note(f'error: {name} for {slots} cannot be compiled, and more slots are used '
                  f'({_reason(error)}).')


def _reason(error: Exception) -> str:
  """Returns type and first line of an error of the device; no request's text is in it."""
  first = str(error).strip().partition('\n')[0]
  return f'{type(error).__name__}: {first:.300}'
