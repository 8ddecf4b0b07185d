"""The README, the pages and the notebooks: commands exist, links lead somewhere."""

import configparser
import functools
import importlib
import io
import itertools
import pathlib
import re
import shlex
from contextlib import redirect_stdout

import pytest

import cspd_jax
from cspd_jax.cli import fields, wrapper
from tests.docs import pages

PROJECT = configparser.ConfigParser()
PROJECT.read(pages.ROOT / 'setup.cfg')
SCRIPTS = dict(line.split(' = ') for line in
               PROJECT['options.entry_points']['console_scripts'].strip().split('\n'))
LANGUAGES = {'python', 'sh', 'text', 'json', 'toml'}
# Programs that are not part of the package.
TOOLS = {'pytest', 'ruff', 'mypy', 'mkdocs', 'git', 'bash', 'curl', 'openssl', 'cd'}


@pytest.mark.parametrize('page', pages.PAGES, ids=pages.name)
def test_languages(page):
  """Nothing escapes the other tests by its language."""
  assert {block.language for block in pages.blocks(page)} <= LANGUAGES
  outside = re.sub(r'^```.*?^```$', '', page.read_text(), flags=re.DOTALL | re.MULTILINE)
  assert '```' not in outside


@functools.cache
def _help(module):
  """The help text of a program."""
  program, out = importlib.import_module(module).main, io.StringIO()
  with redirect_stdout(out):
    assert not program(['program', '--help']), module
  return out.getvalue()


def _commands(text):
  """The commands of a block, without comments, one list of words each."""
  lines = text.replace('\\\n', ' ').splitlines()
  for command in (part for line in lines for part in line.split('&&')):
    if words := shlex.split(command, comments=True):
      yield words


@functools.cache
def _fields(command):
  """The values that the flags of an installed command set, by flag."""
  module = importlib.import_module(SCRIPTS[command].partition(':')[0])
  config = getattr(module, 'Config', getattr(module, 'Flags', None))()
  return {name: (config, field.name) for field in fields.every(config)
          for name in (field.name, fields.short_name(config, field))}


def _flags(command):
  """The flags of an installed command."""
  return _fields(command).keys() | {'config', 'import', 'help', 'debug'}


def _check_values(command, words):
  """Every flag is one of the command, with a value that its field accepts."""
  flags, texts = _flags(command), {}
  for word in words:
    name, _, text = word.removeprefix('--').partition('=')
    assert word.startswith('--') and name in flags, f'{command} has no flag {word}'
    texts.setdefault(name, []).append(text or 'true')
  for name, text in texts.items():
    if name in _fields(command):
      config, field = _fields(command)[name]
      fields.override(config, {field: text})


@functools.cache
def _check_config(word):
  """A configuration file exists, and has a configuration of this name."""
  wrapper.load(f'{pages.ROOT}/{word.partition("=")[2]}')


def _check_flags(module, words):
  """Every flag is one that the program's help lists."""
  known = set(re.findall(r'--([\w.]+)', _help(module)))
  for word in words:
    flag = word[2:].partition('=')[0].removeprefix('config.')
    if flag == 'config':
      _check_config(word)
    elif word.startswith('--'):
      names = {flag, flag.removeprefix('no'), flag.rpartition('.')[2]}
      assert names & known, f'{module} has no flag {word}'


def _check_install(words):
  """Every extra of the package is one that it has."""
  for word in words:
    for extra in re.findall(r'(?:\.|cspd[_-]jax)\[([\w,]+)\]', word):
      assert set(extra.split(',')) <= PROJECT['options.extras_require'].keys(), word


def _check(words):
  if re.fullmatch('[A-Z_]+=.*', words[0]):  # The environment of a command.
    words = words[1:]
  if words[:2] == ['python', '-m']:
    assert (pages.ROOT / pathlib.Path(*words[2].split('.'))).with_suffix('.py').exists(), words[2]
    if words[2].startswith('experiments'):
      _check_flags(words[2], words[3:])
  elif words[0] == 'python' and words[1].endswith('.py'):
    assert (pages.ROOT / words[1]).exists(), words[1]
  elif words[0] in SCRIPTS:
    for word in words:
      if word.startswith('--config='):
        _check_config(word)
    _check_values(words[0], words[1:])
  elif words[0] == 'pip':
    _check_install(words)
  else:
    assert words[0] in TOOLS, words


@pytest.mark.parametrize('page', pages.PAGES, ids=pages.name)
def test_commands_in_sentences_exist(page):
  text = re.sub(r'^```.*?^```', '', page.read_text(), flags=re.DOTALL | re.MULTILINE)
  for code in re.findall(r'`([^`]+)`', text):
    if code.startswith(('python -m', 'pip install')):
      for words in _commands(' '.join(code.split())):
        _check(words)


def _code(text):
  """The code spans and the lines of code blocks of a page, each in one line."""
  blocks = re.findall(r'^```\w*\n(.*?)^```', text, flags=re.DOTALL | re.MULTILINE)
  text = re.sub(r'^```.*?^```', '', text, flags=re.DOTALL | re.MULTILINE)
  spans = [' '.join(span.split()) for span in re.findall(r'`([^`]+)`', text)]
  return spans + [line for block in blocks for line in block.replace('\\\n', ' ').splitlines()]


