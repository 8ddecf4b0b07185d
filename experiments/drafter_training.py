"""The work of `experiments.train_drafter`, without its flags."""

import dataclasses
import json
import pathlib

from absl import logging
import jax.numpy as jnp

from cspd_jax.core import checkpoint
from cspd_jax.training import drafter_recipe
from experiments import json_file


def run(
    recipe: drafter_recipe.DrafterRecipe,
    workdir: pathlib.Path,
    export: pathlib.Path,
    dtype: str,
) -> None:
  """Trains in `workdir` or continues, and writes the report and the checkpoint."""
  target = drafter_recipe.load_target(recipe)
  _remember(recipe, workdir)
  params, report = drafter_recipe.train(recipe, target, workdir)
  checkpoint.save(
      export, recipe.kind, recipe.drafter, params, dtype=jnp.dtype(dtype),
      extra={'target': recipe.target})
  size = sum(file.stat().st_size for file in export.rglob('*') if file.is_file())
  logging.info('wrote %s, %.2f MB', export, size / 1e6)
  logging.info('report: %s', json.dumps(report))
  json_file.write(workdir / 'report.json', report)


def _remember(recipe: drafter_recipe.DrafterRecipe, workdir: pathlib.Path) -> None:
  """Writes the configuration into a new work folder, or checks that it is the folder's own."""
  path = workdir / 'config.json'
  new = json.loads(json.dumps(dataclasses.asdict(recipe)))
  if not path.exists():
    workdir.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(new, indent=2) + '\n')
    return
  old = json.loads(path.read_text())
  changed = [f'{name} was {old.get(name)!r}, now {new.get(name)!r}'
             for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
  if changed:
    raise ValueError(f'--workdir={workdir} holds a run with another configuration '
                     f'({"; ".join(changed)}); give another --workdir.')
