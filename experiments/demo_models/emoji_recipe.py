"""Recipe of the shipped text-to-image model: scenes of emoji with captions, one token per word.

Tokenizers of models of codes have the layout of Chameleon's.
"""

import abc
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from cspd_jax.files import store
from cspd_jax.models import early_fusion, vq
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import bpe, templates
from experiments.demo_models import emoji, recipe, stages

BEGIN, UNKNOWN, END_OF_TURN = '<s>', '<unk>', '<reserved08706>'
IMAGE_START, IMAGE_END, ROW_END = '<racm3:break>', '<eoss>', '<reserved08799>'
_FIRST = (BEGIN, '<pad>', '</s>', UNKNOWN)


def names(words: Sequence[str], num_codes: int) -> list[str]:
  """Returns the tokens in order of their ids: special tokens, codes, grammar, then words."""
  codes = (f'IMGIMG{"".join(chr(ord("A") + int(digit)) for digit in str(code))}Z'
           for code in range(num_codes))
  return [*_FIRST, *codes, IMAGE_END, IMAGE_START, END_OF_TURN, ROW_END, *words]


def ids(words: Sequence[str], num_codes: int) -> dict[str, Any]:
  """Returns the fields of an `EarlyFusionConfig` with these words and `num_codes` image codes."""
  tokens = names(words, num_codes)
  return dict(vocab_size=len(tokens), num_codes=num_codes, first_code=len(_FIRST),
              row_end=tokens.index(ROW_END), image_ends=(tokens.index(IMAGE_END),))


def tokenizer(tokens: Sequence[str]) -> bytes:
  """Returns the contents of a file of the `tokenizers` library, for `text.bpe`.

  It converts text to lower case and splits it at spaces and around punctuation; a word that is not
  among the tokens, which are in order of their ids, becomes `<unk>`.
  """
  vocabulary = {name: number for number, name in enumerate(tokens)}
  return json.dumps({
      'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [],
      'normalizer': {'type': 'Lowercase'}, 'pre_tokenizer': {'type': 'Whitespace'},
      'post_processor': None, 'decoder': None,
      'model': {'type': 'WordLevel', 'vocab': vocabulary, 'unk_token': UNKNOWN}}).encode()


def network(form: str, content: bytes) -> store.Loaded:
  """Returns a tokenizer file as a network; `form` is its reader in `bpe.FORMS`."""
  file = np.frombuffer(content, np.uint8).copy()
  return store.Loaded('text', bpe.TextConfig(form, len(file)), {'file': file}, {})


def prompts(text: store.Loaded, write: templates.Writer, captions: Sequence[str],
            grid: tuple[int, int]) -> Prompt:
  """Encodes captions as prompts for images of rows and columns, every distinct one once."""
  reader = bpe.read(text.params, text.config.form)
  encoded = {caption: write(reader, caption, *grid) for caption in dict.fromkeys(captions)}
  return templates.padded([encoded[caption] for caption in captions])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenes(emoji.Sources, stages.Stages):
  """Scenes of emoji and their captions as the images of a recipe."""

  @property
  def metadata(self) -> dict[str, Any]:
    """Metadata that is stored with the networks, JSON-serialisable."""
    return {'prompts': list(emoji.EXAMPLES), 'image_size': self.image_size}

  def crops(self, seed: int, index: int, split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns scenes and their captions."""
    scenes = emoji.scenes(self.sprites(), seed, index, split, size, self.image_size)
    return scenes.images, scenes.captions

  def captions(self, labels: np.ndarray) -> list[str]:
    """Returns descriptions of crops with these labels."""
    return labels.tolist()

  @abc.abstractmethod
  def _text(self) -> store.Loaded:
    """Returns the text tokenizer."""

  def networks(self, tokenizer: Any, models: Mapping[str, Any],
               data: Mapping[str, stages.Split]) -> dict[str, store.Loaded]:
    """Returns the trained networks by their role in a model, and the text tokenizer."""
    return super().networks(tokenizer, models, data) | {
        'text': self._text()._replace(metadata=self.metadata)}


@dataclasses.dataclass(frozen=True)
class EmojiRecipe(Scenes, recipe.TokenRecipe):
  """Recipe of early-fusion models conditioned on captions.

  Prompts have Anole's template; rows and images end with special tokens, as Lumina-mGPT's do.
  """

  family: ClassVar[str] = 'early_fusion'

  target: early_fusion.EarlyFusionConfig
  draft: early_fusion.EarlyFusionConfig | None = None

  def _fitting(self, tokenizer: vq.VQConfig, side: int, config: early_fusion.EarlyFusionConfig
               ) -> dict[str, Any]:
    return {'height': side, 'width': side, **ids(emoji.WORDS, tokenizer.codebook_size)}

  def sequences(self, data: stages.Split) -> tuple[np.ndarray, Prompt]:
    """Returns images with the tokens of the grammar, and prompts."""
    codes, captions = data
    tokens = np.asarray(early_fusion.with_grammar(self.target, codes))
    return tokens, early_fusion.renumbered(self.target, prompts(
        self._text(), templates.anole, captions.tolist(), (self.target.height, self.target.width)))

  def _text(self) -> store.Loaded:
    return network('anole', tokenizer(names(emoji.WORDS, self.tokenizer.codebook_size)))
