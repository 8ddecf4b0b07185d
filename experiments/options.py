"""What programs with a configuration and flags of the same names have in common."""

import dataclasses
import os
import pathlib
import tempfile
from typing import Any


def resolve(config: Any, given: dict[str, Any], default: type, example: str) -> Any:
  """The configuration with the flags that were given.

  Args:
    config: the configuration, with the fields of `default`.
    given: values by name; another 'model' has no drafting models unless they are given.
    default: the program's configuration class.
    example: the file with its default configuration.

  Raises:
    ValueError: if the configuration is not one for this program.
  """
  needed = [field.name for field in dataclasses.fields(default)]
  if missing := [name for name in needed if not hasattr(config, name)]:
    raise ValueError(
        f'config is a {type(config).__name__} without {", ".join(missing)}; this program takes '
        f'one like {example}.')
  if given.get('model', config.model) != config.model:
    # What drafts for another target would not fit.
    given = {'draft_model': '', 'eagle': '', 'medusa': '', **given}
  return dataclasses.replace(config, **given)


def open_workdir(workdir: str) -> pathlib.Path:
  """Creates the folder if necessary.

  Raises:
    ValueError: if files cannot be written there.
  """
  try:
    os.makedirs(workdir, exist_ok=True)
    with tempfile.TemporaryFile(dir=workdir):
      pass
  except OSError as error:
    raise ValueError(
        f'workdir is {workdir!r}, where files cannot be written ({error.strerror}); give another '
        'folder.') from error
  return pathlib.Path(workdir)
