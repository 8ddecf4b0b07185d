"""CLIP scores: how well images fit their captions.

Two scores have the name. CLIPScore (Hessel et al., arXiv:2104.08718, Section 3) is
`2.5 max(cos, 0)` of the features of an image and of its caption after 'A photo depicts'.
torchmetrics multiplies the cosine of the features by 100 and adds no words. Papers report the
latter, or the cosine itself, with ViT-B/32 or ViT-L/14. Both read only the beginning of captions of
more tokens than the network takes; the name of a score says of how many.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from cspd_jax.core import batches, programs
from cspd_jax.files import reading, store
from cspd_jax.files.run_folder import Keep, nothing
from cspd_jax.generation import memory
from cspd_jax.metrics import base, evaluation, layouts
from cspd_jax.models import clip
from cspd_jax.models.clip import PRESETS, CLIPConfig
from cspd_jax.text import bpe

Params = Any

store.register('clip', store.Kind(CLIPConfig, clip.init))

# The words before a caption in CLIPScore.
PREFIX = 'A photo depicts '

_START, _END = '<|startoftext|>', '<|endoftext|>'
# Of the channels of images, after scaling to [0, 1].
MEAN = np.array([.48145466, .4578275, .40821073])
DEVIATION = np.array([.26862954, .26130258, .27577711])


def prepared(image: np.ndarray, size: int) -> np.ndarray:
  """Resizes, crops and scales an image `[H, W, 3]` uint8 as CLIP's published preprocessing.

  The shorter side is resized by Pillow's bicubic filter, then the centre is cropped:
  `[size, size, 3]` float32.
  """
  assert image.ndim == 3 and image.dtype == np.uint8, 'uint8 [H, W, 3]'
  height, width = (size * side // min(image.shape[:2]) for side in image.shape[:2])
  resized = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
  top, left = (height - size) // 2, (width - size) // 2
  pixels = np.asarray(resized, np.float32)[top:top + size, left:left + size]
  return (pixels / 255 - MEAN.astype(np.float32)) / DEVIATION.astype(np.float32)


def tokens(text: bpe.Text, captions: Sequence[str], context: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the tokens of captions, between a start and an end token; long ones are cut.

  They are `[B, L]` int32, padded with the end token to the context `L`, and the index of the first
  one `[B]` int32. A tokenizer without these tokens raises ValueError.
  """
  start, end = (bpe.id_of(text, name) for name in (_START, _END))
  rows = np.full((len(captions), context), end, np.int32)
  ends = np.empty(len(captions), np.int32)
  for number, caption in enumerate(captions):
    row = [start, *text.encode(caption)[:context - 2]]
    rows[number, :len(row)] = row
    ends[number] = len(row)
  return rows, ends


def features(function: Callable[..., jax.Array], params: Params, config: CLIPConfig,
             *inputs: jax.Array) -> jax.Array:
  """Returns unit features `[B, F]`, of `image_features` or `text_features` of `models.clip`."""
  return _unit_features(function, config)(params, *inputs)


@functools.cache
def _unit_features(function: Callable[..., jax.Array], config: CLIPConfig) -> Callable[..., Any]:
  @programs.jit_unless_traced
  def run(params, *inputs):
    result = function(params, config, *inputs)
    return result / jnp.linalg.norm(result, axis=-1, keepdims=True)

  return run


def clip_score(cosines: np.ndarray) -> base.Value:
  """Returns CLIPScore from the cosines `[N]` of images and prefixed captions (Hessel et al.)."""
  return base.mean(2.5 * np.maximum(np.asarray(cosines, np.float64), 0))


def torchmetrics_score(cosines: np.ndarray) -> base.Value:
  """Returns torchmetrics' score from cosines `[N]`; its mean is cut off at 0, not each score."""
  value = base.mean(100 * np.asarray(cosines, np.float64))
  return value._replace(mean=max(value.mean, 0.))


_WHERE = (
    'convert the files of openai/clip-vit-base-patch32, or clip-vit-large-patch14, of the Hugging '
    'Face Hub with cspd-convert --family=clip --source=FOLDER --output=FOLDER')
