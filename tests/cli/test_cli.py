"""The command line of programs: configurations, flags, help, errors, exit codes."""

import dataclasses
import logging
import pathlib
import re
import sys
from typing import Literal

import pytest

from cspd_jax.cli import fields, groups, imports, inputs, wrapper

ROOT = pathlib.Path(__file__).parents[2]

_CONFIG = '''
"""A configuration."""
import dataclasses

@dataclasses.dataclass(frozen=True)
class Inner:
  """What is inside.

  Attributes:
    rate: how fast it goes, in a sentence that is
      longer than a line.
    steps: of the inner loop.
  """

  rate: float = 0.5
  steps: int = 1

  def __post_init__(self):
    if self.rate < 0:
      raise ValueError(f'rate is {self.rate}; it must not be negative.')

@dataclasses.dataclass(frozen=True)
class Other:
  steps: int = 2

@dataclasses.dataclass(frozen=True)
class Config:
  """Everything.

  Attributes:
    name: of the run.
    fast: whether to hurry.
    names: some words.
  """

  name: str = 'a'
  fast: bool = False
  limit: int | None = 7
  names: tuple[str, ...] = ('x',)
  pair: tuple[int, float] = (1, 2.0)
  prompt: str | tuple[str, ...] | None = None
  seed: int | tuple[int, ...] | None = None
  inner: Inner = Inner()
  other: Other = Other()

  def __post_init__(self):
    if (self.name == 'b') != (self.limit == 4):
      raise ValueError('name b goes with limit 4.')

def get_config():
  return Config()
'''


@dataclasses.dataclass(frozen=True)
class Flags:
  """Attributes:
    stage: what to do.
    name: of the program, which hides that of the configuration.
  """

  stage: Literal['all', 'one'] = 'all'
  name: str | None = None


@pytest.fixture
def path(tmp_path):
  (tmp_path / 'config.py').write_text(_CONFIG)
  return str(tmp_path / 'config.py')


def _run(path, *words, flags=None):
  """The exit code of a program, and what its main was called with."""
  seen = []
  run = wrapper.command(config=path, flags=flags)(lambda *arguments: seen.extend(arguments))
  return run(['prog', *words]), seen


def _changed(path, *words):
  code, (config,) = _run(path, *words)
  assert code == 0
  return config


@pytest.mark.parametrize('words, name, value', [
    (['--name=c d'], 'name', 'c d'), (['--name=3'], 'name', '3'), (['--name', 'e'], 'name', 'e'),
    (['--config.name=c'], 'name', 'c'), (['--fast'], 'fast', True), (['--nofast'], 'fast', False),
    (['--fast=true'], 'fast', True), (['--fast=0'], 'fast', False),
    (['--limit=none'], 'limit', None), (['--limit=5'], 'limit', 5),
    (['--pair=(3,4)'], 'pair', (3, 4.0)), (['--pair=3,4'], 'pair', (3, 4.0)),
    (['--names=a, b(c, d=2)+e,f'], 'names', ('a', 'b(c, d=2)+e', 'f')),
    (['--limit=1', '--limit=2'], 'limit', 2),
    (['--names=a', '--names=b,c'], 'names', ('a', 'b', 'c')),
    (['--pair=1,2', '--pair=3,4'], 'pair', (3, 4.0)),
    (['--prompt=a, b'], 'prompt', 'a, b'),
    (['--prompt=a', '--prompt=b, c'], 'prompt', ('a', 'b, c')),
    (['--seed=1', '--seed=2'], 'seed', (1, 2)), (['--seed=1,2'], 'seed', (1, 2)),
    (['--seed=none'], 'seed', None),
])
def test_text_is_read_as_the_type_of_the_field(path, words, name, value):
  result = getattr(_changed(path, *words), name)
  assert result == value and type(result) is type(value)


def test_the_last_part_of_a_name_will_do_where_it_names_one_field(path):
  config = _changed(path, '--rate=1e-3', '--inner.steps=4', '--config.other.steps', '5')
  assert (config.inner.rate, config.inner.steps, config.other.steps) == (1e-3, 4, 5)


def test_fields_that_must_agree_can_be_changed_together(path, capsys):
  assert _changed(path, '--name=b', '--limit=4').name == 'b'
  assert _run(path, '--name=b')[0] == 2
  assert capsys.readouterr().err == 'error: --name=b: name b goes with limit 4.\n'


