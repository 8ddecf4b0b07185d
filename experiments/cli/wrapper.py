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

from absl import flags, logging

from cspd_jax.checkpoints import paths
from cspd_jax.core import exits
from experiments.cli import fields, loader

_PREFIX = 'config.'
_WIDTH = 96
# What fields are called that name places to write.
_FOLDERS, _FILES = ('workdir', 'output', 'export', 'store'), ('json',)


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
    return exits.code_of(
        lambda: self._run([word for word in words if word != '--debug']), '--debug' in words)

  def _run(self, words: Sequence[str]) -> int | None:
    path, words = self._config_path(words)
    config = loader.load(path) if path is not None else None
    if any(word in ('--help', '-h', '--helpfull') for word in words):
      print(self._help(path, config))
      return 0
    arguments = self._arguments(config, words)
    for argument in arguments:
      _check_places(argument)
    return self._main(*arguments)

  def _config_path(self, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """What --config says, and the other words."""
    if self._config is None:
      return None, list(words)
    values = flags.FlagValues()
    flags.DEFINE_string('config', self._config, 'Configuration file.', flag_values=values)
    try:
      rest = values(['program', *words], known_only=True)[1:]
    except flags.Error as error:
      raise ValueError(f'{error} Write --config=FILE.') from error
    return values['config'].value, rest

  def _arguments(self, config: Any, words: Sequence[str]) -> list[Any]:
    """What `main` is called with."""
    self._check_kind(config)
    groups = [group for group in (self._flags, config) if group is not None]
    values, meant = self._flag_values(groups)
    try:
      rest = values(['program', *words])[1:]
    except flags.UnrecognizedFlagError as error:
      raise ValueError(f'{_unknown(error.flagname, groups)} See --help.') from error
    except flags.IllegalFlagValueError as error:  # All others are texts.
      given = str(error).partition(': ')[0].removeprefix('flag ')
      raise ValueError(f'{given}: it takes true or false. See --help.') from error
    except flags.Error as error:
      raise ValueError(f'{error} See --help.') from error
    if rest:
      raise ValueError(f'{rest[0]!r} is not a flag; see --help.')
    texts: list[dict[str, str]] = [{} for _ in groups]
    for name, (number, field) in meant.items():
      if values[name].present:
        texts[number][field.name] = str(values[name].value)
    return [fields.override(group, given) for group, given in zip(groups, texts)][::-1]

  def _check_kind(self, config: Any) -> None:
    """Raises ValueError unless a configuration has the fields that are expected, and their types.
    """
    if self._expected is None or isinstance(config, self._expected):
      return
    wanted = {field.name: field.default for field in dataclasses.fields(self._expected)}
    if missing := wanted.keys() - {field.name for field in dataclasses.fields(config)}:
      raise ValueError(
          f'--config gives a {type(config).__name__} without {", ".join(sorted(missing))}; this '
          f'program takes one like {self._config}.')
    values = {name: getattr(config, name) for name in wanted}
    # Groups of fields may be of another kind, and check themselves.
    values |= {name: default for name, default in wanted.items()
               if dataclasses.is_dataclass(default) and dataclasses.is_dataclass(values[name])}
    try:
      self._expected(**values)
    except ValueError as error:
      raise ValueError(f'--config gives a {type(config).__name__} with values that this program '
                       f'cannot take: {error}') from error

  def _flag_values(self, groups: Sequence[Any]) -> tuple[
      flags.FlagValues, dict[str, tuple[int, fields.Field]]]:
    """absl flags for all fields by all their names, and the group and field that each means."""
    values, meant = flags.FlagValues(), {}
    for number, group in enumerate(groups):
      for field in fields.every(group):
        names = [field.name, fields.short_name(group, field)]
        if group is not self._flags:
          names += [_PREFIX + name for name in names]
        for name in dict.fromkeys(names):
          if name in meant:  # A flag of the program hides that of its configuration.
            continue
          meant[name] = number, field
          define = flags.DEFINE_boolean if _is_bool(field) else flags.DEFINE_string
          define(name, None, field.doc, flag_values=values)
    return values, meant

  def _help(self, path: str | None, config: Any) -> str:
    """The program's docstring and its flags."""
    lines = [(inspect.getdoc(inspect.getmodule(self._main)) or '').strip(), '']
    if self._flags is not None:
      lines += ['Flags:', '', *_listed(self._flags)]
    if config is not None:
      lines += [
          f'Fields of the configuration, with the values of {path}. --config=FILE takes another '
          'file: Python that is run,', 'so give only one that you trust. --config.FIELD=VALUE is '
          'the same as --FIELD=VALUE:', '', *_listed(config)]
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


def _unknown(name: str, groups: Sequence[Any]) -> str:
  """What is wrong with a name that is no flag, and what may be meant."""
  last = name.removeprefix(_PREFIX)
  every = [(group, field) for group in groups for field in fields.every(group)]
  if several := [field.name for _, field in every if field.name.endswith(f'.{last}')]:
    return f'--{last} may be any of {", ".join(f"--{one}" for one in several)}; say which.'
  if group := [fields.short_name(*one) for one in every if one[1].name.startswith(f'{last}.')]:
    return f'--{last} is a group of fields; set one of: {", ".join(f"--{one}" for one in group)}.'
  names = list(dict.fromkeys(fields.short_name(*one) for one in every))
  near = difflib.get_close_matches(last, names, n=1)
  return f'--{name} is not a flag; ' + (
      f'did you mean --{near[0]}?' if near else f'flags are: {", ".join(names)}.')


def _check_places(argument: Any) -> None:
  """Raises ValueError for a place that cannot be written, before anything is loaded for it."""
  for names, check in ((_FOLDERS, paths.folder), (_FILES, paths.file)):
    for name in names:
      if (place := getattr(argument, name, None)) is not None:
        check(name, place)


def _is_bool(field: fields.Field) -> bool:
  return field.kind is bool


def _listed(group: Any) -> list[str]:
  """The fields of a dataclass as lines of the help text."""
  lines = []
  for field in fields.every(group):
    lines.append(f'--{fields.short_name(group, field)}={fields.show(field.value)}')
    lines += textwrap.wrap(
        f'{field.doc} ({fields.describe(field.kind)})'.strip(), _WIDTH, initial_indent='    ',
        subsequent_indent='    ')
  return [*lines, '']
