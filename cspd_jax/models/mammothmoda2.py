"""MammothModa2's autoregressive part (arXiv 2511.18262): a Qwen with a vocabulary of images.

The published models, Preview and Dev, are a Qwen2.5 and a Qwen3 with a second vocabulary, for
images. Some layers have a second feed-forward network, for its tokens: rows of codes, each of which
ends with a token of the grammar, as in `early_fusion`. The tokens before an image that announce it
belong to this vocabulary too, so a prompt is mixed, and a window holds tokens of images alone.

The published rotation has three axes; without an image in the prompt all of them are the position
in the sequence.
"""

import dataclasses

from cspd_jax.core import fields
from cspd_jax.models import causal, early_fusion, transformer

# Pixels of a code along each side, for grids of the default size; others may have as many pixels.
CODE_PIXELS = 32


@dataclasses.dataclass(frozen=True)
class MammothConfig(early_fusion.EarlyFusionConfig):
  """Sizes of a model, as `early_fusion.EarlyFusionConfig` has them; the defaults are Preview's.

  Attributes:
    text_size: tokens of text, whose published ids come first; all others are tokens of images.
    image_layers: as in `transformer.TransformerConfig`.
  """

  dim: int = 3584
  num_layers: int = 28
  num_heads: int = 28
  ffn_dim: int = 18944
  num_kv_heads: int | None = 4
  rope_base: float = 1e6
  norm_eps: float = 1e-6
  vocab_size: int = 184864
  num_codes: int = 16384
  first_code: int = 152072
  row_end: int | None = 152064
  named_codes: bool = False
  qk_norm: bool = False
  qkv_bias: bool = True
  text_size: int = 152064
  image_layers: tuple[int, ...] = (14, 28)

  def __post_init__(self):
    super().__post_init__()
    if min(self.first_code, *self.ends) < self.text_size:
      raise ValueError(f'text_size is {self.text_size}; codes and ends of rows must follow the '
                       f'tokens of text, but are {self.first_code} and {self.ends}.')

  def check(self, name: str = 'dim', axes: int = 1, **ranges: fields.Range) -> None:
    """Checks the fields like `DecoderOnlySizes.check`."""
    super().check(name, axes, **ranges | {'image_layers': (0, fields.MOST_LAYERS)})

  @property
  def image_vocab_size(self) -> int:
    """The number of tokens of the vocabulary of images."""
    return self.vocab_size - self.text_size

  @property
  def transformer(self) -> transformer.TransformerConfig:
    """Sizes of the transformer."""
    return dataclasses.replace(super().transformer, image_layers=self.image_layers)

  def causal(self, num_streams: int) -> causal.Causal:
    """The specification of the model."""
    model = super().causal(num_streams)

    def embed(params, prompt, count):
      # Text follows the tokens of an image.
      ids = prompt.first(count).rows()[0] - self.num_image_tokens
      return model.embed_condition(params, prompt, count)._replace(
          is_text=(ids >= 0) & (ids < self.text_size))

    return model._replace(embed_condition=embed)


# The published models. The layers of Dev with a second network are assumed, by its three billion
# parameters for images; a config.json states them.
PRESETS: dict[str, MammothConfig] = {
    'mammothmoda2_preview': MammothConfig(),
    'mammothmoda2_dev': MammothConfig(
        dim=4096, num_layers=36, num_heads=32, num_kv_heads=8, ffn_dim=12288, rope_base=5e6,
        qkv_bias=False, qk_rms_norm=True, image_layers=(16, 36))}
