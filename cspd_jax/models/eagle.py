"""EAGLE drafters: a decoder layer that continues a target's features (arXiv 2401.15077).

The network maps the embedding of a token and the feature that predicted it through one linear
layer, runs one or more decoder layers, and returns the next feature, which the target's output head
maps to logits. Token embedding and output head are the target's (`causal.ends`), frozen; see
`attach`. A drafter that is trained to correct windows may also hold a learned correction of its own
error; see `Correction`.

Families differ in the form of the layer, which each registers; see `Layer`.

In the shape descriptions `B` is the number of images, `S` of guidance streams, `R` of rows (`S B`),
`C` of condition tokens, `n` of new entries, `F` the width of a feature and `V` the number of
tokens that can be predicted. Entry `j` of the network's sequence pairs token `j + 1` of the
target's sequence with feature `j`, so the condition has `C - 1` entries.
"""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields, naming
from cspd_jax.decoding.drafters import correctors
from cspd_jax.decoding.drafters.eagle import Network
from cspd_jax.models import causal, ends as ends_lib, transformer
from cspd_jax.models.causal import Cache, ConditionPositions
from cspd_jax.models.conditions import Prompt
from cspd_jax.models.ends import Ends
from cspd_jax.models.layers import Linear
from cspd_jax.models.transformer import RopeFunction, grid_rope, sequence_rope

Params = Any


class Layer(NamedTuple):
  """The form of a drafter's decoder layer.

  Attributes:
    attention_norm: whether there is a norm before the attention.
    qk_norm: whether queries and keys are normalised per attention head before the rotation.
    by_grid: whether image tokens rotate by row and column, and the condition not at all; otherwise
      all tokens rotate by their position in the sequence.
    reads_prompt: whether the condition is a `conditions.Prompt`, whose tokens are read along with
      its features; otherwise token 0 replaces them.
  """

  attention_norm: bool = False
  qk_norm: bool = False
  by_grid: bool = False
  reads_prompt: bool = True


# Values of `EagleConfig.family`; families add theirs with `register`.
LAYERS: dict[str, Layer] = {}


def register(name: str, layer: Layer) -> None:
  """Registers a form of the layer; raises ValueError if another one has this name."""
  naming.add(LAYERS, 'EAGLE layer', name, layer)


@dataclasses.dataclass(frozen=True)
class EagleConfig:
  """Sizes of a drafter, which must fit the target's.

  Attributes:
    family: form of the layer, a key of `LAYERS`.
    num_tokens: tokens of an image.
    row_width: tokens of an image row, for layers that rotate by row and column.
    dim: `F`, the target's width and the drafter's.
    num_heads: attention heads.
    num_kv_heads: key/value heads; None means `num_heads`.
    ffn_dim: hidden width of the feed-forward layer.
    vocab_size: number of tokens in the vocabulary.
    rope_base: base of the rotary frequencies.
    norm_eps: added to the mean square in the norms.
    own_embedding: whether the parameters hold a table of token embeddings that replaces the
      target's, as in the published drafters.
    num_outputs: `V`; the first `V` tokens of the vocabulary can be predicted. None means all.
    num_layers: decoder layers; EAGLE has one.
    correction_dim: hidden width of `Correction`; 0 means no correction.
  """

  family: str = 'llamagen'
  num_tokens: int = 256
  row_width: int = 16
  dim: int = 1280
  num_heads: int = 20
  num_kv_heads: int | None = None
  ffn_dim: int = 3584
  vocab_size: int = 16384
  rope_base: float = 10000.0
  norm_eps: float = 1e-6
  own_embedding: bool = False
  num_outputs: int | None = None
  num_layers: int = 1
  correction_dim: int = 0

  def __post_init__(self):
    fields.check(self, num_tokens=(1, fields.MOST_SIDE**2), num_layers=(1, fields.MOST_LAYERS),
                 correction_dim=(0, fields.MOST))
    fields.require(self.family in LAYERS, 'family', self.family, f'one of {", ".join(LAYERS)}')
    if self.num_outputs is None:
      object.__setattr__(self, 'num_outputs', self.vocab_size)
    by_grid = LAYERS[self.family].by_grid
    transformer.complete_heads(self, axes=2 if by_grid else 1)
    fields.require(not by_grid or self.num_tokens % self.row_width == 0, 'num_tokens',
                   self.num_tokens, f'a multiple of row_width ({self.row_width})')
    _ = self.layer  # Checks the sizes that only the layer uses.

  @property
  def head_dim(self) -> int:
    """Width of an attention head."""
    return self.dim // self.num_heads

  @property
  def layer(self) -> transformer.TransformerConfig:
    """Sizes of the decoder layer."""
    form = LAYERS[self.family]
    assert self.num_kv_heads is not None  # Set in `__post_init__`.
    return transformer.TransformerConfig(
        vocab_size=self.vocab_size, dim=self.dim, num_layers=1, num_heads=self.num_heads,
        num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, ffn_dim=self.ffn_dim,
        norm_eps=self.norm_eps, num_outputs=self.num_outputs,
        attention_norm=form.attention_norm, qk_norm=form.qk_norm)

  @property
  def rope(self) -> RopeFunction:
    """Rotary tables of positions, of the same kind as the target's."""
    if LAYERS[self.family].by_grid:
      return grid_rope(self.num_tokens, self.row_width, self.head_dim, self.rope_base)
    return sequence_rope(self.head_dim, self.rope_base)

  @property
  def reads_prompt(self) -> bool:
    """Whether the drafter reads the tokens of the condition."""
    return LAYERS[self.family].reads_prompt


