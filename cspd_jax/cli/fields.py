"""Fields of dataclasses, parsed from text and described in words.

A field of a field has a dotted name, such as `sampling.temperature`. On the command line its last
part suffices where it names one field only. A group that is `nested` keeps its name: with

  sampling: SamplingFlags = SamplingFlags()
  prior: SamplingFlags = dataclasses.field(default=SamplingFlags(), metadata={'nested': True})

`--temperature` sets `sampling.temperature`, and `--prior.temperature` the other.
"""

import ast
import contextlib
import dataclasses
import re
import shlex
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax.cli import imports
from cspd_jax.core import fields as fields_lib

_UNIONS = (typing.Union, types.UnionType)


class Field(NamedTuple):
  """A field that can be set: dotted name, annotated type, current value and description.

  `shortest` is the end of the name that may do alone.
  """

  name: str
  kind: Any
  value: Any
  doc: str
  shortest: str


def every(config: Any, prefix: str = '', nested: str = '') -> Iterator[Field]:
  """Yields the fields of a dataclass and of the dataclasses in it, in order.

  Fields that cannot be written as text, such as tuples of dataclasses, are set in configuration
  files only. In the metadata of a field the function `more` returns the part of its description
  that is known only when the program runs, after a newline each line of a list, `without` are the
  fields of a dataclass that the command line does not have, and `nested` is whether those that it
  has keep the name of their group. Names begin with `prefix`, the shortest ones with `nested`.
  """
  kinds, docs = typing.get_type_hints(type(config)), fields_lib.docs(type(config))
  for field in dataclasses.fields(config):
    name, value = prefix + field.name, getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      left_out = {f'{name}.{part}' for part in field.metadata.get('without', ())}
      keeps = nested or field.metadata.get('nested', False)
      inner = every(value, f'{name}.', f'{nested}{field.name}.' if keeps else '')
      yield from (part for part in inner if part.name not in left_out)
    elif _is_text(kinds[field.name]):
      doc = docs.get(field.name, '') + field.metadata.get('more', str)()
      yield Field(name, kinds[field.name], value, doc, nested + field.name)


def _is_text(kind: Any) -> bool:
  """Whether values of a type can be typed on a command line."""
  if typing.get_origin(kind) is typing.Literal:
    return True
  parts = [part for part in typing.get_args(kind) if part is not Ellipsis]
  return all(map(_is_text, parts)) if parts else kind in (bool, int, float, str, type(None))


def short_name(config: Any, field: Field) -> str:
  """Returns the shortest unambiguous name of a field."""
  return field.shortest if find(config, field.shortest) == [field] else field.name


def find(config: Any, name: str) -> list[Field]:
  """Returns the fields that `name` may mean: the one of this dotted name, or those ending in it."""
  fields = list(every(config))
  exact = [field for field in fields if field.name == name]
  return exact or [field for field in fields if f'.{name}'.endswith(f'.{field.shortest}')
                   and f'.{field.name}'.endswith(f'.{name}')]


def override(config: Any, texts: Mapping[str, str | Sequence[str]],
             called: Callable[[str], str] | None = None) -> Any:
  """Replaces fields of a dataclass, which checks all its new values at once.

  `texts` are by dotted name, one, or several of a repeated flag: a field that may be a tuple
  of any length gets all, any other field the last. Raises ValueError for a text that is not of the
  field's type, or a value that the dataclass rejects, with what a field is `called`, by default its
  flag.
  """
  return _replace(config, '', {
      tuple(name.split('.')): [text] if isinstance(text, str) else text
      for name, text in texts.items()},
                  called or (lambda name: f'--{short_name(config, *find(config, name))}'))


