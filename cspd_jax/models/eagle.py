"""EAGLE drafters: a decoder layer that continues a target's features (arXiv 2401.15077).

The network joins the embedding of a token and the feature that predicted it in one linear map,
runs one decoder layer, or a few, and returns the next feature, which goes straight to the target's
head. Token embedding and head are the target's (`causal.ends`), frozen; see `attach`. One that is
trained to correct windows may also hold what it has learned about its own error; see `Correction`.

Families differ in the layer, and register theirs; see `Layer`.

In the shape descriptions `B` is the number of images, `S` of guidance streams, `R` of rows (`S B`),
`C` of condition tokens, `n` of new entries, `F` the width of a feature and `V` the number of
tokens that can be predicted. Entry `j` of the network's sequence pairs token `j + 1` of the
target's with feature `j`, so the condition has `C - 1` entries of its own.
"""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields, registry
from cspd_jax.decoding.drafters import network_corrector
from cspd_jax.decoding.drafters.eagle import Network
from cspd_jax.models import causal, ends as ends_lib, transformer
from cspd_jax.models.causal import Cache, Places, Prompt
from cspd_jax.models.ends import Ends
from cspd_jax.models.rope import RopeFunction, grid_rope, sequence_rope

Params = Any


class Layer(NamedTuple):
  """The form of a drafter's decoder layer.

  Attributes:
    attention_norm: whether there is a norm before the attention.
    qk_norm: whether queries and keys are normalised head by head before they rotate.
    by_grid: whether image tokens rotate by row and column, and the condition not at all; otherwise
      all tokens rotate by their place in the sequence.
    reads_prompt: whether the condition is a `causal.Prompt`, whose tokens are read beside its
      features; otherwise token 0 stands in their places.
  """

  attention_norm: bool = False
  qk_norm: bool = False
  by_grid: bool = False
  reads_prompt: bool = True


# What `EagleConfig.family` may be; families add theirs with `register`.
LAYERS: dict[str, Layer] = {}


def register(name: str, layer: Layer) -> None:
  """Registers a form of the layer.

  Raises:
    ValueError: if another form has this name.
  """
  registry.add(LAYERS, 'EAGLE layer', name, layer)


@dataclasses.dataclass(frozen=True)
class EagleConfig:
  """Sizes of a drafter; they follow the target's.

  Attributes:
    family: form of the layer, a key of `LAYERS`.
    num_tokens: tokens of an image.
    row_width: tokens of an image row, for layers that rotate by row and column.
    dim: `F`, the target's width and the drafter's.
    num_heads: attention heads.
    num_kv_heads: key/value heads; None means `num_heads`.
    ffn_dim: hidden width of the feed-forward layer.
    vocab_size: number of tokens that can be read.
    rope_base: base of the rotary frequencies.
    norm_eps: added to the mean square in the norms.
    own_embedding: whether the parameters hold a table of token embeddings in place of the
      target's embedding, as those of the published drafters do.
    num_outputs: `V`, the first so many tokens of the vocabulary; None means all of it.
    num_layers: decoder layers; EAGLE has one.
    correction_dim: hidden width of `Correction`; 0 for none.
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
    if self.family not in LAYERS:
      raise ValueError(f'family is {self.family!r}; it must be one of {", ".join(LAYERS)}.')
    if self.num_kv_heads is None:
      object.__setattr__(self, 'num_kv_heads', self.num_heads)
    if self.num_outputs is None:
      object.__setattr__(self, 'num_outputs', self.vocab_size)
    by_grid = LAYERS[self.family].by_grid
    axes = 2 if by_grid else 1
    if self.dim % (2 * axes * self.num_heads):
      raise ValueError(
          f'dim is {self.dim} with num_heads {self.num_heads}; it must be a multiple of '
          f'{2 * axes} * num_heads, because pairs of numbers are rotated along {axes} axes.')
    if by_grid and self.num_tokens % self.row_width:
      raise ValueError(
          f'num_tokens is {self.num_tokens}; it must be a multiple of row_width '
          f'({self.row_width}).')
    _ = self.layer  # Checks the sizes that only the layer knows about.

  @property
  def head_dim(self) -> int:
    """Width of a head."""
    return self.dim // self.num_heads

  @property
  def layer(self) -> transformer.TransformerConfig:
    """Sizes of the decoder layer."""
    form = LAYERS[self.family]
    return transformer.TransformerConfig(
        vocab_size=self.vocab_size, dim=self.dim, num_layers=1, num_heads=self.num_heads,
        num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, ffn_dim=self.ffn_dim,
        norm_eps=self.norm_eps, num_outputs=self.num_outputs,
        attention_norm=form.attention_norm, qk_norm=form.qk_norm)

  @property
  def rope(self) -> RopeFunction:
    """Rotation of the target's kind."""
    if LAYERS[self.family].by_grid:
      return grid_rope(self.num_tokens, self.row_width, self.head_dim, self.rope_base)
    return sequence_rope(self.head_dim, self.rope_base)

  @property
  def reads_prompt(self) -> bool:
    """Whether it reads the tokens of the condition; see `Layer`."""
    return LAYERS[self.family].reads_prompt