@pytest.mark.parametrize('page', pages.PAGES + pages.NOTEBOOKS, ids=pages.name)
def test_flags_of_installed_commands_exist(page):
  """Placeholders such as `--rows=N` stand for values, so only names are checked."""
  text = pages.markdown(page) if page.suffix == '.ipynb' else page.read_text()
  for line in _code(text):
    # The folder of a clone begins as commands do.
    for command, words in re.findall(
        r'(?<![\w./])(?<!URL )(?<!cd )(cspd-[a-z-]*[a-z])\b([^|&;#]*)', line):
      assert command in SCRIPTS, f'{command} is not a command: {line}'
      unknown = set(re.findall(r'(?<!\S)--([\w.]+)', words)) - _flags(command)
      assert not unknown, f'{command} has no flag {unknown}: {line}'


@pytest.mark.parametrize('page', pages.having('sh'), ids=pages.name)
def test_commands_exist(page):
  for block in pages.blocks(page):
    if block.language == 'sh':
      for words in _commands(block.text):
        _check(words)


def test_links_lead_somewhere():
  missing = []
  for page in pages.PAGES:
    for target in re.findall(r'\]\(([^)#\s]+)[^)]*\)', page.read_text()):
      if '://' not in target and not (page.parent / target).exists():
        missing.append(f'{pages.name(page)}: {target}')
  assert not missing, '\n'.join(missing)


def test_every_page_is_in_the_menu():
  menu = (pages.ROOT / 'mkdocs.yml').read_text()
  for page in pages.PAGES:
    if page.parent != pages.ROOT:
      assert page.relative_to(pages.ROOT / 'docs').as_posix() in menu, page


def test_every_title_of_the_menu_stands_once():
  """And the families are a group within another one, which is folded."""
  menu = (pages.ROOT / 'mkdocs.yml').read_text().split('\nnav:\n')[1]
  titles = re.findall(r'^ *- (".*?"|.*?):', menu, re.MULTILINE)
  assert len(set(titles)) == len(titles)
  assert len(re.findall(r'^ {10}- .*: families/', menu, re.MULTILINE)) == menu.count('families/')


@pytest.mark.slow
def test_chosen_decoders_exist():
  """Every decoder that the table of choices names can be built, and all are exact but one."""
  section = (pages.ROOT / 'docs' / 'decoders.md').read_text().split('\n## ')[1]
  assert section.startswith('Which decoder\n')
  rows = [line.split('|') for line in section.splitlines() if line.startswith('| ')][2:]
  assert len(rows) >= 9
  for _, question, chosen, _, _ in rows:
    model = cspd_jax.load('mar_demo' if 'MAR' in question else
                          'emoji_continuous' if 'NextStep' in question else 'demo')
    decoders = re.findall('`([^`]+)`', chosen)
    assert decoders, question
    for text in decoders:
      is_exact = model.decoder(text).guarantee.is_exact
      assert is_exact != ('May the distribution change' in question), text


def test_there_is_one_readme():
  assert (pages.ROOT / 'README.md').readlink().name == 'WORKSPACE_README.md'


def test_tests_that_pages_name_exist():
  text = ''.join(page.read_text() for page in pages.ROOT.glob('docs/**/*.md'))
  named = set(re.findall(r'\btests/[\w/]+\.py', text))
  assert named and [name for name in sorted(named) if not (pages.ROOT / name).is_file()] == []


def _tables(page):
  """Line numbers and lines of the tables of a page: rows without a line between them."""
  text = re.sub(r'^```.*?^```$', lambda code: '\n' * code[0].count('\n'), page.read_text(),
                flags=re.DOTALL | re.MULTILINE)
  for is_table, lines in itertools.groupby(
      enumerate(text.splitlines(), 1), lambda entry: entry[1].startswith('|')):
    if is_table:
      yield list(lines)


@pytest.mark.parametrize('page', pages.PAGES, ids=pages.name)
def test_tables_are_whole(page):
  """A line between two rows would show the rest as text."""
  for (number, head), *rows in _tables(page):
    place = f'{pages.name(page)}:{number}'
    assert rows and re.fullmatch(r'\|( :?-+:? \|)+', rows[0][1]), place
    cells = len(re.findall(r'(?<!\\)\|', head))
    for row, line in rows:
      assert len(re.findall(r'(?<!\\)\|', line)) == cells, f'{pages.name(page)}:{row}'


@pytest.mark.parametrize('page', pages.PAGES, ids=pages.name)
def test_no_table_of_numbers_is_empty(page):
  assert not re.findall(r'<!-- table: (\w+) -->\n<!-- /table -->', page.read_text())


def test_the_map_names_files_that_exist():
  """Every path in ARCHITECTURE.md, those of its picture included."""
  text = (pages.ROOT / 'ARCHITECTURE.md').read_text(encoding='utf-8')
  rooms = 'cspd_jax|checkpoints_conversion|experiments|configs|docs|tests'
  named = set(re.findall(rf'`((?:{rooms})/[^` ]*)`', text))
  picture = re.search(r'```text\n(.*?)```', text, re.DOTALL).group(1)
  for line in picture.splitlines():
    first, *others = line[:30].split()
    parent = first.rpartition('/')[0].rpartition('/')[0]
    named |= {first, *(f'{parent}/{other}' for other in others)}
  assert len(named) > 40
  assert sorted(path for path in named if not (pages.ROOT / path).exists()) == []
  packages = {f'cspd_jax/{path.name}/' for path in (pages.ROOT / 'cspd_jax').iterdir()
              if (path / '__init__.py').exists()}
  assert packages - {path if path.endswith('/') else f'{path}/' for path in named} == set()
