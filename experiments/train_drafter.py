"""Trains a drafter for a shipped or converted target and exports it.

    python -m experiments.train_drafter --config=configs/eagle_demo.py --workdir=runs/eagle_demo

Makes images with the target (or tokenises photographs), trains, measures on held-out images
(report.json) and writes a checkpoint that `cspd_jax.core.checkpoint.load` reads. A stopped run continues
when the command is repeated, to the same result. The folder remembers its configuration and refuses
another one.
"""

import pathlib
import sys

from absl import app
from absl import flags
from absl import logging

from cspd_jax.training import drafter_recipe
from experiments import config_flags
from experiments import drafter_training

_CONFIG = config_flags.DEFINE_config(default='configs/eagle_demo.py')
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Folder for images, checkpoints, metrics and the report. '
    'Default: runs/ and the name of the configuration file.')
_EXPORT = flags.DEFINE_string(
    'export', None, 'The checkpoint folder to write. Default: WORKDIR/export.')
_DTYPE = flags.DEFINE_enum(
    'dtype', 'bfloat16', ['float32', 'bfloat16'], 'What the exported checkpoint stores.')


def main(argv: list[str]) -> int | None:
  if len(argv) > 1:
    print(f'error: {" ".join(argv[1:])!r} is not a flag; see --help.', file=sys.stderr)
    return 2
  recipe = _CONFIG.value()
  if not isinstance(recipe, drafter_recipe.DrafterRecipe):
    print('error: --config must return a cspd_jax.training.drafter_recipe.DrafterRecipe, got a '
          f'{type(recipe).__name__}; see configs/eagle_demo.py.', file=sys.stderr)
    return 2
  default = pathlib.Path('runs') / pathlib.Path(_CONFIG.flag.value).stem
  workdir = pathlib.Path(_WORKDIR.value or default).absolute()
  try:
    export = pathlib.Path(_EXPORT.value or workdir / 'export')
    drafter_training.run(recipe, workdir, export, _DTYPE.value)
  except (ImportError, OSError, ValueError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2


if __name__ == '__main__':
  logging.set_verbosity(logging.INFO)
  # Orbax reports every file it touches at this level; the progress lines are what one reads.
  logging.get_absl_logger().addFilter(lambda record: 'orbax' not in record.pathname)
  app.run(main, flags_parser=config_flags.parse)
