"""Report and pictures of a MAR training run."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous.decoders import mar as mar_decoder
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.data import photos as photos_lib
from cspd_jax.models import kl_vae
from cspd_jax.models import mar
from cspd_jax.plots import grid
from cspd_jax.training import mar as mar_training
from cspd_jax.training import mar_recipe

_BATCH = 16


def write(recipe: mar_recipe.MARRecipe, tokenizer: Any, models: dict[str, Any],
          data: dict[str, Any], workdir: pathlib.Path) -> dict[str, Any]:
  """Draws real, reconstructed and sampled images; returns the held-out figures."""
  photos = photos_lib.load()
  vae = mar_recipe.scaled_tokenizer(recipe, data)
  images, labels = photos_lib.crop_batch(
      photos, recipe.seed + 1, 0, 'held_out', recipe.num_held_out_images, recipe.image_size)

  @jax.jit
  def rebuild(images, key):
    return kl_vae.decode(
        tokenizer, vae, kl_vae.sample(vae, kl_vae.encode(tokenizer, vae, images), key))

  rebuilt = np.concatenate([
      rebuild(images[i:i + _BATCH], jax.random.key(i)) for i in range(0, len(images), _BATCH)])
  error = (rebuilt - images) / 2
  mean_square = np.mean(error ** 2, axis=(1, 2, 3))
  report = {'tokenizer': {
      'psnr': float(np.mean(-10 * np.log10(np.maximum(mean_square, 1e-12)))),
      'l1': float(np.mean(np.abs(error))), 'scale': vae.scale}}
  for name, params in models.items():
    report[name] = _losses(params, getattr(recipe, name), getattr(recipe, f'{name}_train'),
                           data['held_out'], vae.scale)

  shown = 2 * len(photos)
  names = [photos_lib.NAMES[label] for label in labels[:shown]]
  grid.save_grid(workdir / 'held_out.png', images[:shown], captions=names, columns=len(photos))
  grid.save_grid(workdir / 'reconstructions.png', rebuilt[:shown], captions=names,
                 columns=len(photos))
  decode = jax.jit(lambda latents: kl_vae.decode(tokenizer, vae, latents))
  for name, params in models.items():
    config = getattr(recipe, name)
    sample = jax.jit(mar_decoder(mar.target(config, guided=True)))
    conditions = jnp.arange(shown) % config.num_classes
    for suffix, scale in (('', 1.0), ('_guided', recipe.guidance_scale)):
      tokens = sample(params, conditions, jax.random.key(recipe.seed),
                      Sampling(guidance_scale=scale)).tokens
      grid.save_grid(workdir / f'samples_{name}{suffix}.png',
                     np.asarray(decode(mar.unpatchify(config, tokens))),
                     captions=[photos_lib.NAMES[label] for label in conditions],
                     columns=config.num_classes)
  return report


def _losses(params, config, train, held_out, scale) -> dict[str, float]:
  """The terms of the training loss on held-out crops, with the label and with the null class."""
  def terms(dropped, index):
    tokens, labels = mar_recipe.batch_of(config, *held_out, scale, 0, index, _BATCH)
    draws = mar_training.draw(jax.random.key(index), tokens.shape, train)
    draws = draws._replace(drop=jnp.full((_BATCH,), dropped))
    return compiled(params, tokens, labels, draws)

  compiled = jax.jit(lambda params, tokens, labels, draws: mar_training.loss(
      params, config, tokens, labels, draws)[1])
  found = {suffix: [terms(dropped, index) for index in range(32)]
           for suffix, dropped in (('', False), ('_no_label', True))}
  return {f'{key}{suffix}': float(np.mean([part[key] for part in parts]))
          for suffix, parts in found.items() for key in ('mse', 'vlb')}
