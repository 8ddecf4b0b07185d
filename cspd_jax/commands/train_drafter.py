"""Trains a drafter for a model: an EAGLE network, Medusa heads or a corrector.

  cspd-train-drafter --model=checkpoints/c2i_xl_384 --kind=eagle
  cspd-train-drafter --model=checkpoints/lumina_7b_768 --kind=corrector --num_images=512
  cspd-train-drafter --config=configs/train/eagle_demo.py --workdir=runs/eagle_demo

The sizes of the network follow from the model; --config names a Python file with a recipe instead.
Samples images with the model, trains, measures on held-out images (report.json) and stores the
network in --output, for `cspd_jax.load(model, eagle=FOLDER)` (`medusa=`, `corrector=`). A stopped
command resumes when it is repeated, with the same result. The work folder stores its recipe and
refuses another one.
"""

import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, Literal

import jax.numpy as jnp
from absl import logging

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.cli import inputs, training
from cspd_jax.core import fields
from cspd_jax.files import atomic, paths, run_folder, store
from cspd_jax.training import corrector_recipe, drafter_recipe, samples, smoke
from cspd_jax.training.corrector import CorrectorTrainConfig
from cspd_jax.training.corrector_recipe import CorrectorRecipe
from cspd_jax.training.drafter import DrafterTrainConfig
from cspd_jax.training.drafter_recipe import DrafterRecipe
from cspd_jax.training.optimizer import OptimizerConfig

Recipe = DrafterRecipe | CorrectorRecipe
_PROGRAM = 'cspd-train-drafter'
_RECIPES: dict[type, Any] = {DrafterRecipe: drafter_recipe, CorrectorRecipe: corrector_recipe}
# Records the windows that a corrector learns from, by what the model has to draft with.
_WINDOWS = 'corrected(by={by}, window=32, passes=2, tree=chain())'


@dataclasses.dataclass(frozen=True)
class Flags:
  """The drafter to train, and its folders.

  Attributes:
    model: a shipped model of discrete tokens, or a folder; None uses that of the recipe, or demo.
    kind: what to train, without a recipe. None is eagle.
    prompts: file with one prompt per line for the sampled images; None uses the model's own
      prompts, or a built-in list for models of words.
    num_images: images to train on; None uses the recipe's number.
    num_steps: optimiser steps; None uses the recipe's number.
    batch_size: images per step; None uses the recipe's number.
    smoke: trains for a few steps on a few images, to try the command.
    workdir: folder of the images, checkpoints, metrics and the report; None uses
      runs/train_drafter/ and the names of model and kind.
    output: folder of the trained network; None uses output in the work folder.
    mesh: several devices to sample with, such as 2x4: two groups, each of which samples images of
      its own with four devices that the model is sharded over. None uses one device, as training
      does in any case.
    dtype: dtype of the stored network.
  """

  model: str | None = None
  kind: Literal['eagle', 'medusa', 'corrector'] | None = None
  prompts: str | None = None
  num_images: int | None = None
  num_steps: int | None = None
  batch_size: int | None = None
  smoke: bool = False
  workdir: str | None = None
  output: str | None = None
  mesh: str | None = None
  dtype: Literal['float32', 'bfloat16'] = 'bfloat16'

  def __post_init__(self):
    fields.check(self)


def recipe_for(model: cspd_jax.Model, name: str, kind: str) -> Recipe:
  """Returns a recipe with the sizes that a model requires.

  Args:
    model: the model.
    name: of a shipped model, or its folder.
    kind: one of those of `Flags`.

  Raises:
    ValueError: if no such network is trained for models of this family.
  """
  sizes = families.FAMILIES[model.family].published.networks(model.config)
  if kind not in sizes:
    trained = [kind for kind in ('eagle', 'medusa', 'corrector') if kind in sizes]
    if not trained:
      raise ValueError(f'model is {name!r}, a {model.family!r} model, for which no drafters are '
                       'trained; give a model of discrete tokens.')
    raise ValueError(
        f'kind is {kind!r}; for model {name!r} it must be one of {", ".join(trained)}.')
  if kind != 'corrector':
    return DrafterRecipe(drafter=sizes[kind][1], train=DrafterTrainConfig(), target=name)
  by = next(by for by in ('eagle', 'neighbours', 'layers') if by in model.drafts)
  train = CorrectorTrainConfig(guidance_scales=(atomic.plain(model.sampling().guidance_scale),))
  return CorrectorRecipe(drafter=sizes[kind][1], plain=OptimizerConfig(), train=train, target=name,
                         decoder=_WINDOWS.format(by=by))


