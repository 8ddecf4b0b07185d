"""Text of small models: tokenizers with one token per word, and captions as prompts.

Tokenizers of models of codes have the layout of Chameleon's.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from cspd_jax.models.conditions import Prompt
from cspd_jax.text import bpe, templates
from experiments.demo_models import stages

BEGIN, UNKNOWN, END_OF_TURN = '<s>', '<unk>', '<reserved08706>'
IMAGE_START, IMAGE_END, ROW_END = '<racm3:break>', '<eoss>', '<reserved08799>'
_FIRST = (BEGIN, '<pad>', '</s>', UNKNOWN)


def names(words: Sequence[str], num_codes: int) -> list[str]:
  """Returns the tokens in order of their ids: special tokens, codes, grammar, then words."""
  codes = (f'IMGIMG{"".join(chr(ord("A") + int(digit)) for digit in str(code))}Z'
           for code in range(num_codes))
  return [*_FIRST, *codes, IMAGE_END, IMAGE_START, END_OF_TURN, ROW_END, *words]


def ids(words: Sequence[str], num_codes: int) -> dict[str, Any]:
  """Returns the fields of an `EarlyFusionConfig` with these words and `num_codes` image codes."""
  tokens = names(words, num_codes)
  return dict(vocab_size=len(tokens), num_codes=num_codes, first_code=len(_FIRST),
              row_end=tokens.index(ROW_END), image_ends=(tokens.index(IMAGE_END),))


def tokenizer(tokens: Sequence[str]) -> bytes:
  """Returns the contents of a file of the `tokenizers` library, for `text.bpe`.

  It converts text to lower case and splits it at spaces and around punctuation; a word that is not
  among the tokens, which are in order of their ids, becomes `<unk>`.
  """
  vocabulary = {name: number for number, name in enumerate(tokens)}
  return json.dumps({
      'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [],
      'normalizer': {'type': 'Lowercase'}, 'pre_tokenizer': {'type': 'Whitespace'},
      'post_processor': None, 'decoder': None,
      'model': {'type': 'WordLevel', 'vocab': vocabulary, 'unk_token': UNKNOWN}}).encode()


def network(form: str, content: bytes) -> stages.Network:
  """Returns a tokenizer file as a network; `form` is its reader in `bpe.FORMS`."""
  file = np.frombuffer(content, np.uint8).copy()
  return stages.Network('text', bpe.TextConfig(form, len(file)), {'file': file})


def prompts(text: stages.Network, write: templates.Writer, captions: Sequence[str],
            grid: tuple[int, int]) -> Prompt:
  """Encodes captions as prompts for images of rows and columns, every distinct one once."""
  reader = bpe.read(text.params, text.config.form)
  encoded = {caption: write(reader, caption, *grid) for caption in dict.fromkeys(captions)}
  return templates.padded([encoded[caption] for caption in captions])
