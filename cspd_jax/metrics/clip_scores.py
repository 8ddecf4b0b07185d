"""CLIP scores of images with captions on disk."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from cspd_jax.core import batches
from cspd_jax.files import reading, store
from cspd_jax.generation import memory
from cspd_jax.metrics import clip, evaluation, kept, layouts
from cspd_jax.metrics.base import Value
from cspd_jax.models.clip import PRESETS
from cspd_jax.text import bpe

_KIND = 'clip'
_WHERE = (
    'convert the files of openai/clip-vit-base-patch32, or clip-vit-large-patch14, of the Hugging '
    'Face Hub with cspd-convert --family=clip --source=FOLDER --output=FOLDER')
_TOKENIZER = 'give tokenizer.json of openai/clip-vit-base-patch32 of the Hugging Face Hub'
_CONTROL = r'<\|(start|end)oftext\|>'
_REMEDY = 'replace or remove it'
# What precedes a prompt, by the names of kept results.
_PREFIXES = {'prefixed': clip.PREFIX, 'plain': ''}


class Network(NamedTuple):
  """A converted CLIP network and its tokenizer.

  Attributes:
    params: its parameters.
    config: its sizes.
    text: its tokenizer.
    digest: identifies the parameters.
    text_digest: identifies the tokenizer.
  """

  params: Any
  config: clip.CLIPConfig
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


def network(folder: str, tokenizer: str | None) -> Network:
  """Loads a converted network and its tokenizer.

  Args:
    folder: the folder of the network.
    tokenizer: path of its tokenizer.json.

  Raises:
    ValueError: if the folder does not hold one, or the file is not such a tokenizer.
    ImportError: if the package tokenizers is not installed.
  """
  if tokenizer is None:
    raise ValueError(f'tokenizer is None, and clip is {folder!r}; {_TOKENIZER}.')
  kind, config, *_ = store.describe(folder, name='clip', remedy=_WHERE)
  if kind != _KIND:
    raise ValueError(f'clip is {folder!r}, which holds a {kind!r} network; {_WHERE}.')
  file = reading.data(tokenizer, _TOKENIZER, 'tokenizer')
  text = bpe.Vocabulary(file, _CONTROL)
  ids, _ = clip.tokens(text, ['a photo'], config.context)
  if max(text.ids.values()) >= config.vocab_size or ids.max() >= config.vocab_size:
    raise ValueError(f'tokenizer is {tokenizer!r} with {max(text.ids.values()) + 1} tokens, and '
                     f'the network in {folder!r} has {config.vocab_size}; {_TOKENIZER}.')
  params = store.load(folder, dtype=jnp.float32).params
  return Network(params, config, text, evaluation.digest(params),
                 hashlib.sha256(file).hexdigest())


def check_batch(batch_size: int, count: int, of: Network) -> None:
  """Raises ValueError if batches of `count` images clearly do not fit in memory."""
  sizes = of.config
  patches = (sizes.image_size // sizes.patch_size)**2
  layer = patches * (4 * sizes.image_dim + sizes.image_ffn + sizes.image_heads * patches)
  memory.check_batch(min(batch_size, count), 4 * (3 * sizes.image_size**2 + layer))


def scores(images: Sequence[layouts.Generated], of: Network, batch_size: int,
           progress: Callable[[int, int], None], keep: kept.Keep = kept.nothing
           ) -> dict[str, Value]:
  """Returns the two CLIP scores by name, with their standard errors over images.

  Args:
    images: the images and their captions.
    of: the network.
    batch_size: the most images per pass.
    progress: called with the number of images so far and in total.
    keep: keeps the results of batches.

  Raises:
    ValueError: if an image cannot be read.
  """
  def cosines(index: np.ndarray) -> Mapping[str, np.ndarray]:
    batch = [images[i] for i in index]
    pixels = np.stack([clip.prepared(np.asarray(reading.photograph(image.path, _REMEDY)),
                                     of.config.image_size) for image in batch])
    prompts = [image.prompt for image in batch]
    return dict(keep((of.digest, of.text_digest, pixels, *prompts), functools.partial(
        _cosines, of, pixels, prompts)))

  values = batches.mapped(cosines, len(images), min(batch_size, len(images)), progress)
  prefixed, plain = (values[name] for name in _PREFIXES)
  label = f'({of.title}, {evaluation.short(len(images))})'
  return {f'CLIPScore {label}': clip.clip_score(prefixed),
          f'torchmetrics CLIP score {label}': clip.torchmetrics_score(plain)}


def _cosines(of: Network, pixels: np.ndarray, prompts: Sequence[str]) -> dict[str, np.ndarray]:
  """Returns the cosines `[B]` of images and their prompts, by the name of a prefix."""
  features, result = np.asarray(clip.image_features(of.params, of.config, pixels)), {}
  for name, prefix in _PREFIXES.items():
    tokens = clip.tokens(of.text, [prefix + prompt for prompt in prompts], of.config.context)
    texts = np.asarray(clip.text_features(of.params, of.config, *tokens))
    result[name] = (features * texts).sum(axis=1)
  return result
