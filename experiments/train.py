"""Trains a tokenizer, a target and a draft model on the embedded photographs, and exports them.

  python -m experiments.train --config=configs/train/demo.py --workdir=runs/train_demo
  python -m experiments.train --config=configs/train/mar_demo.py --workdir=runs/train_mar_demo \\
      --stage=tokenizer
  python -m experiments.train --config=configs/train/demo.py --smoke --workdir=runs/smoke

The stages are tokenizer, target and draft (after tokenising crops with it), eval (report.json and
pictures) and export (a model folder that `cspd_jax.load` reads); --stage=all, the default, does
them in this order. A stopped run continues when the command is repeated, to the same result. The
folder remembers its configuration and refuses another one.
"""

import dataclasses
import json
import pathlib
import sys
from typing import Any, Literal

import jax.numpy as jnp
from absl import logging

import cspd_jax
from cspd_jax import families
from cspd_jax.checkpoints import locks, paths, store
from cspd_jax.generation import report as report_lib
from cspd_jax.training import loop, smoke
from experiments import cli
from experiments.cli import training
from experiments.demo_models import photos, pictures, stages


@dataclasses.dataclass(frozen=True)
class Flags:
  """What to do, and where.

  Attributes:
    workdir: folder for checkpoints, metrics, pictures and the report.
    stage: what to do; a stage continues or reuses what earlier ones left in the work folder.
    export: folder of the finished model; if none, export in the work folder.
    smoke: replaces the networks by tiny ones, with a few steps and images: all stages in about a
      minute.
  """

  workdir: str = 'runs/train'
  stage: Literal['all', 'tokenizer', 'target', 'draft', 'eval', 'export'] = 'all'
  export: str | None = None
  smoke: bool = False


def run(recipe: stages.Stages, workdir: pathlib.Path, stage: str, export: pathlib.Path) -> None:
  """Does one stage, or all of them."""
  wanted = {'tokenizer', *stages.MODELS, 'eval', 'export'} if stage == 'all' else {stage}
  tokenizer = tokenizer_of(recipe, workdir)
  if wanted == {'tokenizer'}:
    return
  data = {split: recipe.tokenize(tokenizer, split, workdir) for split in photos.SPLITS}
  models = {role: recipe.train_model(role, data, workdir) for role in stages.MODELS
            if wanted & {role, 'eval', 'export'}}
  if 'export' in wanted:
    _export(recipe, recipe.networks(tokenizer, models, data), export)
  if 'eval' in wanted:
    figures = recipe.figures(tokenizer, models, data)
    report = report_lib.Report(workdir, pictures.NAMES)
    pictures.write(recipe, tokenizer, models, data, report)
    report.write(settings=dataclasses.asdict(recipe),
                 rows=[dict(network=role, **found) for role, found in figures.items()])
    logging.info('report: %s', json.dumps(figures))


def tokenizer_of(recipe: stages.Stages, workdir: pathlib.Path) -> Any:
  """Parameters of the tokenizer that the recipe names, or of one that is trained in `workdir`.

  Raises:
    ValueError: if the model that it names has none of these sizes.
  """
  if recipe.tokenizer_of is None:
    return recipe.train_tokenizer(workdir)
  found = cspd_jax.load(recipe.tokenizer_of).tokenizer
  if found is None or found.config != recipe.tokenizer:
    raise ValueError(
        f'tokenizer_of is {recipe.tokenizer_of!r}, which has '
        f'{"no tokenizer" if found is None else found.config}; the recipe has {recipe.tokenizer}.')
  return found.params


def _export(recipe: stages.Stages, networks: dict[str, stages.Network],
            folder: pathlib.Path) -> None:
  """Writes the model with its networks in bfloat16."""
  for role, network in networks.items():
    store.save(folder / role, *network, dtype=jnp.bfloat16, extra=recipe.metadata)
    training.log_size(folder / role)
  families.save(folder, recipe.family, {role: role for role in networks}, recipe.defaults)


@cli.program(config='configs/train/demo.py', flags=Flags())
def main(recipe: Any, flags: Any) -> None:
  training.check_kind(recipe, stages.Stages, 'configs/train/demo.py')
  if flags.smoke:
    recipe = smoke.smoke(recipe.small())
  workdir = paths.folder('workdir', flags.workdir)
  export = training.export_place(flags.export, workdir)
  families.check_place(export, recipe.family, {role: role for role in ('tokenizer',
                                                                       *stages.MODELS)})
  report_lib.check(workdir, pictures.NAMES)
  photos.load()
  if recipe.tokenizer_of is not None:
    tokenizer_of(recipe, workdir)  # Says what is wrong with it before anything is written.
  with locks.hold(workdir):
    loop.remember(recipe, workdir)
    training.log_progress()
    run(recipe, workdir, flags.stage, export)


if __name__ == '__main__':
  sys.exit(main())