def _replace(config: Any, prefix: str, texts: Mapping[tuple[str, ...], Sequence[str]],
             flag_of: Callable[[str], str]) -> Any:
  """Replaces the fields of a group, whose dotted names begin with `prefix`."""
  kinds = typing.get_type_hints(type(config))
  groups: dict[str, dict[tuple[str, ...], Sequence[str]]] = {}
  for path, text in texts.items():
    groups.setdefault(path[0], {})[path[1:]] = text
  new = {}
  for name, inner in groups.items():
    old = getattr(config, name)
    if dataclasses.is_dataclass(old):
      new[name] = _replace(old, f'{prefix}{name}.', inner, flag_of)
      continue
    kind = kinds[name]
    if _takes_several(kind) and type(None) in typing.get_args(kind) and any(
        map(_is_none, inner[()])):
      if len(inner[()]) > 1:
        raise ValueError(f'{flag_of(prefix + name)} is none and {len(inner[()]) - 1} more; give '
                         'none alone, or leave it out.')
      if str in typing.get_args(kind) and old is None:  # It may be any text, such as this word.
        raise ValueError(f'{flag_of(prefix + name)} is none already; leave it out, or give the '
                         'word in a file.')
    try:
      new[name] = _read_all(inner[()], kind)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # Deep brackets.
      bits = ', of at most 64 bits' if re.fullmatch(r'[+-]?\d{19,}', inner[()][-1]) else ''
      raise ValueError(f'{flag_of(prefix + name)}={inner[()][-1]:.80}: it must be '
                       f'{describe(kind)}{bits}'
                       f'{"" if old is None else f", such as {show(old)}"}.') from error
  try:
    return dataclasses.replace(config, **new)
  except (ValueError, TypeError) as error:
    typed = ' '.join(f'{flag_of(prefix + ".".join(path))}={several[-1]:.80}'
                     for path, several in texts.items())
    raise ValueError(f'{typed or "--config"}: {error}') from error


def _read_all(texts: Sequence[str], kind: Any) -> Any:
  values = [read(text, kind) for text in texts]
  if len(values) == 1 or not _takes_several(kind):
    return values[-1]
  return tuple(part for value in values
               for part in (value if isinstance(value, tuple) else (value,)))


def _takes_several(kind: Any) -> bool:
  """Whether a value of a type may be a tuple of any length."""
  return typing.get_args(kind)[1:] == (Ellipsis,) or any(
      map(_takes_several, typing.get_args(kind) if typing.get_origin(kind) in _UNIONS else ()))


def _is_none(text: str) -> bool:
  return text.lower() == 'none'


def read(text: str, kind: Any) -> Any:
  """Parses a text as a value of the annotated type; raises ValueError or SyntaxError."""
  origin, options = typing.get_origin(kind), typing.get_args(kind)
  if origin in _UNIONS:
    if type(None) in options and _is_none(text):
      return None
    # Any text is a str, and one or more of them.
    order = lambda kind: 2 if typing.get_args(kind)[:1] == (str,) else int(kind is str)
    for option in sorted((option for option in options if option is not type(None)), key=order):
      with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return read(text, option)
  if origin is typing.Literal and text in map(str, options):
    return next(option for option in options if str(option) == text)
  if kind is bool and text.lower() in ('true', '1', 'false', '0'):
    return text.lower() in ('true', '1')
  if kind is int:
    return fields_lib.int64(text)
  if kind in (float, str):
    return kind(text)
  if origin is tuple:
    if options[0] is str:
      parts: Sequence[Any] = split(text)
    else:
      value = ast.literal_eval(text)
      parts = value if isinstance(value, (tuple, list)) else (value,)
    each = [options[0]] * len(parts) if options[1:] == (Ellipsis,) else options
    if len(each) == len(parts):
      return tuple(read(str(part), kind) for part, kind in zip(parts, each))
  raise ValueError(text)


def split(text: str) -> list[str]:
  """Splits a text at its commas, except those in brackets."""
  parts, depth = [''], 0
  for letter in text:
    depth += (letter in '([') - (letter in ')]')
    if letter == ',' and not depth:
      parts.append('')
    else:
      parts[-1] += letter
  return [part.strip() for part in parts if part.strip()]


def describe(kind: Any) -> str:
  """Describes a type in words."""
  words: dict[Any, str] = {int: 'a whole number', float: 'a number', str: 'text',
                           bool: 'true or false', type(None): 'none'}
  origin, options = typing.get_origin(kind), typing.get_args(kind)
  if origin in _UNIONS:
    return ' or '.join(map(describe, options))
  if origin is typing.Literal:
    return f'one of {", ".join(map(str, options))}'
  if origin is tuple:
    return 'values separated by commas'
  return words.get(kind, f'a {kind}')


def show(value: Any) -> str:
  """Returns a value as it is typed on the command line."""
  if isinstance(value, tuple):
    return ','.join(map(show, value))
  return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def command_line(program: str, **flags: Any) -> str:
  """Returns a command as it is typed in a shell; flags that are None or False are left out.

  It imports the modules that the running command has imported.
  """
  words = [f'--import={shlex.quote(module)}' for module in imports.MODULES]
  words += [f'--{name}={shlex.quote(show(value))}' for name, value in flags.items()
            if value is not None and value is not False]
  return ' '.join([program, *words])
