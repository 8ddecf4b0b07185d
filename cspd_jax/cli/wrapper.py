"""The wrapper around every `main`: parses the command line and returns the exit code.

  @cli.command(Config)
  def main(config: Config) -> None:
    ...

  if __name__ == '__main__':
    sys.exit(main())

Every field of the configuration is a flag: `--seed=1` sets the only field of that name, and
`--config.images.seed=1` sets it by its full name. Invalid input ends with one line on stderr and
exit code 2, Ctrl-C with 130, and a bug with a traceback.

A configuration file is Python with a function `get_config()` that returns a dataclass; it is run as
it stands, so users must trust it. A file with several has `get_config(name)`, see `named`:
`--config=FILE:NAME` passes the name. `--import=MODULE`, which may be repeated, imports a module
first: what it registers, such as a family or a decoder, the command finds by name. See `imports`.
"""

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import logging as std_logging
import os
import pathlib
import re
import shlex
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
from absl import flags, logging

from cspd_jax.cli import compiled, exits, fields, imports
from cspd_jax.core import fields as fields_lib, guesses, naming
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.files import paths
from cspd_jax.version import __version__

Value = TypeVar('Value')

_PREFIX = 'config.'
_TRUST = 'a Python file, which is run, so use only one that you trust.'
# A configuration file, and the name of one of its configurations.
_NAMED = re.compile(r'(.*?)(?::(\w*))?', re.DOTALL)
# Fields that hold the path of an output.
_FOLDERS, _FILES = ('workdir', 'output', 'export', 'store'), ('stream',)
_line = contextvars.ContextVar('line', default='')


