"""More images than are decoded at once: a row that is complete takes the next image.

A batch ends with its slowest row. Here a decode has slots instead of rows, and a slot whose image
is complete takes the next one of a queue, while the others go on. An image depends on its own key,
condition and options only, so it is the image that it would be in a batch, as far as the two
programs round alike: sums of other shapes, and `Decoded.tv_bound` of relaxed decoders in any dtype,
may differ in their last bits.

Images come in groups, a quarter of the slots. A call of `Refill.advance` reads the conditions of
one group in one prefill, hands its images out one by one as slots become free, and ends when all of
them have one and a slot is free for the next group. Everything within a call is one program without
a word to the host; what a call needs is known before the last one ends, so the device waits for
nobody. The cost beside batches is the memory of the group's caches, and four prefills of a quarter
of the rows in place of one of all.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.core.modes import usual_promotion
from cspd_jax.core.random import row_keys
from cspd_jax.decoding.base import Condition, Decoded, Params
from cspd_jax.decoding.contract import ContractError
from cspd_jax.decoding.loop import Decoder, State
from cspd_jax.decoding.warp import Warp

# Slots per image of a group: few groups are many caches, many groups are many prefills.
_SHARE = 4


def group(num_slots: int) -> int:
  """The number of images that are read in one prefill for so many slots."""
  return max(1, num_slots // _SHARE)


class Queue(NamedTuple):
  """A group of images that wait, `G` of them; what `Decoder.start` takes for each.

  Attributes:
    condition: leading axis `G`.
    key: `[G]` random keys.
    warp: the sampling options, all `[G]` or None.
    image: `[G]` int32 numbers of the images.
    count: `[]` int32, how many of them are images; the others fill the group up.
    is_last: `[]` bool, whether no image waits behind them.
  """

  condition: Condition
  key: jax.Array
  warp: Warp
  image: jax.Array
  count: jax.Array
  is_last: jax.Array


class Slots(NamedTuple):
  """What is carried from group to group.

  Attributes:
    state: of the decode, `B` rows.
    warp: the sampling options of their images, all `[B]` or None.
    image: `[B]` int32 numbers of the images that are decoded; -1 is a free slot.
  """

  state: State
  warp: Warp
  image: jax.Array


class Finished(NamedTuple):
  """The images that became complete in a call, in the first `count` of `B + G` rows.

  Attributes:
    decoded: what they are.
    image: their numbers, -1 beyond them.
    count: `[]` int32.
    rounds: `[]` int32, forward passes over all slots in this call; prefills do not count.
  """

  decoded: Decoded
  image: jax.Array
  count: jax.Array
  rounds: jax.Array


class _Carry(NamedTuple):
  """Of the loop of a call: slots, what is finished, and images of the group that have a slot."""

  slots: Slots
  finished: Finished
  placed: jax.Array


@dataclasses.dataclass(frozen=True)
class Refill:
  """A decoder whose rows take the next image when they are complete.

  `idle` and `advance` are pure functions of arrays, to be jitted, for any number of images; the
  slots given to `advance` are not needed again and can be donated.

  Attributes:
    decoder: the decoder.
    num_slots: `B`, images decoded at once.
  """

  decoder: Decoder
  num_slots: int

  @property
  def group(self) -> int:
    """The number `G` of images that are read in one prefill."""
    return group(self.num_slots)

  @usual_promotion
  def idle(self, params: Params, queue: Queue, draft_params: Params = None) -> Slots:
    """Free slots for images like those of a queue."""
    wider = lambda leaf: jax.ShapeDtypeStruct((self.num_slots, *leaf.shape[1:]), leaf.dtype)
    like = jax.tree.map(wider, queue._replace(count=queue.image, is_last=queue.image))
    state, warp = jax.eval_shape(self._start, params, like, draft_params)
    state, warp = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (state, warp))
    # Rounds leave complete rows as they are.
    state = state._replace(count=jnp.full_like(state.count, self.decoder.target.num_tokens))
    return Slots(state, warp, jnp.full((self.num_slots,), -1, jnp.int32))

  @usual_promotion
  def advance(self, params: Params, slots: Slots, queue: Queue, draft_params: Params = None
              ) -> tuple[Slots, Finished]:
    """Goes on until all images of a group have a slot and another one is free.

    Images of the last group are decoded to the end, and so are all before them.

    Args:
      params: the target's parameters.
      slots: of `idle`, or of the call before.
      queue: the group.
      draft_params: parameters of the drafter, if it has any.

    Returns:
      The slots, and the images that became complete.

    Raises:
      ContractError: if a part of a decode's state cannot be told to belong to one image.
    """
    fresh = self._start(params, queue, draft_params)

    def place(carry):
      slot = jnp.argmax(carry.slots.image < 0)
      state, warp = _replaced(tuple(carry.slots[:2]), fresh, slot, carry.placed,
                              self.decoder.target.num_streams, self.num_slots, self.group)
      image = carry.slots.image.at[slot].set(queue.image[carry.placed])
      return carry._replace(slots=Slots(state, warp, image), placed=carry.placed + 1)

    def step(carry):
      state, warp, image = carry.slots
      state = self.decoder.round(params, state, warp, draft_params)
      return carry._replace(slots=Slots(state, warp, image), finished=carry.finished._replace(
          rounds=carry.finished.rounds + 1))

    waits = lambda carry: carry.placed < queue.count
    # As long as an image waits, behind this group or in it, no slot is left free.
    goes_on = lambda carry: jnp.where(
        queue.is_last & ~waits(carry), jnp.any(carry.slots.image >= 0),
        jnp.all(carry.slots.image >= 0))

    def body(carry):
      carry = jax.lax.while_loop(
          lambda carry: waits(carry) & jnp.any(carry.slots.image < 0), place, carry)
      carry = jax.lax.while_loop(
          lambda carry: goes_on(carry) & ~jnp.any(self._complete(carry.slots)), step, carry)
      return self._collected(carry)

    carry = _Carry(slots, self._nothing(slots.state), jnp.int32(0))
    carry = jax.lax.while_loop(
        lambda carry: waits(carry) | goes_on(carry), body, carry)
    return carry.slots, carry.finished

  def _start(self, params, queue, draft_params) -> tuple[State, Warp]:
    """The state and the options of rows that begin."""
    rng = row_keys(queue.key, queue.image.shape[0])
    return self.decoder.start(params, queue.condition, rng, queue.warp, draft_params), queue.warp

  def _complete(self, slots: Slots) -> jax.Array:
    """`[B]` bool, slots whose image is complete."""
    return (slots.image >= 0) & (slots.state.count >= self.decoder.target.num_tokens)

  def _nothing(self, state: State) -> Finished:
    """No finished images yet."""
    size = self.num_slots + self.group
    room = lambda leaf: jnp.zeros((size, *leaf.shape[1:]), leaf.dtype)
    return Finished(
        jax.tree.map(room, jax.eval_shape(self.decoder.finish, state)),
        jnp.full((size,), -1, jnp.int32), jnp.int32(0), jnp.int32(0))

  def _collected(self, carry: _Carry) -> _Carry:
    """Moves the complete images from their slots to the finished ones."""
    slots, finished = carry.slots, carry.finished
    complete = self._complete(slots)
    size = finished.image.shape[0]
    row = finished.count + jnp.cumsum(complete, dtype=jnp.int32) - 1
    row = jnp.where(complete, row, size)  # Others are dropped.
    put = lambda kept, new: kept.at[row].set(new, mode='drop')
    return carry._replace(
        slots=slots._replace(image=jnp.where(complete, -1, slots.image)),
        finished=finished._replace(
            decoded=jax.tree.map(put, finished.decoded, self.decoder.finish(slots.state)),
            image=put(finished.image, slots.image),
            count=finished.count + jnp.sum(complete, dtype=jnp.int32)))


def _replaced(old: Any, new: Any, slot: jax.Array, row: jax.Array, streams: int, num_slots: int,
              size: int) -> Any:
  """`old`, of `num_slots` rows, with slot number `slot` as row number `row` of the `size` of `new`.
  """
  if num_slots == size:  # One slot: all of it is the new image's.
    return new

  def place(axis, old, new):
    for block in range(old.shape[axis] // num_slots):
      one = jax.lax.dynamic_slice_in_dim(new, block * size + row, 1, axis)
      old = jax.lax.dynamic_update_slice_in_dim(old, one, block * num_slots + slot, axis)
    return old

  return jax.tree.map(place, row_axes(old, new, streams, num_slots, size), old, new)


def row_axes(many: Any, few: Any, streams: int, num_many: int, num_few: int) -> Any:
  """Which axis of every leaf of a decode's state holds the rows: the one whose size follows them.

  Args:
    many: the state, or its shapes, of `num_many` images.
    few: the same of `num_few` images.
    streams: guidance streams. The rows of all may share the axis, one stream after the other.
    num_many: see `many`.
    num_few: another number; see `few`.

  Returns:
    The axis per leaf.

  Raises:
    ContractError: if there is no such axis, or more than one.
  """
  sizes = [(blocks * num_many, blocks * num_few) for blocks in {1, streams}]

  def find(path, many, few):
    axes = [axis for axis, both in enumerate(zip(many.shape, few.shape)) if both[0] != both[1]]
    if len(axes) == 1 and (many.shape[axes[0]], few.shape[axes[0]]) in sizes:
      return axes[0]
    words = 'B' if streams == 1 else f'B or {streams} B'
    raise ContractError(
        f'the state of a decode has a leaf state{jax.tree_util.keystr(path)} of shape '
        f'{list(few.shape)} for {num_few} images and {list(many.shape)} for {num_many}; for images '
        f'to follow each other in a row it must have one axis of size {words} that tells the B '
        'images apart. Change the cache or the drafter, or decode all images at once '
        '(batch_size=None).')

  return jax.tree_util.tree_map_with_path(find, many, few)


def helps(decoder: Decoder, count: int, num_slots: int) -> bool:
  """Whether so many images take fewer rounds in slots than in batches of as many rows.

  Without drafts every image takes as many rounds as it has tokens. A window without candidates
  (`drafters.ancestral`) is in slots where the decoder is that it is compared with.
  """
  return count > num_slots > 1 and decoder.drafter.tree.num_nodes > 0


class JittedRefill(NamedTuple):
  """A refill whose functions are jitted.

  Attributes:
    refill: the refill.
    idle: see `Refill`.
    advance: see `Refill`; it donates the slots that are passed to it.
  """

  refill: Refill
  idle: Callable[..., Slots]
  advance: Callable[..., tuple[Slots, Finished]]


def jitted(decoder: Decoder, num_slots: int) -> JittedRefill:
  """Returns the jitted refill of a decoder with `num_slots` slots, for `run`."""
  refill = Refill(decoder, num_slots)
  return JittedRefill(refill, jax.jit(refill.idle), programs.jit(refill.advance, donate_argnums=1))


def run(jitted_refill: JittedRefill, params: Params, count: int,
        images: Callable[[np.ndarray], tuple[Condition, jax.Array, Warp]],
        draft_params: Params = None) -> Iterator[Finished]:
  """Decodes images in slots.

  Args:
    jitted_refill: see `jitted`.
    params: the target's parameters.
    count: `N`, number of images; at least 1.
    images: `numbers [G] -> ` conditions, random keys `[G]` and sampling options of these images.
      An option is a scalar, has one value per image, or is None; which is the same in all calls.
    draft_params: parameters of the drafter, if it has any.

  Yields:
    The images that became complete, NumPy arrays without the rows beyond `count`.
  """
  size, slots, last = jitted_refill.refill.group, None, None
  for first in range(0, count, size):
    numbers = np.minimum(np.arange(first, first + size), count - 1)
    condition, key, warp = images(numbers)
    queue = Queue(
        condition, key, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size,)), warp),
        jnp.asarray(numbers, jnp.int32), jnp.int32(min(size, count - first)),
        jnp.asarray(first + size >= count))
    if slots is None:
      slots = jitted_refill.idle(params, queue, draft_params)
    slots, finished = jitted_refill.advance(params, slots, queue, draft_params)
    if last is not None:  # That of the call before, so that the device has work meanwhile.
      yield _fetched(last)
    last = finished
  yield _fetched(last)


def _fetched(finished: Finished) -> Finished:
  """On the host, without rows that hold nothing."""
  found = jax.device_get(finished)
  count = int(found.count)
  return found._replace(
      decoded=jax.tree.map(lambda leaf: leaf[:count], found.decoded), image=found.image[:count])
