"""Continuous batching: the row of a complete image starts the next image of a queue.

A batch ends with its slowest row. Here a decode has slots instead of rows, and a slot whose image
is complete starts the next image of a queue while the other slots continue. An image depends on its
key, condition and options only, so it equals the image of a batch up to rounding.

Images come in groups of a quarter of the slots. A call of `ContinuousBatcher.advance` reads the
conditions of one group in one prefill, assigns its images one by one as slots become free, and ends
when all of them have a slot and another slot is free for the next group. Its arguments are
available before the call before it ends, so that the device never waits for the host.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import batches, programs
from cspd_jax.core.contracts import ContractError
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.decoding.base import Condition, Decoded, Params
from cspd_jax.decoding.loop import Decoder, State

# Slots per image of a group: large groups need more memory, small ones more prefills.
_SLOTS_PER_IMAGE = 4


def group(num_slots: int) -> int:
  """Returns the number of images that one prefill reads, for `num_slots` slots."""
  return max(1, num_slots // _SLOTS_PER_IMAGE)


class Queue(NamedTuple):
  """A group of `G` waiting images: the arguments of `Decoder.start` for each.

  Attributes:
    condition: leading axis `G`.
    key: `[G]` random keys.
    sampling: the sampling options, all `[G]` or None.
    image: `[G]` int32; the numbers of the images.
    count: `[]` int32; the number of images in the group; the other rows are padding.
    is_last: `[]` bool; whether this is the last group.
  """

  condition: Condition
  key: jax.Array
  sampling: SamplingParams
  image: jax.Array
  count: jax.Array
  is_last: jax.Array


class Slots(NamedTuple):
  """The state of all slots, carried from group to group.

  Attributes:
    state: the state of the decode, with `B` rows.
    sampling: the sampling options of their images, all `[B]` or None.
    image: `[B]` int32; the number of the image in each slot; -1 for a free slot.
  """

  state: State
  sampling: SamplingParams
  image: jax.Array


class Finished(NamedTuple):
  """The images that a call completed, in the first `count` of `B + G` rows.

  Attributes:
    decoded: the decoded images.
    image: their numbers, -1 beyond them.
    count: `[]` int32; how many they are.
    rounds: `[]` int32; forward passes over all slots in this call, without prefills.
  """

  decoded: Decoded
  image: jax.Array
  count: jax.Array
  rounds: jax.Array


class _Carry(NamedTuple):
  """The carry of the loop of a call; `placed` counts the images of the group that have a slot."""

  slots: Slots
  finished: Finished
  placed: jax.Array


@dataclasses.dataclass(frozen=True)
class ContinuousBatcher:
  """A decoder whose rows, `B = num_slots`, start the next image when one is complete.

  Its functions are pure functions of arrays, to be jitted.
  """

  decoder: Decoder
  num_slots: int

  @usual_promotion
  def idle(self, params: Params, queue: Queue, draft_params: Params = None) -> Slots:
    """Returns free slots for images like a queue's."""
    state, sampling = self._shapes(params, queue, draft_params, self.num_slots)
    state, sampling = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (state, sampling))
    # Rounds do not change complete rows.
    state = state._replace(count=jnp.full_like(state.count, self.decoder.target.num_tokens))
    return Slots(state, sampling, jnp.full((self.num_slots,), -1, jnp.int32))

  @usual_promotion
  def join(self, params: Params, slots: Slots, queue: Queue, draft_params: Params = None) -> Slots:
    """Assigns any number of images to as many free slots; arguments and errors as for `advance`."""
    place = self._placing(params, slots, queue, draft_params)
    return jax.lax.fori_loop(0, queue.count, lambda row, slots: place(slots, row), slots)

  @usual_promotion
  def step(self, params: Params, slots: Slots, most: jax.Array, draft_params: Params = None
           ) -> Slots:
    """Runs rounds until an image is complete, or until there were `most` rounds."""
    more = lambda carry: ((carry[0] < most) & jnp.any(carry[1].image >= 0)
                          & ~jnp.any(self._complete(carry[1])))
    step = lambda carry: (carry[0] + 1, self._round(params, carry[1], draft_params))
    return jax.lax.while_loop(more, step, (jnp.int32(0), slots))[1]

  def leave(self, slots: Slots, free: jax.Array) -> Slots:
    """Makes slots free, `[B]` bool, whether their images are complete or not."""
    count = jnp.where(free, self.decoder.target.num_tokens, slots.state.count)
    return slots._replace(image=jnp.where(free, -1, slots.image),
                          state=slots.state._replace(count=count))

  @usual_promotion
  def advance(self, params: Params, slots: Slots, queue: Queue, draft_params: Params = None
              ) -> tuple[Slots, Finished]:
    """Decodes until all images of a group have a slot and another slot is free.

    With the last group, decodes until all images are complete. `slots` are the result of `idle` or
    of the previous call. Returns the slots, and the images that became complete. Raises
    ContractError if a leaf of the decoder's state has no axis of images.
    """
    placed = self._placing(params, slots, queue, draft_params)

    def place(carry):
      return carry._replace(slots=placed(carry.slots, carry.placed), placed=carry.placed + 1)

    def step(carry):
      slots = self._round(params, carry.slots, draft_params)
      return carry._replace(slots=slots, finished=carry.finished._replace(
          rounds=carry.finished.rounds + 1))

    is_waiting = lambda carry: carry.placed < queue.count
    # As long as an image waits, in this group or a later one, rounds run with all slots occupied.
    can_run = lambda carry: jnp.where(
        queue.is_last & ~is_waiting(carry), jnp.any(carry.slots.image >= 0),
        jnp.all(carry.slots.image >= 0))

    def body(carry):
      carry = jax.lax.while_loop(
          lambda carry: is_waiting(carry) & jnp.any(carry.slots.image < 0), place, carry)
      carry = jax.lax.while_loop(
          lambda carry: can_run(carry) & ~jnp.any(self._complete(carry.slots)), step, carry)
      return self._collect(carry)

    carry = _Carry(slots, self._empty(slots.state, len(queue.image)), jnp.int32(0))
    carry = jax.lax.while_loop(lambda carry: is_waiting(carry) | can_run(carry), body, carry)
    return carry.slots, carry.finished

  def _start(self, params, queue, draft_params) -> tuple[State, SamplingParams]:
    """Runs the prefill of a group; returns the state and the options of its rows."""
    rng = row_keys(queue.key, queue.image.shape[0])
    state = self.decoder.start(params, queue.condition, rng, queue.sampling, draft_params)
    return state, queue.sampling

  def _shapes(self, params, queue: Queue, draft_params, rows: int) -> tuple[State, SamplingParams]:
    """Returns the shapes of `_start` for a group of `rows` images."""
    wider = lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)
    like = jax.tree.map(wider, queue._replace(count=queue.image, is_last=queue.image))
    return jax.eval_shape(self._start, params, like, draft_params)

  def _placing(self, params, slots: Slots, queue: Queue, draft_params
               ) -> Callable[[Slots, jax.Array], Slots]:
    """Runs the prefill of a group; returns `(slots, row) -> slots`, which assigns image `row`.

    It starts in the first free slot.
    """
    fresh, size = self._start(params, queue, draft_params), len(queue.image)
    # Shapes of as many rows as slots do not show which axis is the rows'.
    few = size if size != self.num_slots else size + 1
    axes = None if self.num_slots == size == 1 else row_axes(
        (slots.state, slots.sampling),
        fresh if few == size else self._shapes(params, queue, draft_params, few),
        self.decoder.target.num_streams, self.num_slots, few)

    def place(slots: Slots, row: jax.Array) -> Slots:
      slot = jnp.argmax(slots.image < 0)
      state, sampling = _replace_slot(
          (slots.state, slots.sampling), fresh, slot, row, axes, self.num_slots, size)
      return Slots(state, sampling, slots.image.at[slot].set(queue.image[row]))

    return place

  def _round(self, params, slots: Slots, draft_params) -> Slots:
    return slots._replace(state=self.decoder.round(params, slots.state, slots.sampling,
                                                   draft_params))

  def _complete(self, slots: Slots) -> jax.Array:
    """`[B]` bool, whether the image of a slot is complete."""
    return (slots.image >= 0) & (slots.state.count >= self.decoder.target.num_tokens)

  def _empty(self, state: State, waiting: int) -> Finished:
    size = self.num_slots + waiting
    empty = lambda leaf: jnp.zeros((size, *leaf.shape[1:]), leaf.dtype)
    return Finished(
        jax.tree.map(empty, jax.eval_shape(self.decoder.finish, state)),
        jnp.full((size,), -1, jnp.int32), jnp.int32(0), jnp.int32(0))

  def _collect(self, carry: _Carry) -> _Carry:
    """Moves the complete images from their slots to `finished`."""
    slots, finished = carry.slots, carry.finished
    complete = self._complete(slots)
    size = finished.image.shape[0]
    row = finished.count + jnp.cumsum(complete, dtype=jnp.int32) - 1
    row = jnp.where(complete, row, size)  # Rows out of range are dropped.
    put = lambda old, new: old.at[row].set(new, mode='drop')
    return carry._replace(
        slots=slots._replace(image=jnp.where(complete, -1, slots.image)),
        finished=finished._replace(
            decoded=jax.tree.map(put, finished.decoded, self.decoder.finish(slots.state)),
            image=put(finished.image, slots.image),
            count=finished.count + jnp.sum(complete, dtype=jnp.int32)))


