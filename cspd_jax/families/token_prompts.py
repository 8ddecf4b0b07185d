"""Prompts of models whose condition is tokens: words, or published token ids."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.generation.parts import Conditions
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import bpe, templates
from cspd_jax.text.bpe import Text


def conditions(grid: tuple[int, int], text: Text | None, write: templates.Writer | None,
               renumbered: Callable[[Prompt], Prompt], examples: Sequence[str] = (),
               image_ids: Collection[int] = ()) -> Conditions:
  """Returns the prompts that a model supports: words, if it has a text part, or a `Prompt`.

  In words the names of the template's own tokens and of image tokens are plain text.

  Args:
    grid: rows and columns of tokens.
    text: the tokenizer, or None.
    write: converts a prompt in words to the contexts of both streams; None without a tokenizer.
    renumbered: converts published token ids to the model's; raises ValueError for ids that are not
      supported.
    examples: example prompts in words.
    image_ids: published ids of the tokens of images.

  Raises:
    ValueError: if the examples, which a file holds, are not a list of texts.
  """
  if not isinstance(examples, list | tuple) or not all(isinstance(one, str) for one in examples):
    raise ValueError(f'prompts of the target is {examples!r:.80}; it must be a list of texts.')

  @functools.cache
  def words() -> Text:
    assert text is not None and write is not None
    own = bpe.looked_up(text, lambda text: write(text, 'words', *grid))
    return bpe.with_control(
        text, own.union(name for name, number in text.ids.items() if number in image_ids))

  def written(prompts):
    if text is None or write is None or not isinstance(prompts, (list, tuple)) or not all(
        isinstance(prompt, str) for prompt in prompts):
      kinds = 'words, or' if text else 'no words because it has no text part, only'
      raise ValueError(
          f'prompts is {str(prompts)[:80]!r}; this model accepts {kinds} a causal.Prompt of '
          'published token ids: one stream with the prompt and one with the null condition.')
    return templates.padded([write(words(), prompt, *grid) for prompt in prompts])

  def encode(prompts):
    prompts = prompts if isinstance(prompts, Prompt) else written(prompts)
    return jax.tree.map(jnp.asarray, renumbered(prompts))

  def titles(prompts):
    if isinstance(prompts, Prompt):
      return [f'prompt {i}' for i in range(np.shape(prompts.tokens)[0])]
    return [str(prompt) for prompt in prompts]

  def unknown_words(prompt):
    return [] if text is None else bpe.unknown_words(words(), prompt)

  return Conditions(encode, titles, () if text is None else tuple(examples), unknown_words)


def described(count: int, length: int = 64) -> Any:
  """Returns shapes and dtypes of the condition of `count` images.

  Args:
    count: number of images.
    length: tokens of a prompt; the default suits a sentence in the published templates.
  """
  size = (count, 2, length)
  return Prompt(jax.ShapeDtypeStruct(size, np.int32), jax.ShapeDtypeStruct(size, bool))
