"""Folders as models are published, at tiny sizes: names, shards, index, settings, tokenizers.

Weights are those of `tests/models/published.py`.
"""

import base64
import dataclasses
import functools
import json

import numpy as np
import safetensors.numpy

from checkpoints_conversion import command, convert as convert_lib, rules
from cspd_jax.models import early_fusion, llamagen, t5, vq
from tests.conversion import published_settings, torch_files
from tests.models import published

CODES = np.random.default_rng(0).permutation(8192)
_small = dict(dim=16, num_layers=2, num_heads=2, num_kv_heads=2, ffn_dim=16)
LUMINA_MGPT = dataclasses.replace(
    early_fusion.PRESETS['lumina_mgpt_7b_768'], height=4, width=6, **_small)
LUMINA_MGPT_2 = dataclasses.replace(
    early_fusion.PRESETS['lumina_mgpt_2_7b'], height=4, width=8, **_small)
MOVQGAN = vq.VQConfig(
    ch_mult=(1, 1), num_res_blocks=1, z_channels=4, codebook_size=16384, codebook_dim=4,
    normalized=False, spatial_norm=True)
ANOLE = dataclasses.replace(early_fusion.PRESETS['anole_7b'], height=3, width=4, **_small)
EMU3 = dataclasses.replace(
    early_fusion.PRESETS['emu3_gen_8b'], height=2, width=3, **{**_small, 'num_kv_heads': 1})
EMU3_5 = dataclasses.replace(
    early_fusion.PRESETS['emu3_5_34b'], height=2, width=3, attention_dim=24,
    **{**_small, 'num_kv_heads': 1})
EMU3_5_VQ = dataclasses.replace(
    vq.IBQ, ch=128, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, codebook_dim=4)
CHAMELEON_VQ = vq.VQConfig(
    ch_mult=(1,), num_res_blocks=1, z_channels=4, codebook_size=8192, codebook_dim=4,
    level_attention=False, normalized=False)
EMU3_VQ = dataclasses.replace(vq.EMU3, ch=128, ch_mult=(1, 1), num_res_blocks=1)
T2I = llamagen.LlamaGenConfig(
    conditioning='text', height=3, width=3, dim=16, num_layers=2, num_heads=2, ffn_dim=24,
    vocab_size=48, caption_dim=40)
T2I_VQ = vq.VQConfig(
    ch_mult=(1,), num_res_blocks=1, z_channels=4, codebook_size=48, codebook_dim=4)
T5 = t5.T5Config(vocab_size=320, dim=40, num_layers=2, num_heads=4, head_dim=12, ffn_dim=56)


def convert(files, family, name, folder, *words):
  """Runs the command on one of some files, and returns its exit code."""
  return command.main(
      ['convert', f'--family={family}', f'--source={files}/{name}', f'--output={folder}', *words])


def tensors(family, config, seed):
  """Published tensors of a network."""
  return published.weights(convert_lib.published_shapes(rules.get(family), config), seed)


def letters(code):
  """How the name of an image token writes its code."""
  return ''.join(chr(ord('A') + int(digit)) for digit in str(code))


def tokenizer_file(vocab, special, merges=(), reads_bytes=False, split=None):
  """A tokenizer.json with special tokens.

  Text is single characters, or the symbols of bytes, after a split at the matches of a pattern.
  """
  added = [dict(id=place, content=name, special=True, single_word=False, lstrip=False,
                rstrip=False, normalized=False) for name, place in special.items()]
  level = dict(type='ByteLevel', add_prefix_space=False, trim_offsets=False,
               use_regex=split is None) if reads_bytes else None
  normalizer, pieces = None, level
  if split is not None:
    normalizer = {'type': 'NFC'}
    pieces = dict(type='Sequence', pretokenizers=[dict(
        type='Split', pattern={'Regex': split}, behavior='Isolated', invert=False), level])
  return json.dumps(dict(
      version='1.0', truncation=None, padding=None, added_tokens=added, normalizer=normalizer,
      pre_tokenizer=pieces, post_processor=level, decoder=level, model=dict(
          type='BPE', vocab=vocab, merges=list(merges), unk_token=None, dropout=None,
          fuse_unk=False, byte_fallback=False, continuing_subword_prefix=None,
          end_of_word_suffix=None, ignore_merges=False))).encode()


