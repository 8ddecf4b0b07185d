"""Every family of files: the tensors of the published sizes, what is left out, and exact inverses.

`tests/data/manifests` holds names and shapes of the tensors of published files, taken from the
official modules at their real sizes: for EAGLE the drafter modules that LANTERN publishes, for
NextStep-1 github.com/stepfun-ai/NextStep-1 (6e49bae), for SimpleAR and Liquid the classes of
transformers with 215672 and 264192 tokens, for Tar those of csuhan/Tar (47da8e1), with names of
transformers 4, and Qwen2 with 217206 tokens; the width 1536 of its codes is assumed; and for
MammothModa2 those of bytedance/mammothmoda without the networks of pixels (768cd4e, ba41c0b), where
20 layers of Dev with a second network are assumed. Janus-Pro and GLM-Image are compared with the
installed transformers.
"""

import dataclasses
import functools
import gzip
import json
import math
import pathlib
import re

import numpy as np
import pytest

from checkpoints_conversion import convert, publish, rules
from checkpoints_conversion.rules import family as family_lib
from cspd_jax.files import store, weights
from cspd_jax.models import vq
from tests.builders import published, sizes
from tests.conversion import published_settings as settings_lib
from tests.marks import representative

_FOLDER = pathlib.Path(__file__).parent.parent / 'data' / 'manifests'
_EAGLES = {'llamagen_t2i_256': 256, 'llamagen_t2i_512': 512, 'anole': 512, 'lumina_mgpt_768': 768}
_OF_NEXTSTEP = {'num_heads': 40, 'rope_base': 1e6, 'norm_eps': 1e-5}
# By manifest: the family of files, the name of the published model, and options.
MANIFESTS = {
    **{f'llamagen_{name}': ('llamagen', name, {'image_size': int(name.split('_')[-1])})
       for name in rules.get('llamagen').presets},
    'llamagen_vq16': ('llamagen_vq', 'vq_16', {}), 'llamagen_vq8': ('llamagen_vq', 'vq_8', {}),
    **{f'eagle_{name}': (f'eagle_{name.removesuffix(f"_{size}").removesuffix("_t2i")}', name,
                         {'image_size': size}) for name, size in _EAGLES.items()},
    **{name: ('mar', name, {}) for name in rules.get('mar').presets},
    'kl_16': ('kl_vae', 'kl_16', {}), 'nextstep_1': ('nextstep', 'nextstep_1_512', _OF_NEXTSTEP),
    'nextstep_vae': ('nextstep_vae', None, dict(scale=1.0, shift=0.0, normalized=True)),
    **{f'early_fusion_{name}': (name, next(iter(rules.get(name).presets)), {})
       for name in ('lumina_mgpt', 'lumina_mgpt_2', 'anole', 'emu3')},
    **{f'language_{name}': (name.split('_')[0], name, {})
       for name in ('simplear_0_5b', 'simplear_1_5b', 'liquid_7b', 'tar_1_5b', 'tar_7b')},
    **{name: ('ar_dtok', name, {'image_size': int(name.removeprefix('ar_dtok_'))})
       for name in rules.get('ar_dtok').presets}, 'ta_tok': ('ta_tok', 'ta_tok', {'normalized': 1}),
    **{name: ('mammothmoda2', name, {}) for name in rules.get('mammothmoda2').presets},
    't5_flan_xl': ('t5', 'flan_t5_xl', {}), 'emu3_5': ('emu3_5', 'emu3_5_34b', {}),
    'emu3_5_vq': ('emu3_5_vq', 'ibq_131072', {}), 'emu3_vq': ('emu3_vq', 'vision_tokenizer', {}),
    'movqgan': ('movqgan', 'movqgan_270m', {}), 'chameleon_vqgan': ('chameleon_vqgan', 'vqgan', {}),
    'cosmos_dv8x16x16': ('cosmos_dv', 'dv8x16x16', {})}
# Models with the shapes of others, and those that tests compare with installed modules.
_SHAPES_OF_OTHERS = {
    'lumina_mgpt_7b_512', 'lumina_mgpt_7b_1024', 'nextstep_1_256', 'nextstep_1_1_512',
    'nextstep_1_1_256'}
