"""The rules of the house: which module may import which, and what writes files."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
CODE = ('cspd_jax', 'checkpoints_conversion', 'configs', 'experiments')
MODULES = sorted(path for folder in CODE for path in (ROOT / folder).rglob('*.py'))

# Every module imports from its own row and from rows below, never from above.
ROWS = (
    {'configs'},
    {'experiments'},
    {'checkpoints_conversion'},
    {'experiments.costs', 'experiments.demo_models'},
    {'cspd_jax.commands'},
    {'cspd_jax.cli'},
    {'cspd_jax'},  # What users import: the names that `cspd_jax/__init__.py` gathers.
    {'cspd_jax.serve', 'cspd_jax.verify'},
    {'cspd_jax.measure', 'cspd_jax.training'},
    {'cspd_jax.metrics'},
    {'cspd_jax.families'},
    {'cspd_jax.generation'},
    {'cspd_jax.plots', 'cspd_jax.testing'},
    {'cspd_jax.models', 'cspd_jax.text'},
    {'cspd_jax.decoding', 'cspd_jax.continuous'},
    {'cspd_jax.files'},
    {'cspd_jax.core', 'cspd_jax.version'},
    {'cspd_jax.sharding'},
)
# What the package imports from above when a caller asks for it; type checkers see its signature.
ON_DEMAND = {('cspd_jax', 'checkpoints_conversion.from_torch'),
             ('cspd_jax.verify.other_code', 'checkpoints_conversion.torch_classes')}
# Neighbours in a row that know nothing of each other.
STRANGERS = (('cspd_jax.decoding', 'cspd_jax.continuous'),)

def _label(path, line):
  return f'{path.relative_to(ROOT)}:{line}'


def _expect_none(offenders):
  """Fails with one line per offender."""
  if offenders:
    pytest.fail('\n' + '\n'.join(dict.fromkeys(offenders)), pytrace=False)


@functools.cache
def _tree(path):
  return ast.parse(path.read_text())


def _name(path):
  """The dotted name of a module."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def _package(name):
  """The entry of `ROWS` that a module counts to; None if there is none."""
  if name == 'cspd_jax':
    return name
  known = {package for row in ROWS for package in row} - {'cspd_jax'}
  parts = name.split('.')
  prefixes = ('.'.join(parts[:length]) for length in range(len(parts), 0, -1))
  return next((prefix for prefix in prefixes if prefix in known), None)


@functools.cache
def _imports(path):
  """Lines and dotted names of everything of ours that a module imports, for type checkers too."""
  names, result = {_name(module) for module in MODULES}, []
  for node in ast.walk(_tree(path)):
    if isinstance(node, ast.Import):
      imported = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      # `from package import module` imports the module, any other name what defines it.
      inside = [f'{node.module}.{alias.name}' for alias in node.names]
      imported = [name if name in names else node.module for name in inside]
    else:
      continue
    result += [(node.lineno, name) for name in imported
              if name.split('.')[0] in CODE and (_name(path), name) not in ON_DEMAND]
  return result


def test_every_module_has_a_row():
  homeless = {_name(path) for path in MODULES if _package(_name(path)) is None}
  homeless |= {name for path in MODULES for _, name in _imports(path) if _package(name) is None}
  _expect_none(sorted(homeless))


def test_imports_go_one_way():
  rows = {package: number for number, row in enumerate(ROWS) for package in row}
  wrong = []
  for path in MODULES:
    here = _package(_name(path))
    for line, name in _imports(path):
      there = _package(name)
      if here and there and (
          rows[there] < rows[here] or any({here, there} == set(pair) for pair in STRANGERS)):
        wrong.append(f'{_label(path, line)}: {here} must not import {name}')
  _expect_none(wrong)


def _expect_no_circle(needs):
  """Fails if some of the names need each other; `needs` has the names that each one needs."""
  while needs:
    free = {name for name in needs if not (needs[name] - {name}) & needs.keys()}
    assert free, f'in circles: {sorted(map(str, needs))}'
    needs = {name: needs[name] for name in needs.keys() - free}


def test_packages_do_not_import_each_other_in_circles():
  needs = {}
  for path in MODULES:
    here = _package(_name(path))
    needs.setdefault(here, set()).update(_package(name) for _, name in _imports(path))
  _expect_no_circle(needs)


def test_modules_do_not_import_each_other_in_circles():
  _expect_no_circle({_name(path): {name for _, name in _imports(path)} for path in MODULES})


def _bound(tree):
  """Names that a package binds to anything, with the dotted name of what it imports."""
  for node in tree.body:
    if isinstance(node, ast.ImportFrom):
      yield from ((alias.asname or alias.name, f'{node.module}.{alias.name}')
                  for alias in node.names)
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      yield node.name, None
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
      yield from ((name.id, None) for name in ast.walk(node)
                  if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store))


def test_no_package_hides_a_module():
  """`from package import name` gives the module of that name, where there is one."""
  names = {_name(path) for path in MODULES}
  _expect_none([
      f'{_label(path, 1)}: {name} hides the module of that name'
      for path in MODULES if path.name == '__init__.py'
      for name, imported in _bound(_tree(path))
      if (module := f'{_name(path)}.{name}') in names and imported != module])


# What survives a kill at any moment is there once; weights are files of a folder that it writes.
MOVERS = {f'cspd_jax.files.{name}' for name in ('atomic', 'output', 'weights')}


def _moves(tree):
  """Lines with calls that remove a folder, or rename one or a file."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
      owner, name = ast.unparse(node.func.value), node.func.attr
      if name in ('rmtree', 'rmdir', 'removedirs', 'rename', 'renames') or (
          f'{owner}.{name}' in ('os.replace', 'shutil.move')) or (
              name == 'replace' and len(node.args) == 1 and owner != 'dataclasses'):
        yield node.lineno, ast.unparse(node)


def test_folders_are_removed_and_renamed_in_one_place():
  _expect_none([f'{_label(path, line)}: {call}' for path in MODULES if _name(path) not in MOVERS
                for line, call in _moves(_tree(path))])


def _is_locale(call):
  """Whether a call opens or reads a text file in the encoding of the locale."""
  function, words = call.func, {word.arg for word in call.keywords}
  name = getattr(function, 'attr', getattr(function, 'id', None))
  if 'encoding' in words:
    return False
  if name in ('read_text', 'write_text'):
    return True
  if name in ('run', 'Popen', 'check_output'):
    return bool(words & {'text', 'universal_newlines'})
  if name not in ('open', 'fdopen', 'TemporaryFile', 'NamedTemporaryFile'):
    return False
  owner = ast.unparse(getattr(function, 'value', function))
  if owner in ('Image', 'archive') or ast.unparse(function) == 'os.open':
    return False
  values = [*call.args, *(word.value for word in call.keywords if word.arg == 'mode')]
  modes = [value.value for value in values if isinstance(value, ast.Constant)
           and re.fullmatch('[rwaxbt+]+', str(value.value))]
  return 'b' not in (modes[-1] if modes else 'b' if name.endswith('TemporaryFile') else 'r')


def test_text_files_are_utf_8():
  _expect_none([f'{_label(path, node.lineno)}: {ast.unparse(node):.60}'
                for path in [*MODULES, *(ROOT / 'docs').glob('*.py')]
                for node in ast.walk(_tree(path))
                if isinstance(node, ast.Call) and _is_locale(node)])