_TOKENIZER = 'give tokenizer.json of openai/clip-vit-base-patch32 of the Hugging Face Hub'
_CONTROL = r'<\|(start|end)oftext\|>'
# What precedes a prompt, by the names of kept results.
_PREFIXES = {'prefixed': PREFIX, 'plain': ''}


class CLIP(NamedTuple):
  """A converted CLIP network and its tokenizer, with digests of both."""

  params: Any
  config: CLIPConfig
  text: bpe.Text
  digest: str
  text_digest: str

  @property
  def title(self) -> str:
    """Its size, such as 'ViT-B/32'."""
    names = [name for name, config in PRESETS.items() if config == self.config]
    if not names:
      return f'another ViT/{self.config.patch_size}'
    _, size, patch = names[0].split('_')
    return f'ViT-{size.upper()}/{patch}'


def load(folder: str, tokenizer: str | None) -> CLIP:
  """Loads a converted network and its tokenizer.json.

  Raises ValueError if there is none in the folder, or the file is not such a tokenizer;
  ImportError if the package tokenizers is not installed.
  """
  if tokenizer is None:
    raise ValueError(f'tokenizer is None, and clip is {folder!r}; {_TOKENIZER}.')
  params, config, digest = evaluation.network('clip', folder, _WHERE)
  file = reading.data(tokenizer, _TOKENIZER, 'tokenizer')
  text = bpe.Vocabulary(file, _CONTROL)
  ids, _ = tokens(text, ['a photo'], config.context)
  if max(text.ids.values()) >= config.vocab_size or ids.max() >= config.vocab_size:
    raise ValueError(f'tokenizer is {tokenizer!r} with {max(text.ids.values()) + 1} tokens, and '
                     f'the network in {folder!r} has {config.vocab_size}; {_TOKENIZER}.')
  return CLIP(params, config, text, digest, hashlib.sha256(file).hexdigest())


def check_batch(batch_size: int, count: int, of: CLIP) -> None:
  """Raises ValueError if batches of `count` images clearly do not fit in memory."""
  sizes = of.config
  patches = (sizes.image_size // sizes.patch_size)**2
  layer = patches * (4 * sizes.image_dim + sizes.image_ffn + sizes.image_heads * patches)
  memory.check_batch(min(batch_size, count), 4 * (3 * sizes.image_size**2 + layer))


def scores(images: Sequence[layouts.StoredImages], of: CLIP, batch_size: int,
           progress: Callable[[int, int], None], keep: Keep = nothing) -> dict[str, base.Value]:
  """Returns the two CLIP scores by name; arguments and errors as for `evaluation.features`."""
  def cosines(index: np.ndarray) -> Mapping[str, np.ndarray]:
    batch = [images[i] for i in index]
    pixels = np.stack([prepared(image.pixels(), of.config.image_size) for image in batch])
    prompts = [image.prompt for image in batch]
    return dict(keep((of.digest, of.text_digest, pixels, *prompts), functools.partial(
        _cosines, of, pixels, prompts)))

  values = batches.mapped(cosines, len(images), min(batch_size, len(images)), progress)

  def label(prefix: str) -> str:
    most = of.config.context - 2
    cut = sum(len(of.text.encode(prefix + image.prompt)) > most for image in images)
    note = f', {cut} captions of over {most} tokens' if cut else ''
    return f'({of.title}, {evaluation.short(len(images))}{note})'

  return {f'CLIPScore {label(PREFIX)}': clip_score(values['prefixed']),
          f'torchmetrics CLIP score {label("")}': torchmetrics_score(values['plain'])}


def _cosines(of: CLIP, pixels: np.ndarray, prompts: Sequence[str]) -> dict[str, np.ndarray]:
  """Returns the cosines `[B]` of images and their prompts, by the name of a prefix."""
  images, result = np.asarray(features(clip.image_features, of.params, of.config, pixels)), {}
  for name, prefix in _PREFIXES.items():
    prefixed = tokens(of.text, [prefix + prompt for prompt in prompts], of.config.context)
    texts = np.asarray(features(clip.text_features, of.params, of.config, *prefixed))
    result[name] = (images * texts).sum(axis=1)
  return result
