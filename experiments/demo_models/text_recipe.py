"""Recipe of the shipped text-conditioned models."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from cspd_jax.models import early_fusion
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import bpe, templates as prompts_lib
from experiments.demo_models import photo_captions, recipe, stages, words

_FORM = 'anole'


def vocabulary(num_codes: int, captions: tuple[str, ...] = photo_captions.WORDS
               ) -> dict[str, Any]:
  """Returns the fields of an `EarlyFusionConfig` that describe its tokens.

  Args:
    num_codes: codes of the image tokenizer.
    captions: words of the captions.
  """
  return words.ids(captions, num_codes)._asdict()


@dataclasses.dataclass(frozen=True)
class TextRecipe(recipe.TokenRecipe):
  """Recipe of early-fusion models conditioned on captions.

  Prompts have Anole's template; rows and images end with special tokens, as Lumina-mGPT's do.

  Attributes:
    target: configuration of the target.
    draft: configuration of the draft model.
    top_k: default of the exported model; None for no truncation.
  """

  family: ClassVar[str] = 'early_fusion'
  # Words of the captions, and example prompts.
  words: ClassVar[tuple[str, ...]] = photo_captions.WORDS
  examples: ClassVar[tuple[str, ...]] = photo_captions.EXAMPLES

  target: early_fusion.EarlyFusionConfig
  draft: early_fusion.EarlyFusionConfig
  top_k: int | None = dataclasses.field(default=None, kw_only=True)

  def __post_init__(self):
    super().__post_init__()
    side = self.side(self.tokenizer.factor)
    expected = {'height': side, 'width': side,
                **vocabulary(self.tokenizer.codebook_size, self.words)}
    for role in self.models:
      stages.check_model(role, getattr(self, role), expected)

  def small(self) -> 'TextRecipe':
    """Returns the recipe with tiny networks, for crops of 8x8 pixels."""
    model = early_fusion.EarlyFusionConfig(
        height=4, width=4, dim=16, num_layers=1, num_heads=1, ffn_dim=16,
        **vocabulary(recipe.SMALL_TOKENIZER.codebook_size, self.words))
    return dataclasses.replace(self, tokenizer=recipe.SMALL_TOKENIZER, target=model, draft=model,
                               tokenizer_of=None, tokenizer_from=None, image_size=8)

  @property
  def metadata(self) -> dict[str, Any]:
    """Metadata that is stored with the networks, JSON-serialisable."""
    return {'prompts': list(self.examples), 'image_size': self.image_size}

  @property
  def defaults(self) -> dict[str, Any]:
    """Defaults of the exported model."""
    return super().defaults | ({} if self.top_k is None else {'top_k': self.top_k})

  def crops(self, seed: int, index: int, split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns crops and their captions."""
    return photo_captions.captioned(stages.photos(), seed, index, split, size, self.image_size)

  def captions(self, labels: np.ndarray) -> list[str]:
    """Returns descriptions of crops with these labels."""
    return labels.tolist()

  def sequences(self, data: stages.Split) -> tuple[np.ndarray, Prompt]:
    """Returns images with the tokens of the grammar, and prompts."""
    codes, captions = data
    tokens = np.asarray(early_fusion.with_grammar(self.target, codes))
    return tokens, self._prompts(captions.tolist())

  def _prompts(self, captions: list[str]) -> Prompt:
    """Encodes captions as prompts of the model."""
    config, text = self.target, bpe.read(self._text().params, _FORM)
    encoded = {caption: prompts_lib.anole(text, caption, config.height, config.width)
               for caption in dict.fromkeys(captions)}
    return early_fusion.renumbered(
        config, prompts_lib.padded([encoded[caption] for caption in captions]))

  def _text(self) -> stages.Network:
    """Returns the text tokenizer as a network."""
    file = np.frombuffer(
        words.file(self.words, self.tokenizer.codebook_size), np.uint8).copy()
    return stages.Network('text', bpe.TextConfig(_FORM, len(file)), {'file': file})

  def networks(self, tokenizer: Any, models: Mapping[str, Any],
               data: Mapping[str, stages.Split]) -> dict[str, stages.Network]:
    """Returns the trained networks by their role in a model."""
    return super().networks(tokenizer, models, data) | {'text': self._text()}
