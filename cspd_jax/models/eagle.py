"""EAGLE drafters: a decoder layer that continues a target's features (arXiv 2401.15077).

The network joins the embedding of a token and the feature that predicted it in one linear map,
runs one decoder layer, or a few, and returns the next feature, which goes straight to the target's
output matrix. Token embedding and output matrix are the target's, frozen; see `attach`. One that is
trained to correct windows may also hold what it has learned about its own error; see `Correction`.

The two published forms differ in the layer. 'llamagen': rotary embedding by row and column of a
token, zero for the condition, and no norm before the attention. 'chameleon' (Anole and
Lumina-mGPT): rotary embedding by place in the sequence, a norm before the attention, and layer
norms of queries and keys, head by head.

In the shape descriptions `B` is the number of images, `S` of guidance streams, `R` of rows (`S B`),
`C` of condition tokens, `n` of new entries, `F` the width of a feature and `V` the number of
tokens that can be predicted. Entry `j` of the network's sequence pairs token `j + 1` of the
target's with feature `j`, so the condition has `C - 1` entries of its own.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.decoding.drafters import small_network
from cspd_jax.decoding.drafters.eagle import Network
from cspd_jax.models import causal, transformer
from cspd_jax.models.causal import Cache, Places, Prompt
from cspd_jax.models.rope import RopeFunction, grid_rope, sequence_rope

Params = Any

FAMILIES = ('llamagen', 'chameleon')


@dataclasses.dataclass(frozen=True)
class EagleConfig:
  """Sizes of a drafter; they follow the target's.

  Attributes:
    family: form of the layer, one of `FAMILIES`.
    num_tokens: tokens of an image.
    row_width: tokens of an image row; 'llamagen' rotates by row and column.
    dim: `F`, the target's width and the drafter's.
    num_heads: attention heads.
    num_kv_heads: key/value heads; None means `num_heads`.
    ffn_dim: hidden width of the feed-forward layer.
    vocab_size: number of tokens that can be read.
    rope_base: base of the rotary frequencies.
    norm_eps: added to the mean square in the norms.
    own_embedding: whether the parameters hold a table of token embeddings in place of the
      target's, as those of the published drafters do.
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
    if self.family not in FAMILIES:
      raise ValueError(f'family is {self.family!r}; it must be one of {", ".join(FAMILIES)}.')
    if self.num_kv_heads is None:
      object.__setattr__(self, 'num_kv_heads', self.num_heads)
    if self.num_outputs is None:
      object.__setattr__(self, 'num_outputs', self.vocab_size)
    axes = 2 if self.family == 'llamagen' else 1
    if self.dim % (2 * axes * self.num_heads):
      raise ValueError(
          f'dim is {self.dim} with num_heads {self.num_heads}; it must be a multiple of '
          f'{2 * axes} * num_heads, because pairs of numbers are rotated along {axes} axes.')
    if self.family == 'llamagen' and self.num_tokens % self.row_width:
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
    chameleon = self.family == 'chameleon'
    return transformer.TransformerConfig(
        vocab_size=self.vocab_size, dim=self.dim, num_layers=1, num_heads=self.num_heads,
        num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, ffn_dim=self.ffn_dim,
        norm_eps=self.norm_eps, num_outputs=self.num_outputs, attention_norm=chameleon,
        qk_norm=chameleon)

  @property
  def rope(self) -> RopeFunction:
    """Rotation of the target's kind."""
    if self.family == 'chameleon':
      return sequence_rope(self.head_dim, self.rope_base)
    return grid_rope(self.num_tokens, self.row_width, self.head_dim, self.rope_base)


def _published() -> dict[str, EagleConfig]:
  llamagen = dict(own_embedding=True)
  chameleon = dict(
      family='chameleon', dim=4096, num_heads=32, ffn_dim=11008, vocab_size=65536, norm_eps=1e-5,
      own_embedding=True)
  return {
      'llamagen_t2i_256': EagleConfig(**llamagen),
      'llamagen_t2i_512': EagleConfig(num_tokens=1024, row_width=32, **llamagen),
      'anole': EagleConfig(num_tokens=1024, row_width=32, num_outputs=8192, **chameleon),
      # Rows end with a newline token, and the image with one more.
      'lumina_mgpt_768': EagleConfig(
          num_tokens=48 * 49 + 1, row_width=49, num_outputs=8194, **chameleon),
  }


