"""Slots for images that come and go: they join at the end of any round, and leave when complete.

  runner = Runner(model, 8, decoder='mc_sjd(window=32)')
  slot, = runner.join([model.images('cat', seed=7, decoder='mc_sjd(window=32)')])
  while slot in runner.images:
    events = runner.step()
    for finished in runner.finished():
      image = finished.result()

`Model.generate` draws the same images with the same prompt, options and seed, up to rounding,
whatever the other slots hold.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.core import batches
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.spec import Spec
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.decoding import continuous_batching, prefix as prefix_lib
from cspd_jax.decoding.base import Decoded
from cspd_jax.generation import memory
from cspd_jax.generation.decode import Partial
from cspd_jax.generation.images import Images
from cspd_jax.generation.model import Model
from cspd_jax.generation.results import Generated
from cspd_jax.generation.sampler import Sampler
from cspd_jax.models.conditions import Prompt


class Event(NamedTuple):
  """The progress of the image in a slot: its tokens, the prefix included, and its rounds."""

  slot: int
  num_tokens: int
  rounds: int
  complete: bool


class FinishedImage(NamedTuple):
  """A complete image: the slot that it had, its record, and the decoder's result.

  That is not checked, NumPy arrays with a leading axis of size 1.
  """

  slot: int
  image: Any
  decoded: Any

  def result(self) -> Generated:
    """Returns the image; raises ValueError if the model returned NaN or infinity for it."""
    sampler = self.image.sampler
    return sampler.result(self.image, sampler.check_result(self.image, self.decoded))


class Runner:
  """Slots for the images of one decoder of a model of discrete tokens, on one device.

  Guidance and all other sampling options, seeds and prompts differ from image to image; the
  decoder, and the length of a prefix, belong to the compiled program. `images` are by slot.
  """

  def __init__(self, model: Model, num_slots: int, *, decoder: str | Spec | None = None,
               prompt_length: int | None = None):
    """Builds the decoder, by default the model's for `num_slots` images at once.

    It is compiled when the first image joins. Images with a prefix need a model of
    `Model.with_prefix`, with any prefix of their length. `prompt_length` are the most tokens of a
    prompt; None for models whose prompts have one shape. Models of continuous tokens or on a mesh
    have no slots.
    """
    assert num_slots > 0 and model.mesh is None, (num_slots, model.mesh)
    self.model, self.images = model, dict[int, Images]()
    specification = model.specification(decoder, batch_size=num_slots)
    built = model.decoder(specification)
    self._size, self._prompt_length = num_slots, prompt_length
    self._slots: Any = None
    # What the host has read of the slots since they last changed.
    self._events: list[Event] | None = None
    self._decoded: Decoded | None = None
    # Of guided images, whatever the model's options, with options that each image brings.
    sampling = model.sampling()
    self._sampler = Sampler(
        model, specification, built, model.draft_params(specification), True, sampling, sampling,
        num_slots, (str(specification),), built)
    self._jitted = self._sampler.jitted_slots(num_slots)

  @property
  def free(self) -> int:
    """Number of free slots."""
    return self._size - len(self.images)

  def check(self, image: Images) -> None:
    """Raises ValueError for an image that cannot join."""
    self._arguments(image)

  def estimate(self, image: Images) -> memory.Estimate:
    """Estimates the memory of slots for images like this one, which must be able to join.

    Every slot has room for a guided image with a prompt of `prompt_length`.
    """
    condition, _, sampling = self._arguments(image)
    sampler = self._sampler
    return memory.estimate(self.model, sampler.program_key(), sampler.decoder, condition, sampling,
                           sampler.draft_params)

  def join(self, images: Sequence[Images]) -> list[int]:
    """Starts images, each with a prefill of its own: they rarely come together.

    Each record is of one image, and there are as many free slots; returns these. Images of another
    decoder or model, longer prompts or prefixes, or `raw_log_probs` raise ValueError: none joins.
    """
    assert len(images) <= self.free, f'{self.free} of {self._size} slots are free'
    inputs = [self._arguments(image) for image in images]
    joined = [slot for slot in range(self._size) if slot not in self.images][:len(images)]
    for slot, image, arguments in zip(joined, images, inputs):
      queue = continuous_batching.Queue(*arguments, np.full(1, slot, np.int32), np.int32(1),
                                        np.bool_(True))
      params, draft_params = self.model.params, self._sampler.draft_params
      if self._slots is None:
        self._sampler.check_rounding(queue.condition, self._size)
        self._slots = self._jitted.idle(params, queue, draft_params)
      self._change(self._jitted.join(params, self._slots, queue, draft_params))
      self.images[slot] = image
    return joined

  def step(self, rounds: int = 1) -> list[Event]:
    """Runs rounds, at most `rounds`, until an image is complete; returns where all images are."""
    if not self.images:
      return []
    self._change(self._jitted.step(
        self.model.params, self._slots, np.int32(rounds), self._sampler.draft_params))
    return self.events()

  def events(self) -> list[Event]:
    """Returns where all images are."""
    if self._events is None:
      count, rounds = ([], []) if self._slots is None else jax.device_get(
          (self._slots.state.count, self._slots.state.rounds))
      size, prefix = self.model.num_tokens, self.model.prefix_length
      self._events = [
          Event(slot, int(count[slot]) + prefix, int(rounds[slot]), bool(count[slot] >= size))
          for slot in sorted(self.images)]
    return self._events

  def finished(self) -> list[FinishedImage]:
    """Removes the images that are complete from their slots and returns them, not checked."""
    done = [event.slot for event in self.events() if event.complete]
    images = [FinishedImage(slot, self.images[slot], self._rows(slot)) for slot in done]
    if done:
      self._leave(done)
    return images

  def look(self, slot: int) -> Partial:
    """Returns an image as far as it is decoded."""
    event = next(event for event in self.events() if event.slot == slot)
    return Partial(self.images[slot], self._rows(slot), np.array([event.num_tokens]),
                   event.complete)

  def leave(self, slot: int) -> None:
    """Removes an image from its slot, complete or not."""
    self._leave([slot])

  def clear(self) -> None:
    """Removes all images and frees the memory of their slots, as after a step that failed."""
    self._change(None)
    self.images.clear()

  def _leave(self, slots: Sequence[int]) -> None:
    self._change(self._jitted.leave(self._slots, np.isin(np.arange(self._size), slots)))
    for slot in slots:
      del self.images[slot]

  def _change(self, slots: Any) -> None:
    """Replaces the state of the slots, whose arrays the old state may have lost."""
    self._slots, self._events, self._decoded = slots, None, None

  def _rows(self, slot: int) -> Decoded:
    """Returns the decoder's result so far for one slot."""
    if self._decoded is None:
      self._decoded = jax.device_get(self._jitted.finish(self._slots))
    return batches.select(self._decoded, np.array([slot]))

  @usual_promotion
  def _arguments(self, image: Images) -> tuple[Any, jax.Array, SamplingParams]:
    """Returns condition, key and options of an image, with a leading axis of size 1."""
    sampler, own = image.sampler, self._sampler.program_key()
    program, model = sampler.program_key()._replace(guided=True), sampler.model
    ours = model.params is self.model.params and model.kept is self.model.kept
    if (program, len(image), ours) != (own, 1, True):
      raise ValueError(f'a record is of {len(image)} images by {sampler.specification} with a '
                       f'prefix of {program.prefix_length} tokens; it must be of 1 image by '
                       f'{self._sampler.text} with a prefix of {own.prefix_length}, of the model '
                       'of the runner, without raw_log_probs.')
    condition, key, _ = image.inputs(np.zeros(1, int))
    condition = jax.tree.map(self._padded, condition, is_leaf=lambda leaf: isinstance(leaf, Prompt))
    # All options, because those that are off here may be on in another image of the program.
    sampling = prefix_lib.sampling(SamplingParams(*image.sampling), self.model.prefix_length)
    return condition, key, SamplingParams(*(np.broadcast_to(np.asarray(leaf),
                                                            (1,)) for leaf in sampling))

  def _padded(self, leaf: Any) -> Any:
    """Pads a part of a condition that is a prompt: the slots have one shape."""
    if not isinstance(leaf, Prompt):
      return leaf
    assert self._prompt_length is not None, 'prompts of several lengths need prompt_length'
    return leaf.padded(self._prompt_length)
