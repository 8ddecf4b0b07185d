"""Fields of config dataclasses: one check of their types and ranges."""

import dataclasses
import functools
import math
import types
import typing
from typing import Any

import numpy as np

# No size of a network is larger, nor is a grid longer or a stack of layers higher: what is would
# take minutes to describe, and more memory than there is to make.
MOST = 2**24
MOST_LAYERS = 256
MOST_SIDE = 1024

# Ranges of what many configs have.
SEEDS = (0, 2**32 - 1)
SHARES = (0, 1)
BELOW_1 = (0, math.nextafter(1, 0))
NOT_NEGATIVE = (0, math.inf)
FINITE = (-math.inf, math.inf)

# The least and the most of a number, both included.
Range = tuple[float, float]


def check(config: Any, **ranges: Range) -> None:
  """Checks every field of a dataclass by its annotation.

  A whole number is at least 1 and at most `MOST` if nothing else is said; a float is finite and
  above 0; neither is a bool. A list, such as JSON gives, becomes the tuple that is asked for.

  Args:
    config: the dataclass, in its `__post_init__`.
    **ranges: the least and the most of numbers by name; those of the elements for a tuple.

  Raises:
    ValueError: for the first field of another type or outside its range.
  """
  for name, kinds in _annotations(type(config)).items():
    value, limits = getattr(config, name), ranges.get(name)
    if isinstance(value, list) and any(typing.get_origin(kind) is tuple for kind in kinds):
      value = tuple(value)
      object.__setattr__(config, name, value)
    if not any(_is(value, kind, limits) for kind in kinds):
      words = ' or '.join(_words(kind, limits) for kind in kinds)
      raise ValueError(f'{name} is {value!r:.80}; it must be {words}.')


def int64(text: str) -> int:
  """Reads a whole number.

  Raises:
    ValueError: if it is none, or takes more than 64 bits.
  """
  number = int(text)
  if not -2**63 <= number < 2**63:
    raise ValueError(f'{text:.80} takes more than 64 bits')
  return number


@functools.cache
def _annotations(kind: type) -> dict[str, tuple[Any, ...]]:
  """The types that every field may have."""
  is_union = lambda hint: typing.get_origin(hint) in (typing.Union, types.UnionType)
  hints = typing.get_type_hints(kind)
  return {field.name: typing.get_args(hint) if is_union(hint) else (hint,)
          for field in dataclasses.fields(kind) for hint in [hints[field.name]]}


def _is(value: Any, kind: Any, limits: Range | None) -> bool:
  if typing.get_origin(kind) is tuple:
    element = typing.get_args(kind)[0]
    return isinstance(value, tuple) and all(_is(one, element, limits) for one in value)
  if typing.get_origin(kind) is typing.Literal:
    return isinstance(value, str) and value in typing.get_args(kind)
  if isinstance(value, bool) or kind is bool:
    return kind is bool and isinstance(value, bool)
  if kind is int:
    least, most = limits or (1, MOST)
    return isinstance(value, int | np.integer) and bool(least <= value <= most)
  if kind is float:
    if not isinstance(value, int | float | np.number):
      return False
    number = float(value)
    return math.isfinite(number) and (
        number > 0 if limits is None else limits[0] <= number <= limits[1])
  return isinstance(value, kind)


def _words(kind: Any, limits: Range | None) -> str:
  if typing.get_origin(kind) is tuple:
    return f'a tuple, of which each is {_words(typing.get_args(kind)[0], limits)}'
  if typing.get_origin(kind) is typing.Literal:
    return f'one of {", ".join(typing.get_args(kind))}'
  least, most = limits or (1, MOST)
  if kind is int:
    return f'a whole number from {least} to {most}'
  if kind is float and limits is not None:
    if limits == BELOW_1:
      return 'a number from 0 to below 1'
    return (f'a number from {least} to {most}' if most < math.inf else
            'a finite number' if least == -math.inf else f'a finite number of at least {least}')
  return {float: 'a finite number above 0', bool: 'True or False', str: 'a text',
          type(None): 'None'}.get(kind) or f'a {kind.__name__}'
