"""Recipe of the models of scenes of emoji."""

import dataclasses
from typing import ClassVar

import numpy as np

from experiments.demo_models import emoji, text_recipe


@dataclasses.dataclass(frozen=True)
class EmojiRecipe(text_recipe.TextRecipe):
  """Recipe of early-fusion models of scenes of emoji; see `text_recipe.TextRecipe` and `emoji`.

  Attributes:
    fluent: folder of the files of Fluent Emoji.
    noto: file of Noto Color Emoji.
    names: file of the short names.
  """

  words: ClassVar[tuple[str, ...]] = emoji.WORDS
  examples: ClassVar[tuple[str, ...]] = emoji.EXAMPLES

  fluent: str = dataclasses.field(default=emoji.FLUENT, kw_only=True)
  noto: str = dataclasses.field(default=emoji.NOTO, kw_only=True)
  names: str = dataclasses.field(default=emoji.SHORT_NAMES, kw_only=True)

  def prepare(self) -> None:
    """See `stages.Stages`."""
    self._sprites()

  def crops(self, seed: int, index: int, split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns scenes and their captions; see `stages.Stages`."""
    scenes = emoji.scenes(self._sprites(), seed, index, split, size, self.image_size)
    return scenes.images, scenes.captions

  def _sprites(self) -> emoji.Sprites:
    """Returns the things."""
    return emoji.load(self.fluent, self.noto, self.names)
