"""Modules that a command imports before anything else, such as one that registers a family.

A module is named as in Python, or by its path. Modules of the current folder are found too; those
that are installed come first. It is Python that is run, so users must trust it.
"""

import importlib
import pathlib
import sys
from collections.abc import Sequence

from cspd_jax.core import naming
from cspd_jax.files import paths

# What the running command has imported: the commands that it advises need it too.
MODULES: list[str] = []


def run(modules: Sequence[str]) -> None:
  """Imports modules, and remembers them in `MODULES`; raises ValueError for one that cannot be."""
  MODULES[:] = modules
  for module in modules:
    _import(module)


def _import(module: str) -> None:
  file = paths.find('--import', module) if module.endswith('.py') else None
  folder, name = (pathlib.Path.cwd(), module) if file is None else (file.parent, file.stem)
  missing = f'--import={module}: no such file{_near(name, folder)}' if file is not None else (
      f'--import={module}: no module has this name, neither installed nor in {folder}'
      f'{_near(name, folder)}')
  if file is not None and not file.is_file():
    raise ValueError(missing)
  if not all(part.isidentifier() for part in name.split('.')):
    raise ValueError(f'--import={module}: a module has a name such as beach or package.beach, and '
                     'its file a path that ends in .py; rename the file, or give another.')
  if str(folder) not in sys.path:
    sys.path.append(str(folder))  # Last, so that no file there hides an installed package.
  importlib.invalidate_caches()
  try:
    found = importlib.import_module(name)
  except (Exception, SystemExit) as error:  # It is any Python, and may fail in any way.
    is_missing = isinstance(error, ModuleNotFoundError) and (
        f'{name}.'.startswith(f'{error.name}.'))
    raise ValueError(missing if is_missing else f'--import={module} cannot be imported: '
                     f'{type(error).__name__}: {error}.') from error
  if getattr(found, '__file__', None) is None:  # A folder without __init__.py.
    raise ValueError(missing)
  if file is not None and not file.samefile(str(found.__file__)):
    raise ValueError(f'--import={module}: another module, {found.__file__}, has the name {name}; '
                     'rename the file.')


def _near(name: str, folder: pathlib.Path) -> str:
  """A module of a folder that may be meant, as advice."""
  return naming.suggestion(name, [path.stem for path in folder.glob('*.py')],
                           otherwise='; give the path of a file that ends in .py.')
