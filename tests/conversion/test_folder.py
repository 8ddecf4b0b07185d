"""Conversion into model folders: parts, roles, defaults, and what does not belong together."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import convert, folder, rules
from checkpoints_conversion.rules import imagenet
from cspd_jax.checkpoints import store
from cspd_jax.continuous import specification
from cspd_jax.models import eagle, llamagen, mar, vq

TARGET = llamagen.LlamaGenConfig(
    height=2, width=2, dim=16, num_layers=1, num_heads=2, ffn_dim=24, vocab_size=9, num_classes=3)
CONFIGS = {
    'llamagen': TARGET,
    'llamagen_vq': vq.VQConfig(
        ch_mult=(1, 2), num_res_blocks=1, z_channels=4, codebook_size=9, codebook_dim=2),
    'eagle_llamagen': eagle.EagleConfig(
        num_tokens=4, row_width=2, dim=16, num_heads=2, ffn_dim=24, vocab_size=9,
        own_embedding=True),
    'eagle_anole': eagle.EagleConfig(
        'chameleon', 4, 2, dim=16, num_heads=2, ffn_dim=24, vocab_size=9, norm_eps=1e-5,
        own_embedding=True),
}
OPTIONS = {'llamagen': {'image_size': 32, 'num_heads': 2}, 'llamagen_vq': {},
           'eagle_llamagen': {'image_size': 32, 'num_heads': 2}, 'eagle_anole': {'image_size': 32}}


def _source(tmp_path, family, config=None):
  """A published file of random numbers."""
  shapes = convert.published_shapes(rules.get(family), config or CONFIGS[family])
  rng = np.random.default_rng(0)
  path = tmp_path / f'{family}.safetensors'
  safetensors.numpy.save_file(
      {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}, path)
  return path


def _convert(tmp_path, family, config=None, **arguments):
  return folder.convert_part(family, _source(tmp_path, family, config), tmp_path / 'model',
                             options=OPTIONS[family], **arguments)


@pytest.mark.parametrize('order', [('llamagen', 'llamagen_vq', 'eagle_llamagen'),
                                   ('eagle_llamagen', 'llamagen_vq', 'llamagen')])
def test_parts_in_any_order_make_a_model(order, tmp_path):
  for family in order:
    place, config = _convert(tmp_path, family)
    assert config == CONFIGS[family] and store.load(place).config == config
  model = cspd_jax.load(tmp_path / 'model')
  assert (model.family, model.config, set(model.drafts)) == (
      'llamagen', TARGET, {'eagle', 'corrector', 'layers'})
  assert model.tokenizer.config == CONFIGS['llamagen_vq']
  assert model.sampling().guidance_scale == 4 and model.sampling().top_k == 2000
  pixels = model.pixels(np.zeros((1, 4), np.int32))
  assert pixels.shape == (1, 4, 4, 3)


@pytest.fixture
def alone(monkeypatch):
  """A family of files whose networks are a part of no model."""
  family = rules.FAMILIES['eagle_anole']._replace(model=None)
  monkeypatch.setitem(rules.FAMILIES, 'eagle_anole', family)
  return 'eagle_anole'


def test_a_role_may_be_chosen(tmp_path, alone):
  _convert(tmp_path, 'llamagen')
  small = dataclasses.replace(TARGET, dim=8, num_heads=2)
  place, _ = _convert(tmp_path, 'llamagen', small, role='draft')
  assert place == tmp_path / 'model' / 'draft'
  model = cspd_jax.load(tmp_path / 'model')
  assert model.config == TARGET and set(model.drafts) == {'model', 'corrector', 'layers'}
  with pytest.raises(ValueError, match="role is 'tokenizer'; .* can be: target, draft"):
    _convert(tmp_path, 'llamagen', role='tokenizer')
  with pytest.raises(ValueError, match='a part of no model.*leave role'):
    _convert(tmp_path, alone, role='eagle')


def test_networks_without_a_model_stand_alone(tmp_path, alone):
  place, config = _convert(tmp_path, alone)
  assert place == tmp_path / 'model' and store.load(place).config == config
  with pytest.raises(ValueError, match='which holds a network of its own'):
    _convert(tmp_path, 'llamagen')
  assert store.load(place).config == config


def test_networks_that_do_not_belong_together_are_refused(tmp_path):
  _convert(tmp_path, 'llamagen')
  larger = dataclasses.replace(CONFIGS['llamagen_vq'], codebook_size=10)
  with pytest.raises(ValueError, match='tokenizer has codebook_size 10, but the target'):
    _convert(tmp_path, 'llamagen_vq', larger)
  assert not (tmp_path / 'model' / 'tokenizer').exists()
  assert set(json.loads((tmp_path / 'model' / 'model.json').read_text())['parts']) == {'target'}
  config = mar.MARConfig(height=2, width=2, token_dim=4, dim=8, num_layers=1, num_heads=2,
                         head_width=12, head_layers=1, num_classes=3, buffer_size=2)
  with pytest.raises(ValueError, match='holds .* a model of another family'):
    folder.convert_part('mar', _source(tmp_path, 'mar', config), tmp_path / 'model',
                        options={'num_heads': 2})


def test_official_sampling_options_are_those_of_the_scripts():
  class_, text = (llamagen.PRESETS[name] for name in ('c2i_xl_384', 't2i_xl_512'))
  sampling = rules.get('llamagen').sampling
  assert sampling(class_)['pictures'] == dict(
      guidance_scale=4, top_k=2000, temperature=1, top_p=1)
  assert sampling(class_)['fid'] == dict(guidance_scale=1.75, top_k=0, temperature=1, top_p=1)
  assert sampling(text) == {'pictures': dict(
      guidance_scale=7.5, top_k=1000, temperature=1, top_p=1)}
  assert set(sampling(TARGET)) == {'pictures'}
  scales = {name: rules.get('mar').sampling(mar.PRESETS[name])['fid']['guidance_scale']
            for name in mar.PRESETS}
  assert scales == {'mar_b': 2.9, 'mar_l': 3.0, 'mar_h': 3.2}
  for config in mar.PRESETS.values():
    for options in rules.get('mar').sampling(config).values():
      specification.build(options['decoder'], mar.target(config, guided=True))


def test_published_folders_are_those_of_the_official_downloads():
  layout = rules.get('llamagen').layout
  assert layout('c2i_xl_384') == {
      'llamagen': ('c2i_XL_384.pt',), 'llamagen_vq': ('vq_ds16_c2i.pt',)}
  assert layout('c2i_3b_384')['llamagen'] == ('c2i_3B_384.pt',)
  text = layout('t2i_xl_512')
  assert [text[name][0] for name in ('llamagen', 'llamagen_vq', 't5', 't5_text')] == [
      't2i_XL_stage2_512.pt', 'vq_ds16_t2i.pt', 't5-ckpt/flan-t5-xl',
      't5-ckpt/flan-t5-xl/tokenizer.json']
  assert layout(None) == {}
  for family in rules.FAMILIES.values():
    for model in (None, *family.presets):
      for name in family.layout(model):
        assert rules.get(name).model == family.model


def test_folders_without_their_target_are_refused(tmp_path):
  with pytest.raises(ValueError, match='a folder without c2i_B_256.pt'):
    folder.find_model('llamagen', tmp_path, 'c2i_b_256')
  (tmp_path / 'c2i_B_256.pt').touch()
  found, missing = folder.find_model('llamagen', tmp_path, 'c2i_b_256')
  assert found == {'llamagen': tmp_path / 'c2i_B_256.pt'}
  assert missing == {'llamagen_vq': ('vq_ds16_c2i.pt',)}


def test_other_official_options_can_be_chosen(tmp_path):
  with pytest.raises(ValueError, match="sampling is 'fid'.*it can be: pictures"):
    _convert(tmp_path, 'llamagen', sampling='fid')
  with pytest.raises(ValueError, match="sampling is 'fid'.*leave it out"):
    _convert(tmp_path, 'llamagen_vq', sampling='fid')
  assert not (tmp_path / 'model').exists()
  _convert(tmp_path, 'llamagen', sampling='pictures')


def test_classes_of_imagenet_have_names(tmp_path):
  names = imagenet.names()
  assert len(names) == len({name.lower() for name in names}) == 1000
  assert not any(',' in name or name != name.strip() for name in names)
  for number, name in {0: 'tench', 88: 'macaw', 207: 'golden retriever', 279: 'Arctic fox',
                       360: 'otter', 387: 'lesser panda', 417: 'balloon', 974: 'geyser',
                       979: 'valley', 999: 'toilet tissue'}.items():
    assert names[number] == name
  config = dataclasses.replace(TARGET, num_classes=1000)
  _convert(tmp_path, 'llamagen', config)
  model = cspd_jax.load(tmp_path / 'model')
  assert model.condition(['Geyser', '360']).tolist() == [974, 360]
  _convert(tmp_path, 'llamagen')
  assert len(cspd_jax.load(tmp_path / 'model').prompts) == 3
