"""Prompts of text-conditional LlamaGen: words, which T5 encodes, or T5 features."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.checkpoints.store import Loaded
from cspd_jax.generation.parts import Conditions
from cspd_jax.models import llamagen, t5
from cspd_jax.models.llamagen import Caption
from cspd_jax.text import bpe, captions as captions_lib
from cspd_jax.text.bpe import Text


def conditions(caption_dim: int, encoder: Loaded | None, text: Text | None) -> Conditions:
  """Returns the prompts that a text-conditional model supports.

  Args:
    caption_dim: width of the features.
    encoder: a `t5` network, or None.
    text: its tokenizer, or None.

  Raises:
    ValueError: if the tokenizer has tokens that the encoder does not have.
  """
  reader = None
  if encoder is not None and text is not None:
    bpe.check_rows(text, encoder.config.vocab_size, 't5')
    reader = _reader(encoder, text)

  def encode(prompts):
    if isinstance(prompts, Caption):
      return prompts
    if getattr(prompts, 'ndim', None) == 3 or _is_list_of((np.ndarray, jax.Array), prompts):
      return llamagen.left_padded(prompts)
    if reader is None or not _is_list_of(str, prompts):
      raise ValueError(
          f'prompts is {str(prompts)[:80]!r}; {_words(encoder, text)}T5 features: an array [B, L, '
          f'{caption_dim}], a list of arrays [L, {caption_dim}] with L up to '
          f'{llamagen.CAPTION_LENGTH}, or a llamagen.Caption.')
    encoded = {prompt: reader(prompt) for prompt in dict.fromkeys(prompts)}
    return Caption(*map(np.stack, zip(*(encoded[prompt] for prompt in prompts))))

  def titles(prompts):
    if _is_list_of(str, prompts):
      return list(prompts)
    count = len(prompts.mask if isinstance(prompts, Caption) else prompts)
    return [f'caption {i}' for i in range(count)]

  def unknown_words(prompt):
    if text is None:
      return []
    return captions_lib.unknown_words(text, prompt, llamagen.CAPTION_LENGTH)

  return Conditions(encode, titles, (), unknown_words)


def _reader(encoder: Loaded, text: Text) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
  """Returns `prompt -> ` its features `[120, D]` and mask `[120]`, as host arrays.

  Prompts are encoded one by one: one shape is compiled, and the features of a prompt do not depend
  on the other prompts of a batch.
  """
  length, sizes = llamagen.CAPTION_LENGTH, encoder.config

  @jax.jit
  def read(params, ids, count):
    visible = jnp.arange(length) < count
    features = t5.encode(params, sizes, ids[None], visible[None])[0]
    # The encoder pads on the right, the image model on the left.
    move = lambda x: jnp.roll(x, length - count, axis=0)
    return move(jnp.where(visible[:, None], features, 0)), move(visible)

  def encode(prompt):
    captions_lib.check(prompt)
    ids = captions_lib.tokens(text, prompt, length)
    row = np.zeros(length, np.int32)
    row[:len(ids)] = ids
    return jax.device_get(read(encoder.params, row, len(ids)))

  return encode


def _is_list_of(kind: Any, prompts: Any) -> bool:
  return type(prompts) in (list, tuple) and all(isinstance(prompt, kind) for prompt in prompts)


def _words(encoder: Loaded | None, text: Text | None) -> str:
  """Returns whether the model accepts words, and how to load it so that it does."""
  missing = {role: command for role, command, part in (
      ('t5', '--family=t5', encoder), ('text', '--family=t5_text', text)) if part is None}
  if not missing:
    return 'this model accepts a list of prompts in words, or '
  parts = f'part{"s" * (len(missing) > 1)} {" and ".join(missing)}'
  return (f'this model does not accept words because it lacks the {parts}: convert Flan-T5-XL into '
          f'its folder with cspd-convert {" and ".join(missing.values())}, or load it with '
          f'{" and ".join(f"{role}=FOLDER" for role in missing)}. It accepts ')
