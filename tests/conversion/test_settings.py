"""Settings files: every field is used, must have a value or does not matter; others are refused."""

import dataclasses
import functools
import types

import numpy as np
import pytest

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
  vq as vq_model,
)
from tests.builders import sizes, writers
from tests.conversion import published_settings as published

# Family of files, its content, and the published model or its config.
FILES = {
    'chameleon': ('anole', published.CHAMELEON, 'anole_7b'),
    'chameleon of transformers 5': ('anole', published.CHAMELEON_5, 'anole_7b'),
    'lumina': ('lumina_mgpt', published.LUMINA_MGPT, 'lumina_mgpt_7b_768'),
    'lumina 2': ('lumina_mgpt_2', published.LUMINA_MGPT_2, 'lumina_mgpt_2_7b'),
    'meta': ('anole', published.META, 'anole_7b'),
    'emu3': ('emu3', published.EMU3, 'emu3_gen_8b'),
    'emu3-hf': ('emu3', published.EMU3_HF, 'emu3_gen_8b'),
    'emu3 tokenizer': ('emu3_vq', published.EMU3_VQ, 'vision_tokenizer'),
    'emu3-hf tokenizer': ('emu3_vq', published.EMU3_HF, 'vision_tokenizer'),
    'emu3.5': ('emu3_5', published.EMU3_5, 'emu3_5_34b'),
    'emu3.5 tokenizer': ('emu3_5_vq', published.EMU3_5_VQ, 'ibq_131072'),
    't5': ('t5', published.FLAN_T5_XL, 'flan_t5_xl'),
    'simplear': ('simplear', published.SIMPLEAR, 'simplear_0_5b'),
    'liquid': ('liquid', published.LIQUID, 'liquid_7b'), 'tar': ('tar', published.TAR, 'tar_1_5b'),
    'glm': ('glm_image', published.GLM_IMAGE, 'glm_image_9b'),
    'mammoth': ('mammothmoda2', published.MAMMOTHMODA2, 'mammothmoda2_preview'),
    'mammoth dev': ('mammothmoda2', published.MAMMOTHMODA2_DEV, 'mammothmoda2_dev'),
    'janus 1b': ('janus_pro', published.JANUS_PRO_1B, 'janus_pro_1b'),
    'janus 7b': ('janus_pro', published.JANUS_PRO_7B, 'janus_pro_7b'),
    'janus-hf': ('janus_pro', published.JANUS_PRO_HF, 'janus_pro_1b'),
    'janus tokenizer': ('janus_pro_vq', published.JANUS_PRO_1B, 'vq_16'),
    'janus-hf tokenizer': ('janus_pro_vq', published.JANUS_PRO_HF, 'vq_16'),
    'nextstep': ('nextstep', published.NEXTSTEP_1, 'nextstep_1_512'),
    'nextstep 1.1': ('nextstep', published.NEXTSTEP_1_1, 'nextstep_1_1_512'),
    'nextstep tokenizer': ('nextstep_vae', published.NEXTSTEP_VAE, sizes.NEXTSTEP_VAE_AS_PUBLISHED),
    'anole drafter': ('eagle_anole', published.EAGLE_CHAMELEON, 'anole'),
    'lumina drafter': ('eagle_lumina_mgpt', published.EAGLE_CHAMELEON, 'lumina_mgpt_768'),
    'llamagen drafter': ('eagle_llamagen', published.EAGLE_LLAMAGEN, 'llamagen_t2i_256')}
# These files do not hold every size.
_PARTIAL = ('llamagen drafter', 'janus tokenizer')
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
    'emu3.5': (fusion_rules.EMU3_5_FIELDS, 'pretraining_tp image_area img_token_id boi_token_id '
               'eoi_token_id eol_token_id eof_token_id attention_dropout rope_scaling'),
    'emu3.5 tokenizer': (vq.IBQ_FIELDS, 'n_embed beta use_entropy_loss cosine_similarity remap '
                         'entropy_temperature sample_minimization_weight batch_maximization_weight '
                         'l2_normalize resolution dropout resamp_with_conv'),
    'meta': (fusion_rules.CHAMELEON_SETTINGS['params.json']['model'].fields,
             'model_parallel_size dim n_layers n_heads n_kv_heads vocab_size ffn_dim_multiplier '
             'multiple_of norm_eps rope_theta qk_normalization swin_norm'),
}


