"""CLIP against transformers, with both published namings, at small sizes and random weights."""

import functools
import json

import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import ConversionError
from cspd_jax.metrics import clip
from cspd_jax.models import clip as network
from cspd_jax.text import bpe
from tests.metrics import clip_files

FAMILY = rules.get('clip')
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 52, 52, 3), np.uint8)
ENDS = np.array([4, 9])


def _network(activation):
  """A small network of transformers, none of whose tensors is constant, and its settings."""
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  config = transformers.CLIPConfig(
      projection_dim=24,
      text_config=dict(hidden_size=128, intermediate_size=160, num_hidden_layers=3, vocab_size=60,
                       num_attention_heads=2, max_position_embeddings=11, eos_token_id=59,
                       bos_token_id=58, pad_token_id=59, hidden_act=activation),
      vision_config=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, image_size=32,
                         num_attention_heads=2, patch_size=8, hidden_act=activation))
  torch.manual_seed(0)
  model = transformers.CLIPModel(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(.1 * torch.randn_like(parameter))
  tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
  return model, tensors, {'config.json': json.loads(config.to_json_string())}


_RENAMED = {
    'text_model.embeddings.token_embedding.weight': 'token_embedding.weight',
    'text_model.embeddings.position_embedding.weight': 'positional_embedding',
    'text_model.final_layer_norm': 'ln_final', 'text_model.encoder.layers': 'transformer.resblocks',
    'vision_model.embeddings.class_embedding': 'visual.class_embedding',
    'vision_model.embeddings.patch_embedding': 'visual.conv1',
    'vision_model.embeddings.position_embedding.weight': 'visual.positional_embedding',
    'vision_model.pre_layrnorm': 'visual.ln_pre', 'vision_model.post_layernorm': 'visual.ln_post',
    'vision_model.encoder.layers': 'visual.transformer.resblocks', 'layer_norm1': 'ln_1',
    'layer_norm2': 'ln_2', 'mlp.fc1': 'mlp.c_fc', 'mlp.fc2': 'mlp.c_proj',
    'self_attn.out_proj': 'attn.out_proj'}


def _of_openai(tensors):
  """The tensors with OpenAI's names: queries, keys and values are one tensor."""
  result = {}
  for name, tensor in tensors.items():
    if name in ('visual_projection.weight', 'text_projection.weight'):
      result[{'v': 'visual.proj', 't': 'text_projection'}[name[0]]] = tensor.T
      continue
    if '.k_proj.' in name or '.v_proj.' in name:
      continue
    if '.q_proj.' in name:
      tensor = np.concatenate([tensors[name.replace('.q_', f'.{part}_')] for part in 'qkv'])
      name = name.replace('self_attn.q_proj.', 'attn.in_proj_')
    for old, new in _RENAMED.items():
      name = name.replace(old, new)
    result[name] = tensor
  return result


@pytest.mark.parametrize('activation', ['quick_gelu', 'gelu'])
def test_features_are_those_of_transformers(activation):
  model, tensors, contents = _network(activation)
  torch = pytest.importorskip('torch')
  ids = np.random.default_rng(1).integers(0, 58, (2, 11))
  for row, end in zip(ids, ENDS):
    row[end:] = 59
  pixels = np.stack([clip.prepared(image, 32) for image in IMAGES])
  with torch.no_grad():
    expected = model(input_ids=torch.tensor(ids),
                     pixel_values=torch.tensor(pixels.transpose(0, 3, 1, 2)))
  for published in (tensors, _of_openai(tensors)):
    source = convert.of_tensors('clip', published, contents, metadata=dict)
    config, params = source.network.config, source.params()
    assert config.activation == activation and config.image_heads == config.text_heads == 2
    image = clip.features(network.image_features, params, config, pixels)
    text = clip.features(network.text_features, params, config, ids, ENDS)
    np.testing.assert_allclose(image, expected.image_embeds, atol=1e-5)
    np.testing.assert_allclose(text, expected.text_embeds, atol=1e-5)
    other = source.network.config.__class__(**{
        **vars(config), 'activation': 'gelu' if activation == 'quick_gelu' else 'quick_gelu'})
    assert np.abs(clip.features(network.image_features, params, other, pixels) - image).max() > 1e-4


def test_both_namings_are_inverted():
  _, tensors, contents = _network('quick_gelu')
  for published in (tensors, _of_openai(tensors)):
    source = convert.of_tensors('clip', published, contents, metadata=dict)
    variant = FAMILY._replace(**FAMILY.variant(published))
    again = convert.publish(variant, source.network.config, source.params())
    assert set(published) - set(again) == {'logit_scale'}
    for name, tensor in again.items():
      np.testing.assert_array_equal(tensor, published[name])


def test_heads_of_openai_are_64_wide():
  config = network.CLIPConfig(
      image_size=8, patch_size=4, image_dim=384, image_layers=1, image_heads=6, image_ffn=8,
      vocab_size=9, context=5, text_dim=768, text_layers=1, text_heads=12, text_ffn=8)
  told = FAMILY.settings({'config.json': {'text_config': {'hidden_act': 'quick_gelu'}}})
  assert FAMILY.infer(convert.published_shapes(FAMILY, config), told) == config


def test_other_files_are_refused():
  _, tensors, contents = _network('quick_gelu')
  with pytest.raises(ConversionError, match='activation cannot be inferred'):
    convert.of_tensors('clip', _of_openai(tensors), {}, metadata=dict)
  with pytest.raises(ConversionError, match='hidden_act|another field'):
    changed = json.loads(json.dumps(contents))
    changed['config.json']['text_config']['hidden_act'] = 'gelu'
    convert.of_tensors('clip', tensors, changed, metadata=dict)
  with pytest.raises(ConversionError, match='text_config.rope'):
    changed = json.loads(json.dumps(contents))
    changed['config.json']['text_config']['rope'] = 1
    convert.of_tensors('clip', tensors, changed, metadata=dict)
  del tensors['vision_model.encoder.layers.1.mlp.fc2.bias']
  with pytest.raises(ConversionError, match=r'missing: vision_model.encoder.layers.1.mlp.fc2.bias'):
    convert.of_tensors('clip', tensors, contents, metadata=dict)


@pytest.mark.slow
def test_published_sizes():
  """Parameters of the published networks, without the scale of the logits."""
  counts = {'vit_b_32': 151277313, 'vit_l_14': 427616513}
  for name, count in counts.items():
    shapes = convert.published_shapes(FAMILY, FAMILY.presets[name])
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == count - 1
    assert FAMILY.infer(shapes, {}) == FAMILY.presets[name]


@pytest.mark.parametrize('shape', [(40, 40), (64, 41), (31, 70), (224, 224)])
def test_images_are_prepared_as_by_transformers(shape):
  transformers = pytest.importorskip('transformers')
  image = np.random.default_rng(2).integers(0, 256, (*shape, 3), np.uint8)
  processor = transformers.CLIPImageProcessor(size={'shortest_edge': 32}, crop_size=32)
  expected = processor(image, return_tensors='np')['pixel_values'][0].transpose(1, 2, 0)
  np.testing.assert_allclose(clip.prepared(image, 32), expected, atol=1e-5)


def test_tokens():
  text = bpe.Vocabulary(clip_files.tokenizer_file())
  start, end, cat, a = (text.ids[name] for name in (
      '<|startoftext|>', '<|endoftext|>', 'cat</w>', 'a</w>'))
  rows, ends = clip.tokens(text, ['A cat', 'cat cat cat cat cat', ''], 5)
  assert rows.tolist() == [[start, a, cat, end, end], [start, cat, cat, cat, end],
                           [start, end, end, end, end]]
  assert ends.tolist() == [3, 4, 1]


@pytest.mark.slow
def test_scores():
  cosines = np.array([.3, -.1, .25, .2])
  score = clip.clip_score(cosines)
  clipped = 2.5 * np.array([.3, 0, .25, .2])
  assert score.mean == pytest.approx(clipped.mean())
  assert score.standard_error == pytest.approx(clipped.std(ddof=1) / 2)
  assert clip.torchmetrics_score(cosines).mean == pytest.approx(16.25)
  assert clip.torchmetrics_score(-cosines).mean == 0


# As openai/clip-vit-base-patch32 has it, in the form of two versions of transformers.
_PREPROCESSOR = dict(
    crop_size=224, do_center_crop=True, do_normalize=True, do_resize=True,
    feature_extractor_type='CLIPFeatureExtractor', image_mean=[0.48145466, 0.4578275, 0.40821073],
    image_std=[0.26862954, 0.26130258, 0.27577711], resample=3, size=224)
_NEWER = _PREPROCESSOR | dict(
    crop_size=dict(height=224, width=224), size=dict(shortest_edge=224), do_rescale=True,
    rescale_factor=0.00392156862745098, do_convert_rgb=True,
    image_processor_type='CLIPImageProcessor')


@pytest.mark.parametrize('content, message', [
    (_PREPROCESSOR, None), (_NEWER, None),
    (_NEWER | dict(image_mean=[.5, .5, .5]), r'image_mean is \[0.5, 0.5, 0.5\]; it must be'),
    (_NEWER | dict(resample=2), 'resample is 2; it must be 3, the bicubic filter'),
    (_NEWER | dict(do_center_crop=False), 'do_center_crop is False'),
    (_NEWER | dict(size=256), "size is 256, but another field means {'image_size': 224}"),
    (_NEWER | dict(crop_size=dict(height=224, width=336)), 'it must be the side of square images'),
    (_NEWER | dict(pad_size=3), 'pad_size is 3; no published model has the field')])
def test_images_are_prepared_as_published(content, message):
  read = functools.partial(FAMILY.settings, {'preprocessor_config.json': content})
  if message is None:
    assert read()['image_size'] == 224
  else:
    with pytest.raises(ConversionError, match=message):
      read()
