"""Conversion into model folders: parts, roles, what is replaced, and what does not fit together."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import command, convert, folder, rules
from checkpoints_conversion.rules import base
from cspd_jax.continuous import specification
from cspd_jax.files import output, store
from cspd_jax.models import llamagen, mar
from tests.builders import published, sizes, writers

TARGET = sizes.LLAMAGEN
CONFIGS = {'llamagen': TARGET, 'llamagen_vq': sizes.VQ, 'eagle_llamagen': sizes.EAGLE,
           'eagle_anole': sizes.EAGLE_ANOLE}


def _part(root, family, config=None, settings=None, seed=0, **arguments):
  """A published file of random numbers."""
  source = writers.save(root / family, family, config or CONFIGS[family], settings, seed)
  return folder.Part(
      family, source, arguments={'options': sizes.OPTIONS[family]}, **arguments)


def _convert(tmp_path, family, config=None, **arguments):
  return folder.convert_parts(
      [_part(tmp_path, family, config, **arguments)], tmp_path / 'model')[0]


@pytest.mark.slow
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
  assert pixels.shape == (1, 2, 2, 3)


@pytest.fixture
def alone(monkeypatch):
  """A file family whose networks belong to no model."""
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
  with pytest.raises(ValueError, match='does not belong to a model.*leave role'):
    _convert(tmp_path, alone, role='eagle')


def test_networks_without_a_model_stand_alone(tmp_path, alone):
  place, config = _convert(tmp_path, alone)
  assert place == tmp_path / 'model' and store.load(place).config == config
  with pytest.raises(ValueError, match='which holds a network of its own'):
    _convert(tmp_path, 'llamagen')
  assert store.load(place).config == config


@pytest.mark.slow
def test_networks_that_do_not_belong_together_are_refused(tmp_path):
  _convert(tmp_path, 'llamagen')
  larger = dataclasses.replace(CONFIGS['llamagen_vq'], codebook_size=10)
  with pytest.raises(ValueError, match='tokenizer has codebook_size 10, but the target'):
    _convert(tmp_path, 'llamagen_vq', larger)
  assert not (tmp_path / 'model' / 'tokenizer').exists()
  assert set(json.loads((tmp_path / 'model' / 'model.json').read_text())['parts']) == {'target'}
  with pytest.raises(ValueError, match='holds .* a model of another family'):
    _convert(tmp_path, 'mar', sizes.MAR)


def _parts(tmp_path, **configs):
  return [_part(tmp_path, family, configs.get(family))
          for family in ('llamagen_vq', 'eagle_llamagen', 'llamagen')]


def _files(path):
  """Returns the content of all files of a folder."""
  return {file.relative_to(path).as_posix(): file.read_bytes()
          for file in path.rglob('*') if file.is_file()}


def _spoil(part):
  """Puts NaN into the last tensor."""
  tensors = safetensors.numpy.load_file(part.source)
  tensors[max(tensors)].flat[-1] = np.nan
  safetensors.numpy.save_file(tensors, part.source)


@pytest.mark.slow
@pytest.mark.parametrize('where', ['numbers', 'sizes', 'missing', 'twice'])
def test_all_parts_are_converted_or_none(tmp_path, where):
  _convert(tmp_path, 'llamagen')
  _convert(tmp_path, 'llamagen_vq')
  (tmp_path / 'model' / 'notes.txt').write_text('mine')
  before = _files(tmp_path / 'model')
  parts = _parts(tmp_path, llamagen=dataclasses.replace(
      TARGET, vocab_size=8) if where == 'sizes' else TARGET)
  if where == 'numbers':
    _spoil(parts[-1])
  elif where == 'missing':
    parts[-1].source.unlink()
  elif where == 'twice':
    parts[0] = parts[-1]
  for place in ('fresh/model', 'model'):
    with pytest.raises(ValueError, match={
        'numbers': 'not finite', 'sizes': 'codebook_size 9, but the target',
        'missing': 'no such file', 'twice': 'each must have its own'}[where]):
      folder.convert_parts(parts, tmp_path / place)
  assert not (tmp_path / 'fresh').exists()
  assert _files(tmp_path / 'model') == before


def test_an_interrupted_conversion_goes_on(tmp_path):
  parts, shown = _parts(tmp_path), []

  def stop(name):
    if name == 'llamagen':
      raise KeyboardInterrupt
    return contextlib.nullcontext()

  with pytest.raises(KeyboardInterrupt):
    folder.convert_parts(parts, tmp_path / 'model', progress=stop)
  assert all(name.startswith('.') for name in os.listdir(tmp_path / 'model'))
  written = _files(tmp_path / 'model' / output.FOLDER / 'tokenizer')
  assert written
  folder.convert_parts(parts, tmp_path / 'model', progress=lambda name: shown.append(name) or (
      contextlib.nullcontext()))
  assert _files(tmp_path / 'model' / 'tokenizer') == written
  assert cspd_jax.load(tmp_path / 'model').config == TARGET
  assert sorted(os.listdir(tmp_path / 'model')) == ['eagle', 'model.json', 'target', 'tokenizer']


@pytest.mark.slow
@pytest.mark.parametrize('reader', ['model', 'network', 'command', 'save'])
def test_a_reader_finishes_a_stopped_replacement(tmp_path, monkeypatch, reader):
  folder.convert_parts(_parts(tmp_path), tmp_path / 'model')
  small = dataclasses.replace(TARGET, ffn_dim=16)
  parts = _parts(tmp_path, llamagen=small)[::2]

  def stop(path, target):
    if target == tmp_path / 'model' / 'target' / 'model.safetensors':
      raise KeyboardInterrupt
    replace(path, target)

  replace = pathlib.Path.replace
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(pathlib.Path, 'replace', stop)
    folder.convert_parts(parts, tmp_path / 'model')
  assert (tmp_path / 'model' / output.FOLDER).exists()
  if reader == 'command':  # One that is refused.
    with pytest.raises(ValueError, match='not finite'):
      _spoil(parts[0])
      folder.convert_parts(parts[:1], tmp_path / 'model')
  path = tmp_path / 'model'
  if reader == 'save':  # Another program replaces a network that was not moved.
    config = dataclasses.replace(small, num_layers=2)
    shapes = store.sketch('llamagen', config).params
    store.save(path / 'target', 'llamagen', config, jax.tree.map(
        lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes))
    small = config
  result = store.load(path / 'target') if reader == 'network' else cspd_jax.load(path)
  assert result.config == small
  assert sorted(os.listdir(path)) == ['eagle', 'model.json', 'target', 'tokenizer']


@pytest.mark.slow
def test_parts_of_different_models_are_refused(tmp_path, alone):
  parts = _parts(tmp_path)
  with pytest.raises(ValueError, match='llamagen_vq, eagle_anole, which do not form a model'):
    folder.convert_parts([parts[0], parts[1]._replace(family=alone)], tmp_path / 'model')


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
  assert folder.find_model('llamagen', tmp_path, 'c2i_b_256') == {
      'llamagen': tmp_path / 'c2i_B_256.pt'}


@pytest.mark.slow
def test_other_official_options_can_be_chosen(tmp_path):
  with pytest.raises(ValueError, match="sampling is 'fid'.*it can be: pictures"):
    _convert(tmp_path, 'llamagen', sampling='fid')
  with pytest.raises(ValueError, match="sampling is 'fid'.*leave it out"):
    _convert(tmp_path, 'llamagen_vq', sampling='fid')
  assert not (tmp_path / 'model').exists()
  _convert(tmp_path, 'llamagen', sampling='pictures')


def test_a_repeated_conversion_keeps_what_a_user_changed(tmp_path):
  _convert(tmp_path, 'llamagen')
  file = tmp_path / 'model' / 'model.json'
  content = json.loads(file.read_text())
  content['defaults'] |= {'guidance_scale': 1.5, 'decoder': 'vanilla'}
  file.write_text(json.dumps(content))
  _convert(tmp_path, 'llamagen')
  assert json.loads(file.read_text()) == content
  _convert(tmp_path, 'llamagen', sampling='pictures')
  defaults = json.loads(file.read_text())['defaults']
  assert (defaults['guidance_scale'], defaults['decoder']) == (4.0, 'vanilla')


@pytest.mark.slow
def test_classes_of_imagenet_have_names(tmp_path):
  names = base.names()
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


@pytest.mark.slow
def test_no_network_is_converted_through_a_link(tmp_path):
  """The folder of a model may be a stranger's, and the link lead to another model."""
  [(place, _)] = folder.convert_parts([_part(tmp_path, 'llamagen_vq')], tmp_path / 'mine')
  before = (place / 'model.json').read_bytes()
  (tmp_path / 'model').mkdir()
  (tmp_path / 'model' / 'tokenizer').symlink_to(place)
  with pytest.raises(store.CheckpointError, match='tokenizer is a link'):
    _convert(tmp_path, 'llamagen_vq')
  assert (place / 'model.json').read_bytes() == before


