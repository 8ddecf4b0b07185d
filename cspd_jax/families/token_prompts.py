"""Prompts of models whose condition is tokens: words, or published token ids."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.generation.model import Conditions
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import bpe, templates
from cspd_jax.text.bpe import Text


def conditions(grid: tuple[int, int], text: Text | None, write: templates.Writer | None,
               renumbered: Callable[[Prompt], Prompt], examples: Sequence[str] = ()) -> Conditions:
  """Returns the prompts that a model supports: words, if it has a text part, or a `Prompt`.

  Args:
    grid: rows and columns of tokens.
    text: the tokenizer, or None.
    write: converts a prompt in words to the contexts of both streams; None without a tokenizer.
    renumbered: converts published token ids to the model's; raises ValueError for ids that are not
      supported.
    examples: example prompts in words.
  """
  def written(prompts):
    if text is None or write is None or not isinstance(prompts, (list, tuple)) or not all(
        isinstance(prompt, str) for prompt in prompts):
      words = 'words, or' if text else 'no words because it has no text part, only'
      raise ValueError(
          f'prompts is {str(prompts)[:80]!r}; this model accepts {words} a causal.Prompt of '
          'published token ids: one stream with the prompt and one with the null condition.')
    return templates.padded([write(text, prompt, *grid) for prompt in prompts])

  def encode(prompts):
    prompts = prompts if isinstance(prompts, Prompt) else written(prompts)
    return jax.tree.map(jnp.asarray, renumbered(prompts))

  def titles(prompts):
    if isinstance(prompts, Prompt):
      return [f'prompt {i}' for i in range(np.shape(prompts.tokens)[0])]
    return [str(prompt) for prompt in prompts]

  def unknown_words(prompt):
    return [] if text is None else bpe.unknown_words(text, prompt)

  return Conditions(encode, titles, () if text is None else tuple(examples), unknown_words)


def described(count: int, length: int = 64) -> Any:
  """Returns shapes and dtypes of the condition of `count` images.

  Args:
    count: number of images.
    length: tokens of a prompt; the default suits a sentence in the published templates.
  """
  size = (count, 2, length)
  return Prompt(jax.ShapeDtypeStruct(size, np.int32), jax.ShapeDtypeStruct(size, bool))
