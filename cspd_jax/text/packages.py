"""Packages that only prompts in words need."""

import importlib
from typing import Any


def need(name: str) -> Any:
  """The package of this name.

  Raises:
    ImportError: if it is not installed.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ImportError(
        f"Prompts in words need the package {name}, which is not installed; run pip install -e "
        "'.[text]' in the repository, or give prompts in numbers, as docs/models.md shows."
    ) from error