# The drafters published with LANTERN (arXiv 2410.03355), by the name of their target.
PRESETS: dict[str, EagleConfig] = _published()


class Eagle(nn.Module):
  """The drafter with the target's token embedding."""

  config: EagleConfig

  @nn.compact
  def __call__(self, tokens, features, rope, mask, cache=None, start=None):
    """Predicts features from tokens `[R, n]` and the features `[R, n, F]` that predicted them.

    `rope`, `mask`, `cache` (keys and values of every layer) and `start` are as in
    `transformer.Transformer.__call__`.

    Returns:
      features `[R, n, F]`, keys and values.
    """
    config = self.config
    table = self.param(
        'token_embedding', nn.initializers.normal(0.02), (config.vocab_size, config.dim))
    joined = jnp.concatenate([jnp.take(table, tokens, axis=0), features], axis=-1)
    x = nn.Dense(config.dim, name='fc')(joined)
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
        'log_decay', lambda key: jnp.full((), np.log(small_network.DECAY), jnp.float32))
    hidden = nn.silu(nn.Dense(self.config.correction_dim, name='in')(
        jnp.concatenate([new, error, change], axis=-1)))
    gain, shift = jnp.split(nn.Dense(
        2 * self.config.dim, use_bias=False, kernel_init=nn.initializers.zeros, name='out')(hidden),
        2, axis=-1)
    rule = small_network.corrected_features(new, old, stale, jnp.exp(log_decay))
    return rule + gain * error + shift


def logits(params: Params, features: jax.Array) -> jax.Array:
  """Logits `[..., V]`, float32, of features `[..., F]`, by the target's output matrix."""
  return jnp.einsum(
      '...d,dv->...v', features, params['output'], preferred_element_type=jnp.float32)


def init(config: EagleConfig, key: jax.Array) -> Params:
  """Random float32 parameters: what a drafter has of its own.

  Matrices are normal with variance 1 / inputs; an own embedding has deviation 0.02.
  """
  def run(key):
    shape = (1, 1, config.head_dim // 2)
    params = Eagle(config).init(
        key, jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1, config.dim)),
        transformer.Rope(jnp.ones(shape), jnp.zeros(shape)), jnp.ones((1, 1, 1), bool))['params']
    if config.correction_dim:
      features = [jnp.zeros((1, config.dim))] * 3
      params['correction'] = Correction(config).init(key, *features)['params']
    if not config.own_embedding:
      del params['token_embedding']
    return params

  return jax.jit(run)(key)


def attach(target_params: Params, params: Params) -> Params:
  """The parameters that `network` and `predict` take: a drafter's with its target's two tables.

  Nothing is copied. A drafter with a token embedding of its own keeps it.

  Args:
    target_params: parameters of the target.
    params: parameters as `init` gives them and a checkpoint holds them.

  Raises:
    ValueError: if the target has no such tables, or its width is not the drafter's.
  """
  tables = target_params.get('transformer', {})
  missing = [name for name in ('token_embedding', 'output') if name not in tables]
  if missing:
    raise ValueError(
        f'target_params has no transformer/{missing[0]} (it holds: '
        f'{", ".join(sorted(target_params))}); give the parameters of the target.')
  width, target_width = params['fc']['bias'].shape[0], tables['output'].shape[0]
  if width != target_width:
    raise ValueError(
        f'params is a drafter for features of width {width}, but those of the target have width '
        f'{target_width}; a drafter belongs to one target.')
  return {'token_embedding': tables['token_embedding'], **params, 'output': tables['output']}


def prompt(config: EagleConfig, condition: Any, drop: jax.Array | None = None) -> Prompt | None:
  """What `predict` takes of a target's condition as its prompt.

  Args:
    config: sizes of the drafter; one of the 'llamagen' form takes nothing.
    condition: of the target, a `Prompt` of two streams for a 'chameleon' drafter.
    drop: `[B]` bool, which images take the second stream in place of the first. None takes both
      streams of all images, one after the other.
  """
  if config.family == 'llamagen' or drop is None:
    return None if config.family == 'llamagen' else condition
  return Prompt(*(jnp.where(drop[:, None], part[:, 1], part[:, 0])[:, None] for part in condition))


