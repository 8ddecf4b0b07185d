"""What the distribution says of itself is what is there."""

import ast
import configparser
import fnmatch
import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

import cspd_jax

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = configparser.ConfigParser()
PROJECT.read(ROOT / 'setup.cfg')
PACKAGES = ('cspd_jax', 'checkpoints_conversion')
# Distributions that are not called like what is imported.
NAMES = {'absl': 'absl-py', 'ftfy': 'ftfy', 'huggingface_hub': 'huggingface_hub',
         'orbax': 'orbax-checkpoint', 'PIL': 'pillow',
         'skimage': 'scikit-image', 'sklearn': 'scikit-learn', 'tiktoken': 'tiktoken',
         'safetensors': 'safetensors', 'tokenizers': 'tokenizers', 'xdist': 'pytest-xdist'}


# What takes long to import, and what imports it.
_LATER = {
    'matplotlib', 'optax', 'orbax', 'scipy', 'tokenizers', 'torch', 'transformers', 'starlette',
    'uvicorn', 'checkpoints_conversion', 'experiments', 'cspd_jax.measure', 'cspd_jax.plots',
    'cspd_jax.testing', 'cspd_jax.training', 'cspd_jax.metrics', 'cspd_jax.cli'}


def _lines(section, name):
  return [line for line in PROJECT[section][name].split('\n') if line and line[0] != '#']


def _required(extra=None):
  listed = (_lines('options.extras_require', extra) if extra else
            _lines('options', 'install_requires'))
  return {re.split(r'[<>=!~ ;\[]', one)[0] for one in listed}


def _imported(*folders):
  """Distributions that the modules in folders import, or name to find their files."""
  actual = set()
  for path in (path for folder in folders for path in (ROOT / folder).rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Import):
        actual |= {alias.name.split('.')[0] for alias in node.names}
      elif isinstance(node, ast.ImportFrom) and node.module:
        actual.add(node.module.split('.')[0])
      elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        actual |= {node.value.split('.')[0]} & NAMES.keys()
  ours = {path.name for path in ROOT.iterdir()}
  return {NAMES.get(name, name) for name in actual - ours - set(sys.stdlib_module_names)}


@pytest.mark.parametrize('line', _lines('options.entry_points', 'console_scripts'))
def test_console_scripts_exist(line, capsys):
  name, target = line.split(' = ')
  module, function = target.split(':')
  assert module.split('.')[0] in PACKAGES, f'{name} is not in the wheel'
  imported = importlib.import_module(module)
  main = getattr(imported, function)
  assert main([name, '--version']) == 0
  assert capsys.readouterr().out.startswith(f'cspd_jax {cspd_jax.__version__}, jax ')
  assert main([name, '-h']) == 0
  assert capsys.readouterr().out.startswith(imported.__doc__.split('\n')[0])
  # --help prints the docstring.
  assert not re.search(r'\b(configs|docs|experiments|notebooks|tests)[/.]\w', imported.__doc__)


def test_imported_and_required_packages_are_the_same():
  optional = {name for extra in ('hub', 'text', 'serve') for name in _required(extra)}
  optional.add('torch')  # `from_torch` gets modules of whoever has it.
  assert _imported(*PACKAGES) - optional == _required()
  assert _imported(*PACKAGES) >= optional
  assert _imported('experiments') >= _required('train')
  assert _required('test') - {'pytest-xdist'} <= _imported('tests') | optional


def test_every_file_of_the_packages_is_shipped():
  patterns = {package: actual.split(', ')
              for package, actual in PROJECT['options.package_data'].items()}
  for package in PACKAGES:
    assert (ROOT / package / 'py.typed').is_file()
    names = [path.relative_to(ROOT / package).as_posix() for path in (ROOT / package).rglob('*')
             if path.is_file() and path.suffix not in ('.py', '.pyc')]
    left_out = [name for name in names
                if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns[package])]
    assert not left_out


def test_the_source_distribution_holds_every_folder():
  lines = (ROOT / 'MANIFEST.in').read_text().splitlines()
  folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob('*.py'))
             and not (path / 'pyvenv.cfg').exists()}
  ignored = {line.strip('/') for line in (ROOT / '.gitignore').read_text().splitlines()}
  assert folders - ignored <= {line.removeprefix('graft ') for line in lines}


