"""Converts the prompts and seeds that callers pass to lists."""

import collections.abc
import io
import json
import os
import pathlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.files import reading, store
from cspd_jax.generation.parts import PromptKind

# What the name of a file of JSON objects ends in, and the names of data that are no list of lines.
_JSON_LINES = ('.jsonl', '.ndjson')
_DATA = ('.json', '.csv', '.tsv', '.yaml', '.yml', '.xml', '.parquet', '.npz', '.xlsx')
_MOST_SENTENCES, _LETTERS = 5, 300  # Of unknown words.
_FILE = ('pass a UTF-8 file with one prompt per line, or a .jsonl file with an object per line '
         "whose 'prompt' is text")


def chosen(model: Any, prompts: Any) -> Any:
  """Returns `listed` prompts of a model, its own ones for None."""
  return listed(model.prompts if prompts is None else prompts)


def count(model: Any, prompts: Any) -> int:
  """Returns how many images prompts are for, a model's own ones for None."""
  return len(model.prompt_kind.titles(chosen(model, prompts)))


def listed(prompts: Any) -> Any:
  """Returns a list of prompts: of a prompt, a list of them, or a `pathlib.Path` to a file of them.

  Another type, such as embeddings, is returned unchanged. An empty list, a set, names mixed with
  numbers, and a file that cannot be read raise ValueError.
  """
  if isinstance(prompts, collections.abc.Set):
    raise ValueError(f'prompts is a {type(prompts).__name__}, which has no order, and an image '
                     'depends on the number of its prompt; pass a list.')
  fields.require(
      not isinstance(prompts, (float, np.floating, bytes, collections.abc.Iterator)), 'prompts',
      prompts, 'a prompt, a list of them, or a pathlib.Path to a file of them')
  if isinstance(prompts, os.PathLike):
    return of_file(prompts)
  if isinstance(prompts, (str, int, np.integer)):
    prompts = [prompts]
  if isinstance(prompts, (range, np.ndarray, jax.Array)) and np.ndim(prompts) < 2:
    prompts = np.asarray(prompts).tolist()
    prompts = prompts if isinstance(prompts, list) else [prompts]
  if type(prompts) not in (list, tuple):
    return prompts
  if not prompts:
    raise ValueError('prompts is empty; pass at least one.')
  kinds = {isinstance(prompt, str) for prompt in prompts}
  if len(kinds) > 1:
    raise ValueError(f'prompts mixes names and numbers ({list(prompts)[:8]}); pass only names, or '
                     'only numbers.')
  for prompt in prompts:
    if isinstance(prompt, str) and not _is_text(prompt):
      raise ValueError(f'prompts holds {prompt!r:.80}, which is not Unicode text.')
  return list(prompts)


def _is_text(prompt: str) -> bool:
  try:
    prompt.encode()
    return True
  except UnicodeEncodeError:
    return False


def of_file(path: str | os.PathLike) -> list[str]:
  """Reads prompts from a file of UTF-8 text, one per line; empty lines are skipped.

  In a file whose name ends in `.jsonl`, every line is an object whose `prompt` is text. One that
  cannot be read, has no prompts or holds other data, JSON or tables, raises ValueError.
  """
  path = pathlib.Path(path)
  if path.suffix.lower() in _JSON_LINES:
    return [prompt for _, prompt in json_lines(path, _FILE)]
  is_data = path.suffix.lower() in _DATA
  lines = [] if is_data else [line for line in map(str.strip, _lines(path, _FILE)) if line]
  if is_data or lines and (isinstance(_data('\n'.join(lines)), (dict, list))
                           or isinstance(_data(lines[0]), dict)):
    raise ValueError(f'prompts is {str(path)!r}, a file of data, such as JSON or a table; {_FILE}.')
  if not lines:
    raise ValueError(f'prompts is {str(path)!r}, a file without prompts; write one per line.')
  return lines


