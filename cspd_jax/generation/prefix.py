"""The first rows of images as callers give them, made into tokens."""

import os
import pathlib
from typing import Any

import jax
import numpy as np
from PIL import Image

from cspd_jax.checkpoints import reading
from cspd_jax.decoding import continued


def tokens(model: Any, prefix: Any, rows: int | None, count: int) -> np.ndarray | None:
  """The given tokens `[count, P]` int32, whole rows; None if there are none.

  Args:
    model: a `generation.Model`.
    prefix: tokens `[P]`, or `[count, P]` for images of their own, as `Generated.tokens` has them;
      images as `Generated.images` has them, `[H, W, 3]` or `[count, H, W, 3]`, uint8, or floats in
      [-1, 1]; or the path of an image file, of which the middle is taken in the model's shape. None
      for nothing.
    rows: rows of tokens that are given. None means all given tokens, or half the rows of an image.
    count: images.

  Raises:
    ValueError: if they cannot be the beginning of the model's images.
  """
  if prefix is None:
    if rows is not None:
      raise ValueError(f'rows is {rows}, but no prefix is given that they could be taken from; '
                       'give prefix, or leave rows out.')
    return None
  target, (most, _) = model.target(guided=False), model.grid
  if not hasattr(target, 'row_width'):
    raise ValueError(f'prefix is given, but a {model.family!r} model draws the tokens of an image '
                     'in a random order and continues none; leave it out.')
  if rows is not None and (isinstance(rows, bool) or not isinstance(rows, (int, np.integer))
                           or not 1 <= rows < most):
    raise ValueError(f'rows is {rows!r}; it must be a whole number from 1 to {most - 1}, for an '
                     f'image has {most} rows of tokens.')
  found = _tokens(model, prefix, most // 2 if rows is None else rows, target)
  if rows is not None:
    found = found[:, :rows * target.row_width]
    if found.shape[1] < rows * target.row_width:
      raise ValueError(f'rows is {rows}, but prefix has {found.shape[1]} tokens, '
                       f'{target.row_width} in a row; give more of them, or fewer rows.')
  if len(found) not in (1, count):
    raise ValueError(f'prefix has {len(found)} images for {count} prompts; give one for all, or '
                     'one for each.')
  try:
    continued.check_length(target, found.shape[1])
  except ValueError as error:
    raise ValueError(f'prefix: {error}') from error
  return np.broadcast_to(found, (count, found.shape[1])).astype(np.int32)


def _tokens(model: Any, prefix: Any, rows: int, target: Any) -> np.ndarray:
  """Given tokens `[1 or B, P]`; `rows` of images."""
  if isinstance(prefix, (str, os.PathLike)):
    return _encoded(model, _read(pathlib.Path(prefix), _size(model)))[:, :rows * target.row_width]
  array = np.asarray(prefix)
  if array.ndim in (3, 4) and array.shape[-1] == 3:
    images = array.reshape(-1, *array.shape[-3:])
    return _encoded(model, images)[:, :rows * target.row_width]
  if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.integer):
    raise ValueError(
        f'prefix is {array.dtype}{list(array.shape)}; it must be tokens, whole numbers [P] or '
        '[B, P], an image or images [B, H, W, 3], or the path of an image.')
  return np.atleast_2d(array)


def _encoded(model: Any, images: np.ndarray) -> np.ndarray:
  """Tokens `[B, T]` of images `[B, H, W, 3]`, uint8 or in [-1, 1]."""
  if images.shape[1:3] != _size(model):
    raise ValueError(f'prefix has images of {images.shape[1]}x{images.shape[2]} pixels; model '
                     f'{model.name!r} makes {"x".join(map(str, _size(model)))}, so resize them, or '
                     'give the path of a file.')
  if images.dtype == np.uint8:
    images = images / np.float32(127.5) - 1
  elif not np.issubdtype(images.dtype, np.floating) or not np.abs(images).max() <= 1:
    raise ValueError(f'prefix has images of {images.dtype} numbers that are not all in [-1, 1]; '
                     'give bytes, or scale them.')
  return np.asarray(model.tokens(images.astype(np.float32)))


def _size(model: Any) -> tuple[int, int]:
  """Height and width of the model's images in pixels."""
  if model.tokenizer is None:
    model.tokens(None)  # Says what is missing.
  tokens_of_one = jax.ShapeDtypeStruct((1, model.num_tokens), np.int32)
  shape = jax.eval_shape(model.tokenizer.decode, model.tokenizer.params, tokens_of_one).shape
  return shape[1], shape[2]


def _read(path: pathlib.Path, size: tuple[int, int]) -> np.ndarray:
  """The middle of an image file as `[1, *size, 3]` uint8."""
  picture = reading.photograph(path, 'give another file', 'prefix')
  height, width = size
  scale = min(picture.width / width, picture.height / height)
  left, top = ((whole - side * scale) / 2 for whole, side in (
      (picture.width, width), (picture.height, height)))
  box = (left, top, left + width * scale, top + height * scale)
  return np.asarray(picture.resize((width, height), Image.Resampling.LANCZOS, box=box))[None]