@pytest.mark.parametrize('name', FIELDS)
def test_every_field_is_on_a_list(name):
  table, fields = FIELDS[name]
  assert set(fields.split()) <= table.keys()


def _settings(name, content):
  """Returns the sizes that a settings file with this content gives."""
  file = 'params.json' if name == 'meta' else 'config.json'
  return rules.get(FILES[name][0]).settings({file: content})


@pytest.mark.parametrize('name', FILES)
def test_published_settings_are_those_of_the_published_model(name):
  family_name, content, preset = FILES[name]
  family, told = rules.get(family_name), _settings(name, content)
  config = family.presets[preset] if isinstance(preset, str) else preset
  assert told == {size: getattr(config, size) for size in told}
  assert family.needed.keys() - {'height', 'width'} <= told.keys()
  for size in ('dim', 'norm_eps', 'rope_base', 'ch_mult', 'codebook_size'):
    assert size in told or not hasattr(config, size) or name in _PARTIAL


def _read(name, change):
  """Reads a published settings file with some fields changed."""
  return _settings(name, {**FILES[name][1], **change})


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


_FACTOR = {'type': 'linear', 'factor': 2.0}


@pytest.mark.parametrize('name, path, value, message', [
    # Rotations, in every place and spelling.
    ('chameleon', 'rope_scaling', _FACTOR,
     "config.json: rope_scaling.type is 'linear'; it must be 'default', the only rotation"),
    ('emu3', 'rope_scaling', {'rope_type': 'yarn', 'factor': 4.0}, "rope_type is 'yarn'"),
    ('chameleon of transformers 5', 'rope_parameters.rope_type', 'llama3',
     "rope_parameters.rope_type is 'llama3'"),
    ('emu3-hf', 'text_config.rope_parameters.rope_type', 'dynamic',
     "text_config.rope_parameters.rope_type is 'dynamic'"),
    ('anole drafter', 'rope_scaling', _FACTOR, "rope_scaling.type is 'linear'"),
    ('janus 7b', 'language_config.rope_scaling', _FACTOR, "type is 'linear'"),
    ('emu3.5', 'rope_scaling', _FACTOR, "type is 'linear'"),
    ('glm', 'text_config.rope_parameters.rope_type', 'yarn', "rope_type is 'yarn'; it must be"),
    ('glm', 'text_config.rope_scaling', _FACTOR, 'rope_scaling is .*it must be left out'),
    ('glm', 'text_config.partial_rotary_factor', 0.5, 'factor is 0.5; it must be left out'),
    ('meta', 'rope_scaling', {'type': 'dynamic'}, "params.json: rope_scaling.type is 'dynamic'"),
    ('meta', 'model', {'use_scaled_rope': True}, 'model.use_scaled_rope is True'),
    ('chameleon', 'rope_scaling', 'linear', "rope_scaling is 'linear'; it must be an object"),
    ('chameleon', 'rope_parameters', {'rope_theta': 3e4},
     'rope_parameters.rope_theta is 30000.0, but another field is 10000.0'),
    ('chameleon', 'rope_parameters', {'full_attention': {'rope_theta': 1e4}},
     'rope_parameters.full_attention is .*; no published model has the field'),
    ('emu3', 'partial_rotary_factor', 0.5, 'partial_rotary_factor is 0.5; it must be 1'),
    # Kinds of layers.
    ('chameleon', 'hidden_act', 'gelu', "hidden_act is 'gelu'; it must be 'silu' or 'swish'"),
    ('glm', 'text_config.hidden_act', 'gelu', "hidden_act is 'gelu'"),
    ('t5', 'dense_act_fn', 'tanh', "dense_act_fn is 'tanh'; it must be 'gelu_new'"),
    ('t5', 'feed_forward_proj', 'relu', "is 'relu'; it must be 'gated-gelu', as in Flan-T5"),
    ('liquid', 'hidden_act', 'silu', "'silu'; it must be 'gelu' or 'gelu_pytorch_tanh'"),
    ('liquid', 'hidden_activation', 'gelu', "hidden_activation is 'gelu'"),
    ('liquid', 'use_bidirectional_attention', True, 'use_bidirectional_attention is True'),
    ('emu3', 'attention_bias', True, 'attention_bias is True; it must be False'),
    ('lumina drafter', 'bias', False, 'bias is False'),
    ('llamagen drafter', 'qkv_bias', True, 'qkv_bias is True'),
    ('simplear', 'use_sliding_window', True, 'use_sliding_window is True'),
    ('simplear', 'use_mrope', True, 'use_mrope is True; it must be False'),
    ('simplear', 'layer_types', ['full_attention', 'sliding_attention'], 'layer_types is .*must'),
    ('nextstep', 'attention_bias', False, 'attention_bias is False; it must be True'),
    ('nextstep', 'attention_bias', None, 'attention_bias is absent, which means False; it must be'),
    # Its default is `attention_bias`.
    ('nextstep 1.1', 'o_attention_bias', None, 'o_attention_bias is absent, which means True;'),
    ('nextstep', 'o_attention_bias', True, 'o_attention_bias is True; it must be False'),
    ('nextstep', 'use_gen_pos_embed', True, 'use_gen_pos_embed is True; it must be False'),
    ('nextstep 1.1', 'genloss_net_arch', 'attn', "genloss_net_arch is 'attn'"),
    ('nextstep 1.1', 'image_encoder_name', 'siglip', "is 'siglip'; it must be left"),
    ('nextstep tokenizer', 'psz', 2, 'psz is 2; it must be 1'),
    ('janus 7b', 'gen_aligner_config.params.depth', 3, 'depth is 3; it must be 2'),
    ('janus 1b', 'gen_aligner_config.params.depth', None, 'depth is absent, which means 1; it'),
    ('janus 7b', 'gen_head_config.cls', 'linear_head', "gen_head_config.cls is 'linear_head'"),
    ('janus-hf', 'vision_config.image_size', 512, 'image_size is 512; it must be 384'),
    ('janus-hf', 'vq_config.num_patches', None, 'num_patches is absent, which means 32;'),
    ('janus tokenizer', 'gen_vision_config.cls', 'VQ-8', "cls is 'VQ-8'"),
    ('janus-hf tokenizer', 'vq_config.double_latent', True, 'double_latent is True; it must be'),
    ('emu3 tokenizer', 'temporal_downsample_factor', 2, 'temporal_downsample_factor is 2'),
    ('emu3-hf tokenizer', 'vq_config.num_attention_heads', 2, 'vq_config.num_attention_heads is 2'),
    ('emu3.5 tokenizer', 'l2_normalize', True, 'l2_normalize is True; it must be False'),
    ('emu3.5 tokenizer', 'remap', 'used.npy', "remap is 'used.npy'; it must be left out"),
    # Other networks, tokens and quantised weights.
    ('emu3', 'model_type', 'llama', "model_type is 'llama'; it must be 'Emu3' or 'emu3'"),
    ('emu3.5', 'model_type', 'emu3_text_model', "'emu3_text_model'; it must be 'Emu3'"),
    ('emu3.5 tokenizer', 'model_type', 'Emu3VisionVQ', "it must be 'Emu3p5VisionVQ'"),
    ('t5', 'model_type', 'umt5', "model_type is 'umt5'; it must be 't5'"),
    ('simplear', 'model_type', 'qwen3', "model_type is 'qwen3'; it must be 'qwen2'"),
    ('tar', 'model_type', 'qwen3', "model_type is 'qwen3'; it must be 'qwen2' or 'llava_qwen'"),
    ('tar', 'num_codebooks', 3, 'num_codebooks is 3; no published model has the field'),
    ('janus 7b', 'model_type', 'janus_flow', "model_type is 'janus_flow'"),
    ('nextstep', 'model_type', 'llama', "model_type is 'llama'"),
    ('glm', 'text_config.model_type', 'glm4', "model_type is 'glm4'; it must be 'glm_image_text'"),
    ('glm', 'vision_config.model_type', 'siglip', "model_type is 'siglip'"),
    ('emu3', 'quantization_config', {'bits': 4}, 'quantization_config is .* must be left out'),
    ('glm', 'text_config.quantization_config', {'bits': 4}, 'convert the weights before they were'),
    ('emu3', 'pruned_heads', {'0': [1]}, 'pruned_heads is'),
    ('emu3', 'eol_token_id', 3, 'eol_token_id is 3; it must be 151846'),
    ('chameleon', 'eoi_token_id', 8195, 'eoi_token_id is 8195'),
    ('nextstep', 'boi', 5, 'boi is 5; it must be 151667'),
    ('chameleon', 'vocabulary_map', {'IMGIMGAZ': 5, 'IMGIMGBZ': 6},
     'vocabulary_map is a vocabulary with 2 image tokens from 5 to 6; they must be 4 to 8195'),
    ('chameleon', 'vocabulary_map', ['IMGIMGAZ'], 'must contain ids of tokens by name'),
    ('emu3-hf', 'vocabulary_map', {
        f'<|visual token {code:06}|>': 151854 + (code ^ 1) for code in range(32768)},
     'must be 151854 to 184621 in their order'),
    ('llamagen drafter', 'input_type', 't2v', "input_type is 't2v'; it must be one of c2i, t2i"),
    # Types, contradictions, and fields that nobody knows.
    ('emu3', 'hidden_size', '4096', "hidden_size is '4096'; it must be a whole number"),
    ('nextstep 1.1', 'patch_size', 2.0, 'patch_size is 2.0; it must be a whole number'),
    ('emu3', 'rms_norm_eps', True, 'rms_norm_eps is True; it must be a number'),
    ('chameleon', 'swin_norm', 1, 'swin_norm is 1; it must be true or false'),
    ('emu3 tokenizer', 'ch_mult', [1, 'x'], 'ch_mult is .* must be a list of whole numbers'),
    ('nextstep', 'genloss_width', 8, 'genloss_width is 8, but another field is 1536'),
    ('nextstep tokenizer', 'out_ch', 4, 'another field is 3'),
    ('janus 7b', 'gen_vision_config.params.image_token_size', 8192, 'another field is'),
    ('emu3', 'sliding_window', 4096, 'sliding_window is 4096; no published model has the field'),
    ('liquid', 'query_pre_attn_scalar', 256, 'no published model has the field'),
    ('janus 7b', 'language_config.layers', 3, 'layers is 3; no published model has the field'),
    ('janus-hf tokenizer', 'vq_config.norm', 'x', "vq_config.norm is 'x'; no published model"),
    ('glm', 'vq_config.beta', 0.5, 'beta is 0.5; no published model has the field'),
    ('nextstep', 'head_type', 'x', "head_type is 'x'; no published model has the field"),
    ('emu3.5', 'text_config', {}, 'text_config is {}; no published model has the field'),
    ('emu3.5 tokenizer', 'ddconfig', {}, 'ddconfig is {}; no published model has the field')])
