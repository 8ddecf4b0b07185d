"""Files that were cut, changed or extended."""

import itertools
import random
from collections.abc import Iterator


def changed(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
  """Yields `count` changed versions of a file, with a change in every part of it.

  Both ends, where formats keep their sizes and lists, are changed as often as all the rest.
  """
  rng = random.Random(seed)
  ways = itertools.cycle((_cut, _flip, _grow, _shrink, _fill))
  for number, way in zip(range(count), ways):
    part = len(data) * number // count
    place = (part, rng.randrange(min(len(data), 128)),
             len(data) - 1 - rng.randrange(min(len(data), 128)))[number % 3]
    yield way(data, place, rng)


def _cut(data, place, rng):
  return data[:place]


def _flip(data, place, rng):
  return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1:]


def _grow(data, place, rng):
  return data[:place] + rng.randbytes(rng.randrange(1, 20)) + data[place:]


def _shrink(data, place, rng):
  return data[:place] + data[place + rng.randrange(1, 20):]


def _fill(data, place, rng):
  return data[:place] + b'\xff' * min(4, len(data) - place) + data[place + 4:]