def test_the_version_is_written_once():
  assert PROJECT['metadata']['version'] == 'attr: cspd_jax.version.__version__'
  assert re.fullmatch(r'\d+\.\d+\.\d+', cspd_jax.__version__)


def test_what_takes_long_to_import_waits():
  """The package waits with what it may not need, and so does cspd-generate, where users wait."""
  code = f"""if True:
    import sys, jax
    before = set(sys.modules)
    there = lambda: sorted(({{*sys.modules}} - before) & {_LATER})
    import cspd_jax
    print(there())
    import cspd_jax.commands.generate
    print(there())
    print(cspd_jax.training.__name__, cspd_jax.testing.check_target.__name__)
    """
  result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT)
  assert result.stdout == ("[]\n['cspd_jax.cli', 'cspd_jax.metrics']\n"
                           'cspd_jax.training check_target\n'), result.stderr


def test_the_workflow_tries_every_python_and_the_newest_jax():
  text = (ROOT / '.github' / 'workflows' / 'ci.yml').read_text()
  runs = re.findall(r"python: '([\d.]+)', jax: '([^']*)'", text)
  pythons = {line.rpartition(' ')[2] for line in _lines('metadata', 'classifiers')
             if re.search(r':: 3\.\d+$', line)}
  assert {python for python, _ in runs} == pythons
  assert min(pythons, key=lambda one: int(one[2:])) == PROJECT['options']['python_requires'][2:]
  oldest = next(line for line in _lines('options', 'install_requires') if line.startswith('jax>'))
  assert {jax for _, jax in runs} == {f"{oldest.replace('>=', '==')}.*", ''}
  assert 'run: bash .ci/run' in text and 'PIP_CONSTRAINT' in text


def test_extras_are_installed_from_a_clone():
  """No registry has the package, and every extra that a message names is one of it."""
  named = set()
  for folder in (*PACKAGES, 'experiments', 'docs', 'notebooks', 'tests'):
    for path in (ROOT / folder).rglob('*'):
      if path.suffix in ('.py', '.md', '.ipynb'):
        text = path.read_text()
        assert not re.search(r'pip install [^`\n]*cspd[_-]jax\\?\[', text), path
        named |= set(re.findall(r'packages\.install\(.(\w+).\)', text))
  assert {'hub', 'serve', 'text', 'train'} <= named <= PROJECT['options.extras_require'].keys()


def test_the_names_of_the_package_are_listed():
  listed = dir(cspd_jax)
  assert {*cspd_jax.__all__, 'families', 'testing', 'training'} <= {*listed}
  assert not {'Any', 'TYPE_CHECKING', 'importlib', 'sys', 'programs'} & {*listed}
  assert all(hasattr(cspd_jax, name) for name in listed)


# What `pip install -e` adds to Python: it finds packages that no folder of the path has.
_EDITABLE = '''
import importlib.machinery, sys

class Finder:
  @staticmethod
  def find_spec(name, path=None, target=None):
    if name in {packages}:
      return importlib.machinery.PathFinder.find_spec(name, [{root!r}])

# Before those of packages that are installed so here.
sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder) + 1, Finder)
'''


@pytest.mark.parametrize('name, finds', [(None, True), ('cspd_jax', False)])
def test_a_script_beside_the_clone_imports_the_package(tmp_path, name, finds):
  """Python takes a folder of the package's name for the package, before it asks the finder."""
  if name is None:
    name, folder = re.search(r'git clone URL (\S+) && cd (\S+)', (ROOT / 'README.md').read_text()
                             ).groups()
    assert name == folder
  (tmp_path / name).symlink_to(ROOT)
  installed = tmp_path / 'installed'
  installed.mkdir()
  (installed / 'sitecustomize.py').write_text(_EDITABLE.format(packages=PACKAGES, root=str(ROOT)))
  (tmp_path / 'mine.py').write_text(
      "import importlib.util\nprint(importlib.util.find_spec('cspd_jax').origin)\n")
  result = subprocess.run(
      [sys.executable, 'mine.py'], capture_output=True, text=True, cwd=tmp_path,
      env={**os.environ, 'PYTHONPATH': str(installed)})
  assert (result.stdout.strip() == str(ROOT / 'cspd_jax' / '__init__.py')) == finds, result.stderr
