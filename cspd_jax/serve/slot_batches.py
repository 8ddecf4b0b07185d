"""The images of a decoder in programs of several numbers of slots.

A program computes all of its slots, busy or not, so that one image in eight slots can take as long
as eight. An image therefore joins the smallest program for as many as are expected, and stays there
until it is complete: with another number of rows, a matrix product may round otherwise.
"""

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from cspd_jax.generation.cascade import Both, CascadeImages
from cspd_jax.generation.images import Images
from cspd_jax.generation.slots import FinishedImage, Runner

# The last images of a decoder, whose seconds predict how long the queue takes.
_RECENT = 32
# Seconds for which as many images are expected as there were: whoever has received one may request
# the next one.
_MEMORY = 1.0
# A program is used if a pass takes at most this part of the time of one over more slots. Images in
# several programs take turns, so that one that is hardly faster than a larger one costs time.
_WORTH = 0.9


@dataclasses.dataclass(eq=False)
class ImageJob:
  """An image that is to be decoded.

  Attributes:
    images: one image, also of a cascade.
    decoder: the name of its runner.
    listener: called in the scheduler's thread, which it must not block: with a `decode.Partial`
      after every step, if the image is watched, and once at the end, with a `slots.FinishedImage`,
      a `DeviceError`, or a `ClosedError` after `Scheduler.abandon`. After `Scheduler.cancel` it is
      not called.
    watched: whether the listener is called after every step, which is one round then.
    created: when it was created, by `time.monotonic`, and `started` when it got its slot.
    slots: the number of slots of the program that decodes it, once it has one.
    drawn: of a cascade the tokens of the prior, once they are complete.
  """

  images: Any
  decoder: str
  listener: Callable[[Any], None]
  watched: bool = False
  created: float = dataclasses.field(default_factory=time.monotonic)
  started: float | None = None
  slots: int = 0
  cancelled: bool = False
  drawn: FinishedImage | None = None

  def finished(self, done: FinishedImage) -> FinishedImage:
    """Returns the complete image, of a cascade with the tokens of the prior."""
    if self.drawn is None:
      return done
    return done._replace(image=self.images, decoded=Both(self.drawn.decoded, done.decoded))

  @property
  def waits_for_prior(self) -> bool:
    """Whether the tokens of a prior come first and are not complete."""
    return isinstance(self.images, CascadeImages) and self.drawn is None


@dataclasses.dataclass(eq=False)
class SlotBatch:
  """A runner and the images in its slots.

  Its `state` is 'new', 'compiling', 'ready' or 'failed', that is, it cannot be compiled. `rounds`
  are by slot, `per_step` the most of a step, and `pace` the fewest seconds that a pass has taken,
  infinity before the first one.
  """

  runner: Runner
  size: int
  state: str = 'new'
  jobs: dict[int, ImageJob] = dataclasses.field(default_factory=dict)
  rounds: dict[int, int] = dataclasses.field(default_factory=dict)
  per_step: int = 1
  pace: float = math.inf


class DecoderBatches:
  """A decoder's batches, by number of slots; the last, of `size` slots, is compiled first.

  `recent` are the seconds of the last images, from slot to completion, which other threads read
  with the scheduler's lock; `first` is an extrapolation for the first image, from its tokens so
  far. `is_prior` says that they decode the tokens of a prior.
  """

  def __init__(self, name: str, runners: Sequence[Runner], is_prior: bool = False):
    self.name, self.is_prior = name, is_prior
    self.batches = [SlotBatch(runner, runner.free)
                    for runner in sorted(runners, key=lambda runner: runner.free)]
    self.batches[-1].state = 'ready'  # Before any image comes.
    self.size = self.batches[-1].size
    self.recent: collections.deque[float] = collections.deque(maxlen=_RECENT)
    self.first = 0.0
    self._most, self._until = 0, 0.0

  @property
  def jobs(self) -> list[ImageJob]:
    """All images that have a slot."""
    return [job for batch in self.batches for job in batch.jobs.values()]

  def part(self, images: Any, drawn: FinishedImage | None = None) -> Images:
    """Returns what these batches decode of an image of a cascade; any other image as it is."""
    if not isinstance(images, CascadeImages):
      return images
    if self.is_prior:
      return images.first
    return images.second if drawn is None else images.then(drawn.decoded)

  @property
  def seconds(self) -> float:
    """The seconds of an image from its slot on, as far as they are known."""
    return math.fsum(self.recent) / len(self.recent) if self.recent else self.first

  def expected(self, count: int) -> int:
    """Returns the images that are expected at once when there are `count`: as many as lately."""
    now = time.monotonic()
    if count >= self._most or now > self._until:
      self._most, self._until = count, now + _MEMORY
    return self._most

  def fitting(self, count: int) -> list[SlotBatch]:
    """Returns the batches for `count` images together that are worth it, the smallest first."""
    pace, worth = math.inf, list[SlotBatch]()
    for batch in reversed(self.batches):
      is_worth = batch.pace == math.inf or batch.pace <= _WORTH * pace
      if is_worth and batch.state != 'failed':
        worth.insert(0, batch)
        pace = min(pace, batch.pace)
    return [batch for batch in worth if batch.size >= count]
