"""EAGLE drafters from published weights: tensor lists, layouts, and which table they carry.

`tests/data/manifests/eagle_*` hold names and shapes of the tensors of the drafter modules that
LANTERN publishes, taken from the modules at their real sizes.
"""

import gzip
import json
import math
import pathlib

import jax
import numpy as np
import pytest
import safetensors.numpy

from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import base, eagle as eagle_rules, family as family_lib
from cspd_jax.files import store
from cspd_jax.models import eagle, transformer

_MANIFESTS = sorted(
    (pathlib.Path(__file__).parent.parent / 'data' / 'manifests').glob('eagle_*.json.gz'))
_ROOT = pathlib.Path(__file__).parents[2]
FORMS = ('llamagen', 'anole', 'lumina_mgpt')
PIXELS = {'llamagen_t2i_256': 256, 'llamagen_t2i_512': 512, 'anole': 512, 'lumina_mgpt_768': 768}
_shared = dict(dim=16, num_heads=2, ffn_dim=24, vocab_size=12, own_embedding=True)
CONFIGS = {
    'llamagen': eagle.EagleConfig(num_tokens=4, row_width=2, num_kv_heads=1, **_shared),
    'anole': eagle.EagleConfig('chameleon', 4, 2, norm_eps=1e-5, **_shared),
    'lumina_mgpt': eagle.EagleConfig('chameleon', 7, 3, norm_eps=1e-5, **_shared),
}
OPTIONS = {'llamagen': {'image_size': 32, 'num_heads': 2}, 'anole': {'image_size': 32},
           'lumina_mgpt': {'image_size': 32}}


def _published(form, seed=0):
  rng = np.random.default_rng(seed)
  shapes = convert.published_shapes(rules.FAMILIES[f'eagle_{form}'], CONFIGS[form])
  return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize('path', _MANIFESTS, ids=lambda path: path.name.split('.')[0])
def test_published_tensors_are_exactly_those_of_the_model(path):
  manifest = json.loads(gzip.decompress(path.read_bytes()))
  shapes = {name: tuple(shape) for name, shape in manifest['tensors'].items()}
  name = path.name.removeprefix('eagle_').removesuffix('.json.gz')
  family = next(rules.FAMILIES[f'eagle_{form}'] for form in FORMS if name.startswith(form))
  config = family.presets[name]
  assert convert.published_shapes(family, config) == shapes
  assert family.infer(shapes, {'image_size': PIXELS[name]}) == config
  assert manifest['parameters'] == sum(map(math.prod, shapes.values()))


def test_every_preset_has_a_manifest():
  named = {path.name.removeprefix('eagle_').removesuffix('.json.gz') for path in _MANIFESTS}
  presets = [set(rules.FAMILIES[f'eagle_{form}'].presets) for form in FORMS]
  assert named == set(eagle_rules.PRESETS) == set().union(*presets)
  assert sum(map(len, presets)) == len(named)


@pytest.mark.parametrize('form', FORMS)
def test_files_become_checkpoints_and_back(form, tmp_path):
  tensors, family = _published(form), rules.FAMILIES[f'eagle_{form}']
  safetensors.numpy.save_file(tensors, tmp_path / 'model.safetensors')
  made = convert.convert_file(f'eagle_{form}', tmp_path / 'model.safetensors', tmp_path / 'out',
                              options=OPTIONS[form])
  assert made == CONFIGS[form]
  loaded = store.load(tmp_path / 'out')
  assert (loaded.kind, loaded.config) == ('eagle', made)
  back = convert.publish(family, made, loaded.params)
  assert back.keys() == tensors.keys()
  for name, tensor in tensors.items():
    np.testing.assert_array_equal(back[name], tensor)


def test_everything_wrong_is_listed_at_once():
  tensors = _published('anole')
  del tensors['fc.bias'], tensors['layers.0.self_attn.q_norm.bias']
  tensors['layers.1.mlp.up_proj.weight'] = np.zeros((24, 16), np.float32)
  tensors['layers.0.self_attn.k_norm.weight'] = np.zeros((1, 8), np.float32)
  tensors['layers.0.self_attn.rotary_emb.inv_freq'] = np.zeros(4, np.float32)
  with pytest.raises(rules.ConversionError) as caught:
    convert.convert(rules.FAMILIES['eagle_anole'], CONFIGS['anole'], tensors)
  for line in ('missing: fc.bias (16,)', 'missing: layers.0.self_attn.q_norm.bias (2, 8)',
               'unexpected: layers.1.mlp.up_proj.weight',
               'unexpected: layers.0.self_attn.rotary_emb.inv_freq',
               'mis-shaped: layers.0.self_attn.k_norm.weight is (1, 8)'):
    assert line in str(caught.value)


def test_halves_become_pairs_and_products_stay():
  heads, width, dim = 3, 8, 5
  rng = np.random.default_rng(0)
  published = [rng.standard_normal((heads * width, dim)) for _ in range(2)]
  x, angles = rng.standard_normal((2, dim)), rng.standard_normal((2, width // 2))
  products, expected = [], []
  for which, weight in enumerate(published):
    # Their way: number i turns with number i + width / 2.
    flat = (weight @ x[which]).reshape(heads, 2, width // 2)
    cos, sin = np.cos(angles[which]), np.sin(angles[which])
    expected.append(np.concatenate(
        [flat[:, 0] * cos - flat[:, 1] * sin, flat[:, 1] * cos + flat[:, 0] * sin], axis=1))
    (kernel,) = base.separate_heads(heads, halves=True).forward(weight)
    rope = transformer.Rope(cos[None, None].astype(np.float32), sin[None, None].astype(np.float32))
    turned = transformer.rotate(jax.numpy.einsum('d,dhe->he', x[which], kernel)[None, None], rope)
    products.append(turned[0, 0])
  np.testing.assert_allclose(
      (products[0] * products[1]).sum(1), (expected[0] * expected[1]).sum(1), atol=1e-5)


def test_norms_of_a_shard_serve_all_its_heads():
  norm = np.arange(8.0).reshape(1, 8)
  (made,) = base.head_norm(3, 1).forward(norm)
  assert made.tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]] * 3
  own = np.arange(24.0).reshape(3, 8)
  (made,) = base.head_norm(3, 3).forward(own)
  assert made[1].tolist() == [8, 12, 9, 13, 10, 14, 11, 15]
  np.testing.assert_array_equal(base.head_norm(3, 3).inverse(made), own)


@pytest.mark.parametrize('form, options, message', [
    ('llamagen', {'image_size': 32}, 'num_heads cannot be inferred'),
    ('llamagen', {'num_heads': 2}, 'image_size cannot be inferred.*llamagen_t2i_256'),
    ('llamagen', {'num_heads': 3, 'image_size': 32}, 'num_heads is 3'),
    ('anole', {'image_size': 33}, 'image_size is 33'),
    ('anole', {'num_heads': 2, 'image_size': 32}, 'num_heads: not an option for an EAGLE drafter'),
])
def test_inputs_that_do_not_fit_are_explained(form, options, message):
  shapes = {name: tensor.shape for name, tensor in _published(form).items()}
  with pytest.raises(rules.ConversionError, match=message):
    family_lib.infer(rules.FAMILIES[f'eagle_{form}'], shapes, options)
  with pytest.raises(rules.ConversionError, match='is not an EAGLE drafter'):
    rules.FAMILIES[f'eagle_{form}'].infer({'layers.0.weight': (1,)}, options)
