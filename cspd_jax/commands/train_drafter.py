"""Trains a drafter for a shipped or converted model and exports it.

  cspd-train-drafter --config=configs/train/eagle_demo.py --workdir=runs/eagle_demo

Makes images with the model (or tokenises photographs), trains, measures on held-out images
(report.json) and writes a network that `cspd_jax.load(model, eagle=FOLDER)` takes (`medusa=`,
`corrector=`). A stopped run continues when the command is repeated, to the same result. The folder
remembers its configuration and refuses another one.
"""

import dataclasses
import json
import pathlib
import sys
from typing import Any, Literal

import jax.numpy as jnp
from absl import logging

import cspd_jax
from cspd_jax import cli
from cspd_jax.checkpoints import files, paths, store
from cspd_jax.cli import training
from cspd_jax.generation import report as report_lib
from cspd_jax.training import corrector_recipe, drafter_recipe, loop, smoke
from cspd_jax.training.corrector_recipe import CorrectorRecipe
from cspd_jax.training.drafter_recipe import DrafterRecipe

_RECIPES: dict[type, Any] = {DrafterRecipe: drafter_recipe, CorrectorRecipe: corrector_recipe}


@dataclasses.dataclass(frozen=True)
class Flags:
  """Where, and how the result is stored.

  Attributes:
    workdir: folder for images, checkpoints, metrics and the report.
    export: folder of the finished network; if none, export in the work folder.
    dtype: what it is stored in.
    smoke: trains for a few steps on a few images.
  """

  workdir: str = 'runs/train_drafter'
  export: str | None = None
  dtype: Literal['float32', 'bfloat16'] = 'bfloat16'
  smoke: bool = False


def run(recipe: DrafterRecipe | CorrectorRecipe, workdir: pathlib.Path, export: pathlib.Path,
        dtype: str) -> None:
  """Trains in `workdir` or continues, and writes the report and the network.

  Raises:
    ValueError: if the drafter does not fit its model, or the folder holds another run.
  """
  store.check_place(export)
  report_lib.check(workdir)
  model, how = cspd_jax.load(recipe.target, dtype='float32'), _RECIPES[type(recipe)]
  how.check(recipe, model)
  with files.hold(workdir):
    loop.remember(recipe, workdir)
    params, figures = how.train(recipe, model, workdir)
    _finish(recipe, params, figures, workdir, export, dtype)


def _finish(recipe: DrafterRecipe | CorrectorRecipe, params: Any, figures: dict[str, float],
            workdir: pathlib.Path, export: pathlib.Path, dtype: str) -> None:
  """Writes the network and the report."""
  store.save(export, recipe.kind, recipe.drafter, params, dtype=jnp.dtype(dtype),
                  extra={'target': recipe.target})
  training.log_size(export)
  logging.info('report: %s', json.dumps(figures))
  report_lib.Report(workdir).write(settings=dataclasses.asdict(recipe), rows=[figures])


@cli.command(config='configs/train/eagle_demo.py', flags=Flags())
def main(recipe: Any, flags: Any) -> None:
  training.check_kind(recipe, tuple(_RECIPES), 'configs/train/eagle_demo.py')
  if flags.smoke:
    recipe = smoke.smoke(recipe)
  training.log_progress()
  workdir = paths.folder('workdir', flags.workdir)
  run(recipe, workdir, training.export_place(flags.export, workdir), flags.dtype)


if __name__ == '__main__':
  sys.exit(main())
