"""Trains a tokenizer, a target and a draft model on the embedded photographs, and exports them.

    python -m experiments.train --config=configs/demo_train.py --workdir=runs/demo_train

The stages are tokenizer, target and draft (after tokenising crops with it), eval (report.json and
pictures) and export (checkpoints that `cspd_jax.core.checkpoint.load` reads); --stage=all, the
default, does them in this order. A stopped run continues when the command is repeated, to the same
result. The folder remembers its configuration and refuses another one.
"""

import dataclasses
import json
import pathlib
import sys
from typing import Any

from absl import app
from absl import flags
from absl import logging
import jax.numpy as jnp

from cspd_jax.core import checkpoint
from cspd_jax.data import photos as photos_lib
from cspd_jax.training import mar_recipe
from cspd_jax.training import recipe as llamagen_recipe
from experiments import config_flags
from experiments import json_file
from experiments import llamagen_training_report
from experiments import mar_training_report

# By the type of the recipe: the modules that train, and that report on the result.
_FAMILIES = {
    llamagen_recipe.Recipe: (llamagen_recipe, llamagen_training_report),
    mar_recipe.MARRecipe: (mar_recipe, mar_training_report),
}

_CONFIG = config_flags.DEFINE_config(default='configs/demo_train.py')
_WORKDIR = flags.DEFINE_string(
    'workdir', 'runs/demo_train', 'Folder for checkpoints, metrics, pictures and the report.')
_STAGE = flags.DEFINE_enum(
    'stage', 'all', ['all', 'tokenizer', 'target', 'draft', 'eval', 'export'],
    'What to do; a stage continues or reuses what earlier ones left in the work folder.')
_EXPORT_DIR = flags.DEFINE_string(
    'export_dir', None, 'Where the checkpoints go. Default: WORKDIR/export.')


def main(argv: list[str]) -> int | None:
  if len(argv) > 1:
    print(f'error: {" ".join(argv[1:])!r} is not a flag; see --help.', file=sys.stderr)
    return 2
  recipe = _CONFIG.value()
  if type(recipe) not in _FAMILIES:
    names = ' or '.join(f'{kind.__module__}.{kind.__name__}' for kind in _FAMILIES)
    print(f'error: --config must return a {names}, got a {type(recipe).__name__}; see '
          'configs/demo_train.py.', file=sys.stderr)
    return 2
  workdir = pathlib.Path(_WORKDIR.value).absolute()
  try:
    photos_lib.load()
    _remember(recipe, workdir)
  except (ImportError, FileNotFoundError, ValueError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  run(recipe, workdir, _STAGE.value, pathlib.Path(_EXPORT_DIR.value or workdir / 'export'))


def run(recipe: Any, workdir: pathlib.Path, stage: str, export: pathlib.Path) -> None:
  """Does one stage, or all of them."""
  recipe_lib, report_lib = _FAMILIES[type(recipe)]
  wanted = {'tokenizer', 'target', 'draft', 'eval', 'export'} if stage == 'all' else {stage}
  tokenizer = recipe_lib.train_tokenizer(recipe, workdir)
  if wanted == {'tokenizer'}:
    return
  data = {split: recipe_lib.tokenize(recipe, tokenizer, split, workdir)
          for split in photos_lib.SPLITS}
  models = {}
  for name in ('target', 'draft'):
    if wanted & {name, 'eval', 'export'}:
      models[name] = recipe_lib.train_model(
          name, getattr(recipe, name), getattr(recipe, f'{name}_train'), recipe, data, workdir)
  if 'export' in wanted:
    _export(recipe, recipe_lib.exports(recipe, tokenizer, models, data), export)
  if 'eval' in wanted:
    report = report_lib.write(recipe, tokenizer, models, data, workdir)
    json_file.write(workdir / 'report.json', report)
    logging.info('report: %s', json.dumps(report))


def _remember(recipe: Any, workdir: pathlib.Path) -> None:
  """Writes the configuration into a new work folder, or checks that it is the folder's own."""
  path = workdir / 'config.json'
  text = json.dumps(dataclasses.asdict(recipe), indent=2) + '\n'
  if not path.exists():
    workdir.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return
  old, new = (_flat(json.loads(part)) for part in (path.read_text(), text))
  changed = [f'{name} was {old.get(name)!r}, now {new.get(name)!r}'
             for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
  if changed:
    raise ValueError(f'--workdir={workdir} holds a run with another configuration '
                     f'({"; ".join(changed)}); give another --workdir.')


def _flat(tree: dict, prefix: str = '') -> dict:
  leaves = {}
  for key, value in tree.items():
    leaves |= _flat(value, f'{prefix}{key}.') if isinstance(value, dict) else {prefix + key: value}
  return leaves


def _export(recipe: Any, exports: list[tuple], folder: pathlib.Path) -> None:
  """Writes the checkpoints in bfloat16."""
  extra = {'labels': list(photos_lib.NAMES), 'image_size': recipe.image_size}
  for name, kind, config, params in exports:
    checkpoint.save(folder / name, kind, config, params, dtype=jnp.bfloat16, extra=extra)
    size = sum(file.stat().st_size for file in (folder / name).rglob('*') if file.is_file())
    logging.info('wrote %s, %.2f MB', folder / name, size / 1e6)


if __name__ == '__main__':
  logging.set_verbosity(logging.INFO)
  # Orbax reports every file it touches at this level; the progress lines are what one reads.
  logging.get_absl_logger().addFilter(lambda record: 'orbax' not in record.pathname)
  app.run(main, flags_parser=config_flags.parse)
