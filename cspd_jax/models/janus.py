"""Janus-Pro (arXiv 2501.17811): a LLaMA transformer with a vocabulary of its own for images.

A sequence is a prompt, which ends with the token that announces an image, followed by the codes of
the image row by row. The published embedding of a code is a vector of 8 numbers that goes through a
small network; here it is a row of the table of tokens, which the conversion computes. A head with a
hidden layer predicts the codes; the one for text is left out.

Only codes are predicted, so they come first in the vocabulary: token `i` is code `i`, and the
published id `i` of text is token `num_codes + i`. There is no grammar.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.models import causal, conditions, decoder_only, transformer
from cspd_jax.models.conditions import Prompt
from cspd_jax.models.ends import HiddenHead

Params = Any
# The functions of every model whose condition is a `Prompt` in this library's tokens.
target, logits_and_features = decoder_only.target, decoder_only.logits_and_features


@dataclasses.dataclass(frozen=True)
class JanusConfig(decoder_only.DecoderOnlySizes):
  """Sizes of a model; the defaults are Janus-Pro-1B's sizes.

  Attributes:
    num_codes: codes of the image tokenizer.
    text_size: published ids of text.
    output_dim: hidden width of the output head; None means `dim`.
  """

  height: int = 24
  width: int = 24
  dim: int = 2048
  num_layers: int = 24
  num_heads: int = 16
  ffn_dim: int = 5632
  num_codes: int = 16384
  text_size: int = 102400
  output_dim: int | None = None
  norm_eps: float = 1e-6

  def __post_init__(self):
    self.check()
    if self.output_dim is None:
      object.__setattr__(self, 'output_dim', self.dim)
    _ = self.transformer  # Checks the sizes that only the transformer uses.

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
    return self.sizes(self.vocab_size, num_outputs=0)

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
