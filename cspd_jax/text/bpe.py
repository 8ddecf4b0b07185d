"""Tokenizer files of the `tokenizers` library, kept as a part of a model.

A file is a network without weights: its bytes are the one parameter, so that it is saved, checked
and loaded like everything else that a model is made of.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = Any

# How prompts are written; see `text.prompts`.
FORMS = ('lumina_mgpt', 'anole')


@dataclasses.dataclass(frozen=True)
class TextConfig:
  """A tokenizer file.

  Attributes:
    form: whose prompts it is for, one of `FORMS`.
    num_bytes: size of the file.
  """

  form: str = 'lumina_mgpt'
  num_bytes: int = 1

  def __post_init__(self):
    if self.form not in FORMS:
      raise ValueError(f'form is {self.form!r}; it must be one of {", ".join(FORMS)}.')
    if self.num_bytes < 1:
      raise ValueError(f'num_bytes is {self.num_bytes}; it must be at least 1.')


def init(config: TextConfig, key: jax.Array) -> Params:
  """A file of spaces, for its shape."""
  del key
  return {'file': jnp.full((config.num_bytes,), ord(' '), jnp.uint8)}


class Text:
  """A tokenizer, read from its file when it is first asked for.

  Attributes:
    ids: the published id of every token by its name.
  """

  def __init__(self, params: Params):
    """Reads the vocabulary of a file.

    Raises:
      ValueError: if it is no file of the `tokenizers` library with a vocabulary.
    """
    self._file = bytes(np.asarray(params['file'], np.uint8))
    try:
      content = json.loads(self._file)
      vocabulary = {str(name): int(number) for name, number in content['model']['vocab'].items()}
      added = {str(one['content']): int(one['id']) for one in content.get('added_tokens') or ()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise ValueError(
          f'the tokenizer file cannot be read ({type(error).__name__}: {error}); give the '
          'text_tokenizer.json or tokenizer.json that belongs to the model.') from error
    self.ids: Mapping[str, int] = vocabulary | added

  def id_of(self, name: str) -> int:
    """The id of a token.

    Raises:
      ValueError: if there is none of this name.
    """
    if name not in self.ids:
      raise ValueError(f'the tokenizer file has no token {name!r}; give the one that belongs to '
                       'the model.')
    return self.ids[name]

  def encode(self, text: str) -> list[int]:
    """Published ids of a text, nothing added; names of special tokens in it are plain text.

    Raises:
      ImportError: if the package `tokenizers` is not installed.
    """
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  @functools.cached_property
  def _tokenizer(self):
    try:
      import tokenizers  # Only prompts in words need it.
    except ImportError as error:
      raise ImportError("Prompts in words need the package tokenizers, which is not installed; run "
                        "pip install -e '.[text]' in the repository, or give a causal.Prompt of "
                        'token ids.') from error
    found = tokenizers.Tokenizer.from_buffer(self._file)
    found.encode_special_tokens = True
    return found