# The image tokenizer of Tar is LlamaGen's.
_ELSEWHERE = ('janus_pro', 'janus_pro_vq', 'glm_image', 'inception', 'clip', 'tar_vq')


def test_every_published_model_has_a_manifest():
  assert MANIFESTS.keys() == {path.name.removesuffix('.json.gz') for path in _FOLDER.iterdir()}
  compared = {(family, name) for family, name, _ in MANIFESTS.values()}
  assert not [name for family in rules.FAMILIES.values() for name in family.presets
              if (family.name, name) not in compared | {
                  (family.name, name) for name in _SHAPES_OF_OTHERS}
              and family.name not in _ELSEWHERE]


@pytest.mark.verifies('shapes', 'llamagen', 'mar', 'nextstep', 'lumina_mgpt', 'lumina_mgpt_2',
                      'anole', 'emu3', 'emu3_5', 'simplear', 'liquid', 'tar', 'ar_dtok', 'ta_tok',
                      'mammothmoda2')
@pytest.mark.parametrize('manifest', representative(
    MANIFESTS, *(name for name in MANIFESTS if name.startswith('eagle'))))
def test_published_tensors_are_exactly_those_of_the_model(manifest):
  content = json.loads(gzip.decompress((_FOLDER / f'{manifest}.json.gz').read_bytes()))
  shapes = {name: tuple(shape) for name, shape in content['tensors'].items()}
  name, preset, options = MANIFESTS[manifest]
  family = rules.get(name)
  family = family._replace(**family.variant(shapes))
  config = sizes.NEXTSTEP_VAE_AS_PUBLISHED if preset is None else family.presets[preset]
  expected = convert.published_shapes(family, config)
  assert expected.items() <= shapes.items()
  assert all(re.fullmatch(family.leftovers, key) for key in shapes.keys() - expected.keys())
  assert family.infer(shapes, options) == config
  # Published counts leave buffers out or in.
  size = lambda kept: sum(math.prod(expected[key]) for key in expected if kept(key))
  assert content['parameters'] in (
      size(lambda key: True), size(lambda key: 'uncond_embedding' not in key),
      size(lambda key: 'running_' not in key), sum(map(math.prod, shapes.values())))
  if 'height' in family.options:
    grid = dict(height=13, width=13) if name == 'tar' else dict(height=30, width=40)
    assert family.infer(shapes, {**options, **grid}) == dataclasses.replace(config, **grid)


def _variant(family, is_transformers):
  """Janus-Pro with the names of one of two formats, and any other family as it is."""
  return family if is_transformers is None else family._replace(rules=functools.partial(
      family.rules, is_transformers=is_transformers))


@pytest.mark.slow
@pytest.mark.parametrize('name, preset, content, is_transformers', [
    ('janus_pro', 'janus_pro_1b', settings_lib.JANUS_PRO_1B, False),
    ('janus_pro', 'janus_pro_7b', settings_lib.JANUS_PRO_7B, False),
    ('janus_pro', 'janus_pro_1b', settings_lib.JANUS_PRO_HF, True),
    ('glm_image', 'glm_image_9b', settings_lib.GLM_IMAGE, None)])
def test_shapes_and_settings_determine_the_published_models(
    name, preset, content, is_transformers):
  family = rules.get(name)
  shapes = convert.published_shapes(_variant(family, is_transformers), family.presets[preset])
  fields = family.settings({'config.json': content})
  assert family_lib.infer(family, shapes, {}, fields) == family.presets[preset]


def _janus(config):
  """The network of transformers with the sizes of a published model."""
  transformers, sizes_of = pytest.importorskip('transformers', '5'), dict(projection_dim=config.dim)
  return transformers.JanusForConditionalGeneration(transformers.JanusConfig(
      text_config=dict(
          model_type='llama', vocab_size=config.text_size, hidden_size=config.dim,
          intermediate_size=config.ffn_dim, num_hidden_layers=config.num_layers,
          num_attention_heads=config.num_heads),
      vision_config=dict(num_hidden_layers=1, **sizes_of),
      vq_config=dict(image_token_embed_dim=config.dim, **sizes_of)))


