"""Imports of optional packages, and how to install them."""

import importlib
from typing import Any


def load(name: str) -> Any:
  """Imports a package that may be absent or broken, or a module of it.

  ImportError is 'NAME is not installed', or 'NAME cannot be imported' with the reason, whatever the
  package raises: a missing library, or a panic of its Rust code. Callers add how to install it.
  """
  try:
    return importlib.import_module(name)
  except (KeyboardInterrupt, SystemExit):
    raise
  except BaseException as error:  # Panics in Rust do not derive from Exception.
    if isinstance(error, ModuleNotFoundError) and error.name == name:
      raise ImportError(f'{name} is not installed') from error
    reason = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise ImportError(f'{name} cannot be imported ({reason:.300})') from error


def install(extra: str) -> str:
  """Returns the command that installs an extra of `setup.cfg`, and where it works."""
  return f"pip install -e '.[{extra}]' in a clone of cspd_jax"