@dataclasses.dataclass(frozen=True)
class Place:
  """Attributes:
    output: folder of the results.
    decoder: what to do.
  """

  output: str | None = None
  decoder: str = 'vanilla'


@pytest.mark.parametrize('place', [['--output=out'], ['--output', 'out'], []])
def test_the_line_of_a_command_is_without_its_folder(tmp_path, monkeypatch, place):
  monkeypatch.chdir(tmp_path)
  seen = []
  run = wrapper.command(Place)(lambda config: seen.append((config.output, wrapper.line())))
  assert run(['prog', *place, '--decoder=sjd(window=4)']) == 0
  assert seen == [('out' if place else None,
                   f"python -m {__name__} --decoder='sjd(window=4)'")]
  assert wrapper.line() == ''


def test_flags_beside_the_configuration(path):
  code, (config, flags) = _run(path, '--stage=one', '--name=p', '--config.name=c', flags=Flags())
  assert (code, flags, config.name) == (0, Flags('one', 'p'), 'c')
  seen = []
  run = wrapper.command(flags=Flags())(seen.append)
  assert run(['prog', '--stage', 'one']) == 0 and seen == [Flags('one')]


@pytest.mark.parametrize('words, message', [
    (['--nmae=1'], '--nmae is not a flag; did you mean --name?'),
    (['--width=256'], 'load one that supports several with grid=(ROWS, COLUMNS) of tokens'),
    (['--do_sample=false'], 'pass temperature=0, which is greedy with every decoder'),
    (['--qqqqqq=1'], 'flags are: name, fast, limit, names, pair, prompt, seed, rate, inner.steps'),
    (['--config.nmae=1'], 'did you mean --name?'), (['--name.x=1'], '--name.x is not a flag'),
    (['--prompt=None'], '--prompt is none already; leave it out'),
    (['--seed=1', '--seed=none'], '--seed is none and 1 more; give none alone, or leave it out'),
    (['--steps=1'], '--steps may be any of --inner.steps, --other.steps; say which'),
    (['--inner=1'], '--inner is a group of fields; set one of: --rate, --inner.steps'),
    (['--limit=1.5'], '--limit=1.5: it must be a whole number or none, such as 7'),
    (['--limit=' + '9' * 400], '9: it must be a whole number or none, of at most 64 bits, such as'),
    (['--fast=yes'], '--fast=yes'), (['--pair=(1,)'], 'values separated by commas'),
    (['--pair=(1'], 'values separated by commas'),
    (['--rate=-1'], 'error: --rate=-1: rate is -1.0; it must not be negative'),
    (['--rate=x', '--inner.steps=2'], 'error: --rate=x: it must be a number'),
    (['--inner.steps=x'], 'error: --inner.steps=x: it must be'),
    (['--nofast=1'], '--nofast=1 does not take an argument'),
    (['--name'], 'Missing value for flag --name'), (['cat'], "'cat' is not a flag"),
    (['--config=/nowhere/x.py'], 'no such file'),
    (['--config'], 'Missing value for flag --config'),
])
def test_mistakes_say_what_is_allowed(path, capsys, words, message):
  code, seen = _run(path, *words)
  captured = capsys.readouterr()
  assert (code, seen, captured.out) == (2, [], '')
  assert captured.err.startswith('error: ') and captured.err.count('\n') == 1
  assert message in captured.err


def test_a_flag_of_a_few_words(path, capsys):
  assert _run(path, '--stage=two', flags=Flags())[0] == 2
  assert '--stage=two: it must be one of all, one, such as all' in capsys.readouterr().err


def test_a_configuration_of_another_program(path, capsys):
  @dataclasses.dataclass
  class Expected:
    name: str
    window: int

  run = wrapper.command(Expected, config=path)(lambda config: None)
  assert run(['prog']) == 2
  assert 'a Config without window; this command requires the fields of' in capsys.readouterr().err


def test_errors_of_the_input_have_a_traceback_on_request(path, capsys):
  def main(config):
    raise ImportError('no torch')

  assert wrapper.command(config=path)(main)(['prog']) == 2
  assert capsys.readouterr() == ('', 'error: no torch\n')
  with pytest.raises(ImportError):
    wrapper.command(config=path)(main)(['prog', '--debug'])


