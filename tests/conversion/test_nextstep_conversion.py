"""Conversion of NextStep-1 and its image tokenizer: every published tensor and every setting.

`tests/data/manifests/nextstep_1.json.gz` and `nextstep_vae.json.gz` hold names and shapes of the
modules of github.com/stepfun-ai/NextStep-1 (6e49bae) at the published sizes, without the table
`gen_pos_embed`, which is computed.
"""

import dataclasses
import functools
import gzip
import json
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import (
  base,
  family as family_lib,
  nextstep as nextstep_rules,
  vq as vq_rules,
)
from cspd_jax.models import kl_vae, nextstep, transformer
from tests.conversion import published_settings as published
from tests.models import published as weights

_MANIFESTS = pathlib.Path(__file__).parent.parent / 'data' / 'manifests'
TARGET, VAE = rules.get('nextstep'), rules.get('nextstep_vae')
SMALL = nextstep.NextStepConfig(
    height=2, width=2, vocab_size=9, latent_channels=2, dim=16, num_layers=2, num_heads=4,
    num_kv_heads=2, ffn_dim=12, head_width=8, head_layers=2)
PUBLISHED_VAE = kl_vae.KLVAEConfig(
    ch_mult=(1, 2, 4, 4), scale=1.0, shift=0.0, quant_conv=False, level_attention=False,
    normalized=True)
OPTIONS = {'num_heads': 40, 'rope_base': 1e6, 'norm_eps': 1e-5}


def _manifest(name):
  content = json.loads(gzip.decompress((_MANIFESTS / f'{name}.json.gz').read_bytes()))
  shapes = {name: tuple(shape) for name, shape in content['tensors'].items()}
  assert sum(map(math.prod, shapes.values())) == content['parameters']
  return shapes


@pytest.mark.verifies('shapes', 'nextstep')
@pytest.mark.slow
def test_the_tensors_are_those_of_the_official_modules():
  shapes = _manifest('nextstep_1')
  kept = {name: shape for name, shape in shapes.items()
          if not re.fullmatch(TARGET.leftovers, name)}
  assert shapes.keys() - kept.keys() == {'lm_head.weight'}
  for config in TARGET.presets.values():
    assert convert.published_shapes(TARGET, config) == kept
  assert TARGET.infer(shapes, OPTIONS) == nextstep.PRESETS['nextstep_1_512']
  shapes = _manifest('nextstep_vae')
  assert convert.published_shapes(VAE, PUBLISHED_VAE) == shapes
  assert VAE.infer(shapes, dict(scale=1.0, shift=0.0, normalized=True)) == PUBLISHED_VAE


@pytest.mark.slow
def test_there_and_back_is_exact():
  for family, config in ((TARGET, SMALL), (VAE, dataclasses.replace(
      PUBLISHED_VAE, ch_mult=(1, 1), num_res_blocks=1, z_channels=2))):
    tensors = weights.weights(convert.published_shapes(family, config), 3)
    back = convert.publish(family, config, convert.convert(family, config, tensors))
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
      np.testing.assert_array_equal(back[name], tensor, err_msg=name)


def test_biases_rotate_with_their_queries():
  rng = np.random.default_rng(0)
  kernel, bias, x = (rng.standard_normal(shape) for shape in ((24, 5), (24,), (5,)))
  joined, = base.separate_heads(3, True).forward(kernel)
  moved, = base.separate_heads(3, True).forward(bias)
  ours = np.einsum('d,dhe->he', x, joined) + moved
  halves = (kernel @ x + bias).reshape(3, 8)
  angle = rng.uniform(0, 6, 4)
  turn = np.exp(1j * angle)
  expected = (halves[:, :4] + 1j * halves[:, 4:]) * turn
  rope = transformer.Rope(*(jnp.asarray(f(angle))[None, None] for f in (np.cos, np.sin)))
  turned = transformer.rotate(jnp.asarray(ours)[None, None], rope)[0, 0]
  np.testing.assert_allclose(turned[:, ::2] + 1j * turned[:, 1::2], expected, atol=1e-5)


SETTINGS = {'1': (published.NEXTSTEP_1, 'nextstep_1_512'),
            '1.1': (published.NEXTSTEP_1_1, 'nextstep_1_1_512')}


