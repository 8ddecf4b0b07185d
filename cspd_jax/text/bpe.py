"""Tokenizer files of the `tokenizers` library or of `tiktoken`, stored as a part of a model.

A file is treated as a network whose only parameter is the bytes of the file, so that it is saved,
checked and loaded like the other parts of a model.
"""

import base64
import contextlib
import dataclasses
import functools
import itertools
import json
import re
import secrets
import types
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields, naming, packages
from cspd_jax.files import reading

Params = Any
_FIRST_SPECIAL = 151643
# The usual name of most files.
_JSON_FILE = 'text_tokenizer.json or tokenizer.json'
# Entries of a file for training, with which BPE and Unigram models draw the ids of a text again in
# every call; without them the same words have the same ids.
_SAMPLING = ('dropout', 'alpha', 'nbest_size')
# Reads the bytes of a file; raises ValueError for a file of another format.
Reader = Callable[[bytes], 'Text']
# Readers by `TextConfig.form`; families add theirs with `register`.
FORMS: dict[str, Reader] = {}


@dataclasses.dataclass(frozen=True)
class TextConfig:
  """A tokenizer file.

  Attributes:
    form: name of the file's reader, a key of `FORMS`.
    num_bytes: size of the file.
    first_token: name of the token before every prompt, for models that read it from another file;
      None if the prompt template names it.
  """

  form: str = 'lumina_mgpt'
  num_bytes: int = 1
  first_token: str | None = None

  def __post_init__(self):
    fields.check(self, num_bytes=(1, 2**30))
    fields.require(self.form in FORMS, 'form', self.form, f'one of {", ".join(FORMS)}')


def init(config: TextConfig, key: jax.Array) -> Params:
  """Returns a file of spaces, which has the right shape."""
  return {'file': jnp.full((config.num_bytes,), ord(' '), jnp.uint8)}


class Text(Protocol):
  """A text tokenizer; `ids` are published ids of tokens by name."""

  ids: Mapping[str, int]

  def encode(self, text: str) -> list[int]:
    """Returns the published ids of a text, in which names of control tokens are plain text."""


def register(form: str, reader: Reader) -> None:
  """Registers the reader of a form of tokenizer files; raises ValueError if it has another one."""
  naming.add(FORMS, 'form', form, reader)


def read(params: Params, form: str) -> Text:
  """Reads the bytes of a tokenizer file of a form of `FORMS`; raises ValueError for others."""
  fields.require(form in FORMS, 'form', form, f'one of {", ".join(FORMS)}')
  return FORMS[form](bytes(np.asarray(params['file'], np.uint8)))


def file_name(form: str) -> str:
  """Returns the usual name of tokenizer files of a form."""
  return _OF_RANKS.get(FORMS[form], _JSON_FILE)


def id_of(text: Text, name: str) -> int:
  """Returns the id of a token; raises ValueError if no token has this name."""
  if name not in text.ids:
    raise ValueError(f'the tokenizer file has no token {name!r}; supply the one that belongs to '
                     'the model.')
  return text.ids[name]


def check_vocabulary(text: Text, size: int, network: str, *, codes_follow: bool = False) -> None:
  """Compares a tokenizer with the number of tokens of text that a network has embeddings of.

  If codes follow text, the first one is the number of its tokens. Raises ValueError if a token has
  no embedding, or embeddings without tokens move the codes.
  """
  last = max(text.ids.values())
  if last >= size:
    raise ValueError(f'text has tokens up to {last}, but {network} has {size} rows of text; use '
                     'the tokenizer file that belongs to it.')
  if codes_follow and len(text.ids) != size:
    raise ValueError(
        f'text has {len(text.ids)} tokens, but {network} has {size} rows of text before its codes, '
        'of which the first one has the number of tokens; use the tokenizer file that belongs to '
        'it, or remove the rows with which its embeddings were padded and convert it again.')


def unknown_words(text: Text, prompt: str) -> list[str]:
  """Returns the words of a prompt that a tokenizer has no tokens for, once each."""
  # A tokenizer without this method represents every word.
  find: Callable[[str], list[str]] = getattr(text, 'unknown_words', lambda prompt: [])
  return list(dict.fromkeys(find(prompt)))


def known_words(text: Text | None) -> list[str] | None:
  """Returns the words that a tokenizer of whole words knows; None if it represents any."""
  return getattr(text, 'known_words', None)


def with_control(text: Text, names: Collection[str]) -> Text:
  """Returns a tokenizer to which these names of tokens are plain text."""
  # A tokenizer without this method never encodes a text as a token for control.
  return getattr(text, 'with_control', lambda names: text)(names)


