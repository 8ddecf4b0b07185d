"""Folders of GLM-Image as they are published, at tiny sizes."""

import dataclasses
import json
from unittest import mock

import numpy as np

from checkpoints_conversion import rules
from cspd_jax.models.glm_image import GlmImageConfig
from cspd_jax.text import templates
from tests.conversion import published_settings
from tests.families import published_files

# Grids of 1x2 and 3x4 tokens.
CONFIG = GlmImageConfig(
    height=3, width=4, small_side=2, dim=32, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=24,
    vocab_size=320, num_codes=40, image_end=41, output_size=48, sections=(1, 1, 2))
SEED = 85
SPECIAL = {templates.GLM_TOKENS[-1]: 40, '<|dit_token_16385|>': 41, '<sop>': 310, '<eop>': 311,
           '<|image|>': 312, '<|endoftext|>': 313}
NAMES = {'bos_token': templates.GLM_TOKENS[-1], 'grid_bos_token': '<sop>',
         'grid_eos_token': '<eop>', 'image_token': '<|image|>', 'pad_token': '<|endoftext|>'}
# In this form, the words of one message and nothing else.
TEMPLATE = ("{%- for message in messages -%}{%- for part in message['content'] -%}"
            "{{ part['text'] }}{%- endfor -%}{%- endfor -%}")


def tokenizer_file():
  """A file with all bytes behind the codes, a merge and the special tokens."""
  symbols = published_files.bytes_to_symbols()
  ids = {symbol: 48 + byte for byte, symbol in symbols.items()} | {'ca': 304}
  return published_files.tokenizer_file(ids | SPECIAL, SPECIAL, [('c', 'a')], reads_bytes=True)


def settings(config=CONFIG):
  """A published config.json with the sizes of a tiny network."""
  whole = published_settings.GLM_IMAGE
  return whole | dict(
      image_start_token_id=config.image_start, image_end_token_id=config.image_end,
      text_config=whole['text_config'] | dict(
          attention_bias=config.qkv_bias, hidden_size=config.dim, intermediate_size=config.ffn_dim,
          num_attention_heads=config.num_heads, num_hidden_layers=config.num_layers,
          num_key_value_heads=config.num_kv_heads, vision_vocab_size=config.output_size,
          vocab_size=config.vocab_size, rope_parameters=dict(
              mrope_section=[*config.sections], partial_rotary_factor=config.rotary_factor,
              rope_theta=config.rope_base, rope_type='default')),
      vq_config=whole['vq_config'] | dict(num_embeddings=config.num_codes))


def tensors(config=CONFIG):
  """Published tensors, with one of the networks that read images."""
  return published_files.tensors('glm_image', config, SEED) | {
      'model.vqmodel.quant_conv.bias': np.zeros(8, np.float32)}


def folder(root, config=CONFIG, has_processor=True):
  """Writes a repository, with a tensor of each of its other networks; returns its folder."""
  whole = root / 'GLM-Image'
  published_files.shard(whole / 'vision_language_encoder', tensors(config), settings(config))
  for name, tensor in {'transformer': 'transformer_blocks.0.attn1.to_q.weight',
                       'vae': 'decoder.up_blocks.0.resnets.0.norm1.weight',
                       'text_encoder': 'encoder.block.0.layer.0.layer_norm.weight'}.items():
    published_files.shard(whole / name, {tensor: np.zeros(4, np.float32)},
                          {'_class_name': 'GlmImageTransformer2DModel'}, count=1)
  (whole / 'model_index.json').write_text(json.dumps({'_class_name': 'GlmImagePipeline'}))
  if has_processor:
    (whole / 'processor').mkdir()
    (whole / 'processor' / 'tokenizer.json').write_bytes(tokenizer_file())
    (whole / 'processor' / 'tokenizer_config.json').write_text(json.dumps(NAMES))
  return whole


def converted(source, output, *words):
  """Converts such a folder by one command with the tiny sizes, and returns its exit code."""
  family = rules.get('glm_image')
  presets = {'glm_image_9b': dataclasses.replace(CONFIG)}
  with mock.patch.dict(rules.FAMILIES, glm_image=family._replace(presets=presets)):
    return published_files.convert(source.parent, 'glm_image', source.name, output,
                                   *(words or ('--model=glm_image_9b',)))
