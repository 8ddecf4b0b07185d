"""Janus-Pro (arXiv 2501.17811): a LLaMA transformer with a vocabulary of its own for images.

A sequence is a prompt, which ends with the token that announces an image, followed by the codes of
the image row by row. The published embedding of a code is a vector of 8 numbers that goes through a
small network; here it is a row of the table of tokens, which the conversion computes. A head with a
hidden layer predicts the codes; that of text is left out.

Only codes are predicted, so they come first in the vocabulary: token `i` is code `i`, and the
published id `i` of text is token `num_codes + i`. There is no grammar.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.models import causal, conditions, decoder_only, transformer
from cspd_jax.models.conditions import Prompt
from cspd_jax.models.ends import HiddenHead

Params = Any
# The functions of every model whose condition is a `Prompt` in this library's tokens.
target, ends = decoder_only.target, decoder_only.ends
first_layers = decoder_only.first_layers
logits_and_features = decoder_only.logits_and_features


@dataclasses.dataclass(frozen=True)
class JanusConfig:
  """Sizes of a model; the defaults are those of Janus-Pro-1B.

  Attributes:
    height: rows of codes of an image.
    width: codes of a row.
    num_codes: codes of the image tokenizer.
    text_size: published ids of text.
    dim: model width.
    num_layers: number of blocks.
    num_heads: attention heads.
    num_kv_heads: key/value heads; None means `num_heads`.
    ffn_dim: hidden width of the feed-forward layers.
    output_dim: hidden width of the output head; None means `dim`.
    rope_base: base of the rotary frequencies.
    norm_eps: added to the mean square in the norms.
  """

  height: int = 24
  width: int = 24
  num_codes: int = 16384
  text_size: int = 102400
  dim: int = 2048
  num_layers: int = 24
  num_heads: int = 16
  num_kv_heads: int | None = None
  ffn_dim: int = 5632
  output_dim: int | None = None
  rope_base: float = 10000.0
  norm_eps: float = 1e-6

  def __post_init__(self):
    side = (1, fields.MOST_SIDE)
    fields.check(self, height=side, width=side, num_layers=(1, fields.MOST_LAYERS))
    for name, value in (('num_kv_heads', self.num_heads), ('output_dim', self.dim)):
      if getattr(self, name) is None:
        object.__setattr__(self, name, value)
    if self.dim % (2 * self.num_heads):
      raise ValueError(f'dim is {self.dim} with num_heads {self.num_heads}; it must be a multiple '
                       f'of 2 * num_heads ({2 * self.num_heads}), because pairs of numbers rotate.')
    _ = self.transformer  # Checks the sizes that only the transformer uses.

  @property
  def head_dim(self) -> int:
    """Width of an attention head."""
    return self.dim // self.num_heads

  @property
  def num_tokens(self) -> int:
    """The number `T` of tokens of an image."""
    return self.height * self.width

  @property
  def row_width(self) -> int:
    """Tokens of an image row."""
    return self.width

  @property
  def num_image_tokens(self) -> int:
    """The number `V` of tokens that can occur in an image."""
    return self.num_codes

  @property
  def vocab_size(self) -> int:
    """The number of codes and ids of text, the rows of the table of tokens."""
    return self.num_codes + self.text_size

  @property
  def transformer(self) -> transformer.TransformerConfig:
    """Sizes of the transformer, which has no output matrix."""
    assert self.num_kv_heads is not None  # Set in `__post_init__`.
    return transformer.TransformerConfig(
        vocab_size=self.vocab_size, num_outputs=0, dim=self.dim, num_layers=self.num_layers,
        num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim,
        ffn_dim=self.ffn_dim, norm_eps=self.norm_eps)

  @property
  def head(self) -> HiddenHead:
    """The output head."""
    assert self.output_dim is not None  # Set in `__post_init__`.
    return HiddenHead(self.output_dim, self.num_codes)

  def causal(self, num_streams: int) -> causal.Causal:
    """The specification of the model."""
    return decoder_only.prompted(self, num_streams)._replace(
        logits=lambda params, features: self.head.apply({'params': params['head']}, features),
        num_outputs=self.num_codes)


# The published models, whose images have one size.
PRESETS: dict[str, JanusConfig] = {
    'janus_pro_1b': JanusConfig(),
    'janus_pro_7b': JanusConfig(dim=4096, num_layers=30, num_heads=32, ffn_dim=11008)}


def renumbered(config: JanusConfig, prompt: Prompt) -> Prompt:
  """Converts published ids of text to this library's tokens."""
  return conditions.renumbered(prompt, np.arange(config.num_codes, config.vocab_size))


def init(config: JanusConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters: normal with deviation 0.02, norms one, last matrix zero."""
  def run(key: jax.Array) -> Params:
    return {
        'transformer': decoder_only.init_transformer(config, key),
        'head': config.head.init(
            jax.random.fold_in(key, 1), jnp.zeros((1, 1, config.dim)))['params']}

  return jax.jit(run)(key)
