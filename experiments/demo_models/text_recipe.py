"""How the shipped model of prompts in words is made."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from cspd_jax.models import early_fusion
from cspd_jax.models.causal import Prompt
from cspd_jax.text import bpe, templates as prompts_lib
from experiments.demo_models import photo_captions, recipe, stages, words

_FORM = 'anole'


def vocabulary(num_codes: int) -> dict[str, Any]:
  """The fields of a `EarlyFusionConfig` that say which tokens there are, for so many codes."""
  return words.ids(photo_captions.WORDS, num_codes)._asdict()


@dataclasses.dataclass(frozen=True)
class TextRecipe(recipe.TokenRecipe):
  """Everything that determines an early-fusion model of captions; see `recipe.TokenRecipe`.

  Its prompts are written as Anole's; rows and images end with tokens, as Lumina-mGPT's do.

  Attributes:
    target: sizes of the target.
    draft: sizes of the draft model.
    top_k: of the exported model; None keeps all tokens.
  """

  family: ClassVar[str] = 'early_fusion'

  target: early_fusion.EarlyFusionConfig
  draft: early_fusion.EarlyFusionConfig
  top_k: int | None = dataclasses.field(default=None, kw_only=True)

  def __post_init__(self):
    super().__post_init__()
    side = self.side(self.tokenizer.factor)
    wanted = {'height': side, 'width': side, **vocabulary(self.tokenizer.codebook_size)}
    for role in stages.MODELS:
      stages.check_model(role, getattr(self, role), wanted)

  def small(self) -> 'TextRecipe':
    """See `stages.Stages`."""
    model = early_fusion.EarlyFusionConfig(
        height=4, width=4, dim=16, num_layers=1, num_heads=1, ffn_dim=16,
        **vocabulary(recipe.SMALL_TOKENIZER.codebook_size))
    return dataclasses.replace(self, tokenizer=recipe.SMALL_TOKENIZER, target=model, draft=model,
                               tokenizer_of=None, image_size=8)

  @property
  def metadata(self) -> dict[str, Any]:
    """See `stages.Stages`."""
    return {'prompts': list(photo_captions.EXAMPLES), 'image_size': self.image_size}

  @property
  def defaults(self) -> dict[str, Any]:
    """See `stages.Stages`."""
    return super().defaults | ({} if self.top_k is None else {'top_k': self.top_k})

  def crops(self, seed: int, index: int, split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Crops and their captions; see `stages.Stages`."""
    return photo_captions.captioned(stages.photos(), seed, index, split, size, self.image_size)

  def described(self, labels: np.ndarray) -> list[str]:
    """See `stages.Stages`."""
    return labels.tolist()

  def sequences(self, data: stages.Split) -> tuple[np.ndarray, Prompt]:
    """Images with the tokens of the grammar, and their prompts; see `recipe.TokenRecipe`."""
    codes, shown = data
    return np.asarray(early_fusion.with_grammar(self.target, codes)), self._prompts(shown.tolist())

  def _prompts(self, shown: list[str]) -> Prompt:
    """Captions as the model reads them."""
    config, text = self.target, bpe.read(self._text().params, _FORM)
    written = {caption: prompts_lib.anole(text, caption, config.height, config.width)
               for caption in dict.fromkeys(shown)}
    return early_fusion.renumbered(
        config, prompts_lib.padded([written[caption] for caption in shown]))

  def _text(self) -> stages.Network:
    """The tokenizer file as a network."""
    file = np.frombuffer(
        words.file(photo_captions.WORDS, self.tokenizer.codebook_size), np.uint8).copy()
    return stages.Network('text', bpe.TextConfig(_FORM, len(file)), {'file': file})

  def networks(self, tokenizer: Any, models: Mapping[str, Any],
               data: Mapping[str, stages.Split]) -> dict[str, stages.Network]:
    """See `stages.Stages`."""
    return super().networks(tokenizer, models, data) | {'text': self._text()}
