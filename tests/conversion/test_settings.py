"""Settings files: every field is used, must have a value or does not matter; others are refused."""

import dataclasses
import functools
import json
import types

import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import (
  eagle,
  early_fusion as fusion_rules,
  family as family_lib,
  settings as settings_lib,
  text,
  vq,
)
from cspd_jax.models import (
  eagle as eagle_model,
  early_fusion,
  llamagen,
  t5 as t5_model,
  vq as vq_model,
)
from tests.conversion import published_settings as published
from tests.models import published as weights

# Family of files, name of the file, its content, the published model.
FILES = {
    'chameleon': ('anole', 'config.json', published.CHAMELEON, 'anole_7b'),
    'chameleon of transformers 5': ('anole', 'config.json', published.CHAMELEON_5, 'anole_7b'),
    'lumina': ('lumina_mgpt', 'config.json', published.LUMINA_MGPT, 'lumina_mgpt_7b_768'),
    'lumina 2': ('lumina_mgpt_2', 'config.json', published.LUMINA_MGPT_2, 'lumina_mgpt_2_7b'),
    'meta': ('anole', 'params.json', published.META, 'anole_7b'),
    'emu3': ('emu3', 'config.json', published.EMU3, 'emu3_gen_8b'),
    'emu3-hf': ('emu3', 'config.json', published.EMU3_HF, 'emu3_gen_8b'),
    'emu3 tokenizer': ('emu3_vq', 'config.json', published.EMU3_VQ, 'vision_tokenizer'),
    'emu3-hf tokenizer': ('emu3_vq', 'config.json', published.EMU3_HF, 'vision_tokenizer'),
    't5': ('t5', 'config.json', published.FLAN_T5_XL, 'flan_t5_xl'),
    'simplear': ('simplear', 'config.json', published.SIMPLEAR, 'simplear_0_5b'),
    'liquid': ('liquid', 'config.json', published.LIQUID, 'liquid_7b'),
    'anole drafter': ('eagle_anole', 'config.json', published.EAGLE_CHAMELEON, 'anole'),
    'lumina drafter': (
        'eagle_lumina_mgpt', 'config.json', published.EAGLE_CHAMELEON, 'lumina_mgpt_768'),
    'llamagen drafter': (
        'eagle_llamagen', 'config.json', published.EAGLE_LLAMAGEN, 'llamagen_t2i_256'),
}
_CHAMELEON = fusion_rules.CHAMELEON_SETTINGS['config.json']
_EMU3 = fusion_rules.EMU3_SETTINGS['config.json']
# Fields of the configs of transformers 4 and 5 and of the official repositories.
_BASE = (
    'return_dict output_hidden_states output_attentions torchscript torch_dtype dtype '
    'use_bfloat16 tf_legacy_loss pruned_heads tie_word_embeddings chunk_size_feed_forward '
    'is_encoder_decoder is_decoder cross_attention_hidden_size add_cross_attention '
    'tie_encoder_decoder architectures finetuning_task id2label label2id tokenizer_class prefix '
    'bos_token_id pad_token_id eos_token_id sep_token_id decoder_start_token_id '
    'task_specific_params problem_type model_type transformers_version max_length min_length '
    'do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p '
    'typical_p repetition_penalty length_penalty no_repeat_ngram_size '
    'encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores '
    'return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values '
    'exponential_decay_length_penalty suppress_tokens begin_suppress_tokens')
_LLAMA = (
    'vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads '
    'num_key_value_heads hidden_act max_position_embeddings initializer_range rms_norm_eps '
    'use_cache rope_theta rope_scaling rope_parameters attention_dropout attention_bias mlp_bias '
    'head_dim')
