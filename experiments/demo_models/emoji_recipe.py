"""Recipe of the shipped text-to-image model: scenes of emoji with captions."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from cspd_jax.models import early_fusion
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import templates
from experiments.demo_models import emoji, recipe, stages, words


def vocabulary(num_codes: int) -> dict[str, Any]:
  """Returns the fields of an `EarlyFusionConfig` that describe its tokens.

  Args:
    num_codes: codes of the image tokenizer.
  """
  return words.ids(emoji.WORDS, num_codes)._asdict()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenes(stages.Stages):
  """Scenes of emoji and their captions as the images of a recipe.

  Attributes:
    fluent: folder of the files of Fluent Emoji.
    noto: file of Noto Color Emoji.
    names: file of the short names.
  """

  fluent: str = emoji.FLUENT
  noto: str = emoji.NOTO
  names: str = emoji.SHORT_NAMES

  @property
  def metadata(self) -> dict[str, Any]:
    """Metadata that is stored with the networks, JSON-serialisable."""
    return {'prompts': list(emoji.EXAMPLES), 'image_size': self.image_size}

  def prepare(self) -> None:
    """Opens the images, so that their errors come before the work."""
    self._sprites()

  def crops(self, seed: int, index: int, split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns scenes and their captions."""
    scenes = emoji.scenes(self._sprites(), seed, index, split, size, self.image_size)
    return scenes.images, scenes.captions

  def _sprites(self) -> emoji.Sprites:
    """Returns the things."""
    return emoji.load(self.fluent, self.noto, self.names)

  def captions(self, labels: np.ndarray) -> list[str]:
    """Returns descriptions of crops with these labels."""
    return labels.tolist()


@dataclasses.dataclass(frozen=True)
class EmojiRecipe(Scenes, recipe.TokenRecipe):
  """Recipe of early-fusion models conditioned on captions.

  Prompts have Anole's template; rows and images end with special tokens, as Lumina-mGPT's do.

  Attributes:
    target: configuration of the target.
    draft: configuration of the draft model.
  """

  family: ClassVar[str] = 'early_fusion'

  target: early_fusion.EarlyFusionConfig
  draft: early_fusion.EarlyFusionConfig

  def __post_init__(self):
    super().__post_init__()
    side = self.side(self.tokenizer.factor)
    expected = {'height': side, 'width': side,
                **vocabulary(self.tokenizer.codebook_size)}
    for role in self.models:
      stages.check_model(role, getattr(self, role), expected)

  def small(self) -> 'EmojiRecipe':
    """Returns the recipe with tiny networks, for crops of 8x8 pixels."""
    model = early_fusion.EarlyFusionConfig(
        height=4, width=4, dim=16, num_layers=1, num_heads=1, ffn_dim=16,
        **vocabulary(recipe.SMALL_TOKENIZER.codebook_size))
    return dataclasses.replace(self, tokenizer=recipe.SMALL_TOKENIZER, target=model, draft=model,
                               tokenizer_of=None, tokenizer_from=None, image_size=8)

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
    """Returns the text tokenizer as a network."""
    return words.network('anole', words.file(emoji.WORDS, self.tokenizer.codebook_size))

  def networks(self, tokenizer: Any, models: Mapping[str, Any],
               data: Mapping[str, stages.Split]) -> dict[str, stages.Network]:
    """Returns the trained networks by their role in a model."""
    return super().networks(tokenizer, models, data) | {'text': self._text()}
