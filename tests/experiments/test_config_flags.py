"""`--config` and its overrides, as typed on a command line."""

import dataclasses

import pytest
from absl import flags

from experiments import config_flags


@dataclasses.dataclass(frozen=True)
class Inner:
  rate: float = 0.5
  shape: tuple[int, ...] = (1, 2)

  def __post_init__(self):
    if self.rate < 0:
      raise ValueError(f'rate is {self.rate}; it must not be negative.')


@dataclasses.dataclass(frozen=True)
class Outer:
  inner: Inner = Inner()
  steps: int = 3
  name: str = 'a'
  fast: bool = False
  limit: int | None = 7
  pair: tuple[int, float] = (1, 2.0)

  def __post_init__(self):
    if (self.name == 'b') != (self.steps == 4):
      raise ValueError('name b goes with 4 steps.')


def _override(*words):
  return config_flags.override(Outer(), [tuple(word.split('=', 1)) for word in words])


@pytest.mark.parametrize('word, name, value', [
    ('steps=10', 'steps', 10), ('name=b c', 'name', 'b c'), ('name=3', 'name', '3'),
    ('fast=true', 'fast', True), ('fast=0', 'fast', False), ('limit=none', 'limit', None),
    ('limit=5', 'limit', 5), ('pair=(3,4)', 'pair', (3, 4.0)),
])
def test_text_is_read_as_the_type_of_the_field(word, name, value):
  found = getattr(_override(word), name)
  assert found == value and type(found) is type(value)


def test_nested_fields_and_order():
  config = _override('inner.rate=1e-3', 'inner.shape=4', 'steps=1', 'steps=2')
  assert config == Outer(inner=Inner(rate=1e-3, shape=(4,)), steps=2)


def test_fields_that_must_agree_can_be_changed_together():
  assert _override('name=b', 'steps=4') == Outer(name='b', steps=4)
  with pytest.raises(config_flags.ConfigError, match='--config.name=b: name b goes with 4 steps'):
    _override('name=b')


@pytest.mark.parametrize('word, message', [
    ('stepz=1', 'no field .stepz.; it has: fast, inner, limit, name, pair, steps'),
    ('inner.x=1', 'Inner has no field .x.; it has: rate, shape'),
    ('inner=1', 'set one of: --config.inner.rate, --config.inner.shape'),
    ('steps.x=1', '--config.steps is a value without fields of its own'),
    ('steps=1.5', 'steps=1.5: the field takes a whole number, such as 3'),
    ('fast=yes', 'true or false'),
    ('limit=x', 'a whole number or none'),
    ('pair=(1,)', 'values in parentheses'),
    ('pair=(1', 'values in parentheses'),
    ('inner.rate=-1', 'must not be negative'),
])
def test_mistakes_say_what_is_allowed(word, message):
  with pytest.raises(config_flags.ConfigError, match=message):
    _override(word)


@pytest.mark.parametrize('text, message', [
    (None, 'no such file'), ('x = 1', 'no function get_config'), ('1 / 0', 'ZeroDivisionError'),
    ('def get_config(): return 3', 'returned a int'),
    ('def get_config(): return {}[0]', 'KeyError'),
])
def test_unusable_files_are_explained(tmp_path, text, message):
  path = tmp_path / 'config.py'
  (tmp_path / 'other.py').write_text('')
  if text:
    path.write_text(text)
  with pytest.raises(config_flags.ConfigError, match=message):
    config_flags.load(str(path))


@pytest.fixture
def handle(monkeypatch):
  values = flags.FlagValues()
  monkeypatch.setattr(config_flags.flags, 'FLAGS', values)
  flag = flags.DEFINE_string('config', None, '', flag_values=values)
  monkeypatch.setattr(config_flags, '_handles', [config_flags.Handle(flag)])
  return config_flags._handles[0]


def test_command_line(tmp_path, handle):
  path = tmp_path / 'config.py'
  path.write_text('import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass C:\n'
                  '  steps: int = 1\n  rate: float = 0.1\ndef get_config(): return C()\n')
  rest = config_flags.parse(
      ['prog', f'--config={path}', '--config.steps=4', '--config.rate', '2', 'word'])
  assert rest == ['prog', 'word']
  assert (handle.value().steps, handle.value().rate) == (4, 2.0)


@pytest.mark.parametrize('words, message', [
    (['--config.steps'], 'has no value'), (['--nonsense=1'], "Unknown command line flag"),
    (['--config=/nowhere/x.py'], 'no such file'),
])
def test_wrong_command_lines_exit_with_code_2(handle, capsys, words, message):
  with pytest.raises(SystemExit) as exit_info:
    config_flags.parse(['prog', *words])
    handle.value()
  assert exit_info.value.code == 2
  assert message in capsys.readouterr().err