def test_an_error_of_a_configuration_is_one_sentence(tmp_path):
  path = tmp_path / 'config.py'
  path.write_text('def get_config(): raise ValueError("x is 1; it must be 2.")')
  with pytest.raises(ValueError, match='config.py: x is 1; [^.]*2.$'):
    wrapper.load(str(path))


def test_ctrl_c_says_what_is_kept(path, capsys):
  def main(config):
    raise KeyboardInterrupt(*([] if config.name == 'a' else ['nothing is left']))

  run = wrapper.command(config=path, kept='finished images are kept')(main)
  assert run(['prog']) == 130 and capsys.readouterr().err == (
      'interrupted: finished images are kept; the same command resumes\n')
  assert run(['prog', '--name=c']) == 130
  assert capsys.readouterr().err == 'interrupted: nothing is left\n'


def test_advice_of_functions_names_flags(path, capsys):
  def main(config):
    raise ValueError('it is too large; load it with name=FOLDER or limit=3, or pass seeds=1.')

  assert wrapper.command(config=path)(main)(['prog']) == 2
  assert capsys.readouterr().err == (
      'error: it is too large; load it with --name=FOLDER or --limit=3, or pass seeds=1.\n')


def test_log_lines_of_other_packages(path, capsys, monkeypatch):
  """JAX logs every backend that it does not find, and Orbax every file."""
  def main(config):
    inputs.log_progress()
    for level in (logging.INFO, logging.WARNING):
      logging.getLogger('absl').handle(logging.makeLogRecord(dict(
          levelno=level, msg='of orbax, %d', args=(level,), pathname='/lib/orbax/save.py')))
    inputs.log_size(ROOT / 'configs')

  # Some packages set up a handler of their own.
  monkeypatch.setattr(logging.getLogger(), 'handlers', [logging.StreamHandler(sys.stderr)])
  assert wrapper.command(config=path)(main)(['prog']) == 0
  other, own = capsys.readouterr().err.splitlines()
  assert other == 'of orbax, 30' and own.startswith('wrote ') and own.endswith(' MB')


@pytest.mark.parametrize('typed', ['one_module', 'one_module.py', 'folder/one_module.py'])
def test_a_module_is_imported_first(path, tmp_path, monkeypatch, typed):
  """Even before the configuration, which may use what it registers."""
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(imports, 'MODULES', [])
  monkeypatch.chdir(tmp_path)
  for name in ('one_module', 'its_neighbour'):
    monkeypatch.delitem(sys.modules, name, raising=False)
  place = (tmp_path / typed).parent
  place.mkdir(exist_ok=True)
  (place / 'one_module.py').write_text('import its_neighbour')
  (place / 'its_neighbour.py').write_text('LIMIT = 3')
  (tmp_path / 'one_module').mkdir()  # A model may have the name of the module.
  config = tmp_path / 'config.py'
  config.write_text(config.read_text().replace('limit: int | None = 7', """limit: int | None = (
      __import__('sys').modules['its_neighbour'].LIMIT)"""))
  assert _changed(path, f'--import={typed}').limit == 3
  assert fields.command_line('cspd-tune', model='x') == f'cspd-tune --import={typed} --model=x'
  monkeypatch.delitem(sys.modules, 'its_neighbour')
  assert _run(path)[0] == 2
  assert fields.command_line('cspd-tune', model='x') == 'cspd-tune --model=x'


@pytest.mark.parametrize('typed, message', [
    ('=nothing', '--import=nothing: no module has this name, neither installed nor in {place}; '
     'give the path of a file that ends in .py.'),
    ('=neds', 'nor in {place}; did you mean needs?'),
    ('=nothing.inside', '--import=nothing.inside: no module has this name'),
    ('=empty', '--import=empty: no module has this name'),  # A folder without __init__.py.
    ('=no/such.py', '--import=no/such.py: no such file; give the path of a file that ends in .py.'),
    ('=fails', '--import=fails cannot be imported: KeyError: 1.'),
    ('=needs', "--import=needs cannot be imported: ModuleNotFoundError: No module named 'absent_"),
    ('=json.py', 'has the name json; rename the file.'),
    ('=a-b', '--import=a-b: a module has a name such as beach or package.beach'),
    ('=', '--import=: a module has a name such as'), ('', 'Write --import=MODULE.')])