def looked_up(text: Text, write: Callable[[Any], Any]) -> set[str]:
  """Returns the names of the tokens that a function looks up, if every text is empty to it."""
  names: set[str] = set()

  class Ids(dict):
    def __getitem__(self, name: str) -> int:
      number = super().__getitem__(name)
      names.add(name)
      return number

  write(types.SimpleNamespace(ids=Ids(text.ids), encode=lambda text: []))
  return names


def import_package(name: str) -> Any:
  """Imports an optional package for text prompts, or raises ImportError with what to do."""
  try:
    return packages.load(name)
  except ImportError as error:
    raise ImportError(
        f"Text prompts need the package {name}, but {error}; run {packages.install('text')}, or "
        'pass prompts as token ids, as docs/load.md shows.') from error


class Vocabulary:
  """A tokenizer file of the `tokenizers` library, as a `Text`.

  Control tokens are those that the file flags as special and the given ones, whatever the file says
  of them. In a text their names are plain text; other tokens that were added to the vocabulary,
  such as the subject of a fine-tuned model, are tokens.

  Args:
    file: the bytes of the file; ValueError if it has another format.
    control: a regular expression for names of control tokens.
    names: names of further control tokens.
  """

  def __init__(self, file: bytes, control: str = r'(?!)', names: Collection[str] = ()):
    self._file, self._pattern = file, control
    with _read_errors(_JSON_FILE):
      content = reading.parsed(self._file)
      ids = content['model']['vocab']
      if content['model'].get('type') == 'Unigram':  # Pieces and their scores, in order of ids.
        ids = {piece: index for index, (piece, _) in enumerate(ids)}
      vocabulary = {str(name): int(index) for name, index in ids.items()}
      added = {str(token['content']): int(token['id'])
               for token in content.get('added_tokens') or ()}
      # Unigram models name their unknown token by its id.
      unknown = content['model'].get('unk_token')
      self._unknown = vocabulary.get(unknown, content['model'].get('unk_id'))
      special = {str(token['content']) for token in content.get('added_tokens') or ()
                 if token.get('special')}
    self.ids: Mapping[str, int] = vocabulary | added
    self._control = frozenset(special).union(names, filter(re.compile(control).fullmatch, self.ids))
    self._has_words = content['model'].get('type') == 'WordLevel'

  def with_control(self, names: Collection[str]) -> 'Vocabulary':
    """Returns the tokenizer with more control tokens."""
    return Vocabulary(self._file, self._pattern, self._control.union(names))

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def unknown_words(self, text: str) -> list[str]:
    """Returns the words of a text with characters that the unknown token, or no token, covers."""
    encoding = self._tokenizer.encode(text, add_special_tokens=False)
    covered: set[int] = set()
    unknown: set[int] = set()
    for index, span in zip(encoding.ids, encoding.offsets):
      (unknown if index == self._unknown else covered).update(range(*span))
    # A token for the space before a word also covers the first character of the word.
    missing = unknown | (set(range(len(text))) - covered)
    return [text[word[0]:word[-1] + 1] for word in _words(text)
            if any(i in missing and _kind(text[i]) != 'M' for i in word)]

  @property
  def known_words(self) -> list[str] | None:
    """The words that have tokens, if all tokens are whole words; otherwise None."""
    names = sorted(self.ids.keys() - self._control)
    return [name for name in names if re.fullmatch(r'\w+', name)] if self._has_words else None

  @functools.cached_property
  def _tokenizer(self):
    from_buffer = import_package('tokenizers').Tokenizer.from_buffer
    with _read_errors(_JSON_FILE):
      tokenizer = from_buffer(_for_prompts(self._file, self._control))
    # Some files enable truncation and padding.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _for_prompts(file: bytes, names: Set[str]) -> bytes:
  """Returns a tokenizer file that draws no ids, and in which some tokens have names of no text.

  These keep their ids. Flags of the file do not suffice: models such as T5's find their names in a
  text by themselves.
  """
  content = reading.parsed(file)
  model = {name: value for name, value in content['model'].items() if name not in _SAMPLING}
  content['model'] = model
  secret = secrets.token_hex(16)  # No prompt can contain it.
  new = lambda name: f'{secret} {name}' if name in names else name
  if isinstance(model['vocab'], list):
    model['vocab'] = [[new(piece), score] for piece, score in model['vocab']]
  else:
    model['vocab'] = {new(name): index for name, index in model['vocab'].items()}
  if isinstance(model.get('unk_token'), str):
    model['unk_token'] = new(model['unk_token'])
  if 'merges' in model:
    pairs = ((merge, merge.split(' ') if isinstance(merge, str) else merge)
             for merge in model['merges'])
    model['merges'] = [merge for merge, parts in pairs if not {*parts, ''.join(parts)} & names]
  for token in content.get('added_tokens') or ():
    token['content'] = new(token['content'])
  return json.dumps(content).encode()


