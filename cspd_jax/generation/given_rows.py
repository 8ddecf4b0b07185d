"""The `prefix` of `Model.generate`: first rows of images, as tokens, as pictures or as a file."""

import functools
import os
import pathlib
from typing import Any

import jax
import numpy as np
from PIL import Image, ImageOps

from cspd_jax.core import fields
from cspd_jax.decoding import prefix as prefix_lib
from cspd_jax.decoding.base import Target
from cspd_jax.files import reading
from cspd_jax.generation import pixels


def row_width(model: Any) -> int:
  """Returns the tokens of a row of an image; raises ValueError for models without given rows."""
  target = model.target(False)
  if not isinstance(target, Target):
    raise ValueError(f'prefix is set, but a {model.family!r} model has continuous tokens, and its '
                     'decoders support no prefix; leave it out.')
  return target.row_width


def tokens(model: Any, prefix: Any, rows: int | None) -> np.ndarray:
  """Returns the tokens of the prefix of images `[B, P]` int32, whole rows; `B` may be 1 for all.

  The prefix is tokens `[P]`, or `[B, P]` with one row per image, as in `Generated.tokens`;
  images as in `Generated.images`, `[H, W, 3]` or `[B, H, W, 3]`, uint8, or floats in [-1, 1];
  or the path of an image file, which is turned as its EXIF orientation says, put on white where
  it is transparent, cropped to its centre and resized to the model's size. `rows` of tokens are
  used; None means all tokens, or half the rows of an image. Anything else raises ValueError.
  """
  if prefix is None:
    raise ValueError(f'rows is {rows}, but there is no prefix to take rows from; pass prefix, '
                     'or leave rows out.')
  _check_without(model)
  width, (num_rows, _) = row_width(model), model.grid
  if rows is not None:
    fields.check_whole('rows', rows, f'a whole number from 1 to {num_rows - 1}, because an image '
                       f'has {num_rows} rows of tokens', 1, num_rows - 1)
  most = width * (num_rows // 2 if rows is None else rows)
  if isinstance(prefix, (str, os.PathLike)):
    prefix = _picture(pathlib.Path(prefix), pixels.size(model))
  array = np.asarray(prefix)
  if array.ndim in (3, 4) and array.shape[-1] == 3:
    result = _tokens_of_images(model, array.reshape(-1, *array.shape[-3:]))[:, :most]
  elif array.ndim in (1, 2) and np.issubdtype(array.dtype, np.integer):
    result = prefix_lib.narrow(np.atleast_2d(array))
  else:
    raise ValueError(
        f'prefix is {array.dtype}{list(array.shape)}; it must be tokens, whole numbers [P] or '
        '[B, P], an image or images [B, H, W, 3], or the path of an image.')
  if rows is not None:
    result = result[:, :rows * width]
    if result.shape[1] < rows * width:
      raise ValueError(f'rows is {rows}, but prefix has {result.shape[1]} tokens, {width} per '
                       'row; pass more tokens, or fewer rows.')
  return result


def _check_without(model: Any) -> None:
  if model.prefix is not None:
    raise ValueError(f'prefix is set, but model {model.name!r} has one of {model.prefix_length} '
                     'tokens; use the model without one.')


def changes(model: Any, tokens: Any) -> dict[str, Any]:
  """Returns the fields in which `Model.with_prefix` differs; ValueError if it cannot exist."""
  _check_without(model)
  prefix = np.asarray(tokens)
  if prefix.ndim not in (1, 2) or not np.issubdtype(prefix.dtype, np.integer):
    raise ValueError(f'tokens is {prefix.dtype}{list(prefix.shape)}; it must be whole numbers, '
                     '[P] or [B, P].')
  length = prefix.shape[-1]
  prefix_lib.check_length(length, model.num_tokens, row_width(model))
  return dict(
      prefix=prefix_lib.narrow(prefix),
      build_target=lambda guided: prefix_lib.target(model.target(guided), length),
      drafts={name: part._replace(build=functools.partial(part.build, prefix_length=length))
              for name, part in model.drafts.items()})


def condition(prefix: np.ndarray, whole: Any) -> prefix_lib.Prefixed:
  """Returns the condition `whole` of images with their prefix; ValueError for other numbers."""
  count = len(jax.tree.leaves(whole)[0])
  if prefix.ndim == 2 and len(prefix) not in (1, count):
    raise ValueError(f'prefix has {len(prefix)} images for {count} prompts; pass one for all, or '
                     'one for each.')
  return prefix_lib.Prefixed(whole, np.broadcast_to(prefix, (count, prefix.shape[-1])))


def _tokens_of_images(model: Any, images: np.ndarray) -> np.ndarray:
  """Encodes images of a prefix `[B, H, W, 3]`, uint8 or in [-1, 1], to tokens `[B, T]`."""
  if images.shape[1:3] != (size := pixels.size(model)):
    raise ValueError(f'prefix has images of {images.shape[1]}x{images.shape[2]} pixels; model '
                     f'{model.name!r} generates {size[0]}x{size[1]}, so resize them, or '
                     'pass the path of a file.')
  if images.dtype == np.uint8:
    images = images / np.float32(127.5) - 1
  elif not np.issubdtype(images.dtype, np.floating) or not np.abs(images).max() <= 1:
    raise ValueError(f'prefix has images of {images.dtype} numbers that are not all in [-1, 1]; '
                     'pass uint8, or scale them.')
  return np.asarray(model.tokens(images.astype(np.float32)))


def _picture(path: pathlib.Path, size: tuple[int, int]) -> np.ndarray:
  """Crops the image file of a prefix to its centre and resizes it to `[*size, 3]` uint8."""
  picture = reading.photograph(path, 'use another file', 'prefix', convert=reading.as_shown)
  return np.asarray(ImageOps.fit(picture, size[::-1], Image.Resampling.LANCZOS))