def json_lines(path: pathlib.Path, remedy: str) -> list[tuple[str, str]]:
  """Returns the lines of a file of JSON objects that are not empty, and the text `prompt` of each.

  Raises ValueError, with the remedy, if it cannot be read, has no lines, or one has no such text.
  """
  result = []
  for number, line in enumerate(_lines(path, remedy), 1):
    if not line.strip():
      continue
    value, why = None, ''
    try:
      value = reading.parsed(line)
    except ValueError as error:
      why = '' if isinstance(error, json.JSONDecodeError) else f' ({error})'
    if isinstance(value, dict):
      why = f', but has {", ".join(map(repr, value))}'
    prompt = value.get('prompt') if isinstance(value, dict) else None
    if not isinstance(prompt, str):
      raise ValueError(f'prompts is {str(path)!r}, whose line {number} is no JSON object with a '
                       f"text 'prompt'{why:.200}; {remedy}.")
    result.append((line.rstrip('\n'), prompt))
  if not result:
    raise ValueError(f'prompts is {str(path)!r}, a file without prompts; {remedy}.')
  return result


def _lines(path: pathlib.Path, remedy: str) -> Iterator[str]:
  text = reading.text(path, remedy, 'prompts')
  # Editors on Windows begin a file with this mark. `str.splitlines` also splits at characters that
  # a prompt may hold.
  return io.StringIO(text.removeprefix('\ufeff'), newline=None)


def _data(text: str) -> Any:
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    return None


def seeds(seed: Any, count: int) -> list[tuple[int, int]]:
  """Returns, per image `[count]`, its seed and its number under that seed.

  The seed is an integer, under which the images are numbered, or one per image, or a pair of a seed
  and a number per image, which reproduces any image of a larger set; else ValueError.
  """
  if isinstance(seed, jax.Array) and seed.dtype == np.uint32 and seed.shape[-1:] in (
      (2,), jax.random.key_data(jax.random.key(0)).shape):
    # It would read as seeds of as many images, or as pairs.
    raise ValueError(f'seed is an array of type uint32 and shape {seed.shape}, as random keys of '
                     'jax.random.PRNGKey; pass whole numbers.')
  try:
    array = np.asarray(seed)
  except (TypeError, ValueError):  # It holds random keys, or rows of several lengths.
    array = np.asarray(None)
  several, values = array.ndim in (1, 2), array.reshape(-1).tolist()
  if array.ndim > 2 or not all(
      isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32
      for value in values):
    shown = ' '.join(repr(seed).split())  # Keys and arrays have several lines.
    raise ValueError(f'seed is {shown:.80}; it must be a whole number from 0 to {2**32 - 1}, or '
                     f'one for each of {count} images.')
  if not several:
    return [(values[0], i) for i in range(count)]
  pairs = array.ndim == 2 and array.shape[1] == 2
  if len(values) != count * (1 + pairs):
    raise ValueError(f'seed has {len(values)} numbers for {count} images; pass one per image, or a '
                     'single one.')
  return list(zip(values[::2], values[1::2])) if pairs else [(value, 0) for value in values]


def seeds_or_keys(seed: Any, count: int) -> list[tuple[int, int]] | jax.Array:
  """Returns as `seeds`; for one random key, the keys `[count]` that the images fold from it."""
  if not isinstance(seed, jax.Array) or not jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
    return seeds(seed, count)
  if seed.ndim:
    raise ValueError(f'seed holds {seed.size} random keys; it must be one, which every image '
                     'folds its number into.')
  return jax.vmap(lambda number: jax.random.fold_in(seed, number))(np.arange(count))


def general() -> list[str]:
  """Returns prompts in words on many subjects, for models without prompts of their own."""
  return of_file(store.ASSETS / 'prompts.txt')


def unknown_words(kind: PromptKind, prompts: Any, count: int) -> list[list[str]]:
  """Returns the words `[count]` of prompts that do not reach a model; none of other conditions."""
  if not isinstance(prompts, list) or not all(isinstance(prompt, str) for prompt in prompts):
    return [[] for _ in range(count)]
  words = {prompt: kind.unknown_words(prompt) for prompt in dict.fromkeys(prompts)}
  return [words[prompt] for prompt in prompts]


def sentences(unknown: Mapping[str, Sequence[str]]) -> list[str]:
  """Returns a sentence on the unknown words of every prompt, and for many prompts on the first."""
  shown = lambda words: textwrap.shorten(', '.join(words), _LETTERS, placeholder=' ...')
  lines = [f'prompt {title!r:.80} has words that the model does not read: {shown(words)}'
           for title, words in unknown.items() if words]
  more = len(lines) - _MOST_SENTENCES
  return lines if more <= 0 else [
      *lines[:_MOST_SENTENCES], f'{more} more prompts have words that the model does not read']
