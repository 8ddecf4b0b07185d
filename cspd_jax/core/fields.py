"""Fields of config dataclasses: one check of their types and ranges."""

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


def check(config: Any, **ranges: tuple[int, int]) -> None:
  """Checks every field of a dataclass by its annotation.

  A whole number is at least 1 and at most `MOST` if nothing else is said; a float is finite and
  above 0; neither is a bool. A list, such as JSON gives, becomes the tuple that is asked for.

  Args:
    config: the dataclass, in its `__post_init__`.
    **ranges: the least and the most of whole numbers by name; those of the elements for a tuple.

  Raises:
    ValueError: for the first field of another type or outside its range.
  """
  for name, kinds in _annotations(type(config)).items():
    value, limits = getattr(config, name), ranges.get(name, (1, MOST))
    if isinstance(value, list) and any(typing.get_origin(kind) is tuple for kind in kinds):
      value = tuple(value)
      object.__setattr__(config, name, value)
    if not any(_is(value, kind, limits) for kind in kinds):
      words = ' or '.join(_words(kind, limits) for kind in kinds)
      raise ValueError(f'{name} is {value!r:.80}; it must be {words}.')


@functools.cache
def _annotations(kind: type) -> dict[str, tuple[Any, ...]]:
  """The types that every field may have."""
  is_union = lambda hint: typing.get_origin(hint) in (typing.Union, types.UnionType)
  return {name: typing.get_args(hint) if is_union(hint) else (hint,)
          for name, hint in typing.get_type_hints(kind).items()}


def _is(value: Any, kind: Any, limits: tuple[int, int]) -> bool:
  if typing.get_origin(kind) is tuple:
    element = typing.get_args(kind)[0]
    return isinstance(value, tuple) and all(_is(one, element, limits) for one in value)
  if isinstance(value, bool) or kind is bool:
    return kind is bool and isinstance(value, bool)
  if kind is int:
    return isinstance(value, int | np.integer) and bool(limits[0] <= value <= limits[1])
  if kind is float:
    return isinstance(value, int | float | np.number) and bool(0 < value < math.inf)
  return isinstance(value, kind)


def _words(kind: Any, limits: tuple[int, int]) -> str:
  if typing.get_origin(kind) is tuple:
    return f'a tuple, of which each is {_words(typing.get_args(kind)[0], limits)}'
  return {int: f'a whole number from {limits[0]} to {limits[1]}', float: 'a finite number above 0',
          bool: 'True or False', str: 'a text', type(None): 'None'}[kind]
