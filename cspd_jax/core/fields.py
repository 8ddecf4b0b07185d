"""Checks the types and ranges of the fields of config dataclasses, and of arguments."""

import dataclasses
import functools
import inspect
import math
import numbers
import re
import textwrap
import types
import typing
from collections.abc import Collection
from typing import Any

import numpy as np

# The largest sizes of networks, numbers of layers and sides of grids. Beyond them tracing would
# take minutes, and the arrays more memory than a machine has.
MOST = 2**24
MOST_LAYERS = 256
MOST_SIDE = 1024

# Ranges that many configs use.
SEEDS = (0, 2**32 - 1)
SHARES = (0, 1)
BELOW_1 = (0, math.nextafter(1, 0))
NOT_NEGATIVE = (0, math.inf)
FINITE = (-math.inf, math.inf)


class ListedError(ValueError):
  """Invalid input whose message has several lines, such as one per problem."""


Range = tuple[float, float]  # The smallest and the largest value of a number, both included.


def check(config: Any, **ranges: Range) -> None:
  """Checks every field of a dataclass, in its `__post_init__`, by its annotation.

  Without a range, an int must be 1 to `MOST` and a float finite and above 0; a bool is neither. The
  ranges hold the smallest and the largest value by name, for a tuple of its elements. A list,
  as JSON returns it, becomes a tuple if the annotation is a tuple. The first field of a wrong type
  or outside its range raises ValueError.
  """
  # mypy checks `__hash__` of the instances instead of the class.
  annotations = _annotations(type(config))  # type: ignore[arg-type]
  for name, kinds in annotations.items():
    value, limits = getattr(config, name), ranges.get(name)
    if isinstance(value, list) and any(typing.get_origin(kind) is tuple for kind in kinds):
      value = tuple(value)
      object.__setattr__(config, name, value)
    if not any(_matches(value, kind, limits) for kind in kinds):
      expected = ' or '.join(_description(kind, limits) for kind in kinds)
      raise ValueError(f'{name} is {value!r:.80}; it must be {expected}.')


def check_lists(config: Any, *names: str) -> None:
  """Raises ValueError for a field that is an empty tuple."""
  for name in names:
    if getattr(config, name) == ():
      raise ValueError(f'{name} is empty; give at least one.')


def check_whole(name: str, value: Any, words: str = 'a whole number', least: float = -math.inf,
                most: float = math.inf) -> None:
  """Raises ValueError, saying that it must be `words`, unless `value` is whole and in a range."""
  is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  require(is_whole and least <= value <= most, name, value, words)


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
  """Raises ValueError unless `value` is one of some names."""
  # A call in a specification cannot be looked up in a dictionary.
  require(value in tuple(choices), name, value, f'one of {", ".join(choices)}')


def require(holds: bool, name: str, value: Any, words: str) -> None:
  """Raises ValueError, saying what `name` is and that it must be `words`, unless it `holds`."""
  if not holds:
    text = str(value) if isinstance(value, numbers.Number) else repr(value)
    raise ValueError(f'{name} is {text:.80}; it must be {words}.')


def array(value: Any) -> np.ndarray:
  """Returns `np.asarray(value)`, with floats for whole numbers of more than 64 bits.

  NumPy would return objects. Those that no float can represent become infinite.
  """
  result = np.asarray(value)
  if result.dtype != object or not all(type(item) is int for item in result.flat):
    return result
  return np.asarray([_float(item) for item in result.flat]).reshape(result.shape)


def _float(number: int) -> float:
  try:
    return float(number)
  except OverflowError:
    return math.inf if number > 0 else -math.inf


def int64(text: str) -> int:
  """Parses a signed 64-bit integer; raises ValueError for any other text."""
  number = int(text)
  if not -2**63 <= number < 2**63:
    raise ValueError(f'{text:.80} needs more than 64 bits')
  return number


def docs(kind: type) -> dict[str, str]:
  """Returns what the docstrings of a dataclass and its bases say of fields under `Attributes:`."""
  docs: dict[str, str] = {}
  for base in reversed(kind.__mro__):
    _, _, section = (inspect.cleandoc(base.__doc__ or '')).partition('Attributes:\n')
    name = None
    for line in textwrap.dedent(section).splitlines():
      if entry := re.fullmatch(r'(\w+): (.*)', line):
        name, docs[entry[1]] = entry[1], entry[2]
      elif name and line.startswith('  '):
        docs[name] += ' ' + line.strip()
      else:
        name = None
  return docs


@functools.cache
def _annotations(kind: type) -> dict[str, tuple[Any, ...]]:
  """The types that each field may have."""
  is_union = lambda hint: typing.get_origin(hint) in (typing.Union, types.UnionType)
  hints = typing.get_type_hints(kind)
  return {field.name: typing.get_args(hint) if is_union(hint) else (hint,)
          for field in dataclasses.fields(kind) for hint in [hints[field.name]]}


def _matches(value: Any, kind: Any, limits: Range | None) -> bool:
  """Whether a value has the type `kind` and lies in the range `limits`."""
  if typing.get_origin(kind) is tuple:
    element = typing.get_args(kind)[0]
    return isinstance(value, tuple) and all(_matches(item, element, limits) for item in value)
  if typing.get_origin(kind) is typing.Literal:
    return isinstance(value, str) and value in typing.get_args(kind)
  if isinstance(value, bool) or kind is bool:
    return kind is bool and isinstance(value, bool)
  if kind is int:
    smallest, largest = limits or (1, MOST)
    return isinstance(value, int | np.integer) and bool(smallest <= value <= largest)
  if kind is float:
    if not isinstance(value, int | float | np.number):
      return False
    try:
      number = float(value)
    except OverflowError:  # A whole number of hundreds of digits.
      return False
    return math.isfinite(number) and (
        number > 0 if limits is None else limits[0] <= number <= limits[1])
  return isinstance(value, kind)


def _description(kind: Any, limits: Range | None) -> str:
  """Describes the values that `_matches` accepts, for errors."""
  if typing.get_origin(kind) is tuple:
    return f'a tuple, of which each is {_description(typing.get_args(kind)[0], limits)}'
  if typing.get_origin(kind) is typing.Literal:
    return f'one of {", ".join(typing.get_args(kind))}'
  smallest, largest = limits or (1, MOST)
  if kind is int:
    return f'a whole number from {smallest} to {largest}'
  if kind is float and limits is not None:
    if limits == BELOW_1:
      return 'a number from 0 to below 1'
    return (f'a number from {smallest} to {largest}' if largest < math.inf else
            'a finite number' if smallest == -math.inf else
            f'a finite number of at least {smallest}')
  return {float: 'a finite number above 0', bool: 'True or False', str: 'a string',
          type(None): 'None'}.get(kind) or f'a {kind.__name__}'