class Eagle(nn.Module):
  """The drafter without embedding and output head."""

  config: EagleConfig

  @nn.compact
  def __call__(self, embeddings, features, rope, mask, cache=None, start=None):
    """Predicts the next features from embeddings of tokens and the features that predicted them.

    All are `[R, n, F]`. `rope`, `mask`, `cache` (keys and values of every layer) and `start` are as
    in `transformer.Transformer.features`. Returns the features, and keys and values.
    """
    config = self.config
    x = Linear(config.dim, name='fc')(jnp.concatenate([embeddings, features], axis=-1))
    layers = []
    for index in range(config.num_layers):
      block = transformer.Block(
          config.layer, scaled_init=True, name=f'layer_{index}' if index else 'layer')
      x, entry = block(x, rope, mask, None if cache is None else cache[index], start)
      layers.append(entry)
    return x, tuple(layers)


class Correction(nn.Module):
  """Learned correction of a stale feature of the target.

  It is initialised to the formula of `corrected_features`, whose decay is also learned. A hidden
  layer on the network's new feature, its old error and its change adds to the gain of the error,
  per channel, and to the feature.
  """

  config: EagleConfig

  @nn.compact
  def __call__(self, new, old, stale):
    """Returns corrected features of `new`, `old` and `stale`, all `[..., F]`."""
    error, change = stale - old, new - old
    log_decay = self.param(
        'log_decay', lambda key: jnp.full((), np.log(correctors.DECAY), jnp.float32))
    hidden = nn.silu(Linear(self.config.correction_dim, name='in')(
        jnp.concatenate([new, error, change], axis=-1)))
    gain, shift = jnp.split(Linear(
        2 * self.config.dim, use_bias=False, kernel_init=nn.initializers.zeros, name='out')(hidden),
        2, axis=-1)
    corrected = correctors.corrected_features(new, old, stale, jnp.exp(log_decay))
    return corrected + gain * error + shift


