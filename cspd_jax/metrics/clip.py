"""CLIP scores: how well images fit their captions.

Two scores have the name. CLIPScore (Hessel et al., arXiv:2104.08718, Section 3) is
`2.5 max(cos, 0)` of the features of an image and of its caption after 'A photo depicts'.
torchmetrics multiplies the cosine of the features by 100 and adds no words. Papers report the
latter, or the cosine itself, with ViT-B/32 or ViT-L/14.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from cspd_jax.files import kinds
from cspd_jax.metrics import base
from cspd_jax.models import clip
from cspd_jax.models.clip import CLIPConfig
from cspd_jax.text import bpe

Params = Any

kinds.register('clip', kinds.Kind(CLIPConfig, clip.init))

# The words before a caption in CLIPScore.
PREFIX = 'A photo depicts '

_START, _END = '<|startoftext|>', '<|endoftext|>'
_MEAN = np.array([.48145466, .4578275, .40821073], np.float32)
_DEVIATION = np.array([.26862954, .26130258, .27577711], np.float32)


def prepared(image: np.ndarray, size: int) -> np.ndarray:
  """Resizes, crops and scales an image as CLIP's published preprocessing.

  The shorter side is resized with Pillow's bicubic filter, then the centre is cropped.

  Args:
    image: `[H, W, 3]` uint8.
    size: side of the result in pixels.

  Returns:
    `[size, size, 3]` float32.

  Raises:
    ValueError: for an image of another shape or dtype.
  """
  if image.ndim != 3 or image.shape[-1] != 3 or image.dtype != np.uint8:
    raise ValueError(f'image is {image.dtype}{list(image.shape)}; it must be uint8 [H, W, 3].')
  height, width = (size * side // min(image.shape[:2]) for side in image.shape[:2])
  resized = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
  top, left = (height - size) // 2, (width - size) // 2
  pixels = np.asarray(resized, np.float32)[top:top + size, left:left + size]
  return (pixels / 255 - _MEAN) / _DEVIATION


def tokens(text: bpe.Text, captions: Sequence[str], context: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the tokens of captions, between a start and an end token; long ones are cut.

  Args:
    text: CLIP's tokenizer.
    captions: `B` texts.
    context: `L`, the number of tokens.

  Returns:
    Tokens `[B, L]` int32, padded with the end token, and the index of the first one `[B]` int32.

  Raises:
    ValueError: if the tokenizer has no start or end token.
  """
  start, end = (bpe.id_of(text, name) for name in (_START, _END))
  rows = np.full((len(captions), context), end, np.int32)
  ends = np.empty(len(captions), np.int32)
  for number, caption in enumerate(captions):
    row = [start, *text.encode(caption)[:context - 2]]
    rows[number, :len(row)] = row
    ends[number] = len(row)
  return rows, ends


@functools.partial(jax.jit, static_argnames='config')
def image_features(params: Params, config: CLIPConfig, pixels: jax.Array) -> jax.Array:
  """Returns unit features of images, `[B, F]`."""
  return _unit(clip.image_features(params, config, pixels))


@functools.partial(jax.jit, static_argnames='config')
def text_features(params: Params, config: CLIPConfig, tokens: jax.Array, ends: jax.Array
                  ) -> jax.Array:
  """Returns unit features of texts, `[B, F]`."""
  return _unit(clip.text_features(params, config, tokens, ends))


def _unit(x: jax.Array) -> jax.Array:
  return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def clip_score(cosines: np.ndarray) -> base.Value:
  """Returns CLIPScore from the cosines `[N]` of images and prefixed captions (Hessel et al.)."""
  return base.mean(2.5 * np.maximum(np.asarray(cosines, np.float64), 0))


def torchmetrics_score(cosines: np.ndarray) -> base.Value:
  """Returns the score of torchmetrics from the cosines `[N]` of images and captions.

  The mean is cut off at 0, not the score of an image.
  """
  value = base.mean(100 * np.asarray(cosines, np.float64))
  return value._replace(mean=max(value.mean, 0.))
