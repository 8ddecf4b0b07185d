"""From the tokens of images to pixels and back: by the model's tokenizer, or another program."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from cspd_jax.core import programs


def check(model: Any) -> None:
  """Raises ValueError if tokens cannot become images, here or by another program."""
  if model.tokenizer is None and model.handover is None:
    raise ValueError(f'model {model.name!r} has no image tokenizer; load it with '
                     'tokenizer=FOLDER.')


def encoder(model: Any) -> Callable[[jax.Array], jax.Array]:
  """Returns the tokenizer's compiled encoder with its parameters; ValueError without one."""
  tokenizer = model.tokenizer
  if tokenizer is None or tokenizer.encode is None:
    raise ValueError(f'model {model.name!r} has no image tokenizer with an encoder; pass tokens '
                     'instead of images.')
  return functools.partial(programs.jit_unless_traced(tokenizer.encode), tokenizer.params)


def decoder(model: Any) -> Callable[[jax.Array], jax.Array]:
  """Returns the tokenizer's compiled decoder with its parameters; ValueError without one."""
  if model.handover is not None:
    raise ValueError(f'model {model.name!r} has no image tokenizer; another program draws the '
                     f'pixels of its tokens: {model.handover.advice}.')
  check(model)
  decode = programs.jit_unless_traced(model.tokenizer.decode, label='the image tokenizer')
  return functools.partial(decode, model.tokenizer.params)


def handed(model: Any, tokens: Any) -> dict[str, np.ndarray]:
  """Returns the tokens of images for the program that draws them; see `Model.image_tokens`."""
  if model.handover is None:
    raise ValueError(f'model {model.name!r} is a {model.family!r} model, whose tokens no other '
                     'program draws; decode them with pixels.')
  return model.handover.arrays(np.asarray(tokens))
