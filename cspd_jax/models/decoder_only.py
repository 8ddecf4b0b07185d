"""Sizes and functions of decoder-only image models, by the config of a model.

A config is a frozen dataclass with `num_layers` and the method `causal(num_streams)`, which returns
the model's specification. If the condition is a `Prompt`, `prompted` builds most of it. Configs
here are `DecoderOnlySizes`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from cspd_jax.core import fields
from cspd_jax.decoding import base
from cspd_jax.decoding.drafters.feature_network import Network
from cspd_jax.models import causal, conditions, ends as ends_lib, transformer
from cspd_jax.models.conditions import Prompt
from cspd_jax.models.ends import Ends
from cspd_jax.models.transformer import sequence_rope

Params = Any
Config = Any


@dataclasses.dataclass(frozen=True)
class DecoderOnlySizes:
  """The sizes of every model here, whose configs add defaults and what is particular to them.

  Attributes:
    height: rows of tokens of an image, without the grammar's.
    width: tokens of a row, likewise.
    dim: model width.
    num_layers: number of blocks.
    num_heads: attention heads.
    ffn_dim: hidden width of the feed-forward layers.
    num_kv_heads: key/value heads; None means `num_heads`.
    rope_base: base of the rotary frequencies.
    norm_eps: added to the mean square in the norms.
    has_null: whether there is a null condition, so that images can be guided.
  """

  has_null: ClassVar[bool] = True

  height: int
  width: int
  dim: int
  num_layers: int
  num_heads: int
  ffn_dim: int | None
  num_kv_heads: int | None = None
  rope_base: float = 10000.0
  norm_eps: float = 1e-5

  def check(self, name: str = 'dim', axes: int = 1, **ranges: fields.Range) -> None:
    """Checks the fields like `fields.check`, and as `transformer.complete_heads` does."""
    side = (1, fields.MOST_SIDE)
    fields.check(self, height=side, width=side, num_layers=(1, fields.MOST_LAYERS), **ranges)
    transformer.complete_heads(self, name, axes)

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

  def sizes(self, vocab_size: int, **more: Any) -> transformer.TransformerConfig:
    """Returns the sizes of the transformer; `more` are further ones."""
    assert self.num_kv_heads is not None and self.ffn_dim is not None  # Set in `__post_init__`.
    return transformer.TransformerConfig(
        vocab_size=vocab_size, dim=self.dim, num_layers=self.num_layers, num_heads=self.num_heads,
        num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, ffn_dim=self.ffn_dim,
        norm_eps=self.norm_eps, **more)


def target(config: Config, *, guided: bool) -> base.Target:
  """Returns the model as a decoding target.

  If `guided`, the second stream is run as well: the null condition or, in a `Prompt`, the context
  that guidance leads away from, which is ignored without guidance. Models without one have one
  stream in any case, and decoders refuse to guide them.
  """
  streams = _streams(config, guided)
  return causal.target(config.causal(streams), streams)


def _streams(config: Config, guided: bool) -> int:
  return 2 if guided and config.has_null else 1


def ends(config: Config) -> Ends:
  """Returns the embedding and the output head, which drafters share."""
  return causal.ends(config.causal(1))


def first_layers(params: Params, config: Config, num_layers: int
                 ) -> tuple[Params, Callable[[bool], Network]]:
  """Returns a drafting network of the model's first layers, its final norm and its output head.

  These are the parameters of the network, without a copy, and `guided -> Network`.
  """
  small = dataclasses.replace(config, num_layers=num_layers)

  def build(guided: bool) -> Network:
    streams = _streams(config, guided)
    return causal.network(small.causal(streams), streams)

  return ends_lib.first_layers(params, num_layers), build


def prompted(config: Config, num_streams: int) -> causal.Causal:
  """Returns the specification of a model whose condition is a `Prompt` of this library's tokens.

  Prompts have their embeddings in the table of the transformer, and positions rotate by their place
  in the sequence. The config has `transformer`, `head_dim`, `rope_base`, `num_tokens` and
  `row_width`.
  """
  sizes = config.transformer
  return causal.Causal(
      transformer=sizes,
      embed_condition=lambda params, prompt, count: causal.embed_prompt(
          params, sizes, prompt.first(count)),
      rope=sequence_rope(config.head_dim, config.rope_base), num_tokens=config.num_tokens,
      row_width=config.row_width, check_condition=lambda condition: conditions.check_prompt(
          condition, num_streams, sizes.vocab_size))


def init_transformer(config: Config, key: jax.Array) -> Params:
  """Initialises the transformer of a model whose tokens rotate by their place in the sequence."""
  rope = sequence_rope(config.head_dim, config.rope_base)(jnp.zeros((1, 1), jnp.int32))
  # A token of text, so that layers with two feed-forward networks have both.
  return transformer.Transformer(config.transformer).init(
      key, jnp.zeros((1, 1, config.dim)), rope, jnp.ones((1, 1, 1), bool), None, None,
      jnp.ones((1, 1), bool))['params']


def init(config: Config, key: jax.Array) -> Params:
  """Initialises float32 parameters: normal with deviation 0.02, norms one, output matrix zero."""
  run = lambda key: {'transformer': init_transformer(config, key)}
  return jax.jit(run)(key)


def logits_and_features(
    params: Params, config: Config, condition: Prompt, tokens: jax.Array, drop: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Returns next-token logits and features of whole images, for training and evaluation.

  Tokens are `[B, T]` (or the first few of them); `drop` `[B]` bool selects the last stream of an
  image instead of the first. Returns logits `[B, T, V]` float32, and features after the final norm
  `[B, C + T - 1, D]` of the condition's tokens and of all image tokens but the last; feature
  `C - 1 + i` yields the logits of token `i`.
  """
  model = config.causal(1)
  return causal.forward(
      params, model, model.embed_condition(params, condition.dropped(drop), 1), tokens[:, :-1])[:2]
