"""Early fusion: transformers over one vocabulary of text and images.

These are Chameleon (arXiv 2405.09818), which coined the term, Emu3 (arXiv 2409.18869), Emu3.5
(arXiv 2510.26583), the models derived from Chameleon: Lumina-mGPT, Lumina-mGPT 2.0
(arXiv 2507.17801) and Anole; and language models with codes added to their vocabulary, SimpleAR
(arXiv 2504.11455) and Liquid (arXiv 2412.04332).

A sequence is a prompt, which ends with the tokens that announce an image and its size, followed by
the codes of the image row by row. A grammar may require special tokens at the end of each row and
of the image; these are the only tokens allowed there, and are not allowed elsewhere.

Only image tokens are predicted, so they come first in the vocabulary: codes, then the tokens of the
grammar, then all others in the order of the published ids (`order`). The output matrix has columns
for the codes only.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.models import causal, conditions, decoder_only, transformer
from cspd_jax.models.conditions import Prompt

# The functions of every model whose condition is a `Prompt` in this library's tokens.
target, ends, init = decoder_only.target, decoder_only.ends, decoder_only.init
logits_and_features = decoder_only.logits_and_features


@dataclasses.dataclass(frozen=True)
class EarlyFusionConfig(decoder_only.DecoderOnlySizes):
  """Sizes of a model, and the grammar of its images.

  Attributes:
    vocab_size: number of all tokens, including text.
    num_codes: codes of the image tokenizer.
    first_code: published id of the first code; the others follow it.
    row_end: published id of the token that ends every row; None if rows have no such token.
    ends_last_row: whether `row_end` follows the last row too.
    image_ends: published ids of the tokens that end the image, in their order.
    named_codes: whether the names of Chameleon's image tokens hold the codes of its image
      tokenizer; if not, code `i` is token `i`. Other image tokenizers have their codes in order.
    attention_dim: width of all attention heads together; None means `dim`.
    qk_norm: as in `transformer.TransformerConfig`, like the other fields.
  """

  height: int = 32
  width: int = 32
  dim: int = 4096
  num_layers: int = 32
  num_heads: int = 32
  ffn_dim: int = 11008
  vocab_size: int = 65536
  num_codes: int = 8192
  first_code: int = 4
  row_end: int | None = None
  ends_last_row: bool = True
  image_ends: tuple[int, ...] = ()
  named_codes: bool = True
  attention_dim: int | None = None
  qk_norm: bool = True
  qk_rms_norm: bool = False
  swin_norm: bool = False
  qkv_bias: bool = False
  activation: transformer.Activation = 'silu'

  def __post_init__(self):
    token = (0, fields.MOST)
    self.check('dim' if self.attention_dim is None else 'attention_dim',
               first_code=token, row_end=token, image_ends=token)
    last = self.first_code + self.num_codes - 1
    if not 0 <= self.first_code <= last < self.vocab_size:
      raise ValueError(f'first_code is {self.first_code} with {self.num_codes} codes; they must '
                       f'lie within the {self.vocab_size} tokens of the vocabulary.')
    ends = self.ends
    if len(set(ends)) < len(ends) or any(
        not 0 <= end < self.vocab_size or self.first_code <= end <= last for end in ends):
      raise ValueError(f'row_end and image_ends are {ends}; they must be different tokens of the '
                       f'vocabulary and not codes ({self.first_code} to {last}).')
    if self.row_end is None and not self.ends_last_row:
      raise ValueError('ends_last_row is False without row_end; leave it out, because rows have no '
                       'end.')
    _ = self.transformer  # Checks the sizes that only the transformer uses.

  @property
  def head_dim(self) -> int:
    """Width of an attention head."""
    return (self.attention_dim or self.dim) // self.num_heads

  @property
  def ends(self) -> tuple[int, ...]:
    """Published ids of the grammar's tokens, in the order of this library's tokens."""
    return (() if self.row_end is None else (self.row_end,)) + self.image_ends

  @property
  def row_width(self) -> int:
    """Tokens of an image row."""
    return self.width + (self.row_end is not None)

  @property
  def num_body(self) -> int:
    """Tokens of the rows of an image, without its end."""
    is_open = self.row_end is not None and not self.ends_last_row
    return self.height * self.row_width - is_open

  @property
  def num_tokens(self) -> int:
    """The number `T` of tokens of an image."""
    return self.num_body + len(self.image_ends)

  @property
  def num_image_tokens(self) -> int:
    """The number `V` of tokens that can occur in an image."""
    return self.num_codes + len(self.ends)

  @property
  def transformer(self) -> transformer.TransformerConfig:
    """Sizes of the transformer."""
    return self.sizes(
        self.vocab_size, num_outputs=self.num_codes, qk_norm=self.qk_norm,
        qk_rms_norm=self.qk_rms_norm, swin_norm=self.swin_norm, qkv_bias=self.qkv_bias,
        activation=self.activation)

  def causal(self, num_streams: int) -> causal.Causal:
    """The specification of the model."""
    return decoder_only.prompted(self, num_streams)._replace(
        num_forced=len(self.ends),
        forced=(lambda positions: forced(self, positions)) if self.ends else None)


def _published() -> dict[str, EarlyFusionConfig]:
  lumina = {
      f'lumina_mgpt_7b_{pixels}': EarlyFusionConfig(
          height=pixels // 16, width=pixels // 16, row_end=8803, image_ends=(8196,))
      for pixels in (512, 768, 1024)}
  emu3 = EarlyFusionConfig(
      height=90, width=90, vocab_size=184622, num_codes=32768, first_code=151854, row_end=151846,
      image_ends=(151847, 151853, 151850), num_kv_heads=8, ffn_dim=14336, qk_norm=False,
      rope_base=1e6)
  emu3_5 = dataclasses.replace(
      emu3, height=64, width=64, vocab_size=282926, num_codes=131072, ends_last_row=False,
      image_ends=(151853,), dim=5120, num_layers=64, num_heads=64, attention_dim=8192,
      ffn_dim=25600, qk_rms_norm=True)
  # Its transformer has the sizes of Chameleon's 7B; images have 768 pixels, 8 per code.
  lumina_2 = EarlyFusionConfig(
      height=96, width=96, vocab_size=171385, num_codes=16384, first_code=155000, row_end=151670,
      image_ends=(151666,))
  simplear = EarlyFusionConfig(
      height=64, width=64, vocab_size=215672, num_codes=64000, first_code=151672, named_codes=False,
      dim=896, num_layers=24, num_heads=14, num_kv_heads=2, ffn_dim=4864, qk_norm=False,
      qkv_bias=True, rope_base=1e6, norm_eps=1e-6)
  language_models = {
      'simplear_0_5b': simplear,
      'simplear_1_5b': dataclasses.replace(
          simplear, dim=1536, num_layers=28, num_heads=12, ffn_dim=8960),
      'liquid_7b': EarlyFusionConfig(
          vocab_size=264192, first_code=256000, named_codes=False, dim=3072, num_layers=28,
          num_heads=16, attention_dim=4096, ffn_dim=24576, qk_norm=False, activation='gelu_tanh',
          norm_eps=1e-6)}
  return lumina | {'lumina_mgpt_2_7b': lumina_2, 'anole_7b': EarlyFusionConfig(),
                   'emu3_gen_8b': emu3, 'emu3_5_34b': emu3_5} | language_models


# The published models, with the height and width of their square images.
PRESETS: dict[str, EarlyFusionConfig] = _published()


def order(config: EarlyFusionConfig) -> np.ndarray:
  """Returns the published ids `[vocab_size]` in the order of this library's tokens.

  Entry `i` is the id of token `i`: code `i` for the first `num_codes`, then the tokens of the
  grammar, `config.ends`, then all others.
  """
  codes = config.first_code + np.arange(config.num_codes)
  first = np.concatenate([codes, np.asarray(config.ends, codes.dtype)])
  is_other = np.ones(config.vocab_size, bool)
  is_other[first] = False
  return np.concatenate([first, np.flatnonzero(is_other)])


def renumbered(config: EarlyFusionConfig, prompt: Prompt) -> Prompt:
  """Converts published ids to this library's tokens."""
  return conditions.renumbered(prompt, np.argsort(order(config)))


