"""Recipe of the shipped text-to-image model: scenes of emoji with captions."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from cspd_jax.models import early_fusion
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import templates
from experiments.demo_models import emoji, recipe, stages, words


def vocabulary(num_codes: int) -> dict[str, Any]:
  """Returns the fields of an `EarlyFusionConfig` that describe its tokens and `num_codes` codes."""
  return words.ids(emoji.WORDS, num_codes)


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
  def _text(self) -> stages.Network:
    """Returns the text tokenizer."""

  def networks(self, tokenizer: Any, models: Mapping[str, Any],
               data: Mapping[str, stages.Split]) -> dict[str, stages.Network]:
    """Returns the trained networks by their role in a model, and the text tokenizer."""
    return super().networks(tokenizer, models, data) | {'text': self._text()}


@dataclasses.dataclass(frozen=True)
class EmojiRecipe(Scenes, recipe.TokenRecipe):
  """Recipe of early-fusion models conditioned on captions.

  Prompts have Anole's template; rows and images end with special tokens, as Lumina-mGPT's do.
  """

  family: ClassVar[str] = 'early_fusion'

  target: early_fusion.EarlyFusionConfig
  draft: early_fusion.EarlyFusionConfig

  def _fitting(self, config: early_fusion.EarlyFusionConfig) -> dict[str, Any]:
    return {'height': self.side, 'width': self.side, **vocabulary(self.tokenizer.codebook_size)}

  def _small_model(self) -> early_fusion.EarlyFusionConfig:
    return early_fusion.EarlyFusionConfig(
        height=4, width=4, dim=16, num_layers=1, num_heads=1, ffn_dim=16,
        **vocabulary(self.small_tokenizer.codebook_size))

  def sequences(self, data: stages.Split) -> tuple[np.ndarray, Prompt]:
    """Returns images with the tokens of the grammar, and prompts."""
    codes, captions = data
    tokens = np.asarray(early_fusion.with_grammar(self.target, codes))
    return tokens, self._prompts(captions.tolist())

  def _prompts(self, captions: list[str]) -> Prompt:
    """Encodes captions as prompts of the model."""
    return early_fusion.renumbered(self.target, words.prompts(
        self._text(), templates.anole, captions, (self.target.height, self.target.width)))

  def _text(self) -> stages.Network:
    return words.network('anole', words.tokenizer(
        words.names(emoji.WORDS, self.tokenizer.codebook_size)))
