"""`--config=FILE` and `--config.field=value` for the programs in this folder.

A configuration is a Python file with a function `get_config()` that returns a frozen dataclass;
dataclasses may hold dataclasses. Every field can be changed on the command line, and the text is
read as the type of the field:

  python -m experiments.train --config=configs/demo_train.py --config.target_train.num_steps=100

In a program:

  _CONFIG = config_flags.DEFINE_config(default='configs/demo_train.py')

  def main(argv):
    config = _CONFIG.value()

  if __name__ == '__main__':
    app.run(main, flags_parser=config_flags.parse)

Mistakes end the program with one message that says what is allowed, and exit code 2.
"""

import ast
import dataclasses
import importlib.util
import pathlib
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

from absl import flags

_PREFIX = 'config.'


class ConfigError(ValueError):
  """A configuration file or an override that cannot be used."""


@dataclasses.dataclass
class Handle:
  """The configuration of the command line, read when it is asked for."""

  flag: flags.FlagHolder
  overrides: list[tuple[str, str]] = dataclasses.field(default_factory=list)

  def value(self) -> Any:
    """Loads the file and applies the overrides; a mistake ends the program with code 2."""
    try:
      return override(load(self.flag.value), self.overrides)
    except ConfigError as error:
      print(f'error: {error}', file=sys.stderr)
      sys.exit(2)


_handles: list[Handle] = []


def DEFINE_config(default: str | None = None) -> Handle:  # pylint: disable=invalid-name
  """Defines `--config` with its overrides; call it once per program, at the top level."""
  flag = flags.DEFINE_string(
      'config', default, 'Python file with a function get_config() that returns a dataclass. '
      'Change a field with --config.field=value, a field of a field with '
      '--config.field.field=value. A wrong name prints the list of the right ones.',
      required=default is None)
  handle = Handle(flag)
  _handles[:] = [handle]
  return handle


def parse(argv: Sequence[str]) -> list[str]:
  """The `flags_parser` for `app.run`: takes the overrides out, then parses as absl does."""
  rest, overrides = [], []
  words = iter(argv)
  for word in words:
    name = word.lstrip('-')
    if not (word.startswith('-') and name.startswith(_PREFIX)):
      rest.append(word)
      continue
    name, found, text = name[len(_PREFIX):].partition('=')
    if not found:
      text = next(words, None)
      if text is None:
        print(f'error: --{_PREFIX}{name} has no value; write --{_PREFIX}{name}=value.',
              file=sys.stderr)
        sys.exit(2)
    overrides.append((name, text))
  for handle in _handles:
    handle.overrides[:] = overrides
  try:
    return flags.FLAGS(rest)
  except flags.Error as error:
    print(f'error: {error} See --help.', file=sys.stderr)
    sys.exit(2)


def load(path: str) -> Any:
  """Runs a configuration file and returns what its `get_config()` returns.

  Raises:
    ConfigError: if there is no such file, it fails, or it returns no dataclass.
  """
  file = pathlib.Path(path)
  if not file.is_file():
    near = sorted(str(p) for p in file.parent.glob('*.py') if p.name != '__init__.py')
    raise ConfigError(f'--config={path}: there is no such file. ' + (
        f'In {file.parent}: {", ".join(near)}.' if near else
        f'{file.parent} holds no configurations either; run from the root of the repository.'))
  spec = importlib.util.spec_from_file_location(f'config_{file.stem}', file)
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    if not hasattr(module, 'get_config'):
      raise ConfigError(f'--config={path} has no function get_config(); it must define one that '
                        'returns a dataclass.')
    config = module.get_config()
  except ConfigError:
    raise
  except Exception as error:  # A configuration is any Python, and may fail in any way.
    raise ConfigError(f'--config={path} cannot be run: {type(error).__name__}: {error}') from error
  if not dataclasses.is_dataclass(config) or isinstance(config, type):
    raise ConfigError(f'--config={path}: get_config() returned a {type(config).__name__}; '
                      'it must return an instance of a dataclass.')
  return config


