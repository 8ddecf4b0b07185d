"""Settings files as models are published, with all of their fields."""

import copy
import functools


def changed(content, path, value):
  """A copy of settings with one field changed; `path` has its names, separated by dots."""
  content = copy.deepcopy(content)
  *parts, name = path.split('.')
  functools.reduce(lambda inside, part: inside[part], parts, content)[name] = value
  return content


_SAVED = {'architectures': ['Network'], 'torch_dtype': 'bfloat16',
          'transformers_version': '4.43.3', 'use_cache': True}
_VQ = {'attn_resolutions': [], 'ch': 128, 'ch_mult': [1, 1, 2, 2, 4], 'double_z': False,
       'model_type': 'chameleon_vqgan', 'n_embed': 8192, 'out_ch': 3, 'z_channels': 256}
_VOCABULARY = {'<s>': 0, '<image>': 8711, **{f'IMGIMG{code:05}Z': 4 + code for code in range(8192)}}

# Of any tokenizer_config.json of transformers, for texts of any length.
TOKENIZER = {'model_max_length': 1000000000000000019884624838656,
             'tokenizer_class': 'Qwen2Tokenizer'}
# As transformers stores Chameleon, and Alpha-VLLM Lumina-mGPT.
CHAMELEON = {
    **_SAVED, 'attention_bias': False, 'attention_dropout': 0.0, 'boi_token_id': 8197,
    'bos_token_id': 1, 'eoi_token_id': 8196, 'eos_token_id': 2, 'hidden_act': 'silu',
    'hidden_size': 4096, 'image_token_id': 8711, 'initializer_range': 0.02,
    'intermediate_size': 11008, 'max_position_embeddings': 4096, 'mlp_bias': False,
    'model_parallel_size': 1, 'model_type': 'chameleon', 'num_attention_heads': 32,
    'num_hidden_layers': 32, 'num_key_value_heads': 32, 'rms_norm_eps': 1e-05,
    'rope_scaling': None, 'rope_theta': 10000.0, 'swin_norm': False, 'tie_word_embeddings': False,
    'vocab_size': 65536, 'vq_config': _VQ, 'vocabulary_map': _VOCABULARY}
LUMINA_MGPT = {
    **CHAMELEON, '_name_or_path': 'Chameleon-7B', 'dropout': 0.05, 'mask_image_logits': False,
    'z_loss_weight': 1e-05}
# The arguments with which Ascend's MindSpeed-MM trains the published weights, in the spelling of
# the official classes; the file itself could not be read, nor the names in its vocabulary_map.
LUMINA_MGPT_2 = {
    **LUMINA_MGPT, 'max_position_embeddings': 10240, 'vocab_size': 171385, 'dropout': 0.0,
    'vocabulary_map': {'<racm3:break>': 151665, '<eoss>': 151666, '<reserved08799>': 151670}}
# The spelling of transformers 5.
CHAMELEON_5 = {
    **{name: value for name, value in CHAMELEON.items()
       if name not in ('rope_scaling', 'rope_theta', 'torch_dtype')},
    'dtype': 'bfloat16', 'pad_token_id': None, 'transformers_version': '5.0.0',
    'rope_parameters': {'rope_theta': 10000.0, 'rope_type': 'default'},
    'vq_config': {'attn_resolutions': None, 'attn_type': 'vanilla', 'base_channels': 128,
                  'channel_multiplier': [1, 1, 2, 2, 4], 'double_latent': False, 'dropout': 0.0,
                  'embed_dim': 256, 'in_channels': 3, 'latent_channels': 256,
                  'model_type': 'chameleon_vqgan', 'num_embeddings': 8192, 'num_res_blocks': 2,
                  'resolution': 512}}
