"""What training programs share."""

import pathlib
from typing import Any

from absl import logging


def check_kind(recipe: Any, kind: type | tuple[type, ...], example: str) -> None:
  """Raises ValueError unless a configuration is a recipe of this kind, or one of these."""
  if not isinstance(recipe, kind):
    raise ValueError(f'--config gives a {type(recipe).__name__}; this program takes a recipe like '
                     f'{example}.')


def log_progress() -> None:
  """Shows the lines that tell how far a run is."""
  logging.set_verbosity(logging.INFO)
  # Orbax reports every file it touches at this level.
  logging.get_absl_logger().addFilter(lambda record: 'orbax' not in record.pathname)


def log_size(folder: pathlib.Path) -> None:
  """Tells that a folder was written, and how large it is."""
  size = sum(file.stat().st_size for file in folder.rglob('*') if file.is_file())
  logging.info('wrote %s, %.2f MB', folder, size / 1e6)