class Eagle(nn.Module):
  """The drafter without embedding and head."""

  config: EagleConfig

  @nn.compact
  def __call__(self, embeddings, features, rope, mask, cache=None, start=None):
    """Predicts features from tokens, by their embeddings `[R, n, F]`, and the features `[R, n, F]`
    that predicted them.

    `rope`, `mask`, `cache` (keys and values of every layer) and `start` are as in
    `transformer.Transformer.__call__`.

    Returns:
      features `[R, n, F]`, keys and values.
    """
    config = self.config
    x = nn.Dense(config.dim, name='fc')(jnp.concatenate([embeddings, features], axis=-1))
    layers = []
    for index in range(config.num_layers):
      block = transformer.Block(
          config.layer, scaled_init=True, name=f'layer_{index}' if index else 'layer')
      x, entry = block(x, rope, mask, None if cache is None else cache[index], start)
      layers.append(entry)
    return x, tuple(layers)


class Correction(nn.Module):
  """How a stale answer of the target is corrected, learned; see `drafters.from_network`.

  It begins as the rule `corrected_features`, whose decay is learned too. A hidden layer that looks
  at the network's answer, its old error and its change adds to the error's gain, number by number,
  and to the feature.
  """

  config: EagleConfig

  @nn.compact
  def __call__(self, new, old, stale):
    """Corrected features of `new`, `old` and `stale`, all `[..., F]`."""
    error, change = stale - old, new - old
    log_decay = self.param(
        'log_decay', lambda key: jnp.full((), np.log(network_corrector.DECAY), jnp.float32))
    hidden = nn.silu(nn.Dense(self.config.correction_dim, name='in')(
        jnp.concatenate([new, error, change], axis=-1)))
    gain, shift = jnp.split(nn.Dense(
        2 * self.config.dim, use_bias=False, kernel_init=nn.initializers.zeros, name='out')(hidden),
        2, axis=-1)
    rule = network_corrector.corrected_features(new, old, stale, jnp.exp(log_decay))
    return rule + gain * error + shift


def init(config: EagleConfig, key: jax.Array) -> Params:
  """Random float32 parameters: what a drafter has of its own.

  Matrices are normal with variance 1 / inputs; an own embedding has deviation 0.02.
  """
  def run(key):
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
  """The parameters that `network` and `predict` take: a drafter's, and its target's but for layers.

  Nothing is copied. The target's are `'target'` among them, for its embedding and its head.

  Args:
    target_params: parameters of the target.
    params: parameters as `init` returns them and a checkpoint holds them.

  Raises:
    ValueError: if they are not those of a decoder-only target, or its width is not the drafter's.
  """
  if 'norm' not in target_params.get('transformer', {}):
    raise ValueError(
        f'target_params has no transformer/norm (it holds: {", ".join(sorted(target_params))}); '
        'give the parameters of the target.')
  width = params['fc']['bias'].shape[0]
  target_width = target_params['transformer']['norm']['scale'].shape[0]
  if width != target_width:
    raise ValueError(
        f'params is a drafter for features of width {width}, but those of the target have width '
        f'{target_width}; a drafter belongs to one target.')
  return {**params, 'target': ends_lib.first_layers(target_params, 0)}


def embed(params: Params, config: EagleConfig, target: Ends, tokens: jax.Array) -> jax.Array:
  """Embeddings `[..., F]` of tokens `[...]`: by the drafter's own table, or as the target embeds.

  Args:
    params: the drafter's parameters, attached to the target's.
    config: its sizes.
    target: the target's embedding and head.
    tokens: int.
  """
  if config.own_embedding:
    return jnp.take(params['token_embedding'], tokens, axis=0)
  return target.embed(params['target'], tokens)


def prompt(config: EagleConfig, condition: Any, drop: jax.Array | None = None) -> Prompt | None:
  """What `predict` takes of a target's condition as its prompt.

  Args:
    config: sizes of the drafter.
    condition: of the target, a `Prompt` of two streams for a drafter that reads prompts.
    drop: `[B]` bool, which images take the second stream in place of the first. None takes both
      streams of all images, one after the other.

  Returns:
    None for a drafter that reads no prompts.
  """
  if not config.reads_prompt or drop is None:
    return condition if config.reads_prompt else None
  return condition.dropped(drop)