class Command:
  """A command: `command(argv)` runs it and returns its exit code."""

  def __init__(self, main: Callable, defaults: Callable[[], Any] | None, config: str | None,
               flags: Any, kept: str | None, resumes: bool, environment: str | None):
    functools.update_wrapper(self, main)
    self._main, self._defaults, self._config, self._flags = main, defaults, config, flags
    self._kept, self._resumes, self._environment = kept, resumes, environment

  def __call__(self, argv: Sequence[str] | None = None) -> int:
    """Runs a command line that begins with the name of the command; None means the process's."""
    words = list(sys.argv if argv is None else argv)[1:]
    logging.set_verbosity(logging.WARNING)  # Loading a checkpoint logs a page.
    with _log(self._main), _running(self._main, words):
      return exits.code_of(
          lambda: self._run([word for word in words if word != '--debug']), '--debug' in words)

  def _run(self, words: Sequence[str]) -> int | None:
    if '--version' in words:
      print(f'cspd_jax {__version__}, jax {jax.__version__}')
      return 0
    path, modules, words = self._first(words)
    imports.run(modules)
    if path is not None:
      config = load(path)
      self._check_kind(config)
    else:
      config = self._defaults() if self._defaults else None
    if any(word in ('--help', '-h', '--helpfull') for word in words):
      print(self._help(path, config))
      return 0
    arguments = self._arguments(config, words)
    for argument in arguments:
      _check_places(argument)
    compiled.enable()
    try:
      return usual_promotion(self._main)(*arguments)
    except KeyboardInterrupt as stop:
      if stop.args or self._kept is None:
        raise
      again = 'resumes' if self._resumes else 'starts again'
      raise KeyboardInterrupt(f'{self._kept}; the same command {again}') from stop
    except ValueError as error:
      if error.args and isinstance(error.args[0], str):
        error.args = (_as_flags(error.args[0], arguments), *error.args[1:])
      raise

  def _first(self, words: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
    """The configuration file, the modules to import, and the other words."""
    values = flags.FlagValues()
    flags.DEFINE_multi_string('import', [], 'Modules to import.', flag_values=values)
    if has_config := self._config is not None or self._defaults is not None:
      flags.DEFINE_string('config', self._config, 'Configuration file.', flag_values=values)
    try:
      rest = values(['command', *words], known_only=True)[1:]
    except flags.Error as error:
      name = 'config=FILE' if 'config' in str(error) else 'import=MODULE'
      raise ValueError(f'{error} Write --{name}.') from error
    return values['config'].value if has_config else None, list(values['import'].value or ()), rest

  def _arguments(self, config: Any, words: Sequence[str]) -> list[Any]:
    groups = [group for group in (self._flags, config) if group is not None]
    values, fields_by_flag = self._flag_values(groups)
    try:
      rest = values(['command', *words])[1:]
      if rest:
        raise flags.Error(f'{rest[0]!r} is not a flag.')
    except flags.Error as error:
      text = str(error)
      if isinstance(error, flags.UnrecognizedFlagError):
        text = _unknown(error.flagname, groups)
      elif isinstance(error, flags.IllegalFlagValueError):  # Only flags of bools have such texts.
        text = f'{text.partition(": ")[0].removeprefix("flag ")}: it must be true or false.'
      raise ValueError(f'{text} See --help.') from error
    texts: list[dict[str, list[str]]] = [{} for _ in groups]
    for name, (number, field) in fields_by_flag.items():
      if values[name].present:
        value = values[name].value
        texts[number].setdefault(field.name, []).extend(
            value if isinstance(value, list) else [str(value)])
    if self._environment is not None:
      groups = [_with_environment(group, self._environment, overrides)
                for group, overrides in zip(groups, texts)]
    arguments = [fields.override(group, overrides) for group, overrides in zip(groups, texts)]
    if config is None and self._defaults is not None:  # There is no file, and no default.
      arguments.append(None)
    return arguments[::-1]

  def _check_kind(self, config: Any) -> None:
    """Raises ValueError unless a configuration has the fields and types of the default one."""
    expected = self._defaults
    if not isinstance(expected, type) or isinstance(config, expected):
      return
    defaults = {field.name: field.default for field in dataclasses.fields(expected)}
    if missing := defaults.keys() - {field.name for field in dataclasses.fields(config)}:
      raise ValueError(
          f'--config returns a {type(config).__name__} without {", ".join(sorted(missing))}; this '
          f'command requires the fields of {expected.__module__}.{expected.__name__}.')
    values = {name: getattr(config, name) for name in defaults}
    # Groups of fields may be of another kind, and check themselves.
    values |= {name: default for name, default in defaults.items()
               if dataclasses.is_dataclass(default) and dataclasses.is_dataclass(values[name])}
    try:
      expected(**values)
    except ValueError as error:
      raise ValueError(f'--config returns a {type(config).__name__} with values that this command '
                       f'does not accept: {error}') from error

  def _flag_values(self, groups: Sequence[Any]) -> tuple[
      flags.FlagValues, dict[str, tuple[int, fields.Field]]]:
    """absl flags for all fields by all their names, and the group and field of each flag."""
    values, fields_by_flag = flags.FlagValues(), {}
    for number, group in enumerate(groups):
      for field in fields.every(group):
        names = [field.name, fields.short_name(group, field)]
        if group is not self._flags:
          names += [_PREFIX + name for name in names]
        for name in dict.fromkeys(names):
          if name in fields_by_flag:  # A flag of the command hides its configuration's.
            continue
          fields_by_flag[name] = number, field
          define = flags.DEFINE_boolean if field.kind is bool else flags.DEFINE_multi_string
          define(name, None, field.doc, flag_values=values)
    return values, fields_by_flag

  def _help(self, path: str | None, config: Any) -> str:
    lines = [(inspect.getdoc(inspect.getmodule(self._main)) or '').strip(), '']
    if self._flags is not None:
      lines += ['Flags:', '', *_listed(self._flags)]
    if config is not None:
      lines += [
          f'Fields of the configuration, with the values of {path}.' if path else
          'Fields of the configuration, with their defaults.',
          f'--config=FILE or --config=FILE:NAME reads another one, {_TRUST}',
          '--config.FIELD=VALUE is the same as --FIELD=VALUE:', '', *_listed(config)]
      if self._environment is not None:
        lines += [f'A variable of the environment, such as {self._environment}'
                  f'{fields.short_name(config, next(fields.every(config))).upper()}, sets a field, '
                  'unless its flag is passed.', '']
    elif self._defaults is not None:
      lines += ['--config=FILE or --config=FILE:NAME', f'    reads a configuration, {_TRUST}']
    lines += ['--import=MODULE', *textwrap.wrap(
        'imports a module first, such as a file of the current folder that registers a family; it '
        f'is {_TRUST}', 96, initial_indent=' ' * 4, subsequent_indent=' ' * 4)]
    lines += ['--help, -h', '    prints this text', '--version', '    prints the version',
              '--debug', '    prints the traceback of an error']
    return '\n'.join(lines)


class _Handler(std_logging.Handler):
  """Writes log lines to stderr: all of this package and its program, of others only warnings."""

  def __init__(self, main: Callable):
    super().__init__()
    program = getattr(inspect.getmodule(main), '__file__', None) or __file__
    self._own = pathlib.Path(__file__).parents[1], pathlib.Path(program).parent

  def emit(self, record: std_logging.LogRecord) -> None:
    own = any(map(pathlib.Path(record.pathname).is_relative_to, self._own))
    if own or record.levelno >= std_logging.WARNING:
      print(record.getMessage(), file=sys.stderr)


@contextlib.contextmanager
def _log(main: Callable) -> Iterator[None]:
  """Shows log lines on stderr, in place of what other packages have set up when imported."""
  root = std_logging.getLogger()
  others, root.handlers = root.handlers, [_Handler(main)]
  try:
    yield
  finally:
    root.handlers = others


@contextlib.contextmanager
def _running(main: Callable, words: Sequence[str]) -> Iterator[None]:
  """Sets what `line` returns."""
  module = inspect.getmodule(main)
  # That of a program which `python -m` runs is `__main__`.
  name = str(getattr(getattr(module, '__spec__', None), 'name', main.__module__))
  shown = [name.replace('cspd_jax.commands.', 'cspd-') if name.startswith('cspd_jax.commands.')
           else f'python -m {name}']
  rest = iter(words)
  for word in rest:
    flag, is_set, value = word.partition('=')
    if flag.removeprefix('--').removeprefix(_PREFIX) not in _FOLDERS:
      shown.append(flag + is_set + (shlex.quote(value) if value else ''))
    elif not is_set:
      next(rest, None)
  token = _line.set(' '.join(shown))
  try:
    yield
  finally:
    _line.reset(token)


def line() -> str:
  """Returns the command that runs, as it is typed, without the folder of its results."""
  return _line.get()


def command(defaults: Callable[[], Any] | None = None, *, config: str | None = None,
            flags: Any = None, kept: str | None = None, resumes: bool = True,
            environment: str | None = None) -> Callable[[Callable], Command]:
  """Turns a `main` into a command.

  Args:
    defaults: returns the configuration where no file is passed, or None if `main` does without;
      None for a command whose configuration is always a file, or that has none. If it is a
      dataclass, configurations from files must have its fields.
    config: the default configuration file.
    flags: a dataclass of flags in addition to the configuration, with their defaults.
    kept: what Ctrl-C leaves, as a sentence; None if nothing is said, or `main` says it: the
      argument of its KeyboardInterrupt.
    resumes: whether the same command resumes from what is kept, in place of starting again.
    environment: what the names of variables of the environment begin with, of which each sets the
      field that the rest of its name is, in capitals; None for no such variables.

  Returns:
    A decorator for `main(config)`, `main(flags)` or `main(config, flags)`, which returns None or
    an exit code and raises ValueError for invalid input.
  """
  return lambda main: Command(main, defaults, config, flags, kept, resumes, environment)


def _with_environment(config: Any, prefix: str, flagged: Collection[str]) -> Any:
  """Replaces the fields that variables of the environment set, but for those with a flag."""
  fields_by_name = {fields.short_name(config, field).replace('.', '_'): field.name
                    for field in fields.every(config)}
  texts = {}
  for variable, text in os.environ.items():
    name = variable.removeprefix(prefix).lower()
    if not variable.startswith(prefix) or not text:  # An empty one is as none, as in a shell.
      continue
    if name in fields_by_name:
      texts[fields_by_name[name]] = text
    elif (near := naming.nearest(name, fields_by_name)) is not None:
      raise ValueError(f'{variable} is a variable of the environment, and no setting of this '
                       f'command; did you mean {prefix}{near.upper()}?')
  variables = {field: prefix + name.upper() for name, field in fields_by_name.items()}
  return fields.override(config, {name: text for name, text in texts.items()
                                  if name not in flagged}, variables.__getitem__)


def _unknown(flag: str, groups: Sequence[Any]) -> str:
  """Says that a flag does not exist, and which may be meant."""
  name = flag.removeprefix(_PREFIX)
  known = {field.name: fields.short_name(group, field) for group in groups
           for field in fields.every(group)}
  if several := [f'--{field}' for field in known if field.endswith(f'.{name}')]:
    return f'--{name} may be any of {", ".join(several)}; say which.'
  if members := [f'--{short}' for field, short in known.items() if field.startswith(f'{name}.')]:
    return f'--{name} is a group of fields; set one of: {", ".join(members)}.'
  supported = list(dict.fromkeys(known.values()))
  otherwise = f'; flags are: {", ".join(supported)}.'
  if 'decoder' in supported:
    otherwise = f"; for a parameter of a decoder, write --decoder='NAME({name}=VALUE)'{otherwise}"
  return f'--{flag} is not a flag' + _as_flags(
      naming.suggestion(name, supported, guesses.FLAGS, '--{}', otherwise), groups)


def _as_flags(message: str, arguments: Sequence[Any]) -> str:
  """Writes the arguments that a message, of a function that users also call, advises as flags."""
  names = {fields.short_name(group, field) for group in arguments if group is not None
           for field in fields.every(group)}
  # With a value, as "with tokenizer=FOLDER", or alone, as "or pass overwrite."
  advised = r'\b(?:(?:[Pp]ass|[Gg]ive) (?=(\w+)[=,.;])|(?:with|or|and) (?=(\w+)=))'

  def flag(match: re.Match[str]) -> str:
    name = match[1] or match[2]
    if name in names:
      return f'{match[0]}--'
    # A network by its role.
    is_part = 'parts' in names and message.startswith(f'{name}=FOLDER', match.end())
    return f'{match[0]}--parts=' if is_part else match[0]

  return re.sub(advised, flag, message)


def _check_places(argument: Any) -> None:
  """Raises ValueError for an output path that cannot be written, before anything is loaded."""
  for names, check in ((_FOLDERS, paths.folder), (_FILES, paths.file)):
    for name in names:
      if (place := getattr(argument, name, None)) is not None:
        check(name, place)


def _listed(group: Any) -> list[str]:
  lines = []
  # How a model is loaded stands after the fields of the work itself.
  is_last = lambda field: field.name.startswith('loading.') and field.name != 'loading.model'
  for field in sorted(fields.every(group), key=is_last):
    lines.append(f'--{fields.short_name(group, field)}={fields.show(field.value)}')
    text, *listed = field.doc.split('\n')
    wrapped = lambda line, indent: textwrap.wrap(
        line, 96, initial_indent=' ' * 4, subsequent_indent=' ' * indent)
    lines += wrapped(f'{text} ({fields.describe(field.kind)})'.strip(), 4)
    for line in listed:
      lines += wrapped(f'  {line}', 8)
  return [*lines, '']


def named(configs: Mapping[str, Value], name: str) -> Value:
  """Returns the configuration of a name, or raises ValueError; for `get_config(name)` of a file."""
  fields_lib.require(name in configs, 'the name', name,
                     f'one of {", ".join(configs)}; write --config=FILE:NAME')
  return configs[name]


def load(config: str) -> Any:
  """Runs a configuration file, or `FILE:NAME`; returns what `get_config` does, or ValueError."""
  path, name = _NAMED.fullmatch(config).groups()  # type: ignore[union-attr]  # Matches all texts.
  file, names = paths.find('--config', path), () if name is None else (name,)
  if not file.is_file():
    near = sorted(str(p) for p in file.parent.glob('*.py') if p.name != '__init__.py')
    raise ValueError(f'--config={path}: no such file. ' + (
        f'In {file.parent}: {", ".join(near)}.' if near else
        f'{file.parent} has no configurations either; run from the root of the repository.'))
  module = types.ModuleType(f'config_{file.stem}')
  module.__file__ = str(file)
  sys.modules[module.__name__] = module  # Where the types of the fields are looked up.
  problem, result = 'there is no function get_config(), which returns a dataclass; add it', None
  try:
    exec(compile(file.read_bytes(), file, 'exec'), vars(module))
    if callable(get_config := getattr(module, 'get_config', None)):
      try:
        inspect.signature(get_config).bind(*names)
      except TypeError:
        problem = (f'get_config() takes no name; write --config={path}' if names else
                   f'get_config() requires a name; write --config={path}:NAME')
      else:
        result = get_config(*names)
        problem = (f'get_config() returned a {type(result).__name__}; it must return an '
                   'instance of a dataclass')
  except ValueError as error:
    raise ValueError(f'--config={config}: {str(error).rstrip(".")}.') from error
  except (Exception, SystemExit) as error:  # It is any Python, and may fail in any way.
    raise ValueError(f'--config={config} cannot be run: {type(error).__name__}: {error}.'
                     ) from error
  if not dataclasses.is_dataclass(result) or isinstance(result, type):
    raise ValueError(f'--config={config}: {problem}.')
  return result
