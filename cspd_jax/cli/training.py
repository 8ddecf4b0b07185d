"""Checks and log messages of the training programs."""

import pathlib
from typing import Any

from absl import logging

from cspd_jax.files import paths


def check_kind(recipe: Any, kind: type | tuple[type, ...], example: str) -> None:
  """Raises ValueError unless a configuration is a recipe of this class, or one of these classes."""
  if not isinstance(recipe, kind):
    raise ValueError(f'--config returns a {type(recipe).__name__}; this program requires a recipe '
                     f'like {example}.')


def output_folder(name: str, folder: str | None, workdir: pathlib.Path) -> pathlib.Path:
  """Returns the folder of trained networks: `folder`, or the one of this name in `workdir`.

  Raises:
    ValueError: if the folder cannot be written, or that in `workdir` is a link: someone else may
      have placed it, and the model in its target would be replaced.
  """
  if folder is None and (workdir / name).is_symlink():
    raise ValueError(f'workdir is {str(workdir)!r}, where {name} is a link; remove it, or pass '
                     f'the folder as {name}.')
  return paths.folder(name, folder or workdir / name)


def log_progress() -> None:
  """Shows the log lines of the progress."""
  logging.set_verbosity(logging.INFO)


def log_size(folder: pathlib.Path) -> None:
  """Logs that a folder was written, and its size."""
  size = sum(file.stat().st_size for file in folder.rglob('*') if file.is_file())
  logging.info('wrote %s, %.2f MB', folder, size / 1e6)
