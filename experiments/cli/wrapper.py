"""The wrapper around every `main`: command line in, exit code out.

  @cli.program(config='configs/compare/demo.py')
  def main(config):
    ...

  if __name__ == '__main__':
    sys.exit(main())

Every field of the configuration is a flag of its own: `--seed=1` sets the only field of that name,
wherever it is, and `--config.images.seed=1` says where. What is wrong with the input ends with one
line on stderr and exit code 2, Ctrl-C with 130, and anything that is no mistake of the user's with
a traceback.
"""

import dataclasses
import difflib
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from experiments.cli import fields
from experiments.cli import loader

_PREFIX = 'config.'
_WIDTH = 96


class Program:
  """A program: `program(argv)` runs it and returns its exit code."""

  def __init__(self, main: Callable, config: str | None, expected: type | None, flags: Any):
    functools.update_wrapper(self, main)
    self._main, self._config, self._expected, self._flags = main, config, expected, flags

  def __call__(self, argv: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
      argv: the words of the command line, the program's name first; those of the process if None.
    """
    words = list(sys.argv if argv is None else argv)[1:]
    logging.use_absl_handler()
    logging.set_verbosity(logging.WARNING)  # Loading a checkpoint logs a page.
    debug = '--debug' in words
    try:
      path, words = self._config_path([word for word in words if word != '--debug'])
      config = loader.load(path) if path is not None else None
      if any(word in ('--help', '-h', '--helpfull') for word in words):
        print(self._help(path, config))
        return 0
      return self._main(*self._arguments(config, words)) or 0
    except KeyboardInterrupt:
      print('interrupted', file=sys.stderr)
      return 130
    except (ValueError, ImportError, FileNotFoundError, PermissionError) as error:
      if debug:
        raise
      print(f'error: {error}', file=sys.stderr)
      return 2

  def _config_path(self, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """What --config says, and the other words."""
    if self._config is None:
      return None, list(words)
    path, rest, left = self._config, [], iter(words)
    for word in left:
      name, found, text = word.partition('=')
      if name.lstrip('-') == 'config' and name.startswith('-'):
        path = text if found else next(left, None)
        if path is None:
          raise ValueError('--config has no value; write --config=FILE.')
      else:
        rest.append(word)
    return path, rest

  def _arguments(self, config: Any, words: Sequence[str]) -> list[Any]:
    """What `main` is called with."""
    if self._expected is not None:
      missing = ({field.name for field in dataclasses.fields(self._expected)} -
                 {field.name for field in dataclasses.fields(config)})
      if missing:
        raise ValueError(
            f'--config gives a {type(config).__name__} without {", ".join(sorted(missing))}; this '
            f'program takes one like {self._config}.')
    places = [place for place in (self._flags, config) if place is not None]
    texts: list[dict[str, str]] = [{} for _ in places]
    left = iter(words)
    for word in left:
      if not word.startswith('--') or word == '--':
        raise ValueError(f'{word!r} is not a flag; see --help.')
      name, found, text = word[2:].partition('=')
      number, field, negated = self._find(name, places)
      if negated and found:
        raise ValueError(f'--{name} takes no value; write --{name} or --{field.name}=false.')
      if not found and _is_bool(field):
        text = 'false' if negated else 'true'
      elif not found:
        text = next(left, None)
        if text is None:
          raise ValueError(f'--{name} has no value; write --{name}=VALUE.')
      texts[number][field.name] = text
    changed = [fields.override(place, given) for place, given in zip(places, texts)]
    return changed[::-1]  # The configuration first.

  def _find(self, name: str, places: Sequence[Any]) -> tuple[int, fields.Field, bool]:
    """The place and the field that a flag sets, and whether it is `--no<field>`."""
    in_config = name.startswith(_PREFIX)
    name = name.removeprefix(_PREFIX)
    for negated in (False, True):
      wanted = name.removeprefix('no') if negated else name
      for number, place in enumerate(places):
        found = [] if in_config and place is self._flags else fields.find(place, wanted)
        found = [field for field in found if not negated or _is_bool(field)]
        if len(found) > 1:
          raise ValueError(f'--{name} may be any of '
                           f'{", ".join(f"--{field.name}" for field in found)}; say which.')
        if found:
          return number, found[0], negated
    names = [one for place in places for field in fields.every(place)
             for one in (fields.short_name(place, field), field.name)]
    if group := [one for one in names if one.startswith(f'{name}.')]:
      raise ValueError(f'--{name} is a group of fields; set one of: '
                       f'{", ".join(f"--{one}" for one in dict.fromkeys(group))}.')
    near = difflib.get_close_matches(name, names, n=1)
    hint = f'did you mean --{near[0]}?' if near else (
        f'flags are: {", ".join(dict.fromkeys(names))}.')
    raise ValueError(f'--{name} is not a flag; {hint} See --help.')

  def _help(self, path: str | None, config: Any) -> str:
    """The program's docstring and its flags."""
    lines = [(inspect.getdoc(inspect.getmodule(self._main)) or '').strip(), '']
    if self._flags is not None:
      lines += ['Flags:', '', *_listed(self._flags)]
    if config is not None:
      lines += [
          f'Fields of the configuration, with the values of {path}. --config=FILE takes another '
          'file,', '--config.FIELD=VALUE is the same as --FIELD=VALUE:', '', *_listed(config)]
    lines += ['--help', '    this text', '--debug', '    shows where an error comes from']
    return '\n'.join(lines)


def program(config: str | None = None, *, expected: type | None = None,
            flags: Any = None) -> Callable[[Callable], Program]:
  """Makes a program of a `main`.

  Args:
    config: the default configuration file; None for a program without one.
    expected: a dataclass whose fields the configuration must have, if not any will do.
    flags: a dataclass of flags beside the configuration, with their defaults; None for none.

  Returns:
    A decorator for `main(config)`, `main(flags)` or `main(config, flags)`, which returns None or
    an exit code and raises ValueError for input that cannot work.
  """
  return lambda main: Program(main, config, expected, flags)


def _is_bool(field: fields.Field) -> bool:
  return field.kind is bool


def _listed(place: Any) -> list[str]:
  """The fields of a dataclass as lines of the help text."""
  lines = []
  for field in fields.every(place):
    lines.append(f'--{fields.short_name(place, field)}={fields.show(field.value)}')
    lines += textwrap.wrap(
        f'{field.doc} ({fields.describe(field.kind)})'.strip(), _WIDTH, initial_indent='    ',
        subsequent_indent='    ')
  return [*lines, '']
