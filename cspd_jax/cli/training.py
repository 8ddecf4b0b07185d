"""What training programs share."""

import pathlib
from typing import Any

from absl import logging

from cspd_jax.checkpoints import paths


def check_kind(recipe: Any, kind: type | tuple[type, ...], example: str) -> None:
  """Raises ValueError unless a configuration is a recipe of this kind, or one of these."""
  if not isinstance(recipe, kind):
    raise ValueError(f'--config gives a {type(recipe).__name__}; this program takes a recipe like '
                     f'{example}.')


def export_place(export: str | None, workdir: pathlib.Path) -> pathlib.Path:
  """The folder for what was trained: `export`, or the one of this name in the work folder.

  Raises:
    ValueError: if it cannot be written, or the latter is a link: it may be of a stranger, and lead
      to another model, which would be replaced.
  """
  if export is None and (workdir / 'export').is_symlink():
    raise ValueError(f'workdir is {str(workdir)!r}, where export is a link; remove it, or give '
                     'the folder as export.')
  return paths.folder('export', export or workdir / 'export')


def log_progress() -> None:
  """Shows the lines that tell how far a run is."""
  logging.set_verbosity(logging.INFO)
  # Orbax reports every file it touches at this level.
  logging.get_absl_logger().addFilter(lambda record: 'orbax' not in record.pathname)


def log_size(folder: pathlib.Path) -> None:
  """Tells that a folder was written, and how large it is."""
  size = sum(file.stat().st_size for file in folder.rglob('*') if file.is_file())
  logging.info('wrote %s, %.2f MB', folder, size / 1e6)