FIELDS = {
    'chameleon': (_CHAMELEON, f'{_BASE} {_LLAMA} model_parallel_size swin_norm vq_config '
                  'vocabulary_map image_token_id mask_image_logits dropout z_loss_weight'),
    'lumina 2': (fusion_rules.LUMINA_MGPT_2_SETTINGS['config.json'],
                 f'{_BASE} {_LLAMA} model_parallel_size swin_norm vq_config vocabulary_map '
                 'mask_image_logits dropout z_loss_weight'),
    'emu3': (_EMU3, f'{_BASE} {_LLAMA} text_config vq_config vocabulary_map image_token_id '
             'img_token_id boi_token_id eoi_token_id eol_token_id eof_token_id image_area '
             'pretraining_tp'),
    'emu3 text': (_EMU3['text_config'].fields, f'{_BASE} {_LLAMA}'),
    'emu3 tokenizer': (vq.EMU3_FIELDS, f'{_BASE} codebook_size embed_dim z_channels double_z '
                       'in_channels out_channels temporal_downsample_factor ch ch_mult '
                       'num_res_blocks attn_resolutions dropout vq_config text_config'),
    'emu3-hf tokenizer': (
        vq.EMU3_FIELDS['vq_config'].fields, 'model_type codebook_size embed_dim latent_channels '
        'double_latent in_channels out_channels temporal_downsample_factor base_channels '
        'channel_multiplier num_res_blocks attn_resolutions hidden_size num_attention_heads '
        'attention_dropout'),
    't5': (text.T5_FIELDS, f'{_BASE} vocab_size d_model d_kv d_ff num_layers num_decoder_layers '
           'num_heads relative_attention_num_buckets relative_attention_max_distance dropout_rate '
           'layer_norm_epsilon initializer_factor feed_forward_proj use_cache classifier_dropout '
           'dense_act_fn is_gated_act scale_decoder_outputs'),
    'chameleon drafter': (eagle.CHAMELEON_FIELDS, f'{_BASE} {_LLAMA} model_parallel_size '
                          'swin_norm vq_config vocabulary_map pretraining_tp bias dropout'),
    'llamagen drafter': (eagle.LLAMAGEN_FIELDS, f'{_BASE} {_LLAMA} pretraining_tp qkv_bias bias '
                         'input_type caption_dim class_dropout_p rope_base dropout'),
    'meta': (fusion_rules.CHAMELEON_SETTINGS['params.json']['model'].fields,
             'model_parallel_size dim n_layers n_heads n_kv_heads vocab_size ffn_dim_multiplier '
             'multiple_of norm_eps rope_theta qk_normalization swin_norm'),
}


@pytest.mark.parametrize('name', FIELDS)
def test_every_field_is_on_a_list(name):
  table, fields = FIELDS[name]
  assert set(fields.split()) <= table.keys()


@pytest.mark.parametrize('name', FILES)
def test_published_settings_are_those_of_the_published_model(name):
  family_name, file, content, preset = FILES[name]
  family = rules.get(family_name)
  told = family.settings({file: content})
  config = family.presets[preset]
  assert told == {size: getattr(config, size) for size in told}
  assert family.needed.keys() - {'height', 'width'} <= told.keys()
  for size in ('dim', 'norm_eps', 'rope_base', 'ch_mult'):
    assert size in told or not hasattr(config, size) or name == 'llamagen drafter'


def _read(name, change):
  """Reads a published settings file with some fields changed."""
  family, file, content, _ = FILES[name]
  return rules.get(family).settings({file: {**content, **change}})


@pytest.mark.parametrize('name', ['chameleon', 'emu3', 'anole drafter'])
@pytest.mark.parametrize('change', [
    {'rope_theta': 5e5}, {'rope_theta': None, 'rope_parameters': {'rope_theta': 500000}},
    {'rope_theta': None, 'rope_scaling': {'type': 'default', 'rope_theta': 5e5}},
    {'rope_theta': 5e5, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 5e5}}])
def test_every_spelling_of_the_rotation_is_read(name, change):
  assert _read(name, change)['rope_base'] == 5e5


