"""A small tokenizer with CLIP's special tokens."""

import pytest


def tokenizer_file():
  """Returns a tokenizer.json with CLIP's special tokens and its endings of words."""
  tokenizers = pytest.importorskip('tokenizers')
  letters = 'abcdefghijklmnopqrstuvwxyz'
  names = [*letters, *(f'{letter}</w>' for letter in letters), 'ca', 'cat</w>',
           '<|startoftext|>', '<|endoftext|>']
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
      {name: index for index, name in enumerate(names)}, [('c', 'a'), ('ca', 't</w>')],
      end_of_word_suffix='</w>', unk_token='<|endoftext|>'))
  tokenizer.normalizer = tokenizers.normalizers.Lowercase()
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  tokenizer.add_special_tokens(['<|startoftext|>', '<|endoftext|>'])
  return tokenizer.to_str().encode()
