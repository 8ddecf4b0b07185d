"""Folders of Janus-Pro as they are published, at tiny sizes."""

import dataclasses
import functools
import json
from unittest import mock

from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import janus as janus_rules
from cspd_jax.models import janus, vq
from tests.conversion import published_settings, torch_files
from tests.families import published_files
from tests.models import published

CONFIG = dataclasses.replace(
    janus.PRESETS['janus_pro_1b'], height=3, width=4, num_codes=12, text_size=300, dim=16,
    num_layers=2, num_heads=2, num_kv_heads=2, output_dim=16, ffn_dim=24)
VQ = vq.VQConfig(ch_mult=(1, 1), num_res_blocks=1, z_channels=4, codebook_size=12, codebook_dim=8)
ROLES = ('<|User|>', '<|Assistant|>')
_FIRST = 270


def tokenizer_file(roles=True):
  """A file like DeepSeek's: all bytes, a merge and the special tokens, with those of roles or not.
  """
  pieces = [*sorted(published_files.bytes_to_symbols().values()), 'ca']
  names = ('<｜begin▁of▁sentence｜>', '<｜end▁of▁sentence｜>', '<｜▁pad▁｜>', '<begin_of_image>',
           '<end_of_image>', *(ROLES if roles else ()))
  return published_files.tokenizer_file(
      {piece: place for place, piece in enumerate(pieces)},
      {name: _FIRST + place for place, name in enumerate(names)}, [('c', 'a')], reads_bytes=True)


def _settings(is_transformers):
  """A published config.json with the sizes of the tiny networks."""
  dim = CONFIG.dim
  language = dict(
      hidden_size=dim, intermediate_size=CONFIG.ffn_dim, num_hidden_layers=CONFIG.num_layers,
      num_attention_heads=CONFIG.num_heads, num_key_value_heads=CONFIG.num_kv_heads,
      vocab_size=CONFIG.text_size)
  if is_transformers:
    whole = published_settings.JANUS_PRO_HF
    return whole | dict(
        text_config=whole['text_config'] | language | dict(head_dim=CONFIG.head_dim),
        vq_config=whole['vq_config'] | dict(
            num_embeddings=VQ.codebook_size, channel_multiplier=list(VQ.ch_mult),
            num_res_blocks=VQ.num_res_blocks, latent_channels=VQ.z_channels, projection_dim=dim,
            image_token_embed_dim=dim))
  whole = published_settings.JANUS_PRO_1B
  params = {'gen_aligner': dict(n_embed=dim), 'gen_vision': dict(image_token_size=VQ.codebook_size),
            'gen_head': dict(n_embed=dim, image_token_embed=dim, image_token_size=VQ.codebook_size)}
  return whole | dict(language_config=whole['language_config'] | language) | {
      f'{name}_config': whole[f'{name}_config'] | dict(
          params=whole[f'{name}_config']['params'] | changed) for name, changed in params.items()}


def _tensors(is_transformers):
  networks = (rules.get('janus_pro'), CONFIG, janus_rules.rules), (
      rules.get('janus_pro_vq'), VQ, rules.get('janus_pro_vq').rules)
  result = {}
  for seed, (family, config, table) in enumerate(networks):
    family = family._replace(rules=functools.partial(table, is_transformers=is_transformers))
    result |= published.weights(convert.published_shapes(family, config), seed)
  head = next(name for name in result if name.endswith('vision_head.weight'))
  return result | {head: 4 * result[head]}  # Distributions that are far from uniform.


def folder(root, is_transformers):
  """Writes a folder as DeepSeek or transformers publishes it."""
  whole, settings = _tensors(is_transformers), _settings(is_transformers)
  if is_transformers:
    published_files.shard(root, whole, settings)
  else:
    root.mkdir(parents=True)
    index = {}
    for number in range(2):
      name = f'pytorch_model-{number + 1:05}-of-00002.bin'
      part = {key: whole[key] for key in sorted(whole)[number::2]}
      index |= dict.fromkeys(part, name)
      torch_files.save(root / name, part)
    (root / 'pytorch_model.bin.index.json').write_text(json.dumps({'weight_map': index}))
    (root / 'config.json').write_text(json.dumps(settings))
  (root / 'tokenizer.json').write_bytes(tokenizer_file())
  return root


def converted(source, output):
  """Converts such a folder by one command, and returns its exit code."""
  family = rules.get('janus_pro')
  with mock.patch.dict(rules.FAMILIES, janus_pro=family._replace(presets={'janus_pro_1b': CONFIG})):
    return published_files.convert(
        source.parent, 'janus_pro', source.name, output, '--model=janus_pro_1b')