# Meta's params.json; the settings of the training are next to its arguments.
META = {'name': 'run', 'seed': 3, 'optim': {'lr': 1e-4}, 'model_parallel_size': 1, 'model': {
    'dim': 4096, 'n_layers': 32, 'n_heads': 32, 'n_kv_heads': None, 'vocab_size': -1,
    'ffn_dim_multiplier': None, 'multiple_of': 256, 'norm_eps': 1e-05, 'rope_theta': 10000.0,
    'qk_normalization': True, 'swin_norm': False, 'init_base_std': 0.02}}
EMU3 = {
    **_SAVED, 'attention_dropout': 0.1, 'auto_map': {'AutoConfig': 'configuration_emu3.Emu3Config'},
    'boi_token_id': 151852, 'bos_token_id': 151849, 'eof_token_id': 151847,
    'eoi_token_id': 151853, 'eol_token_id': 151846, 'eos_token_id': 151850, 'hidden_act': 'silu',
    'hidden_size': 4096, 'image_area': 518400, 'img_token_id': 151851, 'initializer_range': 0.02,
    'intermediate_size': 14336, 'max_position_embeddings': 9216, 'model_type': 'Emu3',
    'num_attention_heads': 32, 'num_hidden_layers': 32, 'num_key_value_heads': 8,
    'pad_token_id': 151643, 'pretraining_tp': 1, 'rms_norm_eps': 1e-05, 'rope_scaling': None,
    'rope_theta': 1000000.0, 'tie_word_embeddings': False, 'vocab_size': 184622}
EMU3_VQ = {
    **_SAVED, 'auto_map': {'AutoModel': 'modeling_emu3visionvq.Emu3VisionVQModel'},
    'attn_resolutions': [3], 'ch': 256, 'ch_mult': [1, 2, 2, 4], 'codebook_size': 32768,
    'double_z': False, 'dropout': 0.0, 'embed_dim': 4, 'in_channels': 3,
    'model_type': 'Emu3VisionVQ', 'num_res_blocks': 2, 'out_channels': 3,
    'temporal_downsample_factor': 4, 'z_channels': 4}
# Of Emu3.5 the fields that its programs read; the published file has not been seen.
EMU3_5 = {
    **EMU3, 'head_dim': 128, 'hidden_size': 5120, 'intermediate_size': 25600,
    'max_position_embeddings': 32768, 'num_attention_heads': 64, 'num_hidden_layers': 64,
    'layer_types': ['full_attention'] * 64, 'max_window_layers': None, 'sliding_window': None,
    'use_sliding_window': False, 'vocab_size': 282926}
EMU3_5_VQ = {
    **_SAVED, 'attn_resolutions': [16], 'ch': 256, 'ch_mult': [1, 1, 2, 2, 4],
    'codebook_size': 131072, 'double_z': False, 'dropout': 0.0, 'embed_dim': 256, 'in_channels': 3,
    'model_type': 'Emu3p5VisionVQ', 'num_res_blocks': 4, 'out_ch': 3, 'resolution': 256,
    'z_channels': 256}
# Transformer and image tokenizer in one folder, as transformers stores them.
EMU3_HF = {
    'architectures': ['Emu3ForConditionalGeneration'], 'dtype': 'float32', 'image_token_id': 151859,
    'model_type': 'emu3', 'tie_word_embeddings': False, 'transformers_version': '5.0.0',
    'vocabulary_map': {'<image>': 151859, **{
        f'<|visual token {code:06}|>': 151854 + code for code in range(32768)}},
    'text_config': {
        'attention_dropout': 0.1, 'bos_token_id': 151849, 'eos_token_id': 151850,
        'hidden_act': 'silu', 'hidden_size': 4096, 'initializer_range': 0.02,
        'intermediate_size': 14336, 'max_position_embeddings': 9216,
        'model_type': 'emu3_text_model', 'num_attention_heads': 32, 'num_hidden_layers': 32,
        'num_key_value_heads': 8, 'pad_token_id': 151643, 'rms_norm_eps': 1e-05,
        'rope_parameters': {'rope_theta': 1000000.0, 'rope_type': 'default'},
        'tie_word_embeddings': False, 'use_cache': True, 'vocab_size': 184622},
    'vq_config': {
        'attention_dropout': 0.0, 'attn_resolutions': [3], 'base_channels': 256,
        'channel_multiplier': [1, 2, 2, 4], 'codebook_size': 32768, 'double_latent': False,
        'embed_dim': 4, 'hidden_size': 1024, 'in_channels': 3, 'latent_channels': 4,
        'model_type': 'emu3_vqgan', 'num_attention_heads': 1, 'num_res_blocks': 2,
        'out_channels': 3, 'temporal_downsample_factor': 4}}
