"""GLM-Image's autoregressive part: a GLM-4 whose tokens are drawn twice, small and then large.

A sequence is a prompt, which states both grids and ends with the token that announces an image; the
codes of the small grid row by row; the codes of the large grid; and the token that ends the image.
The codes of the large grid, cells of 32 x 32 pixels, condition a diffusion model that draws the
pixels.
There is one stream: the model has no null condition.

Half of every attention head rotates, in sections by a temporal, a vertical and a horizontal
position. A token of the prompt has one position on all three axes. The cells of a grid share the
temporal position at which the grid begins, and count rows and columns from there; the next grid
begins behind its longer side. Attention depends on differences of positions only, so the first code
has position 0 here and the prompt negative ones, and the position of a code depends on its number
alone.

Only codes are predicted, so they come first in the vocabulary: codes, then the end of the image,
then all others in the order of the published ids (`order`). The output matrix has columns for the
codes only.
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.models import causal, conditions, decoder_only, neighbours, transformer
from cspd_jax.models.conditions import Prompt
from cspd_jax.models.transformer import Rope, RopeFunction

Params = Any
# The functions of every model whose condition is a `Prompt` in this library's tokens.
target, init = decoder_only.target, decoder_only.init
logits_and_features = decoder_only.logits_and_features
# Pixels of a code of the large grid along each side.
CODE_PIXELS = 32


@dataclasses.dataclass(frozen=True)
class GlmImageConfig(decoder_only.DecoderOnlySizes):
  """Sizes of a model; the defaults are the published ones.

  Attributes:
    height: rows of the large grid.
    width: its columns.
    small_side: rows and columns of the small grid of square images; see `small`.
    vocab_size: number of all tokens, including text.
    num_codes: codes, whose published ids are their numbers.
    image_end: published id of the token that ends an image.
    output_size: rows of the published output matrix, the codes first.
    sections: pairs of an attention head that rotate by the temporal, the vertical and the
      horizontal position; the other pairs do not rotate.
    qkv_bias: as in `transformer.TransformerConfig`, like the other fields.
  """

  has_null: ClassVar[bool] = False

  height: int = 32
  width: int = 32
  dim: int = 4096
  num_layers: int = 40
  num_heads: int = 32
  ffn_dim: int = 13696
  num_kv_heads: int | None = 2
  small_side: int = 16
  vocab_size: int = 168064
  num_codes: int = 16384
  image_end: int = 16385
  output_size: int = 16512
  sections: tuple[int, ...] = (8, 12, 12)
  qkv_bias: bool = True

  def __post_init__(self):
    self.check(small_side=(1, fields.MOST_SIDE), image_end=(0, fields.MOST),
               sections=(0, fields.MOST))
    if not self.num_codes <= self.image_end < self.output_size <= self.vocab_size:
      raise ValueError(
          f'num_codes is {self.num_codes}, image_end {self.image_end}, output_size '
          f'{self.output_size} and vocab_size {self.vocab_size}; the end must follow the codes, '
          'within the outputs, and these must lie within the vocabulary.')
    fields.require(
        len(self.sections) == 3 and 0 < sum(self.sections) <= self.head_dim // 2,
        'sections', self.sections, 'three numbers of pairs, for the temporal, the vertical and the '
        f'horizontal position, of the {self.head_dim // 2} of a head')
    if 0 in self.small:
      raise ValueError(
          f'height is {self.height} and width is {self.width}; the small grid of an image this '
          f'narrow has {self.small[0]}x{self.small[1]} tokens, so choose sides that are less '
          'unequal.')
    _ = self.transformer  # Checks the sizes that only the transformer uses.

  @property
  def image_start(self) -> int:
    """Published id of the token that announces an image, which follows the codes."""
    return self.num_codes

  @property
  def rotary_factor(self) -> float:
    """The share of an attention head that rotates."""
    return 2 * sum(self.sections) / self.head_dim

  @property
  def small(self) -> tuple[int, int]:
    """Rows and columns of the small grid, of about `small_side**2` tokens, rounded down."""
    ratio = self.height / self.width
    side = self.small_side
    return int(math.sqrt(ratio) * side), int(math.sqrt(1 / ratio) * side)

  @property
  def num_small(self) -> int:
    """The number of tokens of the small grid."""
    return math.prod(self.small)

  @property
  def num_tokens(self) -> int:
    """The number `T` of tokens of an image: both grids and the end."""
    return self.num_small + self.height * self.width + 1

  @property
  def num_image_tokens(self) -> int:
    """The number `V` of tokens that can occur in an image."""
    return self.num_codes + 1

  @property
  def transformer(self) -> transformer.TransformerConfig:
    """Sizes of the transformer."""
    return self.sizes(self.vocab_size, num_outputs=self.num_codes, post_norm=True,
                      qkv_bias=self.qkv_bias)

  def causal(self, num_streams: int) -> causal.Causal:
    """The specification of the model, which has one stream."""
    return decoder_only.prompted(self, num_streams)._replace(
        embed_condition=lambda params, prompt, count: _embed_prompt(
            params, self.transformer, prompt.first(count)),
        rope=rope(self), num_forced=1, forced=lambda numbers: forced(self, numbers),
        small=lambda numbers: small_cells(self, numbers))


# The published model, at its authors' default size.
PRESETS: dict[str, GlmImageConfig] = {'glm_image_9b': GlmImageConfig()}


def order(config: GlmImageConfig) -> np.ndarray:
  """Returns the published ids `[vocab_size]` in the order of this library's tokens."""
  ids = np.arange(config.vocab_size)
  others = np.delete(ids, config.image_end)[config.num_codes:]
  return np.concatenate([ids[:config.num_codes], ids[config.image_end:][:1], others])