def test_an_image_tokenizer_may_have_both_spellings_if_they_agree():
  """The program that converts Anole for transformers keeps the names of the original."""
  def read(**change):
    both = published.CHAMELEON['vq_config'] | published.CHAMELEON_5['vq_config'] | change
    return settings_lib.read({'config.json': vq.CHAMELEON_FIELDS}, {
        'config.json': {**published.CHAMELEON_5, 'vq_config': both}})

  assert read() == {name: getattr(vq_model.CHAMELEON, name) for name in (
      'ch', 'ch_mult', 'in_channels', 'z_channels', 'codebook_size', 'codebook_dim',
      'num_res_blocks')}
  for change, message in ({'ch': 64}, r'ch is 64|channels is 128, but another'), (
      {'n_embed': 4096}, 'n_embed is 4096|embeddings is 8192, but another'), (
      {'out_ch': 1}, 'out_ch is 1|channels is 3, but another'), (
      {'double_z': True}, 'vq_config.double_z is True; it must be False'):
    with pytest.raises(rules.ConversionError, match=message):
      read(**change)


def test_missing_settings_have_the_defaults_of_the_published_code():
  read = lambda family: rules.get(family).settings({'config.json': {'vocab_size': 9}})
  assert read('anole') == dict(vocab_size=9, rope_base=1e4, norm_eps=1e-5, swin_norm=False)
  assert read('emu3') == dict(vocab_size=9, rope_base=1e6, norm_eps=1e-5)
  assert rules.get('anole').settings({}) == {} == rules.get('t5').settings({})
  with pytest.raises(rules.ConversionError, match="absent, which means 'relu'; it must be 'gated-"):
    read('t5')


@pytest.mark.parametrize('activations, message', [
    ((None, None), None), (('quick_gelu', None), None), (('gelu', 'gelu'), None),
    (('gelu', None), "vision_config.hidden_act is absent, which means 'quick_gelu', but .*'gelu'"),
    ((None, 'gelu'), "text_config.hidden_act is absent, which means 'quick_gelu', but .* 'gelu'")])
def test_defaults_of_one_part_are_not_values_of_another(activations, message):
  parts = {f'{part}_config': {'hidden_size': 16, 'hidden_act': activation}
           for part, activation in zip(('text', 'vision'), activations)}
  read = functools.partial(rules.get('clip').settings, {'config.json': parts})
  if message is None:
    assert read()['activation'] == (activations[0] or 'quick_gelu')
  else:
    with pytest.raises(rules.ConversionError, match=message):
      read()


def test_names_of_one_format_have_no_defaults_in_another():
  content = {**published.EMU3_HF, 'text_config': {
      **published.EMU3_HF['text_config'], 'rms_norm_eps': 1e-3,
      'rope_parameters': {'rope_theta': 5e5, 'rope_type': 'default'}}}
  told = rules.get('emu3').settings({'config.json': content})
  assert (told['norm_eps'], told['rope_base']) == (1e-3, 5e5)