def _replace_slot(old: Any, new: Any, slot: jax.Array, row: jax.Array, axes: Any, num_slots: int,
                  size: int) -> Any:
  """Replaces slot `slot` of `old`, of `num_slots` slots, by row `row` of `new`, of `size` rows.

  `axes` as from `row_axes`; None for one slot and one row, which is replaced whole.
  """
  if axes is None:
    return new

  def place(axis, old, new):
    for block in range(old.shape[axis] // num_slots):
      image = jax.lax.dynamic_slice_in_dim(new, block * size + row, 1, axis)
      old = jax.lax.dynamic_update_slice_in_dim(old, image, block * num_slots + slot, axis)
    return old

  return jax.tree.map(place, axes, old, new)


def row_axes(many: Any, few: Any, streams: int, num_many: int, num_few: int) -> Any:
  """Finds the axis of rows of every leaf of a decode's state: the one whose size depends on them.

  `many` and `few` are the state, or its shapes, for two numbers of images. The rows of the guidance
  streams may share the axis, one stream after the other. Raises ContractError if there is not one.
  """
  sizes = [(blocks * num_many, blocks * num_few) for blocks in {1, streams}]

  def find(path, many, few):
    axes = [axis for axis, pair in enumerate(zip(many.shape, few.shape)) if pair[0] != pair[1]]
    if len(axes) == 1 and (many.shape[axes[0]], few.shape[axes[0]]) in sizes:
      return axes[0]
    size = 'B' if streams == 1 else f'B or {streams} B'
    raise ContractError(
        f'the state of a decode has a leaf state{jax.tree_util.keystr(path)} of shape '
        f'{list(few.shape)} for {num_few} images and {list(many.shape)} for {num_many}; for '
        f'continuous batching it must have one axis of size {size}, for B images; change the cache '
        'or the drafter, or decode all images at once (batch_size=None).')

  return jax.tree_util.tree_map_with_path(find, many, few)


def supports(decoder: Any) -> bool:
  """Returns whether the images of a decoder, of any tokens, may need different numbers of rounds.

  They do not without drafts. A window without candidates (`jacobi.ancestral`) uses slots exactly if
  the window decoder that it is the baseline of does.
  """
  return isinstance(decoder, Decoder) and decoder.drafter.tree.num_nodes > 0


class JittedBatcher(NamedTuple):
  """The jitted functions of a `ContinuousBatcher`; all but `idle` and `finish` donate their slots.

  `advance` decodes a queue, without communication with the host; `join`, `step` and `leave` images
  that come and go at any round. `finish` is `slots -> Decoded`, the images in all slots so far.
  """

  batcher: ContinuousBatcher
  idle: Callable[..., Slots]
  advance: Callable[..., tuple[Slots, Finished]]
  join: Callable[..., Slots]
  step: Callable[..., Slots]
  leave: Callable[..., Slots]
  finish: Callable[..., Decoded]


def jitted(decoder: Decoder, num_slots: int, label: str | None = None,
           inspect: programs.Inspect | None = None) -> JittedBatcher:
  """Returns the jitted batcher of a decoder; its compilations are reported under a `label`.

  `inspect` is as for `programs.jit`.
  """
  batcher = ContinuousBatcher(decoder, num_slots)
  jit = functools.partial(programs.jit, donate_argnums=1, short_sums=True, inspect=inspect)
  return JittedBatcher(
      batcher, programs.jit(batcher.idle), jit(batcher.advance, label=label),
      jit(batcher.join, label=label and f'the prefill of {label}'), jit(batcher.step, label=label),
      programs.jit(batcher.leave, donate_argnums=0),
      programs.jit(lambda slots: decoder.finish(slots.state)))


def run(jitted_batcher: JittedBatcher, params: Params, count: int,
        images: Callable[[np.ndarray], tuple[Condition, jax.Array, SamplingParams]],
        draft_params: Params = None) -> Iterator[Finished]:
  """Decodes `count` images, at least 1, in slots.

  `images` maps numbers `[G]` to `(condition, keys [G], sampling)` of these images. An option is a
  scalar, has one value per image, or is None; in all calls alike. Yields the images that became
  complete, as NumPy arrays without the rows beyond `count`.
  """
  size, slots, last = group(jitted_batcher.batcher.num_slots), None, None
  for numbers, num_new in batches.filled(count, size):
    condition, key, sampling = images(numbers)
    queue = Queue(
        condition, key, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size,)), sampling),
        jnp.asarray(numbers, jnp.int32), jnp.int32(num_new), jnp.asarray(numbers[-1] == count - 1))
    if slots is None:
      slots = jitted_batcher.idle(params, queue, draft_params)
    slots, finished = jitted_batcher.advance(params, slots, queue, draft_params)
    if last is not None:  # That of the call before, so that the device has work meanwhile.
      yield _fetch(last)
    last = finished
  assert last is not None
  yield _fetch(last)


def _fetch(finished: Finished) -> Finished:
  """Copies finished images to the host, without the rows beyond `count`."""
  result = jax.device_get(finished)
  decoded, image = batches.leading((result.decoded, result.image), int(result.count))
  return result._replace(decoded=decoded, image=image)