def _glm_image(config):
  pytest.importorskip('transformers.models.glm_image')
  from transformers.models import glm_image

  from tests.models import glm_image_reference  # It requires both.
  return glm_image.GlmImageForConditionalGeneration(glm_image_reference.settings(config))


@pytest.mark.slow
@pytest.mark.verifies('shapes', 'janus_pro', 'glm_image')
@pytest.mark.parametrize('name, preset, make, changes', [
    ('janus_pro', 'janus_pro_1b', _janus, {}), ('janus_pro', 'janus_pro_7b', _janus, {}),
    ('glm_image', 'glm_image_9b', _glm_image, {}),
    ('glm_image', 'glm_image_9b', _glm_image, dict(qkv_bias=False))])
def test_tensors_of_the_published_sizes_are_those_of_transformers(name, preset, make, changes):
  torch = pytest.importorskip('torch')
  config = dataclasses.replace(rules.get(name).presets[preset], **changes)
  with torch.device('meta'):
    network = make(config)
  shapes = {key: tuple(x.shape) for key, x in network.state_dict().items()}
  networks = {name: config}
  if name == 'janus_pro':
    networks['janus_pro_vq'] = rules.get('janus_pro_vq').presets['vq_16']
  for part, sizes_of in networks.items():
    family = rules.get(part)
    left_out = {key for key in shapes if re.fullmatch(family.leftovers, key)}
    assert convert.published_shapes(family._replace(**family.variant(shapes)), sizes_of) == {
        key: shape for key, shape in shapes.items() if key not in left_out}
    # The networks that read images, and nothing else.
    assert name != 'glm_image' or {key.split('.')[1] for key in left_out} == {'visual', 'vqmodel'}


@pytest.mark.slow
def test_the_image_tokenizer_of_janus_has_the_tensors_of_llamagen():
  own = rules.get('janus_pro_vq')
  assert convert.published_shapes(own, own.presets['vq_16']) == {
      f'gen_vision_model.{name}': shape for name, shape in convert.published_shapes(
          rules.get('llamagen_vq'), vq.VQConfig()).items()}


# By case: family of files, config, and the rows of the output matrix that are kept.
_CODES = lambda config: slice(config.first_code, config.first_code + config.num_codes)
TINY = {
    'class': ('llamagen', sizes.LLAMAGEN), 'text': ('llamagen', sizes.T2I),
    'vq': ('llamagen_vq', dataclasses.replace(sizes.VQ, ch_mult=(1, 2))),
    'eagle_llamagen': ('eagle_llamagen', sizes.EAGLE),
    'eagle_anole': ('eagle_anole', sizes.EAGLE_ANOLE),
    'eagle_lumina_mgpt': ('eagle_lumina_mgpt', dataclasses.replace(
        sizes.EAGLE_ANOLE, num_tokens=7, row_width=3)),
    'mar': ('mar', sizes.MAR), 'kl_vae': ('kl_vae', sizes.KL_VAE),
    'nextstep': ('nextstep', sizes.NEXTSTEP), 'nextstep_vae': ('nextstep_vae', sizes.NEXTSTEP_VAE),
    'anole': ('anole', sizes.ANOLE),
    'anole_swin': ('anole', dataclasses.replace(sizes.ANOLE, swin_norm=True)),
    'lumina_mgpt': ('lumina_mgpt', sizes.LUMINA_MGPT), 'emu3': ('emu3', sizes.EMU3),
    'emu3_5': ('emu3_5', sizes.EMU3_5), 'simplear': ('simplear', sizes.SIMPLEAR),
    'liquid': ('liquid', sizes.LIQUID),
    # Its program has one small grid.
    'glm_image': ('glm_image', dataclasses.replace(sizes.GLM_IMAGE, small_side=16)),
    'mammothmoda2': ('mammothmoda2', sizes.MAMMOTHMODA2), 'tar': ('tar', sizes.TAR),
    'ar_dtok': ('ar_dtok', sizes.AR_DTOK),
    'ta_tok': ('ta_tok', sizes.TA_TOK), 't5': ('t5', sizes.T5),
    'cosmos': ('cosmos_dv', sizes.COSMOS), 'emu3_vq': ('emu3_vq', sizes.EMU3_VQ),
    'emu3_5_vq': ('emu3_5_vq', sizes.EMU3_5_VQ), 'movqgan': ('movqgan', sizes.MOVQGAN),
    'chameleon_vqgan': ('chameleon_vqgan', sizes.CHAMELEON_VQ), 'clip': ('clip', sizes.CLIP)}
