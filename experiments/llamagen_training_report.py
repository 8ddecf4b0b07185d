"""Report and pictures of a LlamaGen training run."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.data import photos as photos_lib
from cspd_jax.decoding import decoders
from cspd_jax.decoding.warp import Warp
from cspd_jax.models import llamagen
from cspd_jax.models import vq
from cspd_jax.plots import grid
from cspd_jax.training import evaluate
from cspd_jax.training.recipe import Recipe


def write(recipe: Recipe, tokenizer: Any, models: dict[str, Any], data: dict[str, Any],
          workdir: pathlib.Path) -> dict[str, Any]:
  """Draws real, reconstructed and sampled images; returns the held-out figures."""
  photos = photos_lib.load()
  images, labels = photos_lib.crop_batch(
      photos, recipe.seed + 1, 0, 'held_out', recipe.num_held_out_images, recipe.image_size)
  report = {'tokenizer': evaluate.tokenizer(
      tokenizer, recipe.tokenizer, images, data['train'][0])}
  for name, params in models.items():
    report[name] = evaluate.model(
        params, getattr(recipe, name), *data['held_out'], recipe.guidance_scale)

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
  return report