def _defaults(path):
  return json.loads((path / 'model.json').read_text())['defaults']


def _edit(path, **defaults):
  content = json.loads((path / 'model.json').read_text())
  content['defaults'] |= defaults
  (path / 'model.json').write_text(json.dumps(content))


def test_another_target_brings_its_own_defaults(tmp_path):
  fields = {'num_attention_heads': 4, 'rms_norm_eps': 1e-5, 'rope_theta': 1e6,
            'attention_bias': True, 'o_attention_bias': False}
  newer = _part(tmp_path / '1.1', 'nextstep', sizes.NEXTSTEP, fields | {'genloss_width': 8})
  older = _part(tmp_path / '1', 'nextstep', sizes.NEXTSTEP, fields | {'fm_head_dim': 8}, seed=1)
  model, notes = tmp_path / 'model', []
  folder.convert_parts([newer], model)
  assert _defaults(model)['contexts'] == 'nextstep_1_1'
  _edit(model, dtype='bfloat16', seconds={'cpu': {'1': ['mar', 2.0]}})
  folder.convert_parts([older], model, note=notes.append)
  assert _defaults(model) == {
      'guidance_scale': 7.5, 'temperature': 1.0, 'decoder': 'mar', 'dtype': 'bfloat16'}
  assert notes[-1] == (
      'dropped defaults of the target that is replaced: decoder "mar(last_noise=True)", '
      'contexts "nextstep_1_1", seconds {"cpu": {"1": ["mar", 2.0]}}')