def test_settings_that_cannot_be_converted_are_named(name, path, value, message):
  with pytest.raises(rules.ConversionError, match=message):
    _settings(name, published.changed(FILES[name][1], path, value))


def test_all_that_is_wrong_is_in_one_message_with_the_way_out():
  with pytest.raises(rules.ConversionError) as caught:
    _read('emu3', {'hidden_act': 'relu', 'rope_scaling': {'type': 'linear'}, 'window': 3})
  lines = str(caught.value).splitlines()
  assert [line.split(' is ')[0] for line in lines[1:4]] == [
      f'  config.json: {field}' for field in ('hidden_act', 'rope_scaling.type', 'window')]
  assert 'If a field does not matter, remove it from the file' in lines[4]


def test_names_of_programs_and_null_do_not_matter():
  assert _read('emu3', {'_a': 3, 'sliding_window': None}) == _read('emu3', {})


@pytest.fixture
def save(tmp_path):
  """Saves the weights of a tiny network, without some, and a settings file if there is one."""
  return functools.partial(writers.save, tmp_path)


def _config(family, source, **options):
  return convert.open_source(family, source, options=options).network.config


@pytest.mark.parametrize('family, config, options, message', [
    ('anole', sizes.ANOLE, {}, r'norm_eps, rope_base, swin_norm cannot be inferred .* a '
     r'transformer like anole_7b, .* config.json of the published models contains '
     r'\{"rms_norm_eps": 1e-05, "rope_theta": 10000.0, "swin_norm": false\}. Or specify model, if '
     'it is one of: anole_7b'),
    ('lumina_mgpt', dataclasses.replace(sizes.ANOLE, row_end=8803, image_ends=(8196,)),
     {'width': 3}, 'swin_norm, height cannot be inferred .* Specify --height=ROWS'),
    ('emu3', sizes.EMU3, {'num_heads': 2},
     'norm_eps, rope_base cannot be inferred .*"rope_theta": 1000000.0')])
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
  source = save('anole', sizes.ANOLE, {
      'rms_norm_eps': 1e-3, 'rope_theta': 500.0, 'swin_norm': True})
  result = _config('anole', source, height=3, width=4)
  assert result == dataclasses.replace(sizes.ANOLE, norm_eps=1e-3, rope_base=500.0, swin_norm=True)