# What files do not hold, but settings next to them.
_SIZES = {'emu3': ('height', 'width'), 'emu3_5': ('height', 'width'), 'liquid': ('height', 'width'),
          'simplear': ('height', 'width'), 'glm_image': ('height', 'width'),
          'mammothmoda2': ('height', 'width'),
          'llamagen': ('num_heads',)}


@pytest.mark.parametrize('case', representative(
    TINY, 'class', 'eagle_anole', 'eagle_lumina_mgpt', 'mar', 'nextstep', 'anole', 'emu3_5',
    'simplear', 'liquid', 'glm_image', 'mammothmoda2', 't5', 'clip'))
def test_there_and_back_is_exact(case, tmp_path):
  """From tensors to parameters to tensors, and from parameters to files to parameters."""
  name, config = TINY[case]
  family, tensors = rules.get(name), published.tensors(name, config, 3)
  params = convert.convert(family, config, tensors)
  template = store.sketch(family.kind, config).params
  shapes = lambda tree: {path: leaf.shape for path, leaf in weights.named(tree).items()}
  assert shapes(params) == shapes(template)
  back = convert.publish(family, config, params)
  assert back.keys() == tensors.keys()
  for key, tensor in tensors.items():
    kept = slice(None)
    if key == 'lm_head.weight':  # The other outputs are no codes.
      kept = slice(config.num_codes) if name == 'glm_image' else _CODES(config)
    if key == 'llm_model.gen_head.weight':
      kept = slice(8, 8 + config.num_codes)
    if name == 'liquid':  # Embeddings are multiplied, and one is added to norms.
      np.testing.assert_allclose(back[key], tensor, rtol=1e-6, atol=1e-6, err_msg=key)
    else:
      np.testing.assert_array_equal(back[key][kept], tensor[kept], err_msg=key)
  if case in ('anole', 'anole_swin', 'lumina_mgpt'):  # Their files have an image tokenizer, too.
    return
  store.save(tmp_path / 'model', family.kind, config, params)
  (path, _), = publish.publish_model(name, tmp_path / 'model', tmp_path / 'out')
  options = sizes.OPTIONS.get(name, {}) | {
      size: getattr(config, size) for size in _SIZES.get(name, ())}
  if case == 'text':
    options['image_size'] = 48
  opened = convert.open_source(name, path, options=options)
  assert opened.network.config == config
  published.assert_same(opened.params(), params)


_OF_T5 = 't5', ('decoder.block.0.layer.0.SelfAttention.q.weight', 'lm_head.weight')


@pytest.mark.parametrize('case, leftovers', representative((
    ('class', ('freqs_cis', 'causal_mask', 'layers.0.attention.kv_cache.k_cache')),
    ('vq', ('quantize.codebook_used',)), ('kl_vae', ('loss.discriminator.main.0.weight',)),
    ('nextstep', ('lm_head.weight', 'gen_pos_embed')), _OF_T5), _OF_T5))
def test_known_leftovers_are_ignored_and_no_others(case, leftovers):
  name, config = TINY[case]
  family, tensors = rules.get(name), published.tensors(name, config)
  convert.convert(family, config, tensors | {key: np.zeros(3) for key in leftovers})
  missing = tensors.popitem()[0]
  with pytest.raises(rules.ConversionError) as caught:
    convert.convert(family._replace(leftovers='(?!)'), config, tensors | {
        key: np.zeros(3) for key in leftovers})
  for line in (*(f'unexpected: {key} (3,)' for key in leftovers), f'missing: {missing} '):
    assert line in str(caught.value)


