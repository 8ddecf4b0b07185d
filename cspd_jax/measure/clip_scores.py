"""CLIP scores of images with captions on disk."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from cspd_jax.checkpoints import reading, store
from cspd_jax.measure import evaluation, layouts
from cspd_jax.metrics import clip
from cspd_jax.metrics.base import Value
from cspd_jax.models.clip import PRESETS
from cspd_jax.text import bpe

_KIND = 'clip'
_WHERE = (
    'convert the files of openai/clip-vit-base-patch32, or clip-vit-large-patch14, of the Hugging '
    'Face Hub with cspd-convert --family=clip --source=FOLDER --output=FOLDER')
_TOKENIZER = 'give tokenizer.json of openai/clip-vit-base-patch32 of the Hugging Face Hub'
_REMEDY = 'replace or remove it'


class Network(NamedTuple):
  """A converted CLIP network and its tokenizer.

  Attributes:
    params: its parameters.
    config: its sizes.
    text: its tokenizer.
    digest: identifies the parameters.
  """

  params: Any
  config: clip.CLIPConfig
  text: bpe.Text
  digest: str

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
  kind, config, *_ = store.describe(folder)
  if kind != _KIND:
    raise ValueError(f'clip is {folder!r}, which holds a {kind!r} network; {_WHERE}.')
  text = bpe.Vocabulary(reading.data(tokenizer, _TOKENIZER, 'tokenizer'))
  ids, _ = clip.tokens(text, ['a photo'], config.context)
  if max(text.ids.values()) >= config.vocab_size or ids.max() >= config.vocab_size:
    raise ValueError(f'tokenizer is {tokenizer!r} with {max(text.ids.values()) + 1} tokens, and '
                     f'the network in {folder!r} has {config.vocab_size}; {_TOKENIZER}.')
  params = store.load(folder, dtype=jnp.float32).params
  return Network(params, config, text, evaluation.digest(params))


def scores(images: Sequence[layouts.Generated], of: Network, batch_size: int,
           progress: Callable[[int, int], None]) -> dict[str, Value]:
  """Returns the two CLIP scores by name, with their standard errors over images.

  Args:
    images: the images and their captions.
    of: the network.
    batch_size: images per pass.
    progress: called with the number of images so far and in total.

  Raises:
    ValueError: if an image cannot be read.
  """
  plain: list[np.ndarray] = []
  prefixed: list[np.ndarray] = []
  for first in range(0, len(images), batch_size):
    batch = images[first:first + batch_size]
    # The last batch is filled up, so that one program suffices.
    full = [*batch, *[batch[-1]] * (batch_size - len(batch))]
    features = np.asarray(clip.image_features(of.params, of.config, np.stack([
        clip.prepared(np.asarray(reading.photograph(image.path, _REMEDY).convert('RGB')),
                      of.config.image_size) for image in full])))
    for prefix, parts in (('', plain), (clip.PREFIX, prefixed)):
      tokens = clip.tokens(of.text, [prefix + image.prompt for image in full], of.config.context)
      texts = np.asarray(clip.text_features(of.params, of.config, *tokens))
      parts.append((features * texts).sum(axis=1)[:len(batch)])
    progress(first + len(batch), len(images))
  label = f'({of.title}, {evaluation.short(len(images))})'
  return {f'CLIPScore {label}': clip.clip_score(np.concatenate(prefixed)),
          f'torchmetrics CLIP score {label}': clip.torchmetrics_score(np.concatenate(plain))}
