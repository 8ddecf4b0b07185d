"""Trains a tokenizer, a target and a draft model on the embedded photographs, and exports them.

    python -m experiments.train --config=configs/demo_train.py --workdir=runs/demo_train

The stages are vq (tokenizer), target and draft (after tokenising crops with it), eval (report.json
and pictures) and export (checkpoints that `cspd_jax.checkpoint.load` reads); --stage=all, the
default, does them in this order. A stopped run continues when the command is repeated, to the same
result. The folder remembers its configuration and refuses another one.
"""

import dataclasses
import json
import pathlib
import sys

from absl import app
from absl import flags
from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import checkpoint
from cspd_jax.data import photos as photos_lib
from cspd_jax.decoding import decoders
from cspd_jax.decoding.warp import Warp
from cspd_jax.models import llamagen
from cspd_jax.models import vq
from cspd_jax.plots import grid
from cspd_jax.training import evaluate
from cspd_jax.training import recipe as recipe_lib
from experiments import config_flags

_CONFIG = config_flags.DEFINE_config(default='configs/demo_train.py')
_WORKDIR = flags.DEFINE_string(
    'workdir', 'runs/demo_train', 'Folder for checkpoints, metrics, pictures and the report.')
_STAGE = flags.DEFINE_enum(
    'stage', 'all', ['all', 'vq', 'target', 'draft', 'eval', 'export'],
    'What to do; a stage continues or reuses what earlier ones left in the work folder.')
_EXPORT_DIR = flags.DEFINE_string(
    'export_dir', None, 'Where demo_vq, demo_target and demo_draft go. Default: WORKDIR/export.')


def main(argv: list[str]) -> int | None:
  if len(argv) > 1:
    print(f'error: {" ".join(argv[1:])!r} is not a flag; see --help.', file=sys.stderr)
    return 2
  recipe = _CONFIG.value()
  if not isinstance(recipe, recipe_lib.Recipe):
    print('error: --config must return a cspd_jax.training.recipe.Recipe, got a '
          f'{type(recipe).__name__}; see configs/demo_train.py.', file=sys.stderr)
    return 2
  workdir = pathlib.Path(_WORKDIR.value).absolute()
  try:
    photos_lib.load()
    _remember(recipe, workdir)
  except (ImportError, FileNotFoundError, ValueError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  run(recipe, workdir, _STAGE.value, pathlib.Path(_EXPORT_DIR.value or workdir / 'export'))


def run(recipe: recipe_lib.Recipe, workdir: pathlib.Path, stage: str, export: pathlib.Path) -> None:
  """Does one stage, or all of them."""
  wanted = {'vq', 'target', 'draft', 'eval', 'export'} if stage == 'all' else {stage}
  tokenizer = recipe_lib.train_tokenizer(recipe, workdir)
  if wanted == {'vq'}:
    return
  data = {split: recipe_lib.tokenize(recipe, tokenizer, split, workdir)
          for split in photos_lib.SPLITS}
  models = {}
  for name in ('target', 'draft'):
    if wanted & {name, 'eval', 'export'}:
      models[name] = recipe_lib.train_model(
          name, getattr(recipe, name), getattr(recipe, f'{name}_train'), recipe, data, workdir)
  if 'export' in wanted:
    _export(recipe, tokenizer, models, export)
  if 'eval' in wanted:
    _evaluate(recipe, tokenizer, models, data, workdir)


def _remember(recipe: recipe_lib.Recipe, workdir: pathlib.Path) -> None:
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


def _export(recipe, tokenizer, models, folder: pathlib.Path) -> None:
  """Writes the three checkpoints in bfloat16."""
  extra = {'labels': list(photos_lib.NAMES), 'image_size': recipe.image_size}
  for name, kind, config, params in (
      ('demo_vq', 'vq', recipe.tokenizer, tokenizer),
      ('demo_target', 'llamagen', recipe.target, models['target']),
      ('demo_draft', 'llamagen', recipe.draft, models['draft'])):
    checkpoint.save(folder / name, kind, config, params, dtype=jnp.bfloat16, extra=extra)
    size = sum(file.stat().st_size for file in (folder / name).rglob('*') if file.is_file())
    logging.info('wrote %s, %.2f MB', folder / name, size / 1e6)


def _evaluate(recipe, tokenizer, models, data, workdir: pathlib.Path) -> None:
  """Writes report.json and pictures of real, reconstructed and sampled images."""
  photos = photos_lib.load()
  images, labels = photos_lib.crop_batch(
      photos, recipe.seed + 1, 0, 'held_out', recipe.num_held_out_images, recipe.image_size)
  report = {'tokenizer': evaluate.tokenizer(
      tokenizer, recipe.tokenizer, images, data['train'][0])}
  for name, params in models.items():
    report[name] = evaluate.model(
        params, getattr(recipe, name), *data['held_out'], recipe.guidance_scale)
  (workdir / 'report.json').write_text(json.dumps(report, indent=2) + '\n')
  logging.info('report: %s', json.dumps(report))

  shown = 2 * len(photos)
  rebuilt = vq.decode(tokenizer, recipe.tokenizer,
                      vq.encode(tokenizer, recipe.tokenizer, images[:shown]))
  names = [photos_lib.NAMES[label] for label in labels[:shown]]
  grid.save_grid(workdir / 'held_out.png', images[:shown], captions=names, columns=len(photos))
  grid.save_grid(workdir / 'reconstructions.png', np.asarray(rebuilt), captions=names,
                 columns=len(photos))
  decode = jax.jit(lambda tokens: vq.decode(tokenizer, recipe.tokenizer, tokens))
  for name, params in models.items():
    config = getattr(recipe, name)
    sample = jax.jit(decoders.vanilla(llamagen.target(config, guided=True)))
    conditions = jnp.arange(2 * config.num_classes) % config.num_classes
    for suffix, scale in (('', 1.0), ('_guided', recipe.guidance_scale)):
      tokens = sample(params, conditions, jax.random.key(recipe.seed),
                      Warp(guidance_scale=scale)).tokens
      pictures = decode(tokens.reshape(-1, config.height, config.width))
      grid.save_grid(workdir / f'samples_{name}{suffix}.png', np.asarray(pictures),
                     captions=[photos_lib.NAMES[label] for label in conditions],
                     columns=config.num_classes)


if __name__ == '__main__':
  logging.set_verbosity(logging.INFO)
  # Orbax reports every file it touches at this level; the progress lines are what one reads.
  logging.get_absl_logger().addFilter(lambda record: 'orbax' not in record.pathname)
  app.run(main, flags_parser=config_flags.parse)
