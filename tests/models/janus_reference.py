"""A tiny Janus-Pro of transformers with random weights, in both published formats."""

import math
import re

import torch
import transformers

from cspd_jax.models import janus, vq

CONFIG = janus.JanusConfig(
    height=8, width=8, num_codes=40, text_size=24, dim=16, num_layers=3, num_heads=4,
    num_kv_heads=2, ffn_dim=24, norm_eps=1e-6)
VQ = vq.VQConfig(
    ch_mult=(1, 1), num_res_blocks=1, z_channels=4, codebook_size=CONFIG.num_codes, codebook_dim=8)
# Ids of the first token of a prompt, of padding and of the token before an image.
BEGIN, PAD, IMAGE = 1, 2, 3
# Names of DeepSeek, from those of transformers.
_DEEPSEEK = {
    r'model\.vqmodel\.': 'gen_vision_model.', r'decoder\.up\.': 'decoder.conv_blocks.',
    r'encoder\.down\.': 'encoder.conv_blocks.', r'(conv_blocks\.\d+)\.block\.': r'\1.res.',
    r'mid\.block_1': 'mid.0', r'mid\.attn_1': 'mid.1', r'mid\.block_2': 'mid.2',
    r'^model\.language_model\.': 'language_model.model.', r'^lm_head': 'language_model.lm_head',
    r'^model\.generation_embeddings': 'gen_embed',
    r'^model\.generation_aligner\.fc1': 'gen_aligner.layers.0',
    r'^model\.generation_aligner\.hidden_layers\.0': 'gen_aligner.layers.2',
    r'^model\.generation_head\.proj_out': 'gen_head.output_mlp_projector',
    r'^model\.generation_head': 'gen_head',
    r'^model\.aligner\.fc1': 'aligner.layers.0', r'^model\.vision_model': 'vision_model.tower'}


def network():
  """The network, with random numbers for everything."""
  config = transformers.JanusConfig(
      text_config=dict(
          model_type='llama', vocab_size=CONFIG.text_size, hidden_size=CONFIG.dim,
          intermediate_size=CONFIG.ffn_dim, num_hidden_layers=CONFIG.num_layers,
          num_attention_heads=CONFIG.num_heads, num_key_value_heads=CONFIG.num_kv_heads,
          rms_norm_eps=CONFIG.norm_eps, rope_theta=CONFIG.rope_base, pad_token_id=PAD,
          bos_token_id=BEGIN, max_position_embeddings=128),
      vision_config=dict(
          hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=128, patch_size=16,
          num_image_tokens=CONFIG.num_tokens, projection_dim=CONFIG.dim, mlp_ratio=2.0),
      vq_config=dict(
          embed_dim=VQ.codebook_dim, num_embeddings=VQ.codebook_size, base_channels=VQ.ch,
          channel_multiplier=list(VQ.ch_mult), num_res_blocks=VQ.num_res_blocks,
          latent_channels=VQ.z_channels, projection_dim=CONFIG.dim,
          image_token_embed_dim=CONFIG.dim, num_hidden_layers=2))
  result = transformers.JanusForConditionalGeneration(config)
  generator = torch.Generator().manual_seed(0)
  normal = lambda x: torch.randn(x.shape, generator=generator)
  with torch.no_grad():
    for name, parameter in result.named_parameters():
      scale = 0.1 if name.endswith('bias') else 0.2
      drawn = normal(parameter)
      parameter.copy_(drawn / math.sqrt(math.prod(parameter.shape[1:])) if parameter.ndim > 1
                      else name.endswith('weight') + scale * drawn)
    # Distributions that are far from uniform.
    result.model.generation_head.vision_head.weight.mul_(4)
    result.model.language_model.embed_tokens.weight.mul_(3)
    result.model.generation_embeddings.weight.mul_(3)
  return result.eval()


def tensors(reference, is_deepseek):
  """The tensors of the network by name."""
  result = {name: tensor.detach().numpy().copy() for name, tensor in reference.state_dict().items()}
  if not is_deepseek:
    return result
  renamed = {}
  for name, array in result.items():
    for pattern, text in _DEEPSEEK.items():
      name = re.sub(pattern, text, name)
    renamed[name] = array
  return renamed | {'gen_vision_model.quantize.codebook_used': torch.zeros(8).numpy()}
