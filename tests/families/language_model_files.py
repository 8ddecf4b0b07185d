"""Folders of SimpleAR and Liquid as they are published, at tiny sizes."""

import dataclasses
import functools

import numpy as np

from cspd_jax.models import cosmos, early_fusion
from tests.conversion import published_settings, torch_files
from tests.families import published_files

_small = dict(dim=16, num_layers=2, num_heads=2, ffn_dim=24)
SIMPLEAR = dataclasses.replace(
    early_fusion.PRESETS['simplear_0_5b'], height=2, width=3, **{**_small, 'num_kv_heads': 1})
LIQUID = dataclasses.replace(
    early_fusion.PRESETS['liquid_7b'], height=3, width=4, num_kv_heads=2, attention_dim=24,
    **_small)
CONFIGS = {'simplear': SIMPLEAR, 'liquid': LIQUID}
COSMOS = cosmos.CosmosConfig(ch=8, ch_mult=(1, 1, 1), num_res_blocks=1, z_channels=4)
# Seeds of the weights of the target.
SEEDS = {'simplear': 91, 'liquid': 93}
# Ids of special tokens; Liquid's replace the first unused tokens of Gemma.
SPECIAL = {
    'simplear': {f'<|{name}|>': 151665 + place for place, name in enumerate(
        ('t2i', 'i2t', 'soi', 'vtokens', 't2v', 'v2t', 'sov'))},
    'liquid': {'<pad>': 0, '<eos>': 1, '<bos>': 2, '<unk>': 3, '<boi>': 7, '<eoi>': 8,
               '<unconditional>': 9}}


@functools.cache
def text(name, num_tokens=None):
  """A tokenizer file with these special tokens, text as single characters, and others.

  It has as many tokens as the model has for text, or another number.
  """
  special = SPECIAL[name]
  ids = special | {chr(number): 1000 + number for number in range(10, 127)
                   if number not in range(11, 32)}
  taken = set(ids.values())
  # No text is encoded as tokens of several letters, because there are no merges.
  ids |= {f'unused {number}': number for number in range(
      CONFIGS[name].first_code if num_tokens is None else num_tokens) if number not in taken}
  return published_files.tokenizer_file(ids, special)


def target(name):
  """Published tensors of a target; the last norm scales by a tenth, so that many codes compete."""
  tensors = published_files.tensors(name, CONFIGS[name], SEEDS[name])
  offset = np.float32(name == 'liquid')  # Gemma adds one.
  return tensors | {'model.norm.weight': np.float32(0.1) * tensors['model.norm.weight'] - offset}


def whole(name, root):
  """Writes a folder with its image tokenizer as safetensors; returns the target's folder."""
  folder = root / name
  config = CONFIGS[name]
  settings = published_files.transformer_settings(getattr(published_settings, name.upper()), config)
  if name == 'liquid':
    settings['head_dim'] = config.head_dim
  published_files.shard(folder, target(name), settings)
  (folder / 'tokenizer.json').write_bytes(text(name))
  if name == 'liquid':
    (folder / 'chameleon').mkdir()
    pixels = published_files.tensors('chameleon_vqgan', published_files.CHAMELEON_VQ, 2)
    torch_files.save(folder / 'chameleon' / 'vqgan.ckpt', pixels, 'state_dict')
  else:
    published_files.shard(root / 'Cosmos-1.0-Tokenizer-DV8x16x16',
                          published_files.tensors('cosmos_dv', COSMOS, 3), count=1)
  return folder


def codes(name):
  """Codes of an image."""
  config = CONFIGS[name]
  return np.random.default_rng(SEEDS[name] + 1).integers(0, config.num_codes, config.num_tokens)