FLAN_T5_XL = {
    **_SAVED, 'd_ff': 5120, 'd_kv': 64, 'd_model': 2048, 'decoder_start_token_id': 0,
    'dense_act_fn': 'gelu_new', 'dropout_rate': 0.1, 'eos_token_id': 1,
    'feed_forward_proj': 'gated-gelu', 'initializer_factor': 1.0, 'is_encoder_decoder': True,
    'is_gated_act': True, 'layer_norm_epsilon': 1e-06, 'model_type': 't5', 'n_positions': 512,
    'num_decoder_layers': 24, 'num_heads': 32, 'num_layers': 24, 'output_past': True,
    'pad_token_id': 0, 'relative_attention_max_distance': 128,
    'relative_attention_num_buckets': 32, 'task_specific_params': {'summarization': {}},
    'tie_word_embeddings': False, 'vocab_size': 32128}
# LANTERN's drafters.
EAGLE_CHAMELEON = {**CHAMELEON, 'num_hidden_layers': 1, 'dropout': 0.05}
EAGLE_LLAMAGEN = {
    **_SAVED, 'bos_token_id': 1, 'eos_token_id': 2, 'hidden_act': 'silu', 'hidden_size': 1280,
    'caption_dim': 2048, 'class_dropout_p': 0.0, 'initializer_range': 0.02,
    'intermediate_size': 3584, 'max_position_embeddings': 2048, 'model_type': 'llama',
    'num_attention_heads': 20, 'num_hidden_layers': 1, 'num_key_value_heads': 20,
    'pretraining_tp': 1, 'rms_norm_eps': 1e-06, 'rope_scaling': None,
    'tie_word_embeddings': False, 'vocab_size': 16384, 'input_type': 't2i'}
# As on the hub: NextStep-1-Large-Pretrain and NextStep-1.1.
_NEXTSTEP = {
    **_SAVED, '_attn_implementation_autoset': True, 'architectures': ['LlamaForCausalLM'],
    'auto_map': {'AutoModel': 'models/nextstep_model.NextStep'}, 'attention_bias': True,
    'attention_dropout': 0.0, 'boi': 151667, 'bos_token_id': 151643, 'eoi': 151668,
    'eos_token_id': 151643, 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 5120,
    'image_placeholder_id': 151669, 'initializer_range': 0.02, 'intermediate_size': 13824,
    'lm_loss_weight': 0.01, 'max_position_embeddings': 131072, 'max_window_layers': 48,
    'mlp_bias': False, 'model_type': 'nextstep', 'num_attention_heads': 40,
    'num_hidden_layers': 48, 'num_key_value_heads': 8, 'o_attention_bias': False,
    'pad_token_id_added': 151665, 'pretraining_tp': 1, 'rms_norm_eps': 1e-05,
    'rope_scaling': None, 'rope_theta': 1000000.0, 'tie_word_embeddings': False,
    'use_sliding_window': False, 'vae_name_or_path': 'vae/', 'vocab_size': 152064}
NEXTSTEP_1 = {
    **_NEXTSTEP, 'base_image_grid_size': 32, 'fm_head_batch_mul': 4, 'fm_head_dim': 1536,
    'fm_head_layers': 12, 'im_loss_weight': 1.0, 'latent_channels': 16, 'latent_patch_size': 2,
    'latent_size': 64}