def test_modules_that_cannot_be_imported(path, tmp_path, monkeypatch, capsys, typed, message):
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(imports, 'MODULES', [])
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'fails.py').write_text('raise KeyError(1)')
  (tmp_path / 'json.py').write_text('')
  (tmp_path / 'needs.py').write_text('import absent_package')
  code, seen = _run(path, f'--import{typed}')
  err = capsys.readouterr().err
  assert (code, seen, err.count('\n')) == (2, [], 1)
  assert message.format(place=tmp_path) in err


def test_help_lists_the_fields(path, capsys):
  assert _run(path, '--help', flags=Flags())[0] == 0
  out = capsys.readouterr().out
  assert out.startswith('The command line of programs')  # The docstring of the program.
  assert '--stage=all\n    what to do. (one of all, one)' in out
  assert '--rate=0.5\n    how fast it goes, in a sentence that is longer than a line.' in out
  assert '--import=MODULE\n    imports a module first' in out
  assert '--inner.steps=1\n    of the inner loop.' in out and '--limit=7' in out
  assert f'with the values of {path}' in out


def test_a_name_chooses_one_of_several_configurations(path, tmp_path):
  one = pathlib.Path(path)
  several = one.with_name('a:b.py')
  several.write_text(one.read_text() + """
from cspd_jax import cli
CONFIGS = dict(few=Config(limit=3), many=Config(limit=5))
def get_config(name: str = ''): return cli.named(CONFIGS, name)
""")
  required = one.with_name('required.py')
  required.write_text('def get_config(name): return 1')
  assert wrapper.load(f'{several}:many').limit == 5
  for config, message in (
      (several, "a:b.py: the name is ''; it must be one of few, many; write --config=FILE:NAME."),
      (f'{several}:more', "a:b.py:more: the name is 'more'; it must be one of few, many; "),
      (f'{one}:few', f'{one}:few: get_config() takes no name; write --config={one}.'),
      (f'{one}:', f'{one}:: get_config() takes no name; write --config={one}.'),
      (required, f'get_config() requires a name; write --config={required}:NAME.'),
      (f'{one}.py:few', 'no such file. In ')):
    with pytest.raises(ValueError, match=re.escape(message)):
      wrapper.load(str(config))


def test_fields_of_a_base_keep_their_docs():
  @dataclasses.dataclass
  class Base:
    """A base.

    Attributes:
      x: of the base.
    """

    x: int = 1

  @dataclasses.dataclass
  class Derived(Base):
    """Derived.

    Attributes:
      y: of its own.
    """

    y: int = 2

  assert [field.doc for field in fields.every(Derived())] == ['of the base.', 'of its own.']


@dataclasses.dataclass(frozen=True)
class Nested:
  sampling: groups.SamplingFlags = groups.SamplingFlags()
  prior: groups.SamplingFlags = dataclasses.field(
      default=groups.SamplingFlags(), metadata={'nested': True})


def test_a_nested_group_keeps_its_name(capsys, monkeypatch):
  seen = []
  run = wrapper.command(Nested, environment='NESTED_')(seen.append)
  assert run(['prog', '--temperature=0.5', '--prior.temperature=2', '--prior.top_k=3']) == 0
  assert seen == [Nested(groups.SamplingFlags(temperature=.5),
                         groups.SamplingFlags(temperature=2., top_k=3))]
  assert run(['prog', '--config.prior.min_p=0.1']) == 0 and seen[1].prior.min_p == .1
  monkeypatch.setenv('NESTED_PRIOR_TOP_P', '0.5')
  assert run(['prog']) == 0 and seen[2].prior.top_p == .5 and seen[2].sampling.top_p is None
  monkeypatch.undo()
  assert run(['prog', '--help']) == 0
  out = capsys.readouterr().out
  assert '\n--temperature=none\n' in out and '\n--prior.temperature=none\n' in out
  for words, message in (
      ('--prior_temperature=1', 'did you mean --prior.temperature?'),
      ('--prior.temprature=1', 'did you mean --prior.temperature?'),
      ('--prior=1', '--prior is a group of fields; set one of: --prior.guidance_scale, '),
      ('--prior.top_k=x', '--prior.top_k=x: it must be a whole number or none'),
      ('--prior.temperature=nan', '--prior.temperature=nan: temperature is nan')):
    assert run(['prog', words]) == 2
    assert message in capsys.readouterr().err