def chameleon_text():
  """A file like Chameleon's: published names and ids, text as single characters."""
  ids = {'<s>': 0, '<pad>': 1, '</s>': 2, '<unk>': 3, '<eoss>': 8196, '<racm3:break>': 8197}
  ids |= {f'IMGIMG{letters(code)}Z': 4 + place for place, code in enumerate(CODES)}
  ids |= {f'<reserved{number:05d}>': number + 4 for number in range(8194, 9000)}
  ids |= {chr(number): 20000 + number for number in range(10, 127) if number not in range(11, 32)}
  special = {name: place for name, place in ids.items() if name.startswith('<r')}
  content = json.loads(tokenizer_file(ids, special))
  content['model']['unk_token'] = '<unk>'
  return json.dumps(content).encode()


def lumina_mgpt_2_text():
  """A file like that of Lumina-mGPT 2.0, in Qwen's form: bytes, a merge, and tokens by name.

  Ids of <reserved08706> and of the tokens of sizes could not be read; these are invented.
  """
  symbols = sorted(bytes_to_symbols().values())
  ids = {symbol: place for place, symbol in enumerate(symbols)} | {'ca': 256, 'cat': 257}
  special = {'<|endoftext|>': 151643, '<|im_start|>': 151644, '<|im_end|>': 151645,
             '<racm3:break>': 151665, '<eoss>': 151666, '<reserved08799>': 151670,
             '<reserved08706>': 154000}
  special |= {f'<reserved{8800 + count:05d}>': 151700 + count for count in range(1, 60)}
  return tokenizer_file(ids | special, special, ['c a', 'ca t'], reads_bytes=True,
                        split=r'\p{N}|[^\r\n\p{L}\p{N}]?\p{L}+|\s+|\S')


def bytes_to_symbols():
  """The characters with which byte-level files of `tokenizers` write the 256 bytes."""
  printed = [*range(ord('!'), ord('~') + 1), *range(0xa1, 0xad), *range(0xae, 0x100)]
  others = [byte for byte in range(256) if byte not in printed]
  return {byte: chr(byte) for byte in printed} | {
      byte: chr(256 + place) for place, byte in enumerate(others)}


@functools.cache
def emu3_text(num_tokens=151643):
  """A file like Emu3's: all bytes, some merges, and tokens that no text has."""
  pieces = [bytes([byte]) for byte in range(256)] + [b'a ', b'90', b'ca', b'cat']
  # No UTF-8 has the byte 255.
  pieces += [b'\xff\xff' + number.to_bytes(3) for number in range(len(pieces), num_tokens)]
  return b''.join(base64.b64encode(piece) + f' {rank}\n'.encode()
                  for rank, piece in enumerate(pieces))


def t5_text():
  """A tokenizer file of T5 with few tokens."""
  return published.recorded('llamagen_words')['tokenizer'].tobytes()


def shard(folder, whole, settings=None, count=2):
  """Writes tensors into a folder as transformers does, with an index."""
  folder.mkdir(parents=True, exist_ok=True)
  index = {}
  for number in range(count):
    name = f'model-{number + 1:05}-of-{count:05}.safetensors'
    part = {key: whole[key] for key in sorted(whole)[number::count]}
    index |= dict.fromkeys(part, name)
    safetensors.numpy.save_file(part, folder / name)
  (folder / 'model.safetensors.index.json').write_text(json.dumps(
      {'metadata': {'total_size': sum(x.nbytes for x in whole.values())}, 'weight_map': index}))
  if settings is not None:
    (folder / 'config.json').write_text(json.dumps(settings))


def transformer_settings(whole, config):
  """A published config.json with the sizes of a tiny transformer."""
  return whole | dict(
      hidden_size=config.dim, num_hidden_layers=config.num_layers, vocab_size=config.vocab_size,
      num_attention_heads=config.num_heads, num_key_value_heads=config.num_kv_heads,
      intermediate_size=config.ffn_dim, rms_norm_eps=config.norm_eps, rope_theta=config.rope_base)


def _chameleon(family, config, folder, tokenizer):
  """A model of Chameleon's kin, whose tokenizers are in the folder `tokenizer`."""
  weights = tensors(family, config, 1)
  weights['model.vqmodel.encoder.conv_in.bias'] = np.zeros(3, np.float32)
  shard(folder, weights, transformer_settings(published_settings.LUMINA_MGPT, config))
  tokenizer.mkdir(parents=True)
  (tokenizer / 'text_tokenizer.json').write_bytes(chameleon_text())
  pixels = tensors('chameleon_vqgan', CHAMELEON_VQ, 2)
  torch_files.save(tokenizer / 'vqgan.ckpt', {**pixels, 'loss.logvar': np.zeros(1, np.float32)},
                   'state_dict')
  return folder


