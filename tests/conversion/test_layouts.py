"""The layouts in which Chameleon's kin is published: all become the same parameters.

The files of Meta and GAIR hold heads whose neighbouring numbers rotate together, and one norm for
all heads of a file. The formulas that make transformers' files of them are those of its
`convert_chameleon_weights_to_hf.py`, written anew. The program that trained Anole keeps Meta's
order under names of transformers, as its `bin_to_pth.py` shows, which renames and does no more.
"""

import dataclasses
import json
import re

import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import command, convert, rules, tensors as tensors_lib
from checkpoints_conversion.rules import early_fusion as early_fusion_rules
from cspd_jax.models import early_fusion
from tests.builders import published
from tests.conversion import torch_files

CONFIG = dataclasses.replace(
    early_fusion.PRESETS['anole_7b'], height=2, width=3, dim=32, num_layers=2, num_heads=4,
    num_kv_heads=2, ffn_dim=24)
WIDTH = CONFIG.dim // CONFIG.num_heads
NAMES = {
    'attention.wq': 'self_attn.q_proj', 'attention.wk': 'self_attn.k_proj',
    'attention.wv': 'self_attn.v_proj', 'attention.wo': 'self_attn.o_proj',
    'attention.q_normalization': 'self_attn.q_norm',
    'attention.k_normalization': 'self_attn.k_norm', 'feed_forward.w1': 'mlp.gate_proj',
    'feed_forward.w2': 'mlp.down_proj', 'feed_forward.w3': 'mlp.up_proj',
    'attention_norm': 'input_layernorm', 'ffn_norm': 'post_attention_layernorm'}
SETTINGS = {'model': {
    'dim': 32, 'n_layers': 2, 'n_heads': 4, 'n_kv_heads': 2, 'norm_eps': 1e-5,
    'rope_theta': 10000.0, 'qk_normalization': True, 'swin_norm': False, 'multiple_of': 8}}


def _meta():
  """Tensors as one of Meta's files has them."""
  heads, kv_heads, dim, ffn = CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.dim, CONFIG.ffn_dim
  shapes = {'tok_embeddings.weight': (65536, dim), 'output.weight': (65536, dim),
            'norm.weight': (dim,)}
  for i in range(CONFIG.num_layers):
    shapes |= {f'layers.{i}.{name}': shape for name, shape in {
        'attention.wq.weight': (heads * WIDTH, dim), 'attention.wk.weight': (kv_heads * WIDTH, dim),
        'attention.wv.weight': (kv_heads * WIDTH, dim), 'attention.wo.weight': (dim, heads * WIDTH),
        **{f'attention.{letter}_normalization.{part}': (WIDTH,)
           for letter in 'qk' for part in ('weight', 'bias')},
        'feed_forward.w1.weight': (ffn, dim), 'feed_forward.w2.weight': (dim, ffn),
        'feed_forward.w3.weight': (ffn, dim), 'attention_norm.weight': (dim,),
        'ffn_norm.weight': (dim,)}.items()}
  return published.weights(shapes, 11)


def _renamed(tensors):
  """Tensors under names of transformers."""
  outer = {'tok_embeddings.weight': 'model.embed_tokens.weight', 'norm.weight': 'model.norm.weight',
           'output.weight': 'lm_head.weight'}
  def name(ours):
    if ours in outer:
      return outer[ours]
    layer, inner, part = re.fullmatch(r'layers\.(\d+)\.(.*)\.(weight|bias)', ours).groups()
    return f'model.layers.{layer}.{NAMES[inner]}.{part}'

  return {name(ours): tensor for ours, tensor in tensors.items()}