NEXTSTEP_1_1 = {
    **_NEXTSTEP, 'base_image_grid_size': 64, 'create_kwargs': {'snr_type': 'lognorm'},
    'genloss_batch_mul': 4, 'genloss_depth': 12, 'genloss_net_arch': 'mlp',
    'genloss_num_sampling_steps': '100', 'genloss_type': 'transport', 'genloss_width': 1536,
    'image_decoder_arch': 'Trans_E', 'image_encoder_name': None, 'image_feature_layer': -2,
    'image_loss_weight': 1.0, 'image_size': 64, 'noise_strength': 0.0, 'num_channels': 16,
    'patch_size': 2}
# The arguments of the official program; the numbers of the published file are not known here.
NEXTSTEP_VAE = {
    'resolution': 256, 'in_channels': 3, 'ch': 128, 'out_ch': 3, 'ch_mult': [1, 2, 4, 4],
    'num_res_blocks': 2, 'z_channels': 16, 'scaling_factor': 1.0, 'shift_factor': 0.0,
    'deterministic': True, 'encoder_norm': True, 'psz': 1}
# As DeepSeek publishes them, and as transformers stores the smaller one.
_JANUS_VISION = {'image_size': 384, 'model_name': 'siglip_large_patch16_384',
                 'select_feature': 'same', 'select_layer': -1}


def _janus_pro(dim, language):
  mlp = {'depth': 2, 'n_embed': dim, 'projector_type': 'mlp_gelu'}
  parts = {
      'aligner': ('MlpProjector', {**mlp, 'input_dim': 1024}),
      'gen_aligner': ('MlpProjector', {**mlp, 'input_dim': 8}),
      'gen_head': ('vision_head', {
          'image_token_embed': dim, 'image_token_size': 16384, 'n_embed': dim}),
      'gen_vision': ('VQ-16', {'image_token_size': 16384, 'n_embed': 8}),
      'vision': ('CLIPVisionTower', _JANUS_VISION)}
  return {
      'architectures': ['MultiModalityCausalLM'], 'model_type': 'multi_modality',
      'torch_dtype': 'bfloat16', 'transformers_version': '4.33.1',
      'language_config': {
          'max_position_embeddings': 16384, 'model_type': 'llama', 'torch_dtype': 'bfloat16',
          'vocab_size': 102400, **language},
      **{f'{name}_config': {'cls': cls, 'model_type': name, 'params': params}
         for name, (cls, params) in parts.items()}}


JANUS_PRO_1B = _janus_pro(2048, {
    'hidden_size': 2048, 'intermediate_size': 5632, 'num_attention_heads': 16,
    'num_hidden_layers': 24, 'num_key_value_heads': 16})
JANUS_PRO_7B = _janus_pro(4096, {'num_hidden_layers': 30})
JANUS_PRO_HF = {
    'architectures': ['JanusForConditionalGeneration'], 'dtype': 'bfloat16',
    'image_token_id': 100581, 'model_type': 'janus', 'tie_word_embeddings': False,
    'transformers_version': '4.52.0',
    'text_config': {
        'attention_bias': False, 'attention_dropout': 0.0, 'bos_token_id': 100000,
        'eos_token_id': 100001, 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 2048,
        'initializer_range': 0.02, 'intermediate_size': 5632, 'max_position_embeddings': 16384,
        'mlp_bias': False, 'model_type': 'llama', 'num_attention_heads': 16,
        'num_hidden_layers': 24, 'num_key_value_heads': 16, 'pad_token_id': 100002,
        'pretraining_tp': 1, 'rms_norm_eps': 1e-06, 'rope_scaling': None, 'rope_theta': 10000.0,
        'use_cache': True, 'vocab_size': 102400},
    'vision_config': {
        'attention_bias': True, 'depth': 2, 'hidden_act': 'gelu', 'hidden_size': 1024,
        'image_size': 384, 'mlp_ratio': 4.0, 'model_type': 'janus_vision_model',
        'num_attention_heads': 16, 'num_hidden_layers': 24, 'num_image_tokens': 576,
        'patch_size': 16, 'projection_dim': 2048, 'use_vision_head': False},
    'vq_config': {
        'base_channels': 128, 'channel_multiplier': [1, 1, 2, 2, 4], 'depth': 2,
        'double_latent': False, 'dropout': 0.0, 'embed_dim': 8, 'hidden_act': 'gelu',
        'image_token_embed_dim': 2048, 'in_channels': 3, 'initializer_range': 0.02,
        'latent_channels': 256, 'model_type': 'janus_vqgan', 'num_embeddings': 16384,
        'num_hidden_layers': 2, 'num_patches': 24, 'num_res_blocks': 2, 'out_channels': 3,
        'projection_dim': 2048}}
