"""Decoders of tiny models of a family against the enumerated distribution of whole images."""

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import families
from cspd_jax.files import store
from cspd_jax.models import eagle
from cspd_jax.models.conditions import Prompt
from cspd_jax.testing import exactness


def check(family, kind, init, forward, config, prompts, decoder, num_free, guidance_scale=1.0,
          end=()):
  """Checks samples of a decoder after two prompts of published ids.

  The numbers are far from their initialization, and the EAGLE network is not trained. `forward` is
  the `logits_and_features` of the model; after `num_free` tokens an image ends with `end`.
  """
  params = init(config, jax.random.key(0))
  leaves, structure = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  params = jax.tree.unflatten(structure, [
      leaf + 0.4 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys)])
  sizes = families.FAMILIES[family].published.networks(config)['eagle'][1]
  parts = {'target': store.Loaded(kind, config, params, {}),
           'eagle': store.Loaded('eagle', sizes, eagle.init(sizes, jax.random.key(4)), {})}
  model = families.FAMILIES[family].build(families.Parts('tiny', parts, {}))
  prompts = model.condition(Prompt(prompts, np.ones(prompts.shape, bool)))

  images = np.stack(np.meshgrid(*[np.arange(4)] * num_free, indexing='ij'), axis=-1)
  images = images.reshape(-1, num_free)
  whole = np.concatenate([images, np.tile(np.asarray(end, int), (len(images), 1))], axis=1)
  probs = []
  for row in range(2):
    condition = jax.tree.map(
        lambda x, row=row: jnp.repeat(x[row:row + 1], len(images), axis=0), prompts)
    first, second = (
        forward(params, config, condition, whole, jnp.full(len(images), drop))[0][:, :num_free]
        for drop in (False, guidance_scale != 1))
    steps = jax.nn.softmax(second + guidance_scale * (first - second), axis=-1)
    probs.append(jnp.prod(jnp.take_along_axis(steps, images[..., None], axis=2)[..., 0], axis=1))

  decode = jax.jit(model.decoder(decoder, guided=guidance_scale != 1))
  sampling = model.sampling(guidance_scale=guidance_scale)
  draft_params = model.draft_params(decoder)
  report = exactness.check_sampler(
      lambda key, labels: decode(params, jax.tree.map(lambda x: x[labels], prompts), key, sampling,
                                 draft_params).tokens[:, :num_free],
      np.stack(probs), 4, samples=2**13, batch_size=2**10)
  assert report.passed and report.tv < 3 * report.tv_expected, report