@pytest.mark.slow
def test_the_same_target_and_other_parts_keep_the_defaults(tmp_path):
  target = _part(tmp_path, 'llamagen')
  model, notes = tmp_path / 'model', []
  folder.convert_parts([target], model)
  _edit(model, decoder={'cpu': 'mc_sjd(window=4)'}, min_p=0.1)
  before = _defaults(model)
  for part in (target, _part(tmp_path, 'llamagen_vq')):
    folder.convert_parts([part], model, note=notes.append)
    assert _defaults(model) == before
  assert not any('dropped' in line for line in notes)
  folder.convert_parts([_part(tmp_path, 'llamagen', seed=1)], model)
  assert _defaults(model) == {
      'guidance_scale': 4.0, 'top_k': 2000, 'temperature': 1.0, 'top_p': 1.0}


def test_a_target_that_was_removed_can_be_replaced(tmp_path):
  target = _part(tmp_path, 'llamagen')
  folder.convert_parts([target], tmp_path / 'model')
  shutil.rmtree(tmp_path / 'model' / 'target')
  folder.convert_parts([target], tmp_path / 'model')
  assert cspd_jax.load(tmp_path / 'model').config == TARGET


@pytest.mark.parametrize('dtype', ['int8', 'float8_e4m3fn'])
def test_dtypes_that_weights_cannot_have(tmp_path, dtype):
  part, options = _part(tmp_path, 'llamagen', dtype=dtype), sizes.OPTIONS['llamagen']
  shapes = store.sketch('llamagen', TARGET).params
  params = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), shapes)
  for call in (
      lambda: folder.convert_parts([part], tmp_path / 'model'),
      lambda: convert.convert_file(
          'llamagen', part.source, tmp_path / 'model', dtype=dtype, options=options),
      lambda: store.save(tmp_path / 'model', 'llamagen', TARGET, params, dtype=dtype),
      lambda: cspd_jax.load('demo', dtype=dtype)):
    with pytest.raises(ValueError, match=f"dtype is '{dtype}'; it must be a floating-point dtype"):
      call()
  assert not (tmp_path / 'model').exists()


@pytest.mark.slow
def test_the_next_command_names_the_folder_and_no_shipped_model(tmp_path, monkeypatch, capsys):
  target = _part(tmp_path, 'llamagen')
  pixels = _part(tmp_path, 'llamagen_vq')
  monkeypatch.chdir(tmp_path)
  assert command.main(['convert', '--family=llamagen_vq', f'--source={pixels.source}',
                       '--output=demo']) == 0
  assert command.main(['convert', '--family=llamagen', f'--source={target.source}', '--output=demo',
                       '--image_size=32', '--num_heads=2']) == 0
  assert 'Next: cspd-generate --model=./demo --prompt=0' in capsys.readouterr().out
  assert cspd_jax.load('./demo').config == TARGET != cspd_jax.load('demo').config


@pytest.mark.slow
def test_numbers_that_a_dtype_does_not_represent(tmp_path):
  torch = pytest.importorskip('torch')
  tensors = {name: torch.tensor(x) for name, x in published.tensors('llamagen', TARGET).items()}
  tensors['norm.weight'] = torch.full((16,), 1e6)
  call = lambda **options: cspd_jax.from_torch(
      tensors, 'llamagen', options=sizes.OPTIONS['llamagen'], **options)
  with pytest.raises(ValueError, match="dtype is 'int8'; it must be a floating-point dtype"):
    call(dtype='int8')
  with pytest.raises(ValueError, match='norm/scale .*holds numbers that are not finite.* inf'):
    call(dtype='float16')
  loose = call(dtype='float16', allow_nonfinite=True)
  assert np.isinf(np.asarray(loose.params['transformer']['norm']['scale'])).all()
  assert call(dtype='bfloat16').params['transformer']['norm']['scale'].dtype == 'bfloat16'