def renumbered(config: GlmImageConfig, prompt: Prompt) -> Prompt:
  """Converts published ids to this library's tokens."""
  return conditions.renumbered(prompt, np.argsort(order(config)))


def forced(config: GlmImageConfig, numbers: jax.Array) -> jax.Array:
  """Returns the end of the image behind both grids, and -1 within; see `decoding.base.Target`."""
  return jnp.where(numbers < config.num_tokens - 1, -1, config.num_codes)


def small_cells(config: GlmImageConfig, numbers: jax.Array) -> jax.Array:
  """Returns the numbers of the tokens that show the cells of the large grid in the small one.

  These are -1 for tokens of the small grid and the end; see `decoding.base.Target`.
  """
  cells = neighbours.small_cells(config.small, config.height, config.width)
  table = np.concatenate([np.full(config.num_small, -1), cells, [-1]]).astype(np.int32)
  return jnp.asarray(table)[jnp.clip(numbers, 0, config.num_tokens - 1)]


def grids(config: GlmImageConfig, tokens: Any) -> tuple[Any, Any]:
  """Returns the small and the large grid `[B, rows, columns]` of images `[B, T]`."""
  first, last = config.num_small, config.num_tokens - 1
  return (tokens[:, :first].reshape(-1, *config.small),
          tokens[:, first:last].reshape(-1, config.height, config.width))


def positions(config: GlmImageConfig) -> np.ndarray:
  """Returns temporal, vertical and horizontal positions `[T, 3]` of the tokens of an image.

  The first token has position 0 on all axes.
  """
  parts, start = [], 0
  for rows, columns in (config.small, (config.height, config.width)):
    cells = np.indices((rows, columns)).reshape(2, -1)
    parts.append(start + np.stack([np.zeros(rows * columns, int), *cells], axis=1))
    start += max(rows, columns)
  return np.concatenate([*parts, np.full((1, 3), start)])


def rope(config: GlmImageConfig) -> RopeFunction:
  """Returns the rotation by three positions, of prompts before and of images from number 0 on.

  Numbers past the end have the positions of the end.
  """
  # The axis that each rotating pair turns by; the pairs behind them have cosine 1 and sine 0.
  axis = np.repeat(np.arange(3), config.sections)
  turns = transformer.frequencies(len(axis), config.rope_base)
  of_image = positions(config)[:, axis]
  rest = ((0, 0), (0, 0), (0, config.head_dim // 2 - len(axis)))

  def run(numbers: jax.Array) -> Rope:
    cells = jnp.asarray(of_image)[jnp.clip(numbers, 0, config.num_tokens - 1)]
    angles = jnp.where(numbers[..., None] < 0, numbers[..., None], cells) * turns
    return Rope(jnp.pad(jnp.cos(angles), rest, constant_values=1), jnp.pad(jnp.sin(angles), rest))

  return run


def _embed_prompt(params: Params, sizes: transformer.TransformerConfig, prompt: Prompt
                  ) -> causal.EmbeddedCondition:
  """Embeds prompts, whose positions end at -1, so that images have the same ones in all rows."""
  embedded = causal.embed_prompt(params, sizes, prompt)
  visible, places, length = embedded.positions
  return embedded._replace(positions=causal.ConditionPositions(
      visible, places - length[:, None], jnp.zeros_like(length)))
