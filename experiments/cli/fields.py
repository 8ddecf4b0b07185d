"""Fields of dataclasses, read from text and described in words.

A field of a field has a dotted name, as `sampling.temperature`. On the command line the last part
alone will do where it names one field only.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax.core import fields as fields_lib


class Field(NamedTuple):
  """A field that can be set.

  Attributes:
    name: dotted, from the outermost dataclass.
    kind: its annotated type.
    value: what it holds.
    doc: what it means, from the docstring of its dataclass.
  """

  name: str
  kind: Any
  value: Any
  doc: str


def every(config: Any, prefix: str = '') -> Iterator[Field]:
  """The fields of a dataclass and of those that it holds, in order.

  Fields that hold what no text stands for, such as several dataclasses, are left to
  configuration files.
  """
  kinds, docs = typing.get_type_hints(type(config)), _docs(type(config))
  for field in dataclasses.fields(config):
    name, value = prefix + field.name, getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      yield from every(value, f'{name}.')
    elif _is_text(kinds[field.name]):
      yield Field(name, kinds[field.name], value, docs.get(field.name, ''))


def _is_text(kind: Any) -> bool:
  """Whether values of a type can be typed on a command line."""
  if typing.get_origin(kind) is typing.Literal:
    return True
  parts = [part for part in typing.get_args(kind) if part is not Ellipsis]
  return all(map(_is_text, parts)) if parts else kind in (
      bool, int, float, str, tuple, type(None))


def short_name(config: Any, field: Field) -> str:
  """The shortest name that means this field."""
  last = field.name.rpartition('.')[2]
  return last if find(config, last) == [field] else field.name


def find(config: Any, name: str) -> list[Field]:
  """The fields that `name` may mean: one of this dotted name, or those that end in it."""
  known = list(every(config))
  exact = [field for field in known if field.name == name]
  return exact or [field for field in known if field.name.endswith(f'.{name}')]


def override(config: Any, texts: Mapping[str, str]) -> Any:
  """Replaces fields of `config`; a dataclass sees all its new values at once.

  Args:
    config: a dataclass.
    texts: by dotted name.

  Raises:
    ValueError: for a text that is not of the field's type, or a value that the dataclass itself
      refuses.
  """
  return _replace(config, '', {tuple(name.split('.')): text for name, text in texts.items()})


def _replace(config: Any, prefix: str, texts: Mapping[tuple[str, ...], str]) -> Any:
  kinds = typing.get_type_hints(type(config))
  groups: dict[str, dict[tuple[str, ...], str]] = {}
  for path, text in texts.items():
    groups.setdefault(path[0], {})[path[1:]] = text
  new = {}
  for name, inner in groups.items():
    old = getattr(config, name)
    if dataclasses.is_dataclass(old):
      new[name] = _replace(old, f'{prefix}{name}.', inner)
      continue
    try:
      new[name] = read(inner[()], kinds[name])
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # Deep brackets.
      raise ValueError(f'--{prefix}{name}={inner[()]:.80}: it takes {describe(kinds[name])}'
                       f'{"" if old is None else f", such as {show(old)}"}.') from error
  try:
    return dataclasses.replace(config, **new)
  except (ValueError, TypeError) as error:
    given = ' '.join(f'--{prefix}{".".join(path)}={text:.80}' for path, text in texts.items())
    raise ValueError(f'{given or "--config"}: {error}') from error


def read(text: str, kind: Any) -> Any:
  """Reads `text` as a value of the annotated type; raises ValueError or SyntaxError."""
  origin, options = typing.get_origin(kind), typing.get_args(kind)
  if origin in (typing.Union, types.UnionType):
    return _read_one_of(text, options)
  if origin is typing.Literal:
    return _choose(text, {str(option): option for option in options})
  if kind is bool:
    return _choose(text.lower(), {'true': True, '1': True, 'false': False, '0': False})
  if kind is int:
    return fields_lib.int64(text)
  if kind in (float, str):
    return kind(text)
  if kind is tuple or origin is tuple:
    return _read_tuple(text, options)
  raise ValueError(text)


def _choose(text: str, options: Mapping[str, Any]) -> Any:
  if text not in options:
    raise ValueError(text)
  return options[text]


def _read_one_of(text: str, kinds: Sequence[Any]) -> Any:
  if type(None) in kinds and text.lower() == 'none':
    return None
  # Text fits everything, so it is tried last.
  for kind in sorted((k for k in kinds if k is not type(None)), key=lambda k: k is str):
    try:
      return read(text, kind)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
      continue
  raise ValueError(text)


def _read_tuple(text: str, kinds: Sequence[Any]) -> tuple:
  if kinds and kinds[0] is str:
    parts: Sequence[Any] = split(text)
  else:
    value = ast.literal_eval(text)
    parts = value if isinstance(value, (tuple, list)) else (value,)
  if not kinds:
    return tuple(parts)
  each = [kinds[0]] * len(parts) if len(kinds) == 2 and kinds[1] is Ellipsis else kinds
  if len(each) != len(parts):
    raise ValueError(text)
  return tuple(read(str(part), kind) for part, kind in zip(parts, each))


def split(text: str) -> list[str]:
  """The parts of a list with commas between; commas in brackets belong to a part."""
  parts, depth = [''], 0
  for letter in text:
    depth += (letter in '([') - (letter in ')]')
    if letter == ',' and not depth:
      parts.append('')
    else:
      parts[-1] += letter
  return [part.strip() for part in parts if part.strip()]


def describe(kind: Any) -> str:
  """A type in words."""
  words: dict[Any, str] = {int: 'a whole number', float: 'a number', str: 'text',
                           bool: 'true or false', type(None): 'none'}
  origin, options = typing.get_origin(kind), typing.get_args(kind)
  if origin in (typing.Union, types.UnionType):
    return ' or '.join(map(describe, options))
  if origin is typing.Literal:
    return f'one of {", ".join(map(str, options))}'
  if kind is tuple or origin is tuple:
    return 'values separated by commas'
  return words.get(kind, f'a {kind}')


def show(value: Any) -> str:
  """A value as it is typed on the command line."""
  if isinstance(value, tuple):
    return ','.join(map(show, value))
  return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _docs(kind: type) -> dict[str, str]:
  """What the docstrings of a dataclass and its bases say under `Attributes:`, by field."""
  found: dict[str, str] = {}
  for base in reversed(kind.__mro__):
    _, _, section = (inspect.cleandoc(base.__doc__ or '')).partition('Attributes:\n')
    name = None
    for line in textwrap.dedent(section).splitlines():
      if entry := re.fullmatch(r'(\w+): (.*)', line):
        name, found[entry[1]] = entry[1], entry[2]
      elif name and line.startswith('  '):
        found[name] += ' ' + line.strip()
      else:
        name = None
  return found
