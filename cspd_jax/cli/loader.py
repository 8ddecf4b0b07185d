"""Configuration files: Python with a function `get_config()` that returns a dataclass.

The file is run as it stands, so users must trust it.
"""

import dataclasses
import importlib.machinery
import importlib.util
import sys
from typing import Any

from cspd_jax.files import paths


def load(path: str) -> Any:
  """Runs a configuration file and returns what its `get_config()` returns.

  Raises:
    ValueError: if the file does not exist, fails, or does not return a dataclass.
  """
  file = paths.find('--config', path)
  if not file.is_file():
    near = sorted(str(p) for p in file.parent.glob('*.py') if p.name != '__init__.py')
    raise ValueError(f'--config={path}: no such file. ' + (
        f'In {file.parent}: {", ".join(near)}.' if near else
        f'{file.parent} has no configurations either; run from the root of the repository.'))
  name = f'config_{file.stem}'
  # Read as Python whatever its suffix is.
  source = importlib.machinery.SourceFileLoader(name, str(file))
  spec = importlib.machinery.ModuleSpec(name, source, origin=str(file))
  spec.has_location = True
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module  # Where the types of the fields are looked up.
  try:
    source.exec_module(module)
    if not hasattr(module, 'get_config'):
      raise ValueError('it has no function get_config(), which returns a dataclass')
    config = module.get_config()
  except (Exception, SystemExit) as error:  # It is any Python, and may fail in any way.
    raise ValueError(f'--config={path} cannot be run: {type(error).__name__}: {error}.') from error
  if not dataclasses.is_dataclass(config) or isinstance(config, type):
    raise ValueError(f'--config={path}: get_config() returned a {type(config).__name__}; '
                     'it must return an instance of a dataclass.')
  return config
