"""Python of the README, the pages and the notebooks is executed.

In one file, so that all of it shares the models and what is compiled for them.
"""

import importlib
import re
import shlex

import matplotlib.pyplot as plt
import pytest

import cspd_jax
from tests.docs import pages

# Pages and notebooks whose code runs for long.
_LONG = ('rollouts', 'continuous_windows', 'continuous_tokens', 'embedded', 'corrected_windows',
         'text_to_image', 'mar')


def _long_ones_slow(paths, suffix):
  return [pytest.param(path, marks=pytest.mark.slow)
          if path.suffix == suffix and path.stem in _LONG else path for path in paths]


@pytest.mark.parametrize('commands', [
    ['cspd-generate'], pytest.param(['cspd-compare', 'cspd-generate'], marks=pytest.mark.slow)])
def test_the_readme_from_top_to_bottom(place, commands):
  """Its code and its commands, as far as they need no checkpoint, in one folder and in order."""
  page, namespace, done = pages.ROOT / 'README.md', {'__name__': 'page'}, []
  for block in pages.blocks(page):
    if block.language == 'python':
      pages.run(block.text, page.name, block.line, namespace)
    for line in block.text.splitlines() if block.language == 'sh' else ():
      result = re.search(r'(cspd-[a-z-]+)[^#]*', line)
      if result and result[1] in commands and 'checkpoints/' not in line:
        done.append(result[1])
        module = importlib.import_module(f'cspd_jax.commands.{result[1][5:].replace("-", "_")}')
        assert not module.main(shlex.split(result[0])), line
  assert done == commands and all((place / 'runs' / name).is_dir() for name in ('fox', 'pair'))


def test_the_help_of_the_package(place):
  """It begins with six lines that run, all but one in the README too, and lists the names."""
  _, lines, names = re.split(r'\n\n(?=  import|Models: )', cspd_jax.__doc__)
  code = list(filter(None, map(str.strip, lines.splitlines())))
  (own,) = {*code} - {*(pages.ROOT / 'README.md').read_text().splitlines()}
  assert len(code) == 6 and code.index(own) == 2
  pages.run('\n'.join(code[:3]), 'help(cspd_jax)', 1, {})
  assert {*cspd_jax.__all__, 'testing', 'training'} <= {*re.findall(r'\w+', names)}


@pytest.mark.slow
@pytest.mark.parametrize('page', _long_ones_slow(
    [page for page in pages.having('python') if page.parent != pages.ROOT], '.md'), ids=pages.name)
def test_page(page, place):
  namespace = {'__name__': 'page'}
  for block in pages.blocks(page):
    if block.language == 'python':
      pages.run(block.text, pages.name(page), block.line, namespace)


@pytest.mark.slow
@pytest.mark.parametrize(
    'notebook', _long_ones_slow(pages.NOTEBOOKS, '.ipynb'), ids=lambda path: path.name)
def test_notebook(notebook, place):
  plt.switch_backend('agg')
  namespace = {'__name__': 'notebook'}
  for number, code in pages.cells(notebook):
    pages.run(code, f'{notebook.name}, cell {number}', 1, namespace)
  plt.close('all')


@pytest.mark.slow
def test_targets_of_one_s_own():
  page, namespace = pages.ROOT / 'docs' / 'target.md', {'__name__': 'page'}
  for block in pages.blocks(page):
    pages.run(block.text, pages.name(page), block.line, namespace)
  assert namespace['transformer_target'].supports_trees
  assert not namespace['recurrent_target'].supports_trees


def test_nothing_is_left_out():
  assert len(pages.NOTEBOOKS) == 6
  assert {'WORKSPACE_README.md', 'docs/extend.md'} <= set(map(pages.name, pages.having('python')))