def lumina_mgpt(root):
  """What the official program of Lumina-mGPT wants in `ckpts`; returns the target's folder."""
  return _chameleon('lumina_mgpt', LUMINA_MGPT, root / 'ckpts' / 'Lumina-mGPT-7B-768',
                    root / 'ckpts' / 'chameleon' / 'tokenizer')


def lumina_mgpt_2(root):
  """The repository of Lumina-mGPT 2.0, next to the image tokenizer of its official program."""
  folder = root / 'lumina_mgpt' / 'Lumina-mGPT-2.0'
  shard(folder, tensors('lumina_mgpt_2', LUMINA_MGPT_2, 1), transformer_settings(
      published_settings.LUMINA_MGPT_2, LUMINA_MGPT_2))
  (folder / 'tokenizer.json').write_bytes(lumina_mgpt_2_text())
  (folder / 'tokenizer_config.json').write_text(json.dumps(
      {**published_settings.TOKENIZER, 'bos_token': None,
       'eos_token': {'content': '<|im_end|>'}}))
  (root / 'lumina_mgpt' / 'movqgan' / '270M').mkdir(parents=True)
  # The published file is a bare state dict, with the averages of the training.
  pixels = tensors('movqgan', MOVQGAN, 2)
  torch_files.save(root / 'lumina_mgpt' / 'movqgan' / '270M' / 'movqgan_270M.ckpt',
                   {**pixels, 'ema_encoder.decay': np.ones(1, np.float32)})
  return folder


def anole(root):
  """Anole as transformers stores it, beside the tokenizers of Meta's download."""
  return _chameleon('anole', ANOLE, root / 'anole', root / 'anole' / 'tokenizer')


def emu3(root):
  """The two repositories of Emu3, beside each other."""
  shard(root / 'Emu3-Gen', tensors('emu3', EMU3, 4),
        transformer_settings(published_settings.EMU3, EMU3))
  (root / 'Emu3-Gen' / 'emu3.tiktoken').write_bytes(emu3_text())
  pixels = {name: np.abs(x) if name.endswith('running_var') else x
            for name, x in tensors('emu3_vq', EMU3_VQ, 5).items()}
  settings = published_settings.EMU3_VQ | dict(
      ch=128, ch_mult=[1, 1], num_res_blocks=1, attn_resolutions=[1])
  shard(root / 'Emu3-VisionTokenizer', pixels, settings, count=1)
  return root / 'Emu3-Gen'


def emu3_5(root):
  """The folders of the official program of Emu3.5."""
  weights = root / 'weights'
  shard(weights / 'Emu3.5-Image', tensors('emu3_5', EMU3_5, 6),
        transformer_settings(published_settings.EMU3_5, EMU3_5) | dict(head_dim=EMU3_5.head_dim))
  (weights / 'Emu3.5-VisionTokenizer').mkdir()
  torch_files.save(weights / 'Emu3.5-VisionTokenizer' / 'model.ckpt',
                   tensors('emu3_5_vq', EMU3_5_VQ, 7), 'state_dict')
  text = root / 'src' / 'tokenizer_emu3_ibq'
  text.mkdir(parents=True)
  (text / 'emu3.tiktoken').write_bytes(emu3_text())
  return weights / 'Emu3.5-Image'


def flan_t5(folder):
  """Flan-T5, whole: encoder, decoder and tokenizer."""
  encoder = tensors('t5', T5, 41)
  shard(folder, {**encoder, 'lm_head.weight': encoder['shared.weight'],
                 'decoder.final_layer_norm.weight': np.ones(40, np.float32)},
        published_settings.FLAN_T5_XL | dict(
            vocab_size=T5.vocab_size, d_model=T5.dim, num_layers=T5.num_layers,
            num_heads=T5.num_heads, d_kv=T5.head_dim, d_ff=T5.ffn_dim))
  (folder / 'tokenizer.json').write_bytes(t5_text())


def llamagen_words(root):
  """`pretrained_models` of text-conditional LlamaGen."""
  folder = root / 'pretrained_models'
  flan_t5(folder / 't5-ckpt' / 'flan-t5-xl')
  torch_files.save(folder / 't2i_XL_stage1_256.pt', tensors('llamagen', T2I, 45), 'model')
  torch_files.save(folder / 'vq_ds16_t2i.pt', tensors('llamagen_vq', T2I_VQ, 46), 'model')
  return folder
