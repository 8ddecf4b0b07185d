"""Conditions of models: class labels and prompts of tokens, with their checks."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.tracing import is_concrete


def check_class_labels(condition: Any, num_classes: int) -> Any:
  """Checks class labels, integers `[B]`; returns which of them are valid, `[B]` bool.

  Raises ValueError for another shape or dtype, or if the values are concrete and one is out of
  range.
  """
  labels = np.asarray(condition) if is_concrete(condition) else jnp.asarray(condition)
  if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
    raise ValueError(f'condition has shape {labels.shape} and dtype {labels.dtype}; this model '
                     'requires one integer class label per image, shape [B].')
  valid = (labels >= 0) & (labels < num_classes)
  if is_concrete(labels) and not valid.all():
    raise ValueError(f'condition holds the class labels {np.unique(labels[~valid]).tolist()}; this '
                     f'model supports 0 to {num_classes - 1}.')
  return valid


class Prompt(NamedTuple):
  """A condition of tokens `[B, S, C]` int, of any length in each guidance stream.

  They are padded on the left; `visible` `[B, S, C]` bool is False for padding.
  """

  tokens: jax.Array
  visible: jax.Array

  def first(self, num_streams: int) -> 'Prompt':
    """Returns the prompts of the first `num_streams` streams."""
    return Prompt(self.tokens[:, :num_streams], self.visible[:, :num_streams])

  def dropped(self, drop: jax.Array) -> 'Prompt':
    """Selects the last stream of the images where `drop` `[B]` is True, else the first one."""
    return Prompt(*(jnp.where(drop[:, None], part[:, -1], part[:, 0])[:, None] for part in self))

  @property
  def longest(self) -> int:
    """The number of tokens of the longest prompt, without padding; for host or device arrays."""
    rows = np.asarray(self.visible).reshape(-1, self.visible.shape[-1])
    return int((rows.shape[1] - rows.argmax(axis=1))[rows.any(axis=1)].max(initial=0))

  def padded(self, length: int) -> 'Prompt':
    """Returns the prompts padded or cut to `length` tokens; ValueError if they have more."""
    if (longest := self.longest) > length:
      raise ValueError(f'prompt has {longest} tokens, but there is room for {length}; use a '
                       'shorter one.')
    missing = max(0, length - self.tokens.shape[-1])
    return Prompt(*(np.pad(np.asarray(part), ((0, 0), (0, 0), (missing, 0)))[..., -length:]
                    for part in self))

  def rows(self) -> tuple[jax.Array, jax.Array]:
    """Returns tokens and visibility as `[R, C]`."""
    return tuple(jnp.asarray(part).swapaxes(0, 1).reshape(-1, part.shape[-1]) for part in self)


def renumbered(prompt: Prompt, token_of_id: np.ndarray) -> Prompt:
  """Converts a prompt of published ids to tokens, by `token_of_id` `[ids]`, as host arrays.

  Raises ValueError for other ids, or numbers that are not integers.
  """
  ids, last = np.asarray(prompt.tokens), len(token_of_id) - 1
  if ids.size and not np.issubdtype(ids.dtype, np.integer):
    raise ValueError(f'prompts holds tokens of dtype {ids.dtype}; they must be integers.')
  if ids.size and not 0 <= ids.min() <= ids.max() <= last:
    raise ValueError(f'prompts holds tokens from {ids.min()} to {ids.max()}; this model supports '
                     f'0 to {last}.')
  tokens = token_of_id[ids.astype(np.int64)].astype(np.int32)
  return Prompt(tokens, np.asarray(prompt.visible, bool))


def check_prompt(prompt: Any, num_streams: int, vocab_size: int) -> Any:
  """Checks the first `num_streams` streams of a `Prompt`; returns which rows are valid, `[B]` bool.

  Raises ValueError if it is not such a prompt, or if its values are concrete and a row is invalid.
  """
  if not isinstance(prompt, Prompt):
    raise ValueError(f'condition is a {type(prompt).__name__}; this model requires a '
                     'models.conditions.Prompt.')
  as_array = np.asarray if is_concrete(prompt) else jnp.asarray
  tokens, visible = as_array(prompt.tokens), as_array(prompt.visible)
  if tokens.ndim != 3 or tokens.shape[1] < num_streams or visible.shape != tokens.shape:
    raise ValueError(f'condition has tokens {tokens.shape} and visible {visible.shape}; this '
                     f'target requires [B, {num_streams}, C] for both.')
  tokens, visible = tokens[:, :num_streams], visible[:, :num_streams].astype(bool)
  padded = (visible[..., 1:] | ~visible[..., :-1]).all(axis=(1, 2))
  if tokens.shape[2]:
    padded = padded & visible[..., -1].all(axis=1)
  if not tokens.shape[2] or is_concrete(prompt) and not padded.all():
    raise ValueError('condition: visible must be False and then True along the last axis, and True '
                     'at its end; prompts are padded on the left and have at least one token.')
  in_range = ((tokens >= 0) & (tokens < vocab_size)).all(axis=(1, 2))
  if is_concrete(prompt) and not in_range.all():
    raise ValueError(f'condition holds tokens from {tokens.min()} to {tokens.max()}; this model '
                     f'supports 0 to {vocab_size - 1}.')
  return padded & in_range
