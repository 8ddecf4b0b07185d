"""Pictures that every installation has, and whether an image tokenizer preserves them."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import cbook
from PIL import Image

from cspd_jax.files import npz
from cspd_jax.generation import pixels as pixels_lib
from cspd_jax.metrics import requests
from cspd_jax.verify.result import Result, judged, skipped

# Scenes that `emoji` drew, with what they show; its licences are in the folder.
_SCENES = pathlib.Path(__file__).parents[1] / 'assets' / 'scenes' / 'verified.npz'
# Parts of the photograph of matplotlib's samples, as shares of its width: left, top and side.
_PARTS = (0.0, 0.0, 1.0), (0.2, 0.05, 0.6), (0.0, 0.15, 0.8), (0.3, 0.2, 0.7)
# What the photograph shows, as a label of ImageNet and in a sentence, and what it does not.
_LABEL, _SENTENCE = 'military uniform', 'a portrait photograph of a woman in a navy uniform'
_OTHER_LABEL, _OTHER_SENTENCE = 'goldfish', 'a bowl of green apples on a wooden table'
# A reconstruction must be this many decibels closer than an image of one colour.
_GAIN = 4.0


class Pictures(NamedTuple):
  """Pictures `[N, H, W, 3]` in [-1, 1], and prompts for them.

  Attributes:
    pixels: the pictures.
    right: a prompt for what each shows; None where the model has none for it.
    wrong: a prompt for what it does not show.
    are_usual: whether the model was trained on such pictures.
  """

  pixels: np.ndarray
  right: Sequence[Any] | None
  wrong: Sequence[Any] | None
  are_usual: bool


def of_model(model: Any) -> Pictures | None:
  """Returns pictures in the size of a model: scenes if it draws scenes, else a photograph.

  None for a model that cannot encode pictures as discrete tokens.
  """
  if model.tokenizer is None or model.tokenizer.encode is None:
    return None
  height, width = pixels_lib.size(model)
  resized = lambda image: np.asarray(image.convert('RGB').resize(
      (width, height), Image.Resampling.LANCZOS), np.float32) / 127.5 - 1
  prompts = list(model.prompts)
  if prompts and all(isinstance(prompt, str) and requests.parse(prompt) for prompt in prompts):
    arrays = npz.arrays(_SCENES, 'install the package again', needed=('images', 'captions'))
    captions = arrays['captions'].tolist()
    return Pictures(np.stack([resized(Image.fromarray(image)) for image in arrays['images']]),
                    captions, captions[1:] + captions[:1], True)
  photograph = Image.open(cbook.get_sample_data('grace_hopper.jpg', asfileobj=False))
  share = photograph.width
  pixels = np.stack([
      resized(photograph.crop((share * left, share * top, share * (left + side),
                               share * (top + side)))) for left, top, side in _PARTS])
  labels = {str(prompt).split(',')[0]: prompt for prompt in prompts}
  if _LABEL in labels:
    right, wrong = labels[_LABEL], labels.get(_OTHER_LABEL, prompts[0])
  elif model.prompt_kind.words is None and _reads(model, _SENTENCE):
    right, wrong = _SENTENCE, _OTHER_SENTENCE
  else:
    return Pictures(pixels, None, None, False)
  return Pictures(pixels, [right] * len(pixels), [wrong] * len(pixels), True)


def _reads(model: Any, sentence: str) -> bool:
  try:
    model.condition([sentence])
  except ValueError:
    return False
  return True


def encoded(model: Any, pictures: Pictures) -> np.ndarray:
  """Returns the tokens of pictures `[N, T]`, encoded one by one."""
  return np.concatenate([model.tokens(picture[None]) for picture in pictures.pixels])


def check(model: Any, pictures: Pictures | None) -> Iterator[Result]:
  """Yields whether pictures survive the image tokenizer."""
  if pictures is None:
    yield skipped('image tokenizer', 'the model has none with an encoder of discrete tokens')
    return
  tokens = encoded(model, pictures)
  decoded = np.concatenate([np.asarray(model.pixels(row[None])) for row in tokens])
  errors = np.mean((np.clip(decoded, -1, 1) - pictures.pixels) ** 2, axis=(1, 2, 3))
  plain = np.var(pictures.pixels, axis=(1, 2)).mean(axis=1)
  psnr, of_plain = (float(np.mean(10 * np.log10(4 / np.maximum(error, 1e-6))))
                    for error in (errors, plain))
  used = len(np.unique(tokens)) / model.target(False).vocab_size
  yield judged(
      'image tokenizer', psnr > of_plain + _GAIN,
      f'{len(tokens)} pictures come back with a PSNR of {psnr:.1f} dB, where one colour has '
      f'{of_plain:.1f}; they use {used:.1%} of the vocabulary',
      psnr=psnr, psnr_of_one_colour=of_plain, codes_used=used)
