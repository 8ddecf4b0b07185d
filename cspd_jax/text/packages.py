"""Optional packages for text prompts."""

import importlib
from typing import Any


def need(name: str) -> Any:
  """Imports an optional package.

  Raises:
    ImportError: if it is not installed.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ImportError(
        f"Text prompts need the package {name}, which is not installed; run pip install -e "
        "'.[text]' in the repository, or pass prompts as token ids, as docs/models.md shows."
    ) from error
