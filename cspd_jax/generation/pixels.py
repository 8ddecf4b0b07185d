"""From the tokens of images to their grid, to pixels and back.

Pixels are drawn by the model's image tokenizer, or by another program.
"""

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


def size(model: Any) -> tuple[int, int]:
  """Returns height and width of an image of discrete tokens in pixels; ValueError without any."""
  tokens = jax.ShapeDtypeStruct((1, model.prefix_length + model.num_tokens), np.int32)
  _, height, width, _ = jax.eval_shape(model.pixels, tokens).shape
  return height, width


def cells(model: Any, values: np.ndarray) -> np.ndarray:
  """Arranges values of tokens `[B, T]` as `[B, rows, columns]`, without grammar tokens."""
  rows, columns = model.grid
  if model.handover is not None:
    values = values[:, model.handover.first_cell:]
  if values.shape[1] != rows * columns:
    width = model.target(False).row_width
    values = values[:, :rows * width].reshape(-1, rows, width)[:, :, :columns]
  return values.reshape(-1, rows, columns)


def to_bytes(images: np.ndarray) -> np.ndarray:
  """Converts images in [-1, 1] to uint8 `[B, H, W, 3]`, rounded to the nearest level."""
  return np.clip(np.floor(np.asarray(images, np.float32) * 127.5 + 128), 0, 255).astype(np.uint8)
