"""A tiny pipeline of diffusers with random numbers, which draws pixels of GLM-Image's tokens."""

import json

import diffusers
import torch
import transformers


def save(folder, num_codes):
  """Writes the pipeline, whose index names the networks that draw tokens too, as published."""
  torch.manual_seed(0)
  vae = diffusers.AutoencoderKL(
      block_out_channels=(4, 4, 8, 8), down_block_types=('DownEncoderBlock2D',) * 4,
      up_block_types=('UpDecoderBlock2D',) * 4, latent_channels=4, norm_num_groups=2,
      latents_mean=[0.0] * 4, latents_std=[1.0] * 4)
  glyphs = transformers.T5EncoderModel(transformers.T5Config(
      vocab_size=384, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2))
  decoder = diffusers.GlmImageTransformer2DModel(
      patch_size=2, in_channels=4, out_channels=4, num_layers=1, attention_head_dim=16,
      num_attention_heads=2, text_embed_dim=16, time_embed_dim=16, condition_dim=8,
      prior_vq_quantizer_codebook_size=num_codes)
  diffusers.GlmImagePipeline(
      tokenizer=transformers.ByT5Tokenizer(), processor=None, text_encoder=glyphs,
      vision_language_encoder=None, vae=vae, transformer=decoder,
      scheduler=diffusers.FlowMatchEulerDiscreteScheduler()).save_pretrained(folder)
  index = json.loads((folder / 'model_index.json').read_text())
  index |= {'processor': ['transformers', 'GlmImageProcessor'],
            'vision_language_encoder': ['transformers', 'GlmImageForConditionalGeneration']}
  (folder / 'model_index.json').write_text(json.dumps(index))