def override(config: Any, overrides: Sequence[tuple[str, str]]) -> Any:
  """`config` with every `(dotted name, text)` applied; the last one of a name counts.

  Fields that must agree can be changed together: a dataclass sees all its new values at once.

  Raises:
    ConfigError: for an unknown field, a text that is not of the field's type, or a value that the
      dataclass itself refuses.
  """
  return _replace(config, '', {tuple(name.split('.')): text for name, text in overrides})


def _replace(config: Any, prefix: str, texts: dict[tuple[str, ...], str]) -> Any:
  """`config`, reached by the dotted `prefix`, with the fields at the given paths replaced."""
  fields = {field.name for field in dataclasses.fields(config)}
  hints = typing.get_type_hints(type(config))
  groups: dict[str, dict[tuple[str, ...], str]] = {}
  for path, text in texts.items():
    groups.setdefault(path[0], {})[path[1:]] = text
  new = {}
  for field, inner in groups.items():
    name = f'{_PREFIX}{prefix}{field}'
    if field not in fields:
      raise ConfigError(f'--{name}: {type(config).__name__} has no field {field!r}; '
                        f'it has: {", ".join(sorted(fields))}.')
    old = getattr(config, field)
    if dataclasses.is_dataclass(old):
      if () in inner:
        names = ', '.join(f'--{name}.{part.name}' for part in dataclasses.fields(old))
        raise ConfigError(f'--{name} is a group of fields; set one of: {names}.')
      new[field] = _replace(old, f'{prefix}{field}.', inner)
    elif set(inner) != {()}:
      raise ConfigError(f'--{name} is a value without fields of its own.')
    else:
      try:
        new[field] = _read(inner[()], hints[field])
      except (ValueError, SyntaxError) as error:
        raise ConfigError(f'--{name}={inner[()]}: the field takes {_describe(hints[field])}, '
                          f'such as {old!r}.') from error
  try:
    return dataclasses.replace(config, **new)
  except ConfigError:
    raise
  except (ValueError, TypeError) as error:
    given = ' '.join(f'--{_PREFIX}{prefix}{".".join(path)}={text}' for path, text in texts.items())
    raise ConfigError(f'{given}: {error}') from error


def _read(text: str, kind: Any) -> Any:
  """`text` as a value of the annotated type `kind`; raises ValueError or SyntaxError."""
  if typing.get_origin(kind) in (typing.Union, types.UnionType):
    kinds = typing.get_args(kind)
    if type(None) in kinds and text.lower() == 'none':
      return None
    # Text fits everything, so it is tried last.
    for option in sorted((k for k in kinds if k is not type(None)), key=lambda k: k is str):
      try:
        return _read(text, option)
      except (ValueError, SyntaxError):
        continue
    raise ValueError(text)
  if kind is bool:
    if text.lower() not in ('true', 'false', '1', '0'):
      raise ValueError(text)
    return text.lower() in ('true', '1')
  if kind in (int, float, str):
    return kind(text)
  if kind is tuple or typing.get_origin(kind) is tuple:
    value = ast.literal_eval(text)
    value = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    inner = typing.get_args(kind)
    if inner:
      each = [inner[0]] * len(value) if len(inner) == 2 and inner[1] is Ellipsis else inner
      if len(each) != len(value):
        raise ValueError(text)
      value = tuple(_read(str(item), k) for item, k in zip(value, each))
    return value
  raise ValueError(text)


def _describe(kind: Any) -> str:
  words: dict[Any, str] = {int: 'a whole number', float: 'a number', str: 'text',
                           bool: 'true or false', type(None): 'none'}
  if typing.get_origin(kind) in (typing.Union, types.UnionType):
    return ' or '.join(_describe(option) for option in typing.get_args(kind))
  if kind is tuple or typing.get_origin(kind) is tuple:
    return 'values in parentheses, separated by commas'
  return words.get(kind, f'a {kind}')
