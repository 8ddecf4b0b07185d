"""NextStep-1: its releases, which only settings tell apart, and files of several dtypes."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import family as family_lib
from tests.builders import published as weights, sizes, writers
from tests.conversion import published_settings as published

TARGET, VAE = rules.get('nextstep'), rules.get('nextstep_vae')


@pytest.mark.parametrize('release, preset, num_lines', [
    (published.NEXTSTEP_1, 'nextstep_1_512', 2), (published.NEXTSTEP_1_1, 'nextstep_1_1_512', 1)])
def test_the_sampler_of_the_first_release_is_assumed(release, preset, num_lines):
  fields = TARGET.settings({'config.json': release})
  assert ('last_step' in fields) == (num_lines == 1)
  lines = TARGET.assumed(TARGET.presets[preset], fields)
  assert len(lines) == num_lines and '512x512 pixels' in lines[0]


def test_fields_of_transformers_that_do_not_matter():
  read = lambda **change: TARGET.settings({'config.json': {**published.NEXTSTEP_1, **change}})
  assert read() == read(
      rope_theta=None, rope_parameters={'rope_theta': 1e6, 'rope_type': 'default'},
      layer_types=['full_attention'] * 48, sliding_window=4096, dtype='float32')


def test_another_release_than_the_settings_is_refused(tmp_path, monkeypatch):
  fields = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, head_dim=4,
               num_key_value_heads=2, intermediate_size=12, vocab_size=9)
  source = writers.save(tmp_path, 'nextstep', sizes.NEXTSTEP, {
      **published.NEXTSTEP_1_1, **fields, 'genloss_width': 8, 'genloss_depth': 2,
      'num_channels': 2})
  opened = convert.open_source('nextstep', source, options=dict(height=2, width=2))
  assert opened.network.config == dataclasses.replace(
      sizes.NEXTSTEP, token_norm=False, num_levels=28, last_step=None)
  monkeypatch.setitem(rules.FAMILIES, 'nextstep', TARGET._replace(
      presets={'nextstep_1_512': sizes.NEXTSTEP}))
  with pytest.raises(rules.ConversionError, match='last_step is None, the model has 0.04'):
    convert.open_source('nextstep', source, model='nextstep_1_512')


def test_modulations_of_several_dtypes_become_one_matrix():
  """NumPy joins no float16 and bfloat16."""
  dtype = lambda name: (np.float32 if 'modulation' not in name else
                        ml_dtypes.bfloat16 if 'final_layer' in name else np.float16)
  tensors = {name: tensor.astype(dtype(name))
             for name, tensor in weights.tensors('nextstep', sizes.NEXTSTEP, 3).items()}
  back = convert.publish(TARGET, sizes.NEXTSTEP, convert.convert(TARGET, sizes.NEXTSTEP, tensors))
  for name, tensor in tensors.items():
    assert back[name].dtype == np.float32
    np.testing.assert_array_equal(back[name], tensor.astype(np.float32), err_msg=name)


def test_settings_of_the_image_tokenizer():
  read = lambda **change: VAE.settings({'config.json': {**published.NEXTSTEP_VAE, **change}})
  assert read(scaling_factor=0.3, shift_factor=-0.1)['shift'] == -0.1
  assert read(psz=None) == read(anything=1) == read()
  with pytest.raises(rules.ConversionError, match='scale, shift cannot be inferred') as caught:
    family_lib.infer(VAE._replace(infer=lambda shapes, options: None), {}, {}, {'normalized': True})
  assert 'specify model' not in str(caught.value)