@pytest.mark.parametrize('change, message', [
    ({'vocab_size': 65537}, 'vocab_size is 65537, the model has 65536'),
    ({'head_dim': 16}, 'head_dim is 16, the model has 8'),
    ({'intermediate_size': 9}, 'ffn_dim is 9, the model has 16'),
    ({'num_attention_heads': 4}, 'num_kv_heads|mis-shaped')])
def test_sizes_that_are_not_those_of_the_weights(save, change, message):
  with pytest.raises(rules.ConversionError, match=message):
    _config('anole', save('anole', sizes.ANOLE, {'num_attention_heads': 2, **change}))


@pytest.mark.parametrize('settings', [None, {'tie_word_embeddings': True}])
def test_tied_weights_are_said(save, settings):
  source = save('anole', sizes.ANOLE, settings, without=('lm_head.weight',))
  with pytest.raises(rules.ConversionError, match='no lm_head.weight. If its weights are tied '
                     r'.*model.embed_tokens.weight .* save that a second time as lm_head.weight'):
    _config('anole', source)


def test_an_output_matrix_in_the_file_is_used_whatever_the_settings_call_it(save):
  settings = {'rms_norm_eps': 1e-5, 'tie_word_embeddings': True}
  assert _config('anole', save('anole', sizes.ANOLE, settings), height=3, width=4) == sizes.ANOLE


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


@pytest.mark.parametrize('form, place', [
    ('emu3', 'BAAI/Emu3-Gen'), ('emu3_5', 'src/tokenizer_emu3_ibq of')])
def test_the_tokenizer_file_of_transformers_is_refused_for_emu3(tmp_path, form, place):
  (tmp_path / 'tokenizer.json').write_text('{"model": {}}')
  with pytest.raises(ValueError, match=f'read from emu3.tiktoken, which {place}'):
    convert.convert_file(f'{form}_text', tmp_path / 'tokenizer.json', tmp_path / 'out')


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
