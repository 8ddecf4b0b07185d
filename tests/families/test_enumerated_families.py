"""Decoders of tiny models of families against the enumerated distribution of whole images.

Of GLM-Image an image is 2 + 2 free tokens and the end; of Janus-Pro, with guidance, 3 codes of 4;
of MammothModa2, with guidance too, 4 codes and the end of their row.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.files import store
from cspd_jax.models import eagle, early_fusion, glm_image, janus
from cspd_jax.models.conditions import Prompt
from cspd_jax.testing import exactness
from tests.builders import sizes
from tests.marks import representative


class Case(NamedTuple):
  """A family, its module, tiny sizes, prompts of published ids, and what decoders are tried."""

  family: str
  kind: str
  module: Any
  config: Any
  prompts: Any  # [2, S, C]
  num_free: int
  end: tuple[int, ...]
  guidance_scale: float
  decoders: tuple[str, ...]


CASES = {
    'glm_image': Case(
        'glm_image', 'glm_image', glm_image, dataclasses.replace(
            sizes.GLM_IMAGE, height=1, width=2, num_codes=4, image_end=5, output_size=6,
            vocab_size=12), [[[7, 9, 10, 4]], [[8, 11, 9, 4]]], 4, (4,), 1.0, (
                'mc_sjd(window=3)', 'sjd_pac(window=4)',
                'mc_sjd(window=3, initialization=repeat-small)',
                'mc_sjd(window=3, initialization=resample-small)',
                'eagle(tree=chain(2))+rejection', 'corrected(corrector=layers, window=3)')),
    'mammothmoda2': Case(
        'mammothmoda2', 'mammothmoda2', early_fusion, dataclasses.replace(
            sizes.MAMMOTHMODA2, height=1, width=4, num_codes=4, text_size=8, row_end=8,
            first_code=11, vocab_size=16, image_layers=(1, 2)),
        [[[1, 5, 9, 3, 10], [0, 0, 9, 3, 10]], [[7, 4, 9, 2, 10], [0, 0, 9, 2, 10]]], 4, (4,), 2.0,
        ('mc_sjd(window=3)', 'corrected(corrector=layers, window=3)')),
    'janus_pro': Case(
        'janus_pro', 'janus', janus, dataclasses.replace(
            sizes.JANUS, height=1, width=3, num_codes=4, text_size=9),
        [[[1, 5, 6, 3], [1, 2, 2, 3]], [[1, 8, 4, 3], [1, 2, 2, 3]]], 3, (), 2.0, (
            'mc_sjd(window=2)', 'eagle(tree=chain(2))+rejection'))}


def _model(case):
  """A model whose numbers are far from their initialization, with an untrained EAGLE network."""
  params = case.module.init(case.config, jax.random.key(0))
  leaves, structure = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  params = jax.tree.unflatten(structure, [
      leaf + 0.4 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys)])
  family = families.FAMILIES[case.family]
  eagle_config = family.published.networks(case.config)['eagle'][1]
  return family.build(families.Parts('tiny', {
      'target': store.Loaded(case.kind, case.config, params, {}),
      'eagle': store.Loaded(
          'eagle', eagle_config, eagle.init(eagle_config, jax.random.key(4)), {})}, {}))


@pytest.mark.slow
@pytest.mark.parametrize('name, decoder', representative(
    [(name, decoder) for name, case in CASES.items() for decoder in case.decoders],
    ('glm_image', 'mc_sjd(window=3)'), ('mammothmoda2', 'mc_sjd(window=3)'),
    ('janus_pro', 'mc_sjd(window=2)')))
def test_decoders_draw_from_the_model(name, decoder):
  case, model = CASES[name], _model(CASES[name])
  ids, scale = np.array(case.prompts), case.guidance_scale
  prompts = model.condition(Prompt(ids, np.ones(ids.shape, bool)))
  images = np.stack(np.meshgrid(*[np.arange(4)] * case.num_free, indexing='ij'), axis=-1)
  images = images.reshape(-1, case.num_free)
  whole = np.concatenate([images, np.tile(np.asarray(case.end, int), (len(images), 1))], axis=1)
  assert whole.shape[1] == case.config.num_tokens
  probs = []
  for row in range(2):
    condition = jax.tree.map(
        lambda x, row=row: jnp.repeat(x[row:row + 1], len(images), axis=0), prompts)
    first, second = (
        case.module.logits_and_features(
            model.params, case.config, condition, whole, jnp.full(len(images), drop))[0][
                :, :case.num_free] for drop in (False, scale != 1))
    steps = jax.nn.softmax(second + scale * (first - second), axis=-1)
    probs.append(jnp.prod(jnp.take_along_axis(steps, images[..., None], axis=2)[..., 0], axis=1))
  decode = jax.jit(model.decoder(decoder, guided=scale != 1))
  sampling, draft_params = model.sampling(guidance_scale=scale), model.draft_params(decoder)
  report = exactness.check_sampler(
      lambda key, labels: decode(
          model.params, jax.tree.map(lambda x: x[labels], prompts), key, sampling,
          draft_params).tokens[:, :case.num_free],
      np.stack(probs), 4, samples=2**13, batch_size=2**10)
  assert report.passed and report.tv < 3 * report.tv_expected, report