def init(config: EagleConfig, key: jax.Array) -> Params:
  """Initialises the parameters of a drafter without those that it shares with the target, float32.

  Matrices are normal with variance 1 / inputs; a token embedding has standard deviation 0.02.
  """
  def run(key: jax.Array) -> Params:
    shape = (1, 1, config.head_dim // 2)
    params = Eagle(config).init(
        key, jnp.zeros((1, 1, config.dim)), jnp.zeros((1, 1, config.dim)),
        transformer.Rope(jnp.ones(shape), jnp.zeros(shape)), jnp.ones((1, 1, 1), bool))['params']
    if config.correction_dim:
      features = [jnp.zeros((1, config.dim))] * 3
      params['correction'] = Correction(config).init(key, *features)['params']
    if config.own_embedding:
      params['token_embedding'] = nn.initializers.normal(0.02)(
          jax.random.fold_in(key, 1), (config.vocab_size, config.dim))
    return params

  return jax.jit(run)(key)


def attach(target_params: Params, params: Params) -> Params:
  """Adds the target's parameters without its layers to a drafter's, for `network` and `predict`.

  Nothing is copied. The target's parameters, for its embedding and output head, are the entry
  `'target'` of the result. Raises ValueError if the target is not a decoder-only model, or its
  width differs from the drafter's.
  """
  if 'norm' not in target_params.get('transformer', {}):
    raise ValueError('target_params has no transformer/norm (it holds: '
                     f'{", ".join(sorted(target_params))}); pass the parameters of the target.')
  width = params['fc']['bias'].shape[0]
  target_width = target_params['transformer']['norm']['scale'].shape[0]
  if width != target_width:
    raise ValueError(f'params is a drafter for features of width {width}, but those of the target '
                     f'have width {target_width}; pass a drafter that was trained for this target.')
  return {**params, 'target': ends_lib.first_layers(target_params, 0)}


def embed(params: Params, config: EagleConfig, target: Ends, tokens: jax.Array) -> jax.Array:
  """Embeds tokens `[...]` as `[..., F]`, with the drafter's table or the target's embedding."""
  if config.own_embedding:
    return jnp.take(params['token_embedding'], tokens, axis=0)
  return target.embed(params['target'], tokens)


def prompt(config: EagleConfig, condition: Any, drop: jax.Array | None = None) -> Prompt | None:
  """Selects the prompt that `predict` requires from a target's condition; None if none is read.

  Images where `drop` `[B]` is True use the second stream of the `Prompt` instead of the first; None
  selects both streams of all images, one after the other.
  """
  if not config.reads_prompt:
    return None
  return condition if drop is None else condition.dropped(drop)


def predict(
    params: Params, config: EagleConfig, target: Ends, tokens: jax.Array, features: jax.Array,
    prompt: Prompt | None = None) -> tuple[jax.Array, jax.Array]:
  """Runs the drafter, of `attach`, on the first image tokens `[R, n]`, for training and evaluation.

  Args:
    features: `[R, C - 1 + n, F]` the target's features of the condition and of all these tokens but
      the last: entry `C - 1 + k` predicted token `k`.
    prompt: the condition's tokens, `[R, 1, C]` or in streams, for drafters that read prompts.

  Returns:
    logits `[R, n, V]` float32 and features `[R, n, F]`; entry `k` predicts token `k + 1`.
  """
  count = features.shape[1] - tokens.shape[1]
  condition_tokens, condition = _condition(config, features.shape[0], count, prompt)
  positions, mask = causal.positions_and_mask(condition, tokens.shape[1])
  embeddings = embed(params, config, target, jnp.concatenate([condition_tokens, tokens], axis=1))
  predicted, _ = Eagle(config).apply(
      {'params': params}, embeddings, features, config.rope(positions), mask)
  predicted = predicted[:, count:]
  return target.logits(params['target'], predicted), predicted


def network(config: EagleConfig, target: Ends) -> Network:
  """Returns the drafter for `decoding.drafters.eagle`; its parameters are the result of `attach`.

  A drafter that reads prompts requires a `Prompt` as the condition of `prefill`; the others ignore
  the condition. Raises ValueError if the target's output head is for another number of tokens.
  """
  if config.num_outputs != target.vocab_size:
    raise ValueError(f'num_outputs is {config.num_outputs}, but the head of the target is for '
                     f'{target.vocab_size} tokens; use a drafter that was trained for this target.')
  model = Eagle(config)

  def prefill(params: Params, condition: Any, features: jax.Array, num_slots: int) -> Cache:
    streams, features = features.shape[0], features.reshape(-1, *features.shape[2:])
    rows, count = features.shape[0], features.shape[1] - 1
    tokens, condition_positions = _condition(
        config, rows, count, condition.first(streams) if config.reads_prompt else None)
    if count:
      positions, mask = causal.positions_and_mask(condition_positions, 0)
      _, layers = model.apply(
          {'params': params}, embed(params, config, target, tokens), features[:, :count],
          config.rope(positions), mask)
    else:
      no_slots = jnp.zeros((rows, config.num_kv_heads, 0, config.head_dim), features.dtype)
      layers = ((no_slots, no_slots),) * config.num_layers
    return causal.allocate(layers, condition_positions, num_slots)

  def step(params: Params, cache: Cache, tokens: jax.Array, features: jax.Array, start: jax.Array,
           depth: jax.Array, visible: jax.Array) -> tuple[jax.Array, Cache]:
    streams, _, length, width = features.shape
    at = causal.window(cache, start, depth, visible)
    predicted, layers = model.apply(
        {'params': params}, embed(params, config, target, causal.tile(tokens, streams)),
        features.reshape(-1, length, width), config.rope(at.positions), at.mask, cache.layers,
        at.slot + visible.shape[-1] - length)
    return causal.split(predicted, streams), cache._replace(layers=layers)

  def correct(params: Params, new: jax.Array, old: jax.Array, stale: jax.Array) -> jax.Array:
    return Correction(config).apply({'params': params['correction']}, new, old, stale)

  def logits(params: Params, features: jax.Array) -> jax.Array:
    return target.logits(params['target'], features)

  return Network(prefill, step, logits, config.num_outputs, config.num_tokens,
                 correct if config.correction_dim else None)


def _condition(
    config: EagleConfig, rows: int, count: int, prompt: Prompt | None,
) -> tuple[jax.Array, ConditionPositions]:
  """Returns tokens `[R, C - 1]` of the condition's entries, and their positions."""
  if not config.reads_prompt:
    # The condition has embeddings instead of tokens: the published drafters are trained with token
    # 0 there, and they attend to the padding.
    positions = jnp.arange(-count, 0)[None]
    return (jnp.zeros((rows, count), jnp.int32), ConditionPositions(
        jnp.ones((rows, count), bool), positions, jnp.zeros(1, jnp.int32)))
  assert prompt is not None
  tokens, visible = prompt.rows()
  return tokens[:, 1:], causal.prompt_positions(visible[:, :-1])