def override(recipe: Recipe, flags: Flags) -> Recipe:
  """Returns a recipe with the values of flags that are specified."""
  optimizer = {name: value for name, value in (
      ('num_steps', flags.num_steps), ('batch_size', flags.batch_size)) if value is not None}
  changes: dict[str, Any] = {'train': dataclasses.replace(
      recipe.train, optimizer=dataclasses.replace(recipe.train.optimizer, **optimizer))}
  if flags.prompts is not None:
    changes['prompts'] = flags.prompts
  if flags.num_images is not None:
    changes['num_train_images'] = flags.num_images
  if isinstance(recipe, CorrectorRecipe):
    changes['plain'] = dataclasses.replace(recipe.plain, **optimizer)
    changes['num_plain_images'] = flags.num_images or recipe.num_plain_images
  recipe = dataclasses.replace(recipe, **changes)
  return smoke.smoke(recipe) if flags.smoke else recipe


@contextlib.contextmanager
def _opened(recipe: Recipe, model: cspd_jax.Model, workdir: pathlib.Path) -> Iterator[Any]:
  """Holds `workdir` for a recipe; yields its module and the recipe with all sampling options.

  Errors are those of `run`.
  """
  module = _RECIPES[type(recipe)]
  module.check(recipe, model)
  recipe = samples.completed(recipe, model)
  with run_folder.Run(workdir, dataclasses.asdict(recipe), name='workdir', alone=False):
    yield module, recipe


def sample(recipe: Recipe, model: cspd_jax.Model, workdir: pathlib.Path) -> None:
  """Samples the images of a recipe that `workdir` does not hold yet.

  Raises:
    ValueError: if the drafter does not fit its model, or the folder holds another run.
  """
  with _opened(recipe, model, workdir) as (module, recipe):
    module.sample(recipe, model, workdir)


def run(recipe: Recipe, model: cspd_jax.Model, workdir: pathlib.Path, output: pathlib.Path,
        dtype: str) -> None:
  """Trains in `workdir` or resumes, and writes the report and the network.

  Raises:
    ValueError: if the drafter does not fit its model, or the folder holds another run.
  """
  with _opened(recipe, model, workdir) as (module, recipe):
    params, figures = module.train(recipe, model, workdir)
    store.save(output, recipe.kind, recipe.drafter, params, dtype=jnp.dtype(dtype),
               extra={'target': recipe.target})
    training.log_size(output)
    logging.info('report: %s', json.dumps(figures))
    run_folder.Report(workdir, program=_PROGRAM).write(
        settings=dataclasses.asdict(recipe), rows=[figures])


@cli.command(lambda: None, flags=Flags())
def main(recipe: Any, flags: Flags) -> None:
  if recipe is not None:
    training.check_kind(recipe, tuple(_RECIPES), 'configs/train/eagle_demo.py')
    if flags.kind is not None:
      raise ValueError(f'kind is {flags.kind!r}, but --config is a recipe, which determines what '
                       'is trained; leave one of them out.')
  name = flags.model or ('demo' if recipe is None else recipe.target)
  role = ('corrector' if isinstance(recipe, CorrectorRecipe) else recipe.kind if recipe else
          flags.kind or 'eagle')
  run_name = f'{pathlib.Path(name).name or "model"}_{role}'
  workdir = paths.folder(
      'workdir', flags.workdir or pathlib.Path('runs', 'train_drafter', run_name))
  output = training.output_folder('output', flags.output, workdir)
  store.check_place(output)
  run_folder.check(workdir, program=_PROGRAM)
  training.log_progress()
  mesh = inputs.mesh(flags.mesh)
  model = cspd_jax.load(name, dtype='float32', sharding=mesh)
  recipe = recipe_for(model, name, role) if recipe is None else dataclasses.replace(
      recipe, target=name)
  recipe = override(recipe, flags)
  if mesh is not None:
    sample(recipe, model, workdir)
    del model  # Its parameters leave the devices before those for the training are loaded.
    model = cspd_jax.load(name, dtype='float32')
  run(recipe, model, workdir, output, flags.dtype)
  print(f'Stored in {output}. Next: cspd_jax.load({name!r}, {role}={str(output)!r})')


if __name__ == '__main__':
  sys.exit(main())