def predict(
    params: Params,
    config: EagleConfig,
    tokens: jax.Array,
    features: jax.Array,
    prompt: Prompt | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The drafter along given images, for training and evaluation.

  Args:
    params: the drafter's parameters, attached to the target's.
    config: its sizes.
    tokens: `[R, n]` the first image tokens.
    features: `[R, C - 1 + n, F]` the target's, of the condition and of all these tokens but the
      last: entry `C - 1 + k` predicted token `k`.
    prompt: the condition's tokens, `[R, 1, C]` or in streams; 'chameleon' only.

  Returns:
    logits `[R, n, V]` float32 and features `[R, n, F]`; entry `k` predicts token `k + 1`.
  """
  count = features.shape[1] - tokens.shape[1]
  first, places = _condition(config, features.shape[0], count, prompt)
  positions, mask = causal.whole(places, tokens.shape[1])
  predicted, _ = Eagle(config).apply(
      {'params': params}, jnp.concatenate([first, tokens], axis=1), features,
      config.rope(positions), mask)
  predicted = predicted[:, count:]
  return causal.padded(logits(params, predicted), config.num_outputs), predicted


def network(config: EagleConfig) -> Network:
  """The drafter for `decoding.drafters.eagle`; its parameters are those of `attach`.

  The condition that `prefill` takes is a `Prompt` for a 'chameleon' drafter; the others ignore
  it.
  """
  model = Eagle(config)

  def prefill(params, condition, features, num_slots):
    streams, features = features.shape[0], features.reshape(-1, *features.shape[2:])
    rows, count = features.shape[0], features.shape[1] - 1
    tokens, places = _condition(
        config, rows, count, condition.first(streams) if config.family == 'chameleon' else None)
    if count:
      positions, mask = causal.whole(places, 0)
      _, layers = model.apply(
          {'params': params}, tokens, features[:, :count], config.rope(positions), mask)
    else:
      nothing = jnp.zeros((rows, config.num_kv_heads, 0, config.head_dim), features.dtype)
      layers = ((nothing, nothing),) * config.num_layers
    return causal.allocate(layers, places, num_slots)

  def step(params, cache: Cache, tokens, features, start, depth, visible):
    streams, _, length, width = features.shape
    at = causal.window(cache, start, depth, visible)
    predicted, layers = model.apply(
        {'params': params}, causal.tile(tokens, streams), features.reshape(-1, length, width),
        config.rope(at.positions), at.mask, cache.layers,
        at.slot + visible.shape[-1] - length)
    return causal.split(predicted, streams), cache._replace(layers=layers)

  def correct(params, new, old, stale):
    return Correction(config).apply({'params': params['correction']}, new, old, stale)

  def padded_logits(params, features):
    return causal.padded(logits(params, features), config.num_outputs)

  return Network(prefill, step, padded_logits, config.num_outputs, config.num_tokens,
                 correct if config.correction_dim else None)


def _condition(
    config: EagleConfig, rows: int, count: int, prompt: Prompt | None,
) -> tuple[jax.Array, Places]:
  """Tokens `[R, C - 1]` of the condition's entries, and their places."""
  if config.family == 'llamagen':
    if prompt is not None:
      raise ValueError("prompt is given; the condition of a 'llamagen' target has no tokens.")
    # Embeddings instead of tokens: the published drafters are trained with token 0 there, and
    # they see the padding.
    positions = jnp.arange(-count, 0)[None]
    return (jnp.zeros((rows, count), jnp.int32),
            Places(jnp.ones((rows, count), bool), positions, jnp.zeros(1, jnp.int32)))
  if prompt is None:
    raise ValueError("prompt is None; a 'chameleon' drafter reads the tokens of the condition.")
  tokens, visible = prompt.rows()
  return tokens[:, 1:], causal.prompt_places(visible[:, :-1])