class Ranks:
  """A tokenizer file of `tiktoken` with the tokens of Qwen, as a `Text`.

  The file has one token and its rank per line; its usual `name` is for messages, and `ids` are
  those of special tokens by name. Raises ValueError for a file of another format.
  """

  # The pattern with which Qwen splits a text before tokenization.
  _PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
              r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+')

  def __init__(self, file: bytes, name: str, ids: Mapping[str, int]):
    self._name, self.ids = name, ids
    with _read_errors(name):
      lines = [line.split() for line in file.splitlines() if line]
      self._ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
      if missing := [byte for byte in range(256) if bytes([byte]) not in self._ranks]:
        raise ValueError(f'byte {missing[0]} has no token')
      if set(self._ranks.values()) != set(range(len(lines))):
        raise ValueError('a token or a rank occurs twice, or is missing')
      if len(lines) != _FIRST_SPECIAL:
        raise ValueError(f'it has {len(lines)} tokens of text, and the model {_FIRST_SPECIAL}')

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text."""
    return self._tokenizer.encode_ordinary(unicodedata.normalize('NFC', text))

  @functools.cached_property
  def _tokenizer(self):
    encoding = import_package('tiktoken').Encoding
    with _read_errors(self._name):
      return encoding('qwen', pat_str=self._PATTERN, mergeable_ranks=self._ranks, special_tokens={})


_EMU3_FILE, _MAMMOTH_FILE = 'emu3.tiktoken', 'mammothu.tiktoken'
# Where MammothModa2's vocabulary of images begins, with five tokens that its file does not name.
_FIRST_OF_IMAGES = 152064


def emu3_ranks(file: bytes) -> Ranks:
  """Reads a file with the special tokens of Emu3 and Emu3.5."""
  special = ['<|endoftext|>', '<|im_start|>', '<|im_end|>',
             *(f'<|extra_{number}|>' for number in range(205)),
             '<|image token|>', '<|image start|>', '<|image end|>']
  return Ranks(file, _EMU3_FILE, {
      name: _FIRST_SPECIAL + index for index, name in enumerate(special)})


def mammoth_ranks(file: bytes) -> Ranks:
  """Reads MammothModa2's file, and behind it the one with the names of its tokens of images."""
  ranks, start, names = file.partition(b'<|')  # No token in base64 begins like a name.
  with _read_errors(_MAMMOTH_FILE):
    if not start:
      raise ValueError('it lacks the names of mammothu_vision_tokens.txt, which is read from the '
                       'same folder')
    lines = [line.strip() for line in (start + names).decode().splitlines()]
  own = ['<|endofline|>', '<|endoffile|>', '<|gen_placeholder|>', '<|useless token|>',
         '<|beginoftext|>', *filter(None, lines)]
  return Ranks(ranks, _MAMMOTH_FILE, {
      '<|im_start|>': _FIRST_SPECIAL + 1, '<|im_end|>': _FIRST_SPECIAL + 2,
      **{name: _FIRST_OF_IMAGES + index for index, name in enumerate(own)}})


# The usual names of the files of ranks, by their readers.
_OF_RANKS: Mapping[Reader, str] = {emu3_ranks: _EMU3_FILE, mammoth_ranks: _MAMMOTH_FILE}


def _kind(character: str) -> str:
  """The Unicode category of a character: 'L' is a letter, 'M' a mark, 'N' a digit, 'S' a symbol."""
  return unicodedata.category(character)[0]


def words(text: str) -> list[str]:
  """Returns the words of a text, and its rows of symbols, without punctuation."""
  return [text[word[0]:word[-1] + 1] for word in _words(text)]


def _words(text: str) -> Iterator[list[int]]:
  """Yields the positions of every word and of every row of symbols in a text."""
  groups = {'L': 'word', 'M': 'word', 'N': 'word', 'S': 'symbols'}
  for group, span in itertools.groupby(
      range(len(text)), lambda i: groups.get(_kind(text[i]))):
    if group is not None:
      yield list(span)


@contextlib.contextmanager
def _read_errors(name: str) -> Iterator[None]:
  """Converts exceptions from reading a damaged file to ValueError."""
  try:
    yield
  except (KeyboardInterrupt, SystemExit):
    raise
  except BaseException as error:  # Panics in Rust do not derive from Exception.
    reason = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise ValueError(f'the tokenizer file cannot be read ({reason:.300}); supply the {name} that '
                     'belongs to the model.') from error
