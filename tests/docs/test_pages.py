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
from tests.docs import pages

PROJECT = configparser.ConfigParser()
PROJECT.read(pages.ROOT / 'setup.cfg')
SCRIPTS = dict(line.split(' = ') for line in
               PROJECT['options.entry_points']['console_scripts'].strip().split('\n'))
LANGUAGES = {'python', 'sh', 'text', 'json'}
# Programs of others, and what follows them.
TOOLS = {'pytest', 'ruff', 'mypy', 'mkdocs', 'git', 'jupyter', 'bash'}


@pytest.mark.parametrize('page', pages.PAGES, ids=pages.name)
def test_languages(page):
  """Nothing escapes the other tests by its language."""
  assert {block.language for block in pages.blocks(page)} <= LANGUAGES
  outside = re.sub(r'^```.*?^```$', '', page.read_text(), flags=re.DOTALL | re.MULTILINE)
  assert '```' not in outside


@functools.cache
def _help(module):
  """What a program says of itself."""
  program, out = importlib.import_module(module).main, io.StringIO()
  with redirect_stdout(out):
    try:
      code = program(['program', '--help'] if module.startswith('experiments') else ['--help'])
    except SystemExit as stopped:
      code = stopped.code
  assert not code, module
  return out.getvalue()


def _commands(text):
  """The commands of a block, without comments, one list of words each."""
  lines = text.replace('\\\n', ' ').splitlines()
  for command in (part for line in lines for part in line.split('&&')):
    if words := shlex.split(command, comments=True):
      yield words


def _check_flags(module, words):
  """Every flag is one that the program's help names."""
  known = set(re.findall(r'--([\w.]+)', _help(module)))
  for word in words:
    flag = word[2:].partition('=')[0].removeprefix('config.')
    if flag == 'config':
      path = pages.ROOT / word.partition('=')[2]
      assert path.is_file(), f'{word}: there is no such file'
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
  elif words[0] in SCRIPTS:
    _check_flags(SCRIPTS[words[0]].partition(':')[0], words[1:])
  elif words[0] == 'pip':
    _check_install(words)
  else:
    assert words[0] in TOOLS, words


@pytest.mark.parametrize('page', pages.PAGES, ids=pages.name)
def test_commands_in_sentences_exist(page):
  text = re.sub(r'^```.*?^```', '', page.read_text(), flags=re.DOTALL | re.MULTILINE)
  for code in re.findall(r'`([^`]+)`', text):
    if code.startswith(('python -m', 'pip install', 'cspd-')) and code not in SCRIPTS:
      for words in _commands(' '.join(code.split())):
        _check(words)


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
  for page in (pages.ROOT / 'docs').rglob('*.md'):
    assert page.relative_to(pages.ROOT / 'docs').as_posix() in menu, page


def test_chosen_decoders_exist():
  """Every decoder that the page of choices names can be built."""
  page = pages.ROOT / 'docs' / 'choose.md'
  rows = [line.split('|') for line in page.read_text().splitlines() if line.startswith('| ')][2:]
  assert len(rows) == 10
  for _, case, chosen, _ in rows:
    model = cspd_jax.load('mar_demo' if 'MAR' in case else 'demo')
    decoders = [word for word in re.findall('`([^`]+)`', chosen) if 'experiments' not in word]
    assert decoders, case
    for text in decoders:
      relaxed = model.engine.guarantee(model.decoder(text)) == 'relaxed'
      assert relaxed == ('other images' in case), text


def test_the_front_page_has_one_table_of_numbers():
  text = (pages.ROOT / 'WORKSPACE_README.md').read_text()
  # The second is a sentence.
  assert re.findall(r'table: (\w+)', text) == ['summary', 'rounding_share']
  assert 'not measured' not in text
  rows = [line for line in text.splitlines() if line.startswith('| `')]
  tokens = [float(row.split('|')[2]) for row in rows]
  assert len(rows) >= 6 and tokens == sorted(tokens) and tokens[0] == 1


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


@pytest.mark.parametrize(
    'page', [page for page in pages.PAGES if page.parent.name != 'papers'], ids=pages.name)
def test_no_table_of_numbers_is_empty(page):
  assert not re.findall(r'<!-- table: (\w+) -->\n<!-- /table -->', page.read_text())
