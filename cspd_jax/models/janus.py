"""Janus-Pro (arXiv 2501.17811): a LLaMA transformer with a vocabulary of its own for images.

A sequence is a prompt, which ends with the token that announces an image, followed by the codes of
the image row by row. The published embedding of a code is a vector of 8 numbers that goes through a
small network; here it is a row of the table of tokens, which the conversion computes. A head with a
hidden layer predicts the codes; that of text is left out.

Only codes are predicted, so they come first in the vocabulary: token `i` is code `i`, and the
published id `i` of text is token `num_codes + i`. There is no grammar.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.decoding import base
from cspd_jax.decoding.drafters.feature_network import Network
from cspd_jax.models import causal, conditions, transformer
from cspd_jax.models.conditions import Prompt
from cspd_jax.models.ends import Ends, HiddenHead
from cspd_jax.models.rope import RopeFunction, sequence_rope

Params = Any


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


# The published models, whose images have one size.
PRESETS: dict[str, JanusConfig] = {
    'janus_pro_1b': JanusConfig(),
    'janus_pro_7b': JanusConfig(dim=4096, num_layers=30, num_heads=32, ffn_dim=11008)}


def renumbered(config: JanusConfig, prompt: Prompt) -> Prompt:
  """Converts a prompt of published ids of text to this library's tokens, as host arrays.

  Raises:
    ValueError: for ids outside the model's vocabulary.
  """
  tokens = np.asarray(prompt.tokens)
  if tokens.size and not 0 <= tokens.min() <= tokens.max() < config.text_size:
    raise ValueError(f'prompts holds tokens from {tokens.min()} to {tokens.max()}; this model '
                     f'supports 0 to {config.text_size - 1}.')
  return Prompt((tokens + config.num_codes).astype(np.int32), np.asarray(prompt.visible, bool))


def init(config: JanusConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters: normal with deviation 0.02, norms one, last matrix zero."""
  def run(key: jax.Array) -> Params:
    features = jnp.zeros((1, 1, config.dim))
    rope = _rope(config)(jnp.zeros((1, 1), jnp.int32))
    return {
        'transformer': transformer.Transformer(config.transformer).init(
            key, features, rope, jnp.ones((1, 1, 1), bool))['params'],
        'head': _head(config).init(jax.random.fold_in(key, 1), features)['params']}

  return jax.jit(run)(key)


def target(config: JanusConfig, *, guided: bool) -> base.Target:
  """Returns the model as a decoding target.

  Args:
    config: the model's sizes.
    guided: whether to run the second stream of the condition as well.

  Returns:
    The target; its condition is a `Prompt` in this library's tokens. The second stream is the
    context that guidance leads away from; without guidance it is ignored.
  """
  streams = 2 if guided else 1
  return causal.target(_causal(config, streams), streams)


def ends(config: JanusConfig) -> Ends:
  """Returns the embedding and the output head, which drafters share."""
  return causal.ends(_causal(config, 1))


def first_layers(params: Params, config: JanusConfig, num_layers: int
                 ) -> tuple[Params, Callable[[bool], Network]]:
  """Returns the model's first layers as a drafting network; see `causal.first_layers`."""
  small = dataclasses.replace(config, num_layers=num_layers)
  return causal.first_layers(params, num_layers, functools.partial(_causal, small))


def logits_and_features(
    params: Params, config: JanusConfig, condition: Prompt, tokens: jax.Array, drop: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Returns next-token logits and features of images; see `early_fusion.logits_and_features`.

  Args:
    params: parameters of the model.
    config: its sizes.
    condition: a `Prompt` of two streams.
    tokens: `[B, T]` image tokens (or the first few of them).
    drop: `[B]` bool; True selects the second stream of an image instead of the first.

  Returns:
    logits `[B, T, V]` and features `[B, C + T - 1, D]`, of the prompt's tokens and of all image
    tokens but the last.
  """
  model = _causal(config, 1)
  return causal.forward(
      params, model, model.embed_condition(params, condition.dropped(drop), 1), tokens[:, :-1])[:2]


def _rope(config: JanusConfig) -> RopeFunction:
  return sequence_rope(config.head_dim, config.rope_base)


def _head(config: JanusConfig) -> HiddenHead:
  assert config.output_dim is not None  # Set in `__post_init__`.
  return HiddenHead(config.output_dim, config.num_codes)


def _causal(config: JanusConfig, num_streams: int) -> causal.Causal:
  """Returns the specification of this model."""
  def embed_condition(params: Params, condition: Prompt, count: int) -> causal.EmbeddedCondition:
    return causal.embed_prompt(params, config.transformer, condition.first(count))

  def check_condition(condition: Any) -> Any:
    if isinstance(condition, Prompt) and np.ndim(condition.tokens) == 3:
      condition = condition.first(num_streams)
    return conditions.check_prompt(condition, num_streams, config.vocab_size)

  return causal.Causal(
      transformer=config.transformer, embed_condition=embed_condition, rope=_rope(config),
      num_tokens=config.num_tokens, row_width=config.width, check_condition=check_condition,
      logits=lambda params, features: _head(config).apply({'params': params['head']}, features),
      num_outputs=config.num_codes)
