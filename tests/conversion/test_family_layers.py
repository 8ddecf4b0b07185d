"""Kinds of layers are those of the family, whatever a file holds: no tensor is added or left out.

Everything here is about names and shapes; the tensors have no numbers of their own.
"""

import dataclasses
import functools

import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from tests.builders import sizes, writers
from tests.conversion import published_settings as published
from tests.marks import representative

# Family, config, settings, options.
_GRID = dict(height=2, width=3)
CASES = {
    'anole': (sizes.ANOLE, published.CHAMELEON, _GRID),
    'lumina_mgpt': (sizes.LUMINA_MGPT, published.LUMINA_MGPT, _GRID),
    'lumina_mgpt_2': (sizes.LUMINA_MGPT_2, published.LUMINA_MGPT_2, _GRID),
    'emu3': (sizes.EMU3, published.EMU3, _GRID),
    'emu3_5': (sizes.EMU3_5, published.EMU3_5, _GRID),
    'simplear': (sizes.SIMPLEAR, published.SIMPLEAR, _GRID),
    'liquid': (sizes.LIQUID, published.LIQUID, _GRID),
    'janus_pro': (sizes.JANUS, None, {}),
    'llamagen': (sizes.T2I, None, {'num_heads': 2, 'image_size': 48}),
    't5': (sizes.T5, published.FLAN_T5_XL, {})}
# The matrices of queries, keys and values in the first layer, and what follows the layer's name.
_QKV = {'llamagen': ('layers.0.attention.', ('wqkv',)),
        't5': ('encoder.block.0.layer.0.SelfAttention.', 'qkv'),
        'janus_pro': ('language_model.model.layers.0.self_attn.', ('q_proj', 'k_proj', 'v_proj'))}
_BIASES, _LAYER_NORMS, _RMS_NORMS = 'biases', 'norms with biases', 'norms without biases'
_OWN = {'anole': _LAYER_NORMS, 'lumina_mgpt': _LAYER_NORMS, 'lumina_mgpt_2': _LAYER_NORMS,
        'emu3_5': _RMS_NORMS, 'simplear': _BIASES}


def _zeros(shapes):
  """Tensors that take no memory."""
  return {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}


@functools.cache
def _shapes(name):
  return convert.published_shapes(rules.get(name), CASES[name][0])


def _open(name, shapes):
  """Checks a file with these tensors, next to the settings of its model."""
  config, content, options = CASES[name]
  contents = {}
  if content is not None:
    contents = {'config.json': writers.t5_settings(config) if name == 't5' else
                writers.settings_of(content, config)}
  elif name == 'janus_pro':
    contents = {'config.json': {'language_config': {'num_attention_heads': 2}}}
  return convert.of_tensors(
      name, _zeros(shapes), contents, options=options, metadata=dict).network.config


def _layers(name, kind):
  """Names and shapes of layers of a kind in the first block."""
  shapes = _shapes(name)
  block, matrices = _QKV.get(name, (
      'model.layers.0.self_attn.', ('q_proj', 'k_proj', 'v_proj')))
  if kind == _BIASES:
    return {f'{block}{matrix}.bias': shapes[f'{block}{matrix}.weight'][:1] for matrix in matrices}
  width = CASES[name][0].head_dim if name != 'llamagen' else 8
  rows = (1, width) if kind == _LAYER_NORMS else (width,)
  parts = ('weight', 'bias') if kind == _LAYER_NORMS else ('weight',)
  return {f'{block}{letter}_norm.{part}': rows for letter in 'qk' for part in parts}


@pytest.mark.parametrize('name', representative(CASES, 'emu3', 'llamagen'))
def test_layers_that_the_family_does_not_have_are_unexpected(name):
  whole = _shapes(name)
  assert _open(name, whole).dim == CASES[name][0].dim
  for kind in {_BIASES, _LAYER_NORMS, _RMS_NORMS} - {_OWN.get(name)}:
    stray = {key: shape for key, shape in _layers(name, kind).items() if key not in whole}
    if stray:
      with pytest.raises(rules.ConversionError, match=f'unexpected: .*{next(iter(stray))}'):
        _open(name, whole | stray)


@pytest.mark.parametrize('name', _OWN)
def test_layers_of_the_family_may_not_be_missing(name):
  part = {_BIASES: 'proj.bias'}.get(_OWN[name], '_norm.')
  without = {key: shape for key, shape in _shapes(name).items() if part not in key}
  with pytest.raises(rules.ConversionError, match=f'missing: .*{part}'):
    _open(name, without)


def _attention(shapes):
  """The tensors of attention in the middle, as those of the last level of the encoder."""
  last = max(int(name.split('.')[2]) for name in shapes if name.startswith('encoder.down.'))
  return {name.replace('.mid.attn_1.', f'.down.{last}.attn.0.'): shape
          for name, shape in shapes.items() if name.startswith('encoder.mid.attn_1.')}


@pytest.mark.slow
@pytest.mark.parametrize('name, config', [
    ('chameleon_vqgan', sizes.CHAMELEON_VQ), ('movqgan', sizes.MOVQGAN),
    ('emu3_5_vq', sizes.EMU3_5_VQ), ('emu3_vq', sizes.EMU3_VQ)])
def test_attention_of_image_tokenizers_is_that_of_the_family(name, config):
  shapes = dict(convert.published_shapes(rules.get(name), config))
  opened = lambda shapes: convert.of_tensors(
      name, _zeros(shapes), {}, metadata=dict).network.config
  assert opened(shapes) == config
  added = _attention(shapes)
  if name == 'chameleon_vqgan':
    with pytest.raises(rules.ConversionError, match='unexpected: encoder.down.0.attn.0.k.bias'):
      opened(shapes | added)
  else:
    with pytest.raises(rules.ConversionError, match=r'missing: encoder.down.1.attn.0.k'):
      opened({key: shape for key, shape in shapes.items() if key not in added})


@pytest.mark.slow
def test_settings_of_image_tokenizers_agree_on_attention():
  read = rules.get('emu3_5_vq').settings
  level = lambda sides: read({'config.json': published.EMU3_5_VQ | {'attn_resolutions': sides}})[
      'level_attention']
  assert level([16]) and not level([])
  with pytest.raises(rules.ConversionError, match=r'attention at levels \[3, 4\] of images of 256'):
    level([32, 16])
  shapes = convert.published_shapes(rules.get('emu3_5_vq'), sizes.EMU3_5_VQ)
  config = rules.get('emu3_5_vq').infer(shapes, {'level_attention': False})
  assert config == dataclasses.replace(sizes.EMU3_5_VQ, level_attention=False)
  assert not _attention(shapes).keys() & convert.published_shapes(
      rules.get('emu3_5_vq'), config).keys()
  tensors = _zeros(convert.published_shapes(rules.get('emu3_vq'), sizes.EMU3_VQ))
  fields = dict(ch=128, ch_mult=[1, 1], num_res_blocks=1)
  for levels in ({'attn_resolutions': [0]}, {}):
    with pytest.raises(rules.ConversionError, match='attention_levels is .*, the model has'):
      convert.of_tensors('emu3_vq', tensors, {'config.json': fields | levels}, metadata=dict)
