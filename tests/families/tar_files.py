"""Files of Tar as they are published, at tiny sizes: a repository, and PyTorch files."""

import contextlib
import dataclasses
import json
from unittest import mock

import numpy as np

from checkpoints_conversion import rules
from checkpoints_conversion.rules import tar as tar_rules
from cspd_jax.models import tar, vq
from tests.conversion import published_settings, torch_files
from tests.families import published_files

# Behind 256 bytes, a merge and the other special tokens.
SPECIAL = {'<|endoftext|>': 257, '<|im_start|>': 258, '<|im_end|>': 259, '<im_start>': 260,
           '<im_end>': 261, '<S0>': 262, '<S1>': 263, '<S2>': 264}
CODES = 40
PRIOR = dataclasses.replace(
    tar.PRIORS['tar_1_5b'], height=9, width=9, dim=16, num_layers=2, num_heads=2, num_kv_heads=1,
    ffn_dim=24, vocab_size=265 + CODES, num_codes=CODES, first_code=265)
BRIDGE = tar.BridgeConfig(
    num_codes=CODES, code_dim=8, normalized=True, dim=12, num_layers=1, ffn_dim=16, side=4)
# 4x4 tokens behind 81 codes.
AR_DTOK = tar.ArDtokConfig(
    height=4, width=4, dim=16, num_layers=2, num_heads=2, ffn_dim=24, vocab_size=48,
    condition_dim=12, num_positions=96)
VQ = vq.VQConfig(ch_mult=(1,), num_res_blocks=1, z_channels=4, codebook_size=48, codebook_dim=4)
NETWORKS = {'XXS': (2, 2, 16)}
ARGUMENTS = dict(
    multiple_of=8, ffn_dim_multiplier=0.6, vocab_size=48, cond_dim=12, cls_token_num=81,
    max_seq_len=16, model_type='clip_cond', class_dropout_prob=0.1, use_fixed_pe=False)
TA_TOK = dict(
    bottleneck=dict(name='bottleneck', args=dict(bottleneck_dim=8, regularizer=dict(
        name='simvq', args=dict(codebook_size=CODES, l2_normalized=True)))),
    bottleneck_token_num=81, input_size=384, teacher='google/siglip2-so400m-patch14-384',
    decoder_depth=1)
# Tensors of the network that reads images, and of a head that is not used.
READING = {name: np.zeros(3, np.float32) for name in (
    'encoder.post_layernorm.bias', 'encode_task_layer.0.bias', 'scale_layer.shift',
    'bottleneck.in_linear.bias', 'decoder.vision_model.head.layernorm.bias')}


def tokenizer_file(codes=CODES, first=265):
  """A file with all bytes, a merge, the special tokens and the codes."""
  symbols = published_files.bytes_to_symbols()
  ids = {symbol: byte for byte, symbol in symbols.items()} | {'ca': 256}
  special = SPECIAL | {f'<I{code}>': first + code for code in range(codes)}
  return published_files.tokenizer_file(ids | special, special, [('c', 'a')], reads_bytes=True)


def prior(root, settings=None, **changes):
  """Writes the repository of the language model; returns its folder."""
  folder = root / 'Tar-1.5B'
  whole = published_files.transformer_settings(
      published_settings.TAR, PRIOR) | dict(image_start_token_id=265, num_image_tokens=CODES)
  tensors = published_files.tensors('tar', PRIOR, 71)
  published_files.shard(folder, tensors, {**whole, **(settings or {})} if settings != {} else None)
  (folder / 'tokenizer.json').write_bytes(tokenizer_file(**changes))
  return folder


def described(path, family, config, seed, name, arguments, more=None):
  """Writes a PyTorch file with the name and the arguments of the class of its network."""
  tensors = published_files.tensors(family, config, seed) | (more or {})
  torch_files.save_described(path, tensors, name, arguments)
  return path


def pixels(root, name='llama-abs-XXS', arguments=None, more=None):
  """Writes the files of the repository of the bridge and AR-DTok; returns its folder."""
  folder = root / 'TA-Tok'
  folder.mkdir(parents=True, exist_ok=True)
  described(folder / 'ar_dtok_lp_256px.pth', 'ar_dtok', AR_DTOK, 72, name,
            ARGUMENTS if arguments is None else arguments)
  described(folder / 'ta_tok.pth', 'ta_tok', BRIDGE, 73, 'ta_tok', TA_TOK,
            READING if more is None else more)
  return folder


def tokenizer(root):
  """Writes the image tokenizer; returns its file."""
  torch_files.save(root / 'vq_ds16_t2i.pt', published_files.tensors('tar_vq', VQ, 74), 'model')
  return root / 'vq_ds16_t2i.pt'


@contextlib.contextmanager
def tiny():
  """Lets a file name its class by a size that was not published."""
  with mock.patch.dict(tar_rules._NETWORKS, NETWORKS):
    yield


def whole(root, output):
  """Converts all files into a folder by the commands of a page."""
  with tiny(), mock.patch.dict(rules.FAMILIES, ar_dtok=tar_rules.AR_DTOK._replace(
      presets={'ar_dtok_256': AR_DTOK})):
    prior(root), pixels(root), tokenizer(root)
    for family, name, *words in (
        ('tar', 'Tar-1.5B', '--height=9', '--width=9'),
        ('ar_dtok', 'TA-Tok', '--model=ar_dtok_256'), ('tar_vq', 'vq_ds16_t2i.pt')):
      assert not published_files.convert(root, family, name, output, *words)
  return output


def contents(folder):
  """The file that describes a model."""
  return json.loads((folder / 'model.json').read_text())
