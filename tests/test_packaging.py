"""What the distribution says of itself is what is there."""

import ast
import fnmatch
import importlib
import pathlib
import re
import sys
import tomllib

import pytest

import cspd_jax

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())
PACKAGES = ('cspd_jax', 'checkpoints_conversion')
# Distributions that are not called like what is imported.
NAMES = {'absl': 'absl-py', 'orbax': 'orbax-checkpoint', 'PIL': 'pillow', 'skimage': 'scikit-image',
         'sklearn': 'scikit-learn', 'xdist': 'pytest-xdist'}


def _required(extra=None):
  project = PROJECT['project']
  listed = project['optional-dependencies'][extra] if extra else project['dependencies']
  return {re.split(r'[<>=!~ ;\[]', one)[0] for one in listed}


def _imported(*folders):
  """Distributions that the modules in folders import, anywhere in them."""
  found = set()
  for path in (path for folder in folders for path in (ROOT / folder).rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Import):
        found |= {alias.name.split('.')[0] for alias in node.names}
      elif isinstance(node, ast.ImportFrom) and node.module:
        found.add(node.module.split('.')[0])
  ours = {path.name for path in ROOT.iterdir()}
  return {NAMES.get(name, name) for name in found - ours - set(sys.stdlib_module_names)}


@pytest.mark.parametrize('name, target', PROJECT['project']['scripts'].items())
def test_console_scripts_exist(name, target):
  module, function = target.split(':')
  assert module.split('.')[0] in PACKAGES, f'{name} is not in the wheel'
  assert callable(getattr(importlib.import_module(module), function))


def test_what_is_imported_is_required_and_the_other_way_round():
  optional = _required('convert') | _required('train')
  assert _imported(*PACKAGES) - optional == _required()
  assert _imported(*PACKAGES) >= optional
  assert _required('test') - {'pytest-xdist'} <= _imported('tests')


def test_every_file_of_the_packages_is_shipped():
  patterns = PROJECT['tool']['setuptools']['package-data']
  for package in PACKAGES:
    assert (ROOT / package / 'py.typed').is_file()
    names = [path.relative_to(ROOT / package).as_posix() for path in (ROOT / package).rglob('*')
             if path.is_file() and path.suffix not in ('.py', '.pyc')]
    left_out = [name for name in names
                if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns[package])]
    assert not left_out


def test_the_source_distribution_holds_every_folder():
  lines = (ROOT / 'MANIFEST.in').read_text().splitlines()
  folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob('*.py'))}
  ignored = {line.strip('/') for line in (ROOT / '.gitignore').read_text().splitlines()}
  assert folders - ignored <= {line.removeprefix('graft ') for line in lines}


def test_the_version_is_written_once():
  assert PROJECT['tool']['setuptools']['dynamic']['version'] == {
      'attr': 'cspd_jax.version.__version__'}
  assert re.fullmatch(r'\d+\.\d+\.\d+', cspd_jax.__version__)
