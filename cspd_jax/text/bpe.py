"""Tokenizer files, kept as a part of a model: of the `tokenizers` library, or of `tiktoken`.

A file is a network without weights: its bytes are the one parameter, so that it is saved, checked
and loaded like everything else that a model is made of.
"""

import base64
import contextlib
import dataclasses
import functools
import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields, registry
from cspd_jax.text.packages import need

Params = Any
_FIRST_SPECIAL = 151643
# What files are called.
_FILE, _FILE_OF_RANKS = 'text_tokenizer.json or tokenizer.json', 'emu3.tiktoken'
# `file's bytes -> Text`; raises ValueError for a file of another format.
Reader = Callable[[bytes], 'Text']
# What `TextConfig.form` may be, and how its files are read; families add theirs with `register`.
FORMS: dict[str, Reader] = {}


@dataclasses.dataclass(frozen=True)
class TextConfig:
  """A tokenizer file.

  Attributes:
    form: whose prompts it is for, a key of `FORMS`.
    num_bytes: size of the file.
  """

  form: str = 'lumina_mgpt'
  num_bytes: int = 1

  def __post_init__(self):
    fields.check(self, num_bytes=(1, 2**30))
    _check_form(self.form)


def init(config: TextConfig, key: jax.Array) -> Params:
  """A file of spaces, for its shape."""
  del key
  return {'file': jnp.full((config.num_bytes,), ord(' '), jnp.uint8)}


def _check_form(form: str) -> None:
  """Raises ValueError for a form of which there are no files."""
  if form not in FORMS:
    raise ValueError(f'form is {form!r}; it must be one of {", ".join(FORMS)}.')


class Text(Protocol):
  """What prompts are written with.

  Attributes:
    ids: the published id of tokens by their names.
  """

  ids: Mapping[str, int]

  def encode(self, text: str) -> list[int]:
    """Published ids of a text, nothing added; names of special tokens in it are plain text.

    Raises:
      ImportError: if the package that reads the file is not installed.
    """


def register(form: str, reader: Reader) -> None:
  """Registers a form of tokenizer files.

  Raises:
    ValueError: if another reader has this name.
  """
  registry.add(FORMS, 'form', form, reader)


def read(params: Params, form: str) -> Text:
  """Reads the vocabulary of a file.

  Args:
    params: the bytes of the file.
    form: a key of `FORMS`.

  Raises:
    ValueError: if it is no such file, or there is no such form.
  """
  _check_form(form)
  return FORMS[form](bytes(np.asarray(params['file'], np.uint8)))


def id_of(text: Text, name: str) -> int:
  """The id of a token.

  Raises:
    ValueError: if there is none of this name.
  """
  if name not in text.ids:
    raise ValueError(f'the tokenizer file has no token {name!r}; give the one that belongs to the '
                     'model.')
  return text.ids[name]


class Vocabulary:
  """A file of the `tokenizers` library, as a `Text`.

  Raises:
    ValueError: for a file of another format.
  """

  def __init__(self, file: bytes):
    self._file = file
    with _refusing(_FILE):
      content = json.loads(self._file)
      named = content['model']['vocab']
      if content['model'].get('type') == 'Unigram':  # Pieces and their scores, in order of ids.
        named = {piece: number for number, (piece, _) in enumerate(named)}
      vocabulary = {str(name): int(number) for name, number in named.items()}
      added = {str(one['content']): int(one['id']) for one in content.get('added_tokens') or ()}
    self.ids: Mapping[str, int] = vocabulary | added

  def encode(self, text: str) -> list[int]:
    """See `Text`."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  @functools.cached_property
  def _tokenizer(self):
    make = need('tokenizers').Tokenizer.from_buffer
    with _refusing(_FILE):
      found = make(self._file)
    found.encode_special_tokens = True
    # Some files cut and pad by themselves.
    found.no_truncation()
    found.no_padding()
    return found


class Emu3Ranks:
  """A file of `tiktoken`, one token and its rank per line, with the special tokens of Emu3.

  It is a `Text`.

  Raises:
    ValueError: for a file of another format.
  """

  # How Emu3, like Qwen, cuts a text before it is tokenized.
  _PIECES = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
             r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+')

  def __init__(self, file: bytes):
    with _refusing(_FILE_OF_RANKS):
      lines = [line.split() for line in file.splitlines() if line]
      self._ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
      if missing := [byte for byte in range(256) if bytes([byte]) not in self._ranks]:
        raise ValueError(f'byte {missing[0]} has no token')
      if len(set(self._ranks.values())) < len(lines):
        raise ValueError('a token or a rank is there twice')
    special = ['<|endoftext|>', '<|im_start|>', '<|im_end|>',
               *(f'<|extra_{number}|>' for number in range(205)),
               '<|image token|>', '<|image start|>', '<|image end|>']
    self.ids: Mapping[str, int] = {
        name: _FIRST_SPECIAL + place for place, name in enumerate(special)}

  def encode(self, text: str) -> list[int]:
    """See `Text`."""
    return self._tokenizer.encode_ordinary(unicodedata.normalize('NFC', text))

  @functools.cached_property
  def _tokenizer(self):
    make = need('tiktoken').Encoding
    with _refusing(_FILE_OF_RANKS):
      return make('emu3', pat_str=self._PIECES, mergeable_ranks=self._ranks, special_tokens={})


@contextlib.contextmanager
def _refusing(name: str) -> Iterator[None]:
  """Turns what the package of a damaged file raises into a ValueError."""
  try:
    yield
  except (KeyboardInterrupt, SystemExit):
    raise
  except BaseException as error:  # Panics of Rust are no Exceptions.
    reason = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise ValueError(f'the tokenizer file cannot be read ({reason:.300}); give the {name} that '
                     'belongs to the model.') from error
