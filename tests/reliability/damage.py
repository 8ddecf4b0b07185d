"""Files that were cut, changed or extended."""

import itertools
import json
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


# What may stand in place of any value of a JSON file.
STRANGE = (None, True, [], {}, ['x'], [[]], {'x': 1}, {'1': 'x'}, [1] * 8, -1, 0, 1.5, 1e300,
           10**25, 10**400, '', 'x', 'x' * 5000, '\x1b[31mred', 'a\nb', '../x', '{:>1000000000}')


def replaced(content, count: int, seed: int = 0) -> Iterator[str]:
  """Yields `count` JSON texts in which an entry is removed, or is one of `STRANGE`."""
  rng = random.Random(seed)
  for number in range(count):
    copy = parent = json.loads(json.dumps(content))
    while True:
      keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
      key = rng.choice(keys)
      child = parent[key]
      if not isinstance(child, dict | list) or not child or rng.random() < .3:
        break
      parent = child
    if number % 8:
      parent[key] = rng.choice(STRANGE)
    else:
      del parent[key]
    yield json.dumps(copy)
