"""Trains a tokenizer, a target and a draft model on photographs or scenes, and exports them.

  python -m experiments.train --config=configs/train/demo.py --workdir=runs/train_demo
  python -m experiments.train --config=configs/train/mar_demo.py --workdir=runs/train_mar_demo \\
      --stage=tokenizer
  python -m experiments.train --config=configs/train/demo.py --smoke --workdir=runs/smoke

The stages are tokenizer, target and draft (both on crops that the tokenizer has tokenised), eval
(report.json and pictures) and export (a model folder that `cspd_jax.load` reads); --stage=all, the
default, does all of them. A stopped run continues when the command is repeated, to the same result.
The folder stores its configuration and refuses another one.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax import cli, families
from cspd_jax.cli import inputs
from cspd_jax.files import paths, run_folder, store
from cspd_jax.generation.model import Model
from cspd_jax.plots import grid
from cspd_jax.training import loop
from experiments.demo_models import photos, stages


@dataclasses.dataclass(frozen=True)
class Flags:
  """Stage and folders of a run.

  Attributes:
    workdir: folder for checkpoints, metrics, pictures and the report.
    stage: stage to run; it continues or reuses the results of earlier runs in the work folder.
    export: folder of the exported model; if none, export in the work folder.
    smoke: trains tiny networks for a few steps on a few images: all stages in about a minute.
  """

  workdir: str = 'runs/train'
  stage: Literal['all', 'tokenizer', 'target', 'draft', 'eval', 'export'] = 'all'
  export: str | None = None
  smoke: bool = False


def run(recipe: stages.Stages, workdir: pathlib.Path, stage: str, export: pathlib.Path) -> None:
  """Runs one stage or all of them."""
  selected = {*_stages_of(recipe)} if stage == 'all' else {stage}
  tokenizer = recipe.train_tokenizer(workdir)
  if selected == {'tokenizer'}:
    return
  data = {split: recipe.tokenize(tokenizer, split, workdir) for split in photos.SPLITS}
  models = {role: recipe.train_model(role, data, workdir) for role in recipe.models
            if selected & {role, 'eval', 'export'}}
  if 'export' in selected:
    _export(recipe, recipe.networks(tokenizer, models, data), export)
  if 'eval' in selected:
    metrics = recipe.metrics(tokenizer, models, data)
    report = run_folder.Report(workdir, picture_names(recipe))
    write_pictures(recipe, tokenizer, models, data, report)
    report.write(settings=dataclasses.asdict(recipe),
                 rows=[dict(network=role, **values) for role, values in metrics.items()])
    for role, values in metrics.items():
      logging.info('%s: %s', role, ', '.join(
          f'{name} {value:.4g}' if isinstance(value, float) else f'{name} {value}'
          for name, value in values.items()))


def _stages_of(recipe: stages.Stages) -> tuple[str, ...]:
  return 'tokenizer', *recipe.models, 'eval', 'export'


def _export(recipe: stages.Stages, networks: dict[str, store.Loaded],
            folder: pathlib.Path) -> None:
  """Writes the model folder, with its networks in bfloat16."""
  for role, network in networks.items():
    store.save(folder / role, *network[:3], dtype=jnp.bfloat16, extra=network.metadata)
    inputs.log_size(folder / role)
  families.save(folder, recipe.family, {role: role for role in networks}, recipe.defaults)


def picture_names(recipe: stages.Stages) -> tuple[str, ...]:
  """Returns the names of the pictures that `write` adds to a report."""
  return ('held_out.png', 'reconstructions.png', *(
      f'samples_{role}{suffix}.png' for role in recipe.models for suffix in ('', '_guided')))


def built(recipe: stages.Stages, networks: Mapping[str, store.Loaded], role: str) -> Model:
  """Builds one of `recipe.models` with the recipe's defaults, like the exported model."""
  loaded = {name: network for name, network in networks.items() if name not in recipe.models}
  # The parameters have their dtype already.
  defaults = {name: value for name, value in recipe.defaults.items() if name != 'dtype'}
  return families.FAMILIES[recipe.family].build(
      families.Parts(role, loaded | {'target': networks[role]}, defaults))


def write_pictures(recipe: stages.Stages, tokenizer: Any, models: Mapping[str, Any],
                   data: Mapping[str, stages.Split], report: run_folder.Report) -> None:
  """Writes grids of held-out, reconstructed and sampled images; arguments as for `networks`."""
  count = 2 * len(photos.NAMES)
  images, labels = (part[:count] for part in recipe.held_out())
  save = lambda name, pictures, captions: grid.save_grid(
      report.path(f'{name}.png'), pictures, captions=captions, columns=len(photos.NAMES))
  save('held_out', images, recipe.captions(labels))
  save('reconstructions', recipe.reconstruct(tokenizer, data, images), recipe.captions(labels))
  networks = recipe.networks(tokenizer, models, data)
  for role in models:
    model = built(recipe, networks, role)
    prompts = [model.prompts[i % len(model.prompts)] for i in range(count)]
    for suffix, scale in (('', 1.0), ('_guided', recipe.guidance_scale)):
      generated = model.generate(
          prompts, seed=recipe.seed, decoder=model.table.baseline, guidance_scale=scale)
      save(f'samples_{role}{suffix}', generated.images / np.float32(127.5) - 1, generated.prompts)


@cli.command(kept='saved steps are kept', config='configs/train/demo.py', flags=Flags())
def main(recipe: Any, flags: Any) -> None:
  inputs.check_kind(recipe, stages.Stages, 'configs/train/demo.py')
  if flags.stage not in ('all', *_stages_of(recipe)):
    raise ValueError(f'stage is {flags.stage!r}, which the configuration has not; it must be all '
                     f'or one of: {", ".join(_stages_of(recipe))}.')
  if flags.smoke:
    recipe = loop.smoke(recipe.small())
  workdir = paths.folder('workdir', flags.workdir)
  export = inputs.output_folder('export', flags.export, workdir)
  families.check_place(export, recipe.family, {
      role: role for role in ('tokenizer', *recipe.models)})
  run_folder.check(workdir, picture_names(recipe))
  recipe.prepare()
  with run_folder.Run(workdir, dataclasses.asdict(recipe), name='workdir', alone=False):
    inputs.log_progress()
    run(recipe, workdir, flags.stage, export)


if __name__ == '__main__':
  sys.exit(main())
