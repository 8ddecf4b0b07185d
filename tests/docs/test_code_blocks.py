"""Python of the README, the pages and the notebooks is executed.

In one file, so that all of it shares the models and what is compiled for them.
"""

import importlib
import os
import re
import shlex
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

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


@pytest.mark.parametrize('commands', [
    ['inspect'], pytest.param(['generate', 'compare', 'tune', 'train'],
                              marks=pytest.mark.slow)])
def test_commands_with_a_family_of_one_s_own(place, commands):
  """Each in a process of its own, where only the page's `--import` registers the family."""
  page, namespace = pages.ROOT / 'docs' / 'family.md', {'__name__': 'page'}
  family, _, save, shell, _, rules, convert = pages.blocks(page)[:7]
  (place / 'bigram.py').write_text(f'{family.text}\n\n{rules.text}')
  for block in (family, save):
    pages.run(block.text, pages.name(page), block.line, namespace)
  words = dict(inspect=[], generate=shlex.split(shell.text)[1:], compare=['--num_images=2'],
               tune=['--store=tuned', '--minutes=0.01', '--num_images=1'],
               train=[])
  said, rng, env = {}, np.random.default_rng(0), os.environ | {'PYTHONPATH': str(pages.ROOT)}
  for command in commands:
    flags = [word for word in words[command] if word not in ('--import=bigram', '--model=beach')]
    assert command != 'generate' or len(flags) == len(words[command]) - 2
    result = subprocess.run(
        [sys.executable, '-m', f'cspd_jax.commands.{command}', '--import=bigram', '--model=beach',
         *flags], env=env, capture_output=True, text=True, cwd=place)
    said[command] = result.stdout + result.stderr
    assert result.returncode == (2 if command == 'train' else 0), said[command]
  if 'inspect' in commands:
    assert 'cache of 1 image of 16 tokens' in said['inspect']
    # Its rules convert a file and write it again, as the page says.
    table = rng.normal(size=(4, 7, 6)).astype(np.float32)
    save_file({'weight': table}, place / 'table.safetensors')
    for line in convert.text.splitlines():
      subprocess.run(
          [sys.executable, '-m', 'checkpoints_conversion.command', *shlex.split(line)[1:]],
          env=env, check=True, cwd=place)
    written, = (place / 'published').rglob('*.safetensors')
    np.testing.assert_array_equal(load_file(written)['weight'], table)
  else:
    assert list((place / 'runs' / 'sea').glob('*.png'))
    assert 'cspd-tune --import=bigram --model=beach' in said['generate']
    assert "'bigram'" in said['train'] and 'training.fit_corrector' in said['train']


def test_nothing_is_left_out():
  assert len(pages.NOTEBOOKS) == 6
  assert {'WORKSPACE_README.md', 'docs/extend.md'} <= set(map(pages.name, pages.having('python')))