# As transformers writes Qwen2.5 and Gemma, with the vocabularies of SimpleAR and Liquid.
SIMPLEAR = {
    **_SAVED, 'architectures': ['SimpARForCausalLM'], 'attention_dropout': 0.0,
    'bos_token_id': 151643, 'eos_token_id': 151645, 'hidden_act': 'silu', 'hidden_size': 896,
    'image_aspect_ratio': 'square', 'initializer_range': 0.02, 'intermediate_size': 4864,
    'max_position_embeddings': 32768, 'max_window_layers': 21, 'mm_use_im_start_end': False,
    'model_type': 'qwen2', 'num_attention_heads': 14, 'num_hidden_layers': 24,
    'num_key_value_heads': 2, 'rms_norm_eps': 1e-06, 'rope_scaling': None, 'rope_theta': 1000000.0,
    'sliding_window': None, 'tie_word_embeddings': True, 'tokenizer_padding_side': 'right',
    'use_cache': True, 'use_mrope': False, 'use_sliding_window': False, 'vocab_size': 215672}
# Qwen2.5's, with what the training program of Tar adds; the published file has not been seen.
TAR = {
    **SIMPLEAR, 'architectures': ['LlavaQwenForCausalLM'], 'model_type': 'llava_qwen',
    'hidden_size': 1536, 'intermediate_size': 8960, 'num_attention_heads': 12,
    'num_hidden_layers': 28, 'vocab_size': 217206, 'mm_use_im_start_end': True,
    'image_start_token_id': 151670, 'image_end_token_id': 217205, 'image_start_tag_id': 151665,
    'image_end_tag_id': 151666, 'scale_start_token_id': 151667, 'scale_end_token_id': 151669,
    'num_image_tokens': 65536, 'num_scale_tokens': 3, 'num_new_tokens': 65536,
    'mm_vision_tower': 'ta_tok.pth', 'mm_hidden_size': 1152, 'mm_vision_select_layer': -2,
    'mm_vision_select_feature': 'patch', 'mm_patch_merge_type': 'flat', 'use_mm_proj': True,
    'use_pos_skipping': False, 'pos_skipping_range': 4096, 'vision_tower_pretrained': ''}
LIQUID = {
    **_SAVED, 'architectures': ['GemmaForCausalLM'], 'attention_bias': False,
    'attention_dropout': 0.0, 'bos_token_id': 2, 'eos_token_id': 1, 'head_dim': 256,
    'hidden_act': 'gelu', 'hidden_activation': None, 'hidden_size': 3072,
    'initializer_range': 0.02, 'intermediate_size': 24576, 'max_position_embeddings': 8192,
    'model_type': 'gemma', 'num_attention_heads': 16, 'num_hidden_layers': 28,
    'num_key_value_heads': 16, 'pad_token_id': 0, 'rms_norm_eps': 1e-06, 'rope_scaling': None,
    'rope_theta': 10000.0, 'use_cache': True, 'vocab_size': 264192}