@pytest.mark.parametrize('name, change, message', [
    ('chameleon', {'rope_scaling': {'type': 'linear', 'factor': 2.0}},
     "config.json: rope_scaling.type is 'linear'; it must be 'default', the only rotation"),
    ('emu3', {'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0}}, "rope_type is 'yarn'"),
    ('chameleon of transformers 5', {'rope_parameters': {'rope_theta': 1e4, 'rope_type': 'llama3'}},
     "rope_parameters.rope_type is 'llama3'"),
    ('emu3-hf', {'text_config': {'rope_parameters': {'rope_type': 'dynamic'}}},
     "text_config.rope_parameters.rope_type is 'dynamic'"),
    ('anole drafter', {'rope_scaling': {'type': 'dynamic'}}, "rope_scaling.type is 'dynamic'"),
    ('meta', {'rope_scaling': {'type': 'dynamic'}}, "params.json: rope_scaling.type is 'dynamic'"),
    ('meta', {'model': {'use_scaled_rope': True}}, 'model.use_scaled_rope is True'),
    ('chameleon', {'rope_scaling': 'linear'}, "rope_scaling is 'linear'; it must be an object"),
    ('chameleon', {'rope_parameters': {'rope_theta': 3e4}},
     'rope_parameters.rope_theta is 30000.0, but another field is 10000.0'),
    ('chameleon', {'rope_parameters': {'full_attention': {'rope_theta': 1e4}}},
     'rope_parameters.full_attention is .*; no published model has the field'),
    ('emu3', {'partial_rotary_factor': 0.5}, 'partial_rotary_factor is 0.5; it must be 1'),
    ('chameleon', {'hidden_act': 'gelu'}, "hidden_act is 'gelu'; it must be 'silu' or 'swish'"),
    ('emu3', {'attention_bias': True}, 'attention_bias is True; it must be False'),
    ('emu3', {'mlp_bias': True}, 'mlp_bias is True'),
    ('emu3', {'sliding_window': 4096}, 'sliding_window is 4096; no published model has the field'),
    ('emu3', {'quantization_config': {'bits': 4}}, 'quantization_config is .* must be left out'),
    ('emu3', {'pruned_heads': {'0': [1]}}, 'pruned_heads is'),
    ('emu3', {'eol_token_id': 3}, 'eol_token_id is 3; it must be 151846'),
    ('emu3', {'model_type': 'llama'}, "model_type is 'llama'; it must be 'Emu3' or 'emu3'"),
    ('emu3', {'hidden_size': '4096'}, "hidden_size is '4096'; it must be a whole number"),
    ('emu3', {'rms_norm_eps': True}, 'rms_norm_eps is True; it must be a number'),
    ('chameleon', {'swin_norm': 1}, 'swin_norm is 1; it must be true or false'),
    ('chameleon', {'eoi_token_id': 8195}, 'eoi_token_id is 8195'),
    ('chameleon', {'vocabulary_map': {'IMGIMGAZ': 5, 'IMGIMGBZ': 6}},
     'vocabulary_map is a vocabulary with 2 image tokens from 5 to 6; they must be 4 to 8195'),
    ('chameleon', {'vocabulary_map': ['IMGIMGAZ']}, 'must contain ids of tokens by name'),
    ('emu3-hf', {'vocabulary_map': {
        f'<|visual token {code:06}|>': 151854 + (code ^ 1) for code in range(32768)}},
     'must be 151854 to 184621 in their order'),
    ('emu3 tokenizer', {'temporal_downsample_factor': 2}, 'temporal_downsample_factor is 2'),
    ('emu3 tokenizer', {'double_z': True}, 'double_z is True'),
    ('emu3 tokenizer', {'ch_mult': [1, 'x']}, 'ch_mult is .* must be a list of whole numbers'),
    ('emu3-hf tokenizer', {'vq_config': {'num_attention_heads': 2}},
     'vq_config.num_attention_heads is 2'),
    ('t5', {'dense_act_fn': 'tanh'}, "dense_act_fn is 'tanh'; it must be 'gelu_new'"),
    ('t5', {'feed_forward_proj': 'relu'}, "is 'relu'; it must be 'gated-gelu', as in Flan-T5"),
    ('t5', {'model_type': 'umt5'}, "model_type is 'umt5'; it must be 't5'"),
    ('llamagen drafter', {'hidden_act': 'relu'}, "hidden_act is 'relu'"),
    ('llamagen drafter', {'qkv_bias': True}, 'qkv_bias is True'),
    ('llamagen drafter', {'input_type': 't2v'}, "input_type is 't2v'; it must be one of c2i, t2i"),
    ('lumina drafter', {'bias': False}, 'bias is False'),
    ('simplear', {'use_sliding_window': True}, 'use_sliding_window is True'),
    ('simplear', {'use_mrope': True}, 'use_mrope is True; it must be False'),
    ('simplear', {'layer_types': ['full_attention', 'sliding_attention']}, 'layer_types is .*must'),
    ('simplear', {'model_type': 'qwen3'}, "model_type is 'qwen3'; it must be 'qwen2'"),
    ('liquid', {'hidden_act': 'silu'}, "'silu'; it must be 'gelu' or 'gelu_pytorch_tanh'"),
    ('liquid', {'hidden_activation': 'gelu'}, "hidden_activation is 'gelu'"),
    ('liquid', {'use_bidirectional_attention': True}, 'use_bidirectional_attention is True'),
    ('liquid', {'query_pre_attn_scalar': 256}, 'no published model has the field')])
def test_settings_that_cannot_be_converted_are_named(name, change, message):
  with pytest.raises(rules.ConversionError, match=message):
    _read(name, change)


def test_all_that_is_wrong_is_in_one_message_with_the_way_out():
  with pytest.raises(rules.ConversionError) as caught:
    _read('emu3', {'hidden_act': 'relu', 'rope_scaling': {'type': 'linear'}, 'window': 3})
  lines = str(caught.value).splitlines()
  assert [line.split(' is ')[0] for line in lines[1:4]] == [
      f'  config.json: {field}' for field in ('hidden_act', 'rope_scaling.type', 'window')]
  assert 'If a field does not matter, remove it from the file' in lines[4]


def test_names_of_programs_and_null_do_not_matter():
  assert _read('emu3', {'_a': 3, 'sliding_window': None}) == _read('emu3', {})


CONFIG = dataclasses.replace(
    early_fusion.PRESETS['anole_7b'], height=2, width=3, dim=16, num_layers=1, num_heads=2,
    num_kv_heads=1, ffn_dim=8)


@pytest.fixture
def save(tmp_path):
  """Saves the weights of a tiny network, without some, and a settings file if there is one."""
  def run(family, config, settings=None, without=()):
    shapes = convert.published_shapes(rules.get(family), config)
    tensors = {name: tensor for name, tensor in weights.weights(shapes, 3).items()
               if name not in without}
    safetensors.numpy.save_file(tensors, tmp_path / 'model.safetensors')
    if settings is not None:
      (tmp_path / 'config.json').write_text(json.dumps(settings))
    return tmp_path / 'model.safetensors'

  return run


def _config(family, source, **options):
  return convert.open_source(family, source, options=options).network.config


@pytest.mark.parametrize('family, config, options, message', [
    ('anole', CONFIG, {}, r'norm_eps, rope_base, swin_norm cannot be inferred .* a transformer '
     r'like anole_7b, .* config.json of the published models contains \{"rms_norm_eps": 1e-05, '
     r'"rope_theta": 10000.0, "swin_norm": false\}. Or specify model, if it is one of: anole_7b'),
    ('lumina_mgpt', dataclasses.replace(CONFIG, row_end=8803, image_ends=(8196,)), {'width': 3},
     'swin_norm, height cannot be inferred .* Specify --height=ROWS'),
    ('emu3', dataclasses.replace(early_fusion.PRESETS['emu3_gen_8b'], dim=16, num_layers=1,
                                 num_heads=2,
                                 num_kv_heads=1, ffn_dim=8), {'num_heads': 2},
     'norm_eps, rope_base cannot be inferred .*"rope_theta": 1000000.0'),
    ('t5', t5_model.T5Config(vocab_size=9, dim=8, num_layers=1, num_heads=2, head_dim=4, ffn_dim=8),
     {}, 'norm_eps, max_distance cannot be inferred .*max_distance": 128')])
def test_sizes_that_cannot_be_inferred_are_required(save, family, config, options, message):
  with pytest.raises(rules.ConversionError, match=message):
    _config(family, save(family, config), **options)


@pytest.mark.slow
def test_heads_are_not_assumed_where_the_class_has_another_default():
  simplear = rules.get('simplear')
  shapes = convert.published_shapes(simplear, simplear.presets['simplear_0_5b'])
  told = simplear.settings({'config.json': {**published.SIMPLEAR, 'num_attention_heads': None}})
  with pytest.raises(rules.ConversionError, match='num_heads cannot .*"num_attention_heads": 14'):
    family_lib.infer(simplear, shapes, {}, told)
  assert family_lib.infer(simplear, shapes, {'num_heads': 14}, told).num_heads == 14


def test_answers_determine_the_config(save):
  """The answers to what is asked for, and the number of heads, which norms have."""
  source = save('anole', CONFIG, {'rms_norm_eps': 1e-3, 'rope_theta': 500.0, 'swin_norm': True})
  result = _config('anole', source, height=2, width=3)
  assert result == dataclasses.replace(CONFIG, norm_eps=1e-3, rope_base=500.0, swin_norm=True)


@pytest.mark.parametrize('change, message', [
    ({'vocab_size': 65537}, 'vocab_size is 65537, the model has 65536'),
    ({'head_dim': 16}, 'head_dim is 16, the model has 8'),
    ({'intermediate_size': 9}, 'ffn_dim is 9, the model has 8'),
    ({'num_attention_heads': 4}, 'num_kv_heads|mis-shaped')])
def test_sizes_that_are_not_those_of_the_weights(save, change, message):
  with pytest.raises(rules.ConversionError, match=message):
    _config('anole', save('anole', CONFIG, {'num_attention_heads': 2, **change}), height=2, width=3)


@pytest.mark.parametrize('settings', [None, {'tie_word_embeddings': True}])
def test_tied_weights_are_said(save, settings):
  source = save('anole', CONFIG, settings, without=('lm_head.weight',))
  with pytest.raises(rules.ConversionError, match='no lm_head.weight. If its weights are tied '
                     r'.*model.embed_tokens.weight .* save that a second time as lm_head.weight'):
    _config('anole', source)


def test_an_output_matrix_in_the_file_is_used_whatever_the_settings_call_it(save):
  settings = {'rms_norm_eps': 1e-5, 'tie_word_embeddings': True}
  assert _config('anole', save('anole', CONFIG, settings), height=2, width=3) == CONFIG


@pytest.mark.parametrize('content', [
    {**published.SIMPLEAR, 'tie_word_embeddings': None},
    {name: value for name, value in published.SIMPLEAR.items() if name != 'tie_word_embeddings'}])
def test_absent_fields_are_refused_as_their_defaults_are(content):
  message = 'tie_word_embeddings is absent, which means False; it must be True: the file has no lm_'
  with pytest.raises(rules.ConversionError, match=message):
    rules.get('simplear').settings({'config.json': content})


def test_settings_of_drafters_are_used(save):
  config = eagle_model.EagleConfig(
      'chameleon', 4, 2, dim=16, num_heads=2, ffn_dim=24, vocab_size=12, norm_eps=1e-3,
      rope_base=500.0, own_embedding=True)
  source = save('eagle_anole', config, {'rms_norm_eps': 1e-3, 'rope_parameters': {
      'rope_theta': 500.0, 'rope_type': 'default'}})
  assert _config('eagle_anole', source, image_size=32) == config
  config = dataclasses.replace(config, family='llamagen', norm_eps=0.5, rope_base=10000.0)
  source = save('eagle_llamagen', config, {'rms_norm_eps': 0.5, 'num_attention_heads': 2})
  assert _config('eagle_llamagen', source, image_size=32) == config
  source = save('eagle_llamagen', config, {'num_attention_heads': 2, 'input_type': 't2i'})
  with pytest.raises(rules.ConversionError, match='num_tokens is 256, the model has 4'):
    _config('eagle_llamagen', source, image_size=32)


def test_the_arguments_of_llamagen_are_used(save):
  config = llamagen.LlamaGenConfig(
      height=2, width=2, dim=768, num_layers=1, num_heads=24, ffn_dim=8, vocab_size=9,
      num_classes=4, rope_base=500.0, norm_eps=1e-3)
  arguments = {'n_head': 24, 'block_size': 4, 'rope_base': 500, 'norm_eps': 1e-3,
               'model_type': 'c2i', 'cls_token_num': 1, 'class_dropout_prob': 0.1}
  assert _config('llamagen', save('llamagen', config, arguments)) == config
  for change, message in (({'num_classes': 5}, 'num_classes is 5, the model has 4'),
                          ({'block_size': 5}, 'num_tokens is 5, the model has 4'),
                          ({'qk_norm': True}, 'qk_norm is True; no published model has the field')):
    with pytest.raises(rules.ConversionError, match=message):
      _config('llamagen', save('llamagen', config, arguments | change), image_size=32)
  config = vq_model.VQConfig(
      ch_mult=(1,), num_res_blocks=1, z_channels=4, codebook_size=9, codebook_dim=2,
      normalized=False)
  arguments = {'codebook_l2_norm': False, 'encoder_ch_mult': [1], 'decoder_ch_mult': [1]}
  assert _config('llamagen_vq', save('llamagen_vq', config, arguments)) == config


@pytest.mark.slow
@pytest.mark.parametrize('prefix', ['', 'vqmodel.'])
def test_names_of_transformers_are_read(prefix):
  """Emu3 with its tokenizer in one file; the names are those of `save_pretrained`."""
  family, config = rules.get('emu3_vq'), dataclasses.replace(
      vq_model.EMU3, ch=128, ch_mult=(1, 1), num_res_blocks=1)
  attention = 'decoder.up_block.up.1.attn.0.q_proj.weight'
  names = {f'{prefix}encoder.down_block.down.0.block.0.conv1.weight': (128, 128, 3, 3),
           f'{prefix}encoder.conv_in.weight': (128, 3, 3, 3),
           f'{prefix}quantize.embedding.weight': (32768, 4),
           f'{prefix}encoder.down_block.down.1.block.0.conv1.weight': (128, 128, 3, 3)}
  family = family._replace(**family.variant(names))
  assert family.infer(names, {}) == config
  shapes = convert.published_shapes(family, config)
  assert names.items() <= shapes.items()
  assert {name.removeprefix(prefix): shape for name, shape in shapes.items() if 'norm' not in name
          }.items() >= {
      attention: (128, 128), 'encoder.middle_block.attn_1.out_proj.bias': (128,),
      'decoder.up_block.up.0.block.1.conv2.bias': (128,),
      'encoder.time_conv.0.conv.conv.weight': (4, 4, 4, 3, 3)}.items()
  assert {f'{prefix}encoder.middle_block.attn_norm.weight',
          f'{prefix}encoder.down_block.down.1.attn_norms.0.bias',
          f'{prefix}decoder.up_block.up.1.attn_norms.1.norm_layer.weight',
          f'{prefix}decoder.middle_block.attn_norm.conv_y.weight',
          f'{prefix}decoder.up_block.up.0.block.0.norm1.conv_b.bias'} <= shapes.keys()
  transformer = rules.get('emu3')
  names = {'text_model.model.embed_tokens.weight': (1, 1), 'text_model.lm_head.weight': (1, 1)}
  transformer = transformer._replace(**transformer.variant(names))
  small = dataclasses.replace(early_fusion.PRESETS['emu3_gen_8b'], num_layers=1)
  assert all(name.startswith('text_model.')
             for name in convert.published_shapes(transformer, small))
  made = convert.convert(family, config, {
      **{name: np.ones(shape, np.float32) for name, shape in shapes.items()},
      'text_model.model.norm.weight': np.ones(3)})
  assert made['encoder']['mid']['attn_0']['query']['kernel'].shape == (128, 128)


@pytest.mark.slow
def test_the_tokenizer_file_of_transformers_is_refused_for_emu3(tmp_path):
  (tmp_path / 'tokenizer.json').write_text('{"model": {}}')
  with pytest.raises(ValueError, match='read from emu3.tiktoken, which BAAI/Emu3-Gen'):
    convert.convert_file('emu3_text', tmp_path / 'tokenizer.json', tmp_path / 'out')


@pytest.mark.parametrize('wrappers', [
    ('module',), ('_orig_mod', 'module'), ('module', '_orig_mod')])
def test_settings_of_wrapped_modules_are_read(wrappers):
  """DistributedDataParallel and DataParallel do not pass on attributes of the module."""
  arguments = dataclasses.make_dataclass('ModelArgs', [('qk_norm', bool, True)])
  module = types.SimpleNamespace(config=arguments(), state_dict=dict)
  for name in wrappers:
    module = types.SimpleNamespace(**{name: module}, state_dict=dict)
  with pytest.raises(rules.ConversionError, match='qk_norm is True; no published model has the fi'):
    cspd_jax.from_torch(module, 'llamagen')
