"""The notebooks as they are kept: run top to bottom, small, in the menu, and pages of their own."""

import configparser
import importlib.util
import json
import re
import subprocess
import sys
from unittest import mock

import pytest

from checkpoints_conversion import rules
from cspd_jax import families
from docs import notebooks
from tests.docs import pages

each = pytest.mark.parametrize('notebook', pages.NOTEBOOKS, ids=lambda path: path.stem)
COLAB = 'https://colab.research.google.com/github/'


@each
def test_outputs_are_those_of_one_run(notebook):
  code = [cell for cell in json.loads(notebook.read_text())['cells'] if cell['cell_type'] == 'code']
  assert [cell['execution_count'] for cell in code] == list(range(1, len(code) + 1))
  outputs = pages.outputs(notebook)
  assert len(outputs) >= 3  # What a cell prints is one.
  assert {output['output_type'] for output in outputs} <= {
      'stream', 'display_data', 'execute_result'}
  assert all(output.get('name') != 'stderr' for output in outputs)
  assert not any('execution' in cell['metadata'] for cell in code), 'times of one machine'
  assert not re.search(r'/(home|root|tmp|work)/', json.dumps(
      [output.get('text', output.get('data', {}).get('text/plain')) for output in outputs]))


@each
def test_badges_lead_to_colab_once_the_project_has_an_address(notebook):
  first = ''.join(json.loads(notebook.read_text())['cells'][0]['source'])
  badges = re.findall(r'\[!\[Open in Colab\]\(\S+\)\]\((\S+)\)', first)
  project = configparser.ConfigParser()
  project.read(pages.ROOT / 'setup.cfg')
  repository = project['metadata'].get('url', '').removeprefix('https://github.com/')
  assert badges == ([f'{COLAB}{repository}/blob/main/notebooks/{notebook.name}']
                    if repository else [])


def test_text_to_image_runs_with_any_model_and_shows_how_images_grow():
  notebook = next(path for path in pages.NOTEBOOKS if path.stem == 'text_to_image')
  code = dict(pages.cells(notebook))
  assert any(re.search(r'^MODEL = .*# @param', text, re.MULTILINE) for text in code.values())
  cells = json.loads(notebook.read_text())['cells']
  streams = [number for number, text in code.items() if 'model.stream(' in text]
  assert streams and all(
      any('image/png' in output.get('data', {}) for output in cells[number]['outputs'])
      for number in streams)


def _settings(**values):
  """The cell of text_to_image that has its settings, with other values."""
  notebook = next(path for path in pages.NOTEBOOKS if path.stem == 'text_to_image')
  code = next(text for _, text in pages.cells(notebook) if 'FAMILY = ' in text)
  for name, value in values.items():
    code = re.sub(f"^{name} = '[^']*'", f'{name} = {value!r}', code, flags=re.MULTILINE)
  return code


def test_text_to_image_offers_every_family_that_draws_images():
  offered = json.loads(re.search(r'^FAMILY = .*@param (\[.*?\])', _settings(), re.MULTILINE)[1])
  roles = lambda file: families.FAMILIES[file.model].roles if file.model else {}
  draws = lambda roles, kind: 'tokenizer' in roles and kind in roles['target']
  assert offered == ['', *(name for name, file in rules.FAMILIES.items()
                           if draws(roles(file), file.kind))]


@pytest.mark.parametrize('values,message', [
    (dict(FAMILY='anole'), "FAMILY is 'anole' and SOURCE is ''; set both"),
    (dict(SOURCE='weights.pt'), "FAMILY is '' and SOURCE is 'weights.pt'; set both"),
    (dict(FAMILY='anole', SOURCE='weights.pt'), "MODEL is 'emoji', a model in the package; set it"),
    (dict(MODEL='mine', FAMILY='anole', SOURCE='weights.pt'), "'weights.pt' was not converted"),
])
def test_text_to_image_converts_into_a_folder_of_its_own(tmp_path, monkeypatch, values, message):
  monkeypatch.chdir(tmp_path)
  with pytest.raises((ValueError, RuntimeError), match=message):
    exec(_settings(**values), {})  # pylint: disable=exec-used
  assert not any(tmp_path.iterdir())


@each
def test_the_package_is_installed_where_it_is_missing_only(notebook):
  number, install = next(pages.cells(notebook))
  assert number == 1
  with mock.patch.object(subprocess, 'run') as run:
    exec(install, {})  # pylint: disable=exec-used
    assert not run.called
    with mock.patch.object(importlib.util, 'find_spec', return_value=None):
      exec(install, {})  # pylint: disable=exec-used
  assert run.call_args.args[0] == [sys.executable, '-m', 'pip', 'install', '-q', '..']


def test_the_start_page_is_the_readme():
  page = mock.Mock()
  page.file.src_uri = 'index.md'
  links = re.findall(r'\]\(([^)#]+)', notebooks.on_page_markdown(notebooks.start(), page))
  assert len(links) > 20 and not any(link.startswith('docs/') for link in links)
  for link in links:
    built = f'notebooks/{link[6:-3]}.ipynb' if link.startswith('tasks/') else f'docs/{link}'
    assert (pages.ROOT / built).exists(), link
