"""Tokenizer files as models are published, with few tokens: published names and ids."""

import base64
import functools
import json

import numpy as np

from cspd_jax.text import bpe, templates
from tests.builders import published, sizes

# The codes of Chameleon's image tokens, in the order of their ids.
CODES = np.random.default_rng(0).permutation(8192)


def letters(code):
  """How the name of an image token of Chameleon writes its code."""
  return ''.join(chr(ord('A') + int(digit)) for digit in str(code))


def tokenizer(vocab, special, merges=(), reads_bytes=False, split=None):
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


def _of_bytes(special, first=0, merges=(('c', 'a'),), split=None, with_special=True):
  """A file with the symbols of all bytes from token `first` on, then merges."""
  printed = [*range(ord('!'), ord('~') + 1), *range(0xa1, 0xad), *range(0xae, 0x100)]
  symbols = [*map(chr, printed), *(chr(256 + place) for place in range(256 - len(printed)))]
  pieces = [*sorted(symbols), *(''.join(merge).replace(' ', '') for merge in merges)]
  vocab = {piece: first + place for place, piece in enumerate(pieces)}
  return tokenizer(
      vocab | (special if with_special else {}), special, merges, reads_bytes=True, split=split)


def _characters(first):
  """Ids of the characters of ASCII that can be printed, and of the end of a line."""
  return {chr(number): first + number for number in range(10, 127) if number not in range(11, 32)}


def chameleon():
  """A file like Chameleon's: text as single characters."""
  ids = {'<s>': 0, '<pad>': 1, '</s>': 2, '<unk>': 3, '<eoss>': 8196, '<racm3:break>': 8197}
  ids |= {f'IMGIMG{letters(code)}Z': 4 + place for place, code in enumerate(CODES)}
  ids |= {f'<reserved{number:05d}>': number + 4 for number in range(8194, 9000)}
  ids |= _characters(20000)
  content = json.loads(tokenizer(
      ids, {name: place for name, place in ids.items() if name.startswith('<r')}))
  content['model']['unk_token'] = '<unk>'
  return json.dumps(content).encode()


def lumina_mgpt_2():
  """A file like that of Lumina-mGPT 2.0, in Qwen's form.

  Ids of <reserved08706> and of the tokens of sizes could not be read; these are invented.
  """
  special = {'<|endoftext|>': 151643, '<|im_start|>': 151644, '<|im_end|>': 151645,
             '<racm3:break>': 151665, '<eoss>': 151666, '<reserved08799>': 151670,
             '<reserved08706>': 154000}
  special |= {f'<reserved{8800 + count:05d}>': 151700 + count for count in range(1, 60)}
  return _of_bytes(special, 0, ['c a', 'ca t'],
                   r'\p{N}|[^\r\n\p{L}\p{N}]?\p{L}+|\s+|\S')


@functools.cache
def emu3(num_tokens=151643):
  """A file like Emu3's: all bytes, some merges, and tokens that no text has."""
  pieces = [bytes([byte]) for byte in range(256)] + [b'a ', b'90', b'ca', b'cat']
  # No UTF-8 has the byte 255.
  pieces += [b'\xff\xff' + number.to_bytes(3) for number in range(len(pieces), num_tokens)]
  return b''.join(base64.b64encode(piece) + f' {rank}\n'.encode()
                  for rank, piece in enumerate(pieces))


def t5():
  """A file of T5 with few tokens."""
  return published.recorded('llamagen_words')['tokenizer'].tobytes()


# Ids of special tokens; Liquid's replace the first unused tokens of Gemma.
SPECIAL = {
    'simplear': {f'<|{name}|>': 151665 + place for place, name in enumerate(
        ('t2i', 'i2t', 'soi', 'vtokens', 't2v', 'v2t', 'sov'))},
    'liquid': {'<pad>': 0, '<eos>': 1, '<bos>': 2, '<unk>': 3, '<boi>': 7, '<eoi>': 8,
               '<unconditional>': 9},
    'glm_image': {templates.GLM_TOKENS[-1]: 40, '<|dit_token_16385|>': 41, '<sop>': 310,
                  '<eop>': 311, '<|image|>': 312, '<|endoftext|>': 313},
    # Behind 256 bytes and a merge.
    'tar': {'<|endoftext|>': 257, '<|im_start|>': 258, '<|im_end|>': 259, '<im_start>': 260,
            '<im_end>': 261, '<S0>': 262, '<S1>': 263, '<S2>': 264}}


@functools.cache
def of_language_model(name, num_tokens=None):
  """A file of SimpleAR or Liquid: text as single characters, and tokens that no text has.

  It has as many tokens as the model has for text, or another number.
  """
  special = SPECIAL[name]
  ids = special | _characters(1000)
  if num_tokens is None:
    num_tokens = {'simplear': sizes.SIMPLEAR, 'liquid': sizes.LIQUID}[name].first_code
  taken = set(ids.values())
  # No text is encoded as tokens of several letters, because there are no merges.
  ids |= {f'unused {number}': number for number in range(num_tokens) if number not in taken}
  return tokenizer(ids, special)


JANUS_ROLES = ('<|User|>', '<|Assistant|>')


def janus_pro(roles=True):
  """A file like DeepSeek's, with special tokens of roles or not."""
  names = ('<｜begin▁of▁sentence｜>', '<｜end▁of▁sentence｜>', '<｜▁pad▁｜>', '<begin_of_image>',
           '<end_of_image>', *(JANUS_ROLES if roles else ()))
  return _of_bytes({name: 270 + place for place, name in enumerate(names)}, with_special=False)


def nextstep():
  """A file like Qwen's, and the tokens of images with published ids."""
  names = ('[PAD]', '<|image_area|>', '<|begin_of_image|>', '<|end_of_image|>',
           '<|image_placeholder|>')
  return _of_bytes(
      {name: 151665 + place for place, name in enumerate(names)}, 0, [('c', 'a'), ('ca', 't')],
      (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
       r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'), with_special=False)


def glm_image():
  """A file with all bytes behind the codes."""
  return _of_bytes(SPECIAL['glm_image'], 48)


MAMMOTH_NAMES = '\n'.join(['<|image token|>', '<|image start|>', '<|image end|>', *(
    f'<|visual token {code:06d}|>' for code in range(sizes.MAMMOTHMODA2.num_codes))]).encode()


def mammothmoda2():
  """A file like Emu3's, and behind it the names of the tokens of images."""
  return emu3() + b'\n' + MAMMOTH_NAMES


def tar(codes=sizes.TAR_CODES, first=265):
  """A file with all bytes and the codes."""
  return _of_bytes(SPECIAL['tar'] | {f'<I{code}>': first + code for code in range(codes)})


def vocabulary(file, form):
  """What a model reads of a file."""
  return bpe.read({'file': np.frombuffer(file, np.uint8)}, form)