def _transformers(tensors, norm_rows):
  """Meta's tensors as transformers publishes them, with `{letter: rows}` of the norms."""
  made = {}
  for name, tensor in _renamed(tensors).items():
    if match := re.search(r'self_attn\.([qk])_(proj|norm)', name):
      if match[2] == 'proj':
        heads = tensor.shape[0] // WIDTH
        tensor = tensor.reshape(heads, WIDTH // 2, 2, -1).swapaxes(1, 2).reshape(tensor.shape)
      else:
        parts = tensor.reshape(-1, WIDTH // 2, 2).swapaxes(1, 2).reshape(-1, WIDTH)
        tensor = parts.repeat(norm_rows[match[1]] // len(parts), axis=0)
    made[name] = tensor
  return made


def _divided(tensors, count):
  """Files of a model-parallel checkpoint: heads, hidden numbers and tokens are divided."""
  def part(name, tensor, i):
    if '_normalization.' in name:
      return tensor + np.float32(0.1 * i)
    if tensor.ndim == 1:
      return tensor
    axis = 1 if re.search(r'tok_embeddings|\.wo\.|\.w2\.', name) else 0
    return np.split(tensor, count, axis)[i]

  return [{name: part(name, tensor, i) for name, tensor in tensors.items()} for i in range(count)]


LAYOUTS = {
    'meta': _meta,
    'a row of norms': lambda: _transformers(_meta(), {'q': 1, 'k': 1}),
    'norms by head': lambda: _transformers(_meta(), {'q': 4, 'k': 2}),
    "anole's training": lambda: _renamed(_meta())}


def _read(tensors, config=CONFIG):
  family = rules.get('anole')
  shapes = {name: tensor.shape for name, tensor in tensors.items()}
  return convert.convert(family._replace(**family.variant(shapes)), config, tensors)


@pytest.mark.parametrize('layout', list(LAYOUTS)[1:])
def test_layouts_become_the_same_parameters(layout):
  published.assert_same(_read(LAYOUTS[layout]()), _read(_meta()))


def test_heads_rotate_as_in_the_official_network():
  """Meta's numbers are not reordered: adjacent components rotate together in both networks."""
  tensors, params = _meta(), _read(_meta())
  layer = params['transformer']['layers_1']
  query = tensors['layers.1.attention.wq.weight'].reshape(4, WIDTH, 32)
  np.testing.assert_array_equal(layer['query'], query.transpose(2, 0, 1))
  scale = tensors['layers.1.attention.k_normalization.weight']
  np.testing.assert_array_equal(layer['key_norm']['scale'], np.stack([scale] * 2))


def test_files_of_several_devices_become_one():
  files = _divided(_meta(), 2)
  joined = tensors_lib.join(files, rules.get('anole').shares)
  result = _read(joined)
  norms = {name: np.stack([file[name] for file in files])
           for name in files[0] if '_normalization.' in name}
  published.assert_same(result, _read(_transformers({**_meta(), **norms}, {'q': 4, 'k': 2})))
  assert {name: (tensor.shape, tensor.nbytes) for name, tensor in joined.items()} == {
      name: (array.shape, array.nbytes) for name, array in (
          (name, np.asarray(tensor)) for name, tensor in joined.items())}


@pytest.mark.parametrize('change, message', [
    (lambda files: files[1].pop('output.weight'), 'output.weight is in 1 of 2 files'),
    (lambda files: files[0].update({'a.weight': np.ones(2)}), 'a.weight is not a tensor that is'),
    (lambda files: files[0].update({'norm.weight': np.ones(5)}), 'norm.weight has parts'),
    (lambda files: files[0].update({'output.weight': np.ones(5)}), 'output.weight has parts')])
def test_files_that_do_not_belong_together(change, message):
  files = _divided(_meta(), 2)
  change(files)
  with pytest.raises(ValueError, match=message):
    tensors_lib.join(files, rules.get('anole').shares)


@pytest.fixture
def save(tmp_path):
  """Saves tensors, and the settings next to them."""
  def save(tensors, name='model.safetensors', settings=SETTINGS, settings_name='params.json'):
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, tmp_path / name)
    (tmp_path / settings_name).write_text(json.dumps(settings))
    return tmp_path / name

  return save


def _changed(**changes):
  return {'model': {**SETTINGS['model'], **changes}}


def test_settings_tell_what_shapes_do_not(save):
  options = {'height': 2, 'width': 3}
  source = save(_meta())
  assert convert.open_source('anole', source, options=options).network.config == CONFIG
  source = save(_meta(), settings=_changed(rope_theta=5e5, swin_norm=True, norm_eps=1e-6))
  result = convert.open_source('anole', source, options=options).network.config
  assert result == dataclasses.replace(CONFIG, rope_base=5e5, swin_norm=True, norm_eps=1e-6)


@pytest.mark.parametrize('settings, message', [
    (_changed(n_layers=3), 'num_layers is 3, the model has 2'),
    (_changed(n_kv_heads=4), 'num_kv_heads is 4, the model has 2'),
    (_changed(qk_normalization=False), 'qk_norm is False, the model has True'),
    (_changed(qk_normalization=None), 'qk_norm is False, the model has True'),
    ([3], 'cannot be read as JSON')])
def test_settings_that_do_not_belong_to_the_weights(save, settings, message):
  with pytest.raises(ValueError, match=message):
    convert.open_source('anole', save(_meta(), settings=settings))


def test_settings_of_transformers_are_compared_with_a_published_model(save):
  source = save(_transformers(_meta(), {'q': 4, 'k': 2}), settings_name='config.json', settings={
      'num_attention_heads': 4, 'rope_theta': 1e6, 'rms_norm_eps': 1e-5})
  with pytest.raises(ValueError, match=r'num_heads is 4, the model has 32\n.*rope_base is 1000000'):
    convert.open_source('anole', source, model='anole_7b')


class TestFolder:
  """Meta's download, whole: pickled weights in `models/7b`, the other files in `tokenizer`."""

  @pytest.fixture
  def folder(self, tmp_path):
    folder = tmp_path / 'Anole-7b-v0.1' / 'models' / '7b'
    folder.mkdir(parents=True)
    (folder / 'params.json').write_text(json.dumps(SETTINGS))
    return folder

  def _convert(self, folder, output):
    return command.main(['convert', '--family=anole', f'--source={folder}', '--height=2',
                         '--width=3', f'--output={output}'])

  @pytest.mark.parametrize('name', [
      'consolidated.pth', pytest.param('consolidated.00.pth', marks=pytest.mark.slow)])
  def test_one_file(self, folder, tmp_path, name):
    torch_files.save(folder / name, _meta())
    assert not self._convert(folder.parents[1], tmp_path / 'model')
    model = cspd_jax.load(tmp_path / 'model')
    assert model.config == CONFIG
    published.assert_same(model.params, _read(_meta()))

  @pytest.mark.slow
  def test_several_files(self, folder, tmp_path, capsys):
    files = _divided(_meta(), 2)
    (folder / 'consolidate_params.json').write_text('{"model_parallel_size": 2}')
    torch_files.save(folder / 'consolidated.00.pth', files[0])
    assert self._convert(folder, tmp_path / 'model') == 2
    assert 'consolidated.01.pth is missing' in capsys.readouterr().err
    torch_files.save(folder / 'consolidated.01.pth', files[1])
    assert not self._convert(folder, tmp_path / 'model')
    published.assert_same(cspd_jax.load(tmp_path / 'model').params,
                 _read(tensors_lib.join(files, early_fusion_rules.ANOLE.shares)))
