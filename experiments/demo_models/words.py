"""Tokenizer files of small models: one token per word, in the layout of Chameleon's."""

import json
from collections.abc import Sequence
from typing import NamedTuple

BEGIN, UNKNOWN, END_OF_TURN = '<s>', '<unk>', '<reserved08706>'
IMAGE_START, IMAGE_END, ROW_END = '<racm3:break>', '<eoss>', '<reserved08799>'
_FIRST = (BEGIN, '<pad>', '</s>', UNKNOWN)


class Ids(NamedTuple):
  """The ids that a model's config holds; fields as in `models.early_fusion.EarlyFusionConfig`."""

  vocab_size: int
  num_codes: int
  first_code: int
  row_end: int
  image_ends: tuple[int, ...]


def names(words: Sequence[str], num_codes: int) -> list[str]:
  """The tokens in the order of their ids: special ones, codes, the grammar, then words."""
  codes = (f'IMGIMG{"".join(chr(ord("A") + int(digit)) for digit in str(code))}Z'
           for code in range(num_codes))
  return [*_FIRST, *codes, IMAGE_END, IMAGE_START, END_OF_TURN, ROW_END, *words]


def ids(words: Sequence[str], num_codes: int) -> Ids:
  """What a model of these words and so many codes of an image tokenizer has in its config."""
  found = names(words, num_codes)
  return Ids(len(found), num_codes, len(_FIRST), found.index(ROW_END), (found.index(IMAGE_END),))


def file(words: Sequence[str], num_codes: int) -> bytes:
  """A file of the `tokenizers` library, for `text.bpe`.

  A text is taken in lower case and cut at spaces and around punctuation; a word that is not among
  `words` is `<unk>`.

  Args:
    words: in lower case, all different.
    num_codes: codes of the image tokenizer; code `i` is the `i`-th image token.
  """
  vocabulary = {name: number for number, name in enumerate(names(words, num_codes))}
  return json.dumps({
      'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [],
      'normalizer': {'type': 'Lowercase'}, 'pre_tokenizer': {'type': 'Whitespace'},
      'post_processor': None, 'decoder': None,
      'model': {'type': 'WordLevel', 'vocab': vocabulary, 'unk_token': UNKNOWN}}).encode()