# As transformers writes the defaults of GLM-Image's classes, and the rotation that its class needs;
# the published file has not been seen.
GLM_IMAGE = {
    'architectures': ['GlmImageForConditionalGeneration'], 'dtype': 'bfloat16',
    'image_end_token_id': 16385, 'image_start_token_id': 16384, 'image_token_id': 167855,
    'model_type': 'glm_image', 'tie_word_embeddings': False, 'transformers_version': '5.24.0',
    'text_config': {
        'attention_bias': True, 'attention_dropout': 0.0, 'eos_token_id': 16385,
        'hidden_act': 'silu', 'hidden_size': 4096, 'initializer_range': 0.02,
        'intermediate_size': 13696, 'max_position_embeddings': 131072,
        'model_type': 'glm_image_text', 'num_attention_heads': 32, 'num_hidden_layers': 40,
        'num_key_value_heads': 2, 'pad_token_id': 167841, 'rms_norm_eps': 1e-05,
        'rope_parameters': {'mrope_section': [8, 12, 12], 'partial_rotary_factor': 0.5,
                            'rope_theta': 10000.0, 'rope_type': 'default'},
        'use_cache': True, 'vision_vocab_size': 16512, 'vocab_size': 168064},
    'vision_config': {
        'attention_bias': True, 'attention_dropout': 0.0, 'depth': 40, 'hidden_act': 'gelu',
        'hidden_size': 1536, 'image_size': 2048, 'in_channels': 3, 'initializer_range': 0.02,
        'intermediate_size': 6144, 'layer_norm_eps': 1e-06, 'model_type': 'glm_image_vision',
        'num_heads': 16, 'patch_size': 16, 'spatial_merge_size': 1},
    'vq_config': {
        'embed_dim': 2048, 'in_channels': 3, 'initializer_range': 0.02, 'latent_channels': 1536,
        'model_type': 'glm_image_vqmodel', 'num_embeddings': 16384}}
# As transformers writes the classes of the official program with the sizes of Qwen2.5-VL-7B, and of
# Qwen3-VL-8B; the published files have not been seen.
_MAMMOTH = {'extra_gen_vocab': True, 'gen_vocab_size': 32800, 'gen_vocab_start_index': 152064}


def _mammothmoda2(kind, moe_type, **text):
  experts = _MAMMOTH | {'moe_type': moe_type}
  return {
      **_SAVED, 'architectures': ['Mammothmoda2Model'], 'model_type': 'mammothmoda2',
      'gen_axes_dim_rope': [40, 40, 40], 'gen_axes_lens': [10000, 10000, 10000],
      'gen_condition_mode': 'text_image', 'gen_dit_config': {'hidden_size': 2520},
      'gen_vae_config': {'latent_channels': 16}, 'gen_transport_config': {},
      'gen_image_condition_refiner_config': None, 'llm_config': {
          **experts, 'model_type': kind, 'image_token_id': 151655, 'video_token_id': 151656,
          'repetition_penalty': 1.0, 'temperature': 1.0, 'tie_word_embeddings': True,
          'vision_config': {'depth': 32, 'hidden_size': 3584, 'model_type': kind},
          'text_config': {
              **experts, 'attention_dropout': 0.0, 'hidden_act': 'silu', 'initializer_range': 0.02,
              'max_position_embeddings': 128000, 'model_type': f'{kind}_text', 'rms_norm_eps': 1e-6,
              'tie_word_embeddings': False, 'use_cache': True, 'vocab_size': 152064, **text}}}


MAMMOTHMODA2 = _mammothmoda2(
    'mammothmoda2_qwen2_5_vl', 'ffn-14:28', hidden_size=3584, intermediate_size=18944,
    num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, rope_theta=1e6,
    layer_types=['full_attention'] * 28, max_window_layers=80, sliding_window=None,
    use_sliding_window=False, rope_scaling={
        'mrope_section': [16, 24, 24], 'rope_type': 'default', 'type': 'default'})
MAMMOTHMODA2_DEV = _mammothmoda2(
    'mammothmoda2_qwen3_vl', 'ffn-16:36', hidden_size=4096, intermediate_size=12288,
    num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    rope_theta=5e6, attention_bias=False, rope_scaling={
        'mrope_interleaved': True, 'mrope_section': [24, 20, 20], 'rope_type': 'default'})