def predict(
    params: Params,
    config: EagleConfig,
    target: Ends,
    tokens: jax.Array,
    features: jax.Array,
    prompt: Prompt | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The drafter along given images, for training and evaluation.

  Args:
    params: the drafter's parameters, attached to the target's.
    config: its sizes.
    target: the target's embedding and head.
    tokens: `[R, n]` the first image tokens.
    features: `[R, C - 1 + n, F]` the target's, of the condition and of all these tokens but the
      last: entry `C - 1 + k` predicted token `k`.
    prompt: the condition's tokens, `[R, 1, C]` or in streams, for drafters that read prompts.

  Returns:
    logits `[R, n, V]` float32 and features `[R, n, F]`; entry `k` predicts token `k + 1`.
  """
  count = features.shape[1] - tokens.shape[1]
  first, places = _condition(config, features.shape[0], count, prompt)
  positions, mask = causal.whole(places, tokens.shape[1])
  embeddings = embed(params, config, target, jnp.concatenate([first, tokens], axis=1))
  predicted, _ = Eagle(config).apply(
      {'params': params}, embeddings, features, config.rope(positions), mask)
  predicted = predicted[:, count:]
  return target.logits(params['target'], predicted), predicted


def network(config: EagleConfig, target: Ends) -> Network:
  """The drafter for `decoding.drafters.eagle`; its parameters are those of `attach`.

  The condition that `prefill` takes is a `Prompt` for a drafter that reads prompts; the others
  ignore it.

  Args:
    config: sizes of the drafter.
    target: the target's embedding and head.

  Raises:
    ValueError: if the target's head is for another number of tokens.
  """
  if config.num_outputs != target.vocab_size:
    raise ValueError(f'num_outputs is {config.num_outputs}, but the head of the target is for '
                     f'{target.vocab_size} tokens; a drafter belongs to one target.')
  model = Eagle(config)

  def prefill(params, condition, features, num_slots):
    streams, features = features.shape[0], features.reshape(-1, *features.shape[2:])
    rows, count = features.shape[0], features.shape[1] - 1
    if config.reads_prompt and not isinstance(condition, Prompt):
      raise ValueError(f'condition is a {type(condition).__name__}; a {config.family!r} drafter '
                       'reads a causal.Prompt.')
    tokens, places = _condition(
        config, rows, count, condition.first(streams) if config.reads_prompt else None)
    if count:
      positions, mask = causal.whole(places, 0)
      _, layers = model.apply(
          {'params': params}, embed(params, config, target, tokens), features[:, :count],
          config.rope(positions), mask)
    else:
      nothing = jnp.zeros((rows, config.num_kv_heads, 0, config.head_dim), features.dtype)
      layers = ((nothing, nothing),) * config.num_layers
    return causal.allocate(layers, places, num_slots)

  def step(params, cache: Cache, tokens, features, start, depth, visible):
    streams, _, length, width = features.shape
    at = causal.window(cache, start, depth, visible)
    predicted, layers = model.apply(
        {'params': params}, embed(params, config, target, causal.tile(tokens, streams)),
        features.reshape(-1, length, width), config.rope(at.positions), at.mask, cache.layers,
        at.slot + visible.shape[-1] - length)
    return causal.split(predicted, streams), cache._replace(layers=layers)

  def correct(params, new, old, stale):
    return Correction(config).apply({'params': params['correction']}, new, old, stale)

  def logits(params, features):
    return target.logits(params['target'], features)

  return Network(prefill, step, logits, config.num_outputs, config.num_tokens,
                 correct if config.correction_dim else None)


def _condition(
    config: EagleConfig, rows: int, count: int, prompt: Prompt | None,
) -> tuple[jax.Array, Places]:
  """Tokens `[R, C - 1]` of the condition's entries, and their places."""
  if not config.reads_prompt:
    if prompt is not None:
      raise ValueError(f'prompt is given; the condition of a {config.family!r} target has no '
                       'tokens.')
    # Embeddings instead of tokens: the published drafters are trained with token 0 there, and
    # they see the padding.
    positions = jnp.arange(-count, 0)[None]
    return (jnp.zeros((rows, count), jnp.int32),
            Places(jnp.ones((rows, count), bool), positions, jnp.zeros(1, jnp.int32)))
  if prompt is None:
    raise ValueError(f'prompt is None; a {config.family!r} drafter reads the tokens of the '
                     'condition.')
  tokens, visible = prompt.rows()
  return tokens[:, 1:], causal.prompt_places(visible[:, :-1])