# By what the file lacks or has besides: changes of the shapes, options and the message.
@pytest.mark.parametrize('case, changes, options, message', [
    ('class', {}, {}, 'num_heads, image_size cannot be inferred .*width 16 with 1 layers is not a '
     'published .* Specify --num_heads=N --image_size=PIXELS. Or specify model'),
    ('class', {}, {'image_size': 32}, 'num_heads cannot be inferred.*Specify --num_heads=N[.]'),
    ('class', {}, {'num_heads': 2}, 'image_size cannot be inferred.*Specify --image_size=PIXELS'),
    ('class', {}, {'height': 2, 'width': 2},
     'height, width: not an option for .* its options are --image_size=PIXELS --num_heads=N[.]'),
    ('class', {}, {'num_heads': 3, 'image_size': 32}, 'num_heads is 3'),
    ('class', {}, {'num_heads': 2, 'image_size': 30}, 'image_size is 30'),
    ('vq', {'encoder.conv_blocks.0.res.0.conv1.weight': (64, 64, 3, 3)}, {}, '64, 256'),
    ('eagle_llamagen', {}, {'num_heads': 2}, 'image_size cannot be inferred.*llamagen_t2i_256'),
    ('eagle_anole', {}, {'num_heads': 2, 'image_size': 32}, 'num_heads: not an option for an'),
    ('eagle_anole', {'embed_tokens.weight': (1,)}, {'image_size': 32}, 'is not an EAGLE drafter'),
    ('mar', {}, {}, 'num_heads cannot be inferred.*width 8 with 1 layers'),
    ('mar', {'diffusion_pos_embed_learned': (1, 8, 8)}, {'num_heads': 2}, '8 tokens; it must have'),
    ('mar', {'class_emb.weight': (3,)}, {'num_heads': 2}, 'not a MAR model: class_emb.weight is'),
    ('nextstep', {}, {},
     'num_heads, norm_eps, rope_base cannot be inferred .*"rms_norm_eps": 1e-05'),
    ('nextstep', {}, {'image_size': 512}, 'image_size: not an option'),
    ('emu3', {'model.embed_tokens.weight': (96, 16)}, {},
     'has 96 tokens; a transformer like emu3_gen_8b has 184622'),
    ('simplear', {'model.embed_tokens.weight': (96, 16)}, {},
     'has 96 tokens; .* has 64000 codes after those'),
    ('t5', {}, {}, 'norm_eps, max_distance cannot be inferred .*max_distance": 128'),
    pytest.param('movqgan', {'decoder.norm_out.conv_y.weight': (1,)}, {},
                 'decoder.norm_out.conv_y.weight', marks=pytest.mark.slow),
    pytest.param('cosmos', {'encoder.conv_in.0.conv3d.weight': (16, 100, 1, 3, 3)}, {},
                 'it has 100 inputs, vectors of 6 numbers', marks=pytest.mark.slow),
    pytest.param('cosmos', {'decoder.conv_in.0.conv3d.weight': ()}, {},
                 'decoder.conv_in.0.conv3d.weight is .*, it must have 5 axes',
                 marks=pytest.mark.slow)])
def test_sizes_that_cannot_be_inferred_are_explained(case, changes, options, message):
  name, config = TINY[case]
  shapes = convert.published_shapes(rules.get(name), config) | changes
  with pytest.raises(rules.ConversionError, match=message):
    family_lib.infer(rules.get(name), shapes, options)


@pytest.mark.parametrize('size', [3, 0, -2])
def test_patches_that_do_not_divide_tokens(size):
  shapes = convert.published_shapes(rules.get('nextstep'), sizes.NEXTSTEP)
  with pytest.raises(rules.ConversionError, match=f'patch_size is {size}, and tokens have 8 num'):
    family_lib.infer(rules.get('nextstep'), shapes, {}, {'num_heads': 4, 'patch_size': size})


def test_a_tokenizer_without_its_decoder():
  shapes = convert.published_shapes(rules.get('chameleon_vqgan'), sizes.CHAMELEON_VQ)
  encoder = {name: shape for name, shape in shapes.items() if not name.startswith('decoder.')}
  with pytest.raises(ValueError, match='The file has no decoder, so it cannot generate images'):
    rules.get('chameleon_vqgan').infer(encoder, {})