def forced(config: EarlyFusionConfig, positions: jax.Array) -> jax.Array:
  """Returns the token that the grammar requires at each position, or -1.

  Positions past the end have the last token of the grammar. See `decoding.base.Target`.
  """
  body = config.num_body
  tokens = jnp.full_like(positions, -1)
  if config.row_end is not None:
    ends_row = positions % config.row_width == config.width
    tokens = jnp.where(ends_row, config.num_codes, tokens)
  if config.image_ends:
    first = config.num_codes + (config.row_end is not None)
    last = len(config.image_ends) - 1
    tokens = jnp.where(positions >= body, first + jnp.clip(positions - body, 0, last), tokens)
  return tokens


def codes(config: EarlyFusionConfig, tokens: jax.Array) -> jax.Array:
  """Returns the codes `[B, height * width]` of images `[B, T]`, without the grammar's tokens."""
  missing = config.height * config.row_width - config.num_body
  body = jnp.pad(tokens[:, :config.num_body], ((0, 0), (0, missing)))
  rows = body.reshape(-1, config.height, config.row_width)[:, :, :config.width]
  return rows.reshape(-1, config.height * config.width)


def with_grammar(config: EarlyFusionConfig, codes: Any) -> Any:
  """Returns images `[B, T]` of codes `[B, height * width]`, the inverse of `early_fusion.codes`."""
  with jax.ensure_compile_time_eval():
    tokens = np.asarray(forced(config, jnp.arange(config.num_tokens)))
  # The index of every token among the codes; not used for the grammar's tokens.
  index = np.cumsum(tokens < 0) - 1
  return jnp.where(tokens < 0, codes[:, index], tokens)