def _read(release='1', **change):
  content, _ = SETTINGS[release]
  return TARGET.settings({'config.json': {**content, **change}})


@pytest.mark.parametrize('release', SETTINGS)
def test_both_spellings_of_the_settings(release):
  fields, (_, preset) = _read(release), SETTINGS[release]
  config = TARGET.presets[preset]
  assert fields == {name: getattr(config, name) for name in fields}
  assert {'head_width', 'head_layers', 'latent_channels', 'patch_size', 'rope_base', 'norm_eps',
          'num_heads'} <= fields.keys()
  assert ('last_step' in fields) == (release == '1.1')
  assert TARGET.infer(_manifest('nextstep_1'), fields) == config
  lines = TARGET.assumed(config, fields)
  assert len(lines) == (2 if release == '1' else 1) and '512x512 pixels' in lines[0]


@pytest.mark.parametrize('release, change, message', [
    ('1', {'attention_bias': False}, 'attention_bias is False; it must be True'),
    ('1', {'attention_bias': None}, 'attention_bias is absent, which means False; it must be True'),
    # Its default is `attention_bias`.
    ('1.1', {'o_attention_bias': None}, 'o_attention_bias is absent, which means True;'),
    ('1', {'o_attention_bias': True}, 'o_attention_bias is True; it must be False'),
    ('1', {'mlp_bias': True}, 'mlp_bias is True'),
    ('1', {'use_gen_pos_embed': True}, 'use_gen_pos_embed is True; it must be False'),
    ('1', {'use_2d_rope': True}, 'use_2d_rope is True; it must be False'),
    ('1', {'use_sliding_window': True}, 'use_sliding_window is True'),
    ('1', {'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0}}, "rope_type is 'yarn'"),
    ('1', {'layer_types': ['full_attention', 'sliding_attention']}, 'every layer must have full'),
    ('1', {'boi': 5}, 'boi is 5; it must be 151667'),
    ('1', {'model_type': 'llama'}, "model_type is 'llama'"),
    ('1', {'head_type': 'x'}, "head_type is 'x'; no published model has the field"),
    ('1', {'genloss_width': 8}, 'genloss_width is 8, but another field is 1536'),
    ('1', {'fm_head_dim': '1536'}, "fm_head_dim is '1536'; it must be a whole number"),
    ('1.1', {'genloss_type': 'diffusion'}, "genloss_type is 'diffusion'; it must be 'transport'"),
    ('1.1', {'genloss_net_arch': 'attn'}, "genloss_net_arch is 'attn'"),
    ('1.1', {'image_encoder_name': 'siglip'}, "image_encoder_name is 'siglip'; it must be left"),
    ('1.1', {'noise_strength': 0.5}, 'noise_strength is 0.5; it must be 0'),
    ('1.1', {'patch_size': 2.0}, 'patch_size is 2.0; it must be a whole number')])
def test_settings_that_are_not_supported(release, change, message):
  with pytest.raises(rules.ConversionError, match=message):
    _read(release, **change)


def test_fields_of_transformers_that_do_not_matter():
  spelled = _read(rope_theta=None, rope_parameters={'rope_theta': 1e6, 'rope_type': 'default'},
                  layer_types=['full_attention'] * 48, sliding_window=4096, dtype='float32')
  assert spelled == _read()


def test_every_field_of_the_installed_version_is_on_the_list():
  transformers = pytest.importorskip('transformers', '5')
  for kind in (transformers.LlamaConfig, transformers.Qwen2Config):
    fields = {field.name for field in dataclasses.fields(kind)} | kind().to_dict().keys()
    assert {name for name in fields if not name.startswith('_')} <= nextstep_rules.FIELDS.keys()


def test_another_release_than_the_settings_is_refused(tmp_path):
  sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, head_dim=4,
               num_key_value_heads=2, intermediate_size=12, vocab_size=9)
  content = {**published.NEXTSTEP_1_1, **sizes, 'genloss_width': 8, 'genloss_depth': 2,
             'num_channels': 2}
  (tmp_path / 'config.json').write_text(json.dumps(content))
  from tests.families import published_files
  published_files.shard(tmp_path, weights.weights(convert.published_shapes(TARGET, SMALL), 3))
  source = convert.open_source('nextstep', tmp_path, options=dict(height=2, width=2))
  assert source.network.config == dataclasses.replace(
      SMALL, token_norm=False, num_levels=28, last_step=None)
  family = TARGET._replace(presets={'nextstep_1_512': SMALL})
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(rules.FAMILIES, 'nextstep', family)
    with pytest.raises(rules.ConversionError, match='last_step is None, the model has 0.04'):
      convert.open_source('nextstep', tmp_path, model='nextstep_1_512')


def test_sizes_that_cannot_be_inferred_are_explained():
  shapes = convert.published_shapes(TARGET, SMALL)
  infer = functools.partial(family_lib.infer, TARGET, shapes)
  with pytest.raises(rules.ConversionError, match=(
      'num_heads, norm_eps, rope_base cannot be inferred .*"rms_norm_eps": 1e-05')):
    infer({})
  with pytest.raises(rules.ConversionError, match='norm_eps, rope_base cannot be inferred .*'
                                                  '"rms_norm_eps": 1e-05'):
    infer({}, {'num_heads': 4})
  with pytest.raises(rules.ConversionError, match='image_size: not an option'):
    infer({'image_size': 512})
  for size in (3, 0, -2):
    with pytest.raises(rules.ConversionError, match=f'patch_size is {size}, and tokens have 8 num'):
      infer({}, {'num_heads': 4, 'patch_size': size})


def test_modulations_of_several_dtypes_become_one_matrix():
  """NumPy joins no float16 and bfloat16."""
  shapes = convert.published_shapes(TARGET, SMALL)
  dtype = lambda name: (np.float32 if 'modulation' not in name else
                        ml_dtypes.bfloat16 if 'final_layer' in name else np.float16)
  tensors = {name: tensor.astype(dtype(name))
             for name, tensor in weights.weights(shapes, 3).items()}
  back = convert.publish(TARGET, SMALL, convert.convert(TARGET, SMALL, tensors))
  for name, tensor in tensors.items():
    assert back[name].dtype == np.float32
    np.testing.assert_array_equal(back[name], tensor.astype(np.float32), err_msg=name)


def test_settings_of_the_image_tokenizer():
  read = lambda **change: VAE.settings({'config.json': {**published.NEXTSTEP_VAE, **change}})
  fields = read()
  assert fields == {name: getattr(PUBLISHED_VAE, name) for name in fields}
  assert read(scaling_factor=0.3, shift_factor=-0.1)['shift'] == -0.1
  assert read(psz=None) == fields and read(anything=1) == fields
  with pytest.raises(rules.ConversionError, match='psz is 2; it must be 1'):
    read(psz=2)
  with pytest.raises(rules.ConversionError, match='another field is 3'):
    read(out_ch=4)
  shapes = _manifest('nextstep_vae')
  with pytest.raises(rules.ConversionError, match='scale, shift cannot be inferred') as caught:
    family_lib.infer(VAE, shapes, {}, {'normalized': True})
  assert 'specify model' not in str(caught.value)


def test_anything_else_in_a_file_is_refused():
  tensors = weights.weights(convert.published_shapes(TARGET, SMALL), 3)
  extra = {**tensors, 'lm_head.weight': np.zeros((9, 16)), 'gen_pos_embed': np.zeros((1, 4, 16))}
  params = convert.convert(TARGET, SMALL, extra)
  assert jax.tree.map(np.shape, params) == jax.tree.map(
      lambda leaf: leaf.shape, jax.eval_shape(lambda: nextstep.init(SMALL, jax.random.key(0))))
  with pytest.raises(rules.ConversionError, match='unexpected: layers.0.self_attn.o_proj.bias'):
    convert.convert(TARGET, SMALL, {**tensors, 'layers.0.self_attn.o_proj.bias': np.zeros(16)})
  del tensors['layers.1.self_attn.k_proj.bias']
  with pytest.raises(rules.ConversionError, match='missing: layers.1.self_attn.k_proj.bias'):
    convert.convert(TARGET, SMALL, tensors)


def test_the_table_of_the_tokenizer_has_every_argument():
  assert published.NEXTSTEP_VAE.keys() <= vq_rules.NEXTSTEP_FIELDS.keys()
