"""Pictures of a training run: held-out crops, their reconstructions, samples."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cspd_jax import families
from cspd_jax.files.run_folder import Report
from cspd_jax.files.store import Loaded
from cspd_jax.plots import grid
from experiments.demo_models import photos, stages


def names(recipe: stages.Stages) -> tuple[str, ...]:
  """Returns the names of the pictures that `write` adds to a report."""
  return ('held_out.png', 'reconstructions.png', *(
      f'samples_{role}{suffix}.png' for role in recipe.models for suffix in ('', '_guided')))


def write(recipe: stages.Stages, tokenizer: Any, models: Mapping[str, Any],
          data: Mapping[str, stages.Split], report: Report) -> None:
  """Writes grids of held-out, reconstructed and sampled images into a report.

  Args:
    recipe: the recipe of the run.
    tokenizer: see `Stages.metrics`.
    models: see `Stages.metrics`.
    data: see `Stages.metrics`.
    report: the report.
  """
  count = 2 * len(photos.NAMES)
  images, labels = (part[:count] for part in recipe.held_out())
  save = lambda name, pictures, captions: grid.save_grid(
      report.path(f'{name}.png'), pictures, captions=captions, columns=len(photos.NAMES))
  save('held_out', images, recipe.captions(labels))
  save('reconstructions', recipe.reconstruct(tokenizer, data, images), recipe.captions(labels))
  parts = {role: Loaded(*network, metadata=recipe.metadata)
           for role, network in recipe.networks(tokenizer, models, data).items()}
  shared = {role: part for role, part in parts.items() if role not in models}
  for role in models:
    model = families.FAMILIES[recipe.family].build(families.Parts(
        role, shared | {'target': parts[role]}, {}))
    prompts = [model.prompts[i % len(model.prompts)] for i in range(count)]
    for suffix, scale in (('', 1.0), ('_guided', recipe.guidance_scale)):
      generated = model.generate(
          prompts, seed=recipe.seed, decoder=model.engine.baseline, guidance_scale=scale)
      save(f'samples_{role}{suffix}', generated.images / np.float32(127.5) - 1, generated.prompts)
