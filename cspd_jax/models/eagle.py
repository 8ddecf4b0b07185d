"""EAGLE drafters: one decoder layer that continues a target's features (arXiv 2401.15077).

The network joins the embedding of a token and the feature that predicted it in one linear map,
runs one decoder layer and returns the next feature, which goes straight to the target's output
matrix. Token embedding and output matrix are the target's, frozen; see `attach`.

The two published forms differ in the layer. 'llamagen': rotary embedding by row and column of a
token, zero for the condition, and no norm before the attention. 'chameleon' (Anole and
Lumina-mGPT): rotary embedding by place in the sequence, a norm before the attention, and layer
norms of queries and keys, head by head.

In the shape descriptions `B` is the number of images, `S` of guidance streams, `R` of rows (`S B`),
`C` of condition tokens, `n` of new entries, `F` the width of a feature and `V` the size of the
vocabulary. Entry `j` of the network's sequence pairs token `j + 1` of the target's with feature
`j`, so the condition has `C - 1` entries of its own.
"""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding.drafters.eagle import Network
from cspd_jax.models import transformer

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
    vocab_size: `V`.
    rope_base: base of the rotary frequencies.
    norm_eps: added to the mean square in the norms.
    own_embedding: whether the parameters hold a table of token embeddings in place of the
      target's, as those of the published drafters do.
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

  def __post_init__(self):
    if self.family not in FAMILIES:
      raise ValueError(f'family is {self.family!r}; it must be one of {", ".join(FAMILIES)}.')
    if self.num_kv_heads is None:
      object.__setattr__(self, 'num_kv_heads', self.num_heads)
    for name in ('num_tokens', 'row_width', 'dim', 'num_heads', 'num_kv_heads', 'ffn_dim',
                 'vocab_size'):
      if getattr(self, name) < 1:
        raise ValueError(f'{name} is {getattr(self, name)}; it must be at least 1.')
    axes = 2 if self.family == 'llamagen' else 1
    if self.dim % (2 * axes * self.num_heads):
      raise ValueError(
          f'dim is {self.dim} with num_heads {self.num_heads}; it must be a multiple of '
          f'{2 * axes} * num_heads, because pairs of numbers are rotated along {axes} axes.')
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
          f'num_kv_heads is {self.num_kv_heads}; it must divide num_heads ({self.num_heads}).')
    if self.family == 'llamagen' and self.num_tokens % self.row_width:
      raise ValueError(
          f'num_tokens is {self.num_tokens}; it must be a multiple of row_width '
          f'({self.row_width}).')

  @property
  def head_dim(self) -> int:
    return self.dim // self.num_heads


def _published() -> dict[str, EagleConfig]:
  llamagen = dict(own_embedding=True)
  chameleon = dict(
      family='chameleon', dim=4096, num_heads=32, ffn_dim=11008, vocab_size=65536, norm_eps=1e-5,
      own_embedding=True)
  return {
      'llamagen_t2i_256': EagleConfig(**llamagen),
      'llamagen_t2i_512': EagleConfig(num_tokens=1024, row_width=32, **llamagen),
      'anole': EagleConfig(num_tokens=1024, row_width=32, **chameleon),
      # Rows end with a newline token, and the image with one more.
      'lumina_mgpt_768': EagleConfig(num_tokens=48 * 49 + 1, row_width=49, **chameleon),
  }


# The drafters published with LANTERN (arXiv 2410.03355), by the name of their target.
PRESETS: dict[str, EagleConfig] = _published()


class Prompt(NamedTuple):
  """The condition of a 'chameleon' target, which is tokens itself.

  Attributes:
    tokens: `[S, B, C]` int, padded on the left; `S` and `B` may be one axis `R`.
    visible: bool of the same shape, False for padding.
  """

  tokens: jax.Array
  visible: jax.Array


class Cache(NamedTuple):
  """Keys and values of everything read so far.

  Attributes:
    layer: keys and values, each `[R, K, C - 1 + num_slots, E]`.
    visible: `[R, C - 1]` bool, which of the condition's entries may be read.
    origin: `[R]` int, the place of image token 0 among the positions.
  """

  layer: tuple[jax.Array, jax.Array]
  visible: jax.Array
  origin: jax.Array


class HeadNorm(nn.Module):
  """Layer norm of every head on its own, with scales and biases for each; float32 inside."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises `x` `[R, n, heads, E]`; eps is 1e-5 in all published models."""
    scale = self.param('scale', nn.initializers.ones, x.shape[-2:])
    bias = self.param('bias', nn.initializers.zeros, x.shape[-2:])
    return jax.nn.standardize(x.astype(jnp.float32), epsilon=1e-5).astype(x.dtype) * scale + bias


class Layer(nn.Module):
  """Attention and feed-forward, each added to the stream; see `transformer.Block`."""

  config: EagleConfig

  @nn.compact
  def __call__(self, x, rope, mask, cache=None, start=None):
    config, init = self.config, nn.initializers.lecun_normal()
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    chameleon = config.family == 'chameleon'

    per_head = nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
    normed = transformer.RMSNorm(config.norm_eps, name='attention_norm')(x) if chameleon else x
    query, key, value = (
        jnp.einsum('rld,dhe->rlhe', normed, self.param(name, per_head, (config.dim, count, width)))
        for name, count in (('query', heads), ('key', kv_heads), ('value', kv_heads)))
    if chameleon:
      query, key = HeadNorm(name='query_norm')(query), HeadNorm(name='key_norm')(key)
    new = transformer.rotate(key, rope).swapaxes(1, 2), value.swapaxes(1, 2)
    if cache is None:
      cache = new
    else:
      cache = tuple(
          transformer.write_slots(old, part, start) for old, part in zip(cache, new))
    attended = transformer.attend(transformer.rotate(query, rope), *cache, mask)
    out = self.param(
        'out', nn.initializers.lecun_normal(in_axis=(0, 1), out_axis=2), (heads, width, config.dim))
    x = x + jnp.einsum('rlhe,hed->rld', attended, out)

    normed = transformer.RMSNorm(config.norm_eps, name='ffn_norm')(x)
    gate = normed @ self.param('gate', init, (config.dim, config.ffn_dim))
    up = normed @ self.param('up', init, (config.dim, config.ffn_dim))
    down = self.param('down', init, (config.ffn_dim, config.dim))
    return x + (jax.nn.silu(gate) * up) @ down, cache


class Eagle(nn.Module):
  """The drafter with the target's token embedding and output matrix."""

  config: EagleConfig

  @nn.compact
  def __call__(self, tokens, features, rope, mask, cache=None, start=None):
    """Predicts features from tokens `[R, n]` and the features `[R, n, F]` that predicted them.

    `rope`, `mask`, `cache` (keys and values of the layer) and `start` are as in
    `transformer.Transformer.__call__`.

    Returns:
      logits `[R, n, V]` float32, features `[R, n, F]`, keys and values.
    """
    config = self.config
    table = self.param(
        'token_embedding', nn.initializers.normal(0.02), (config.vocab_size, config.dim))
    output = self.param('output', nn.initializers.zeros, (config.dim, config.vocab_size))
    joined = jnp.concatenate([jnp.take(table, tokens, axis=0), features], axis=-1)
    x = nn.Dense(config.dim, name='fc')(joined)
    predicted, cache = Layer(config, name='layer')(x, rope, mask, cache, start)
    logits = jnp.einsum('rld,dv->rlv', predicted, output, preferred_element_type=jnp.float32)
    return logits, predicted, cache


def init(config: EagleConfig, key: jax.Array) -> Params:
  """Random float32 parameters: what a drafter has of its own.

  Matrices are normal with variance 1 / inputs; an own embedding has deviation 0.02.
  """
  def run(key):
    shape = (1, 1, config.head_dim // 2)
    params = Eagle(config).init(
        key, jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1, config.dim)),
        transformer.Rope(jnp.ones(shape), jnp.zeros(shape)), jnp.ones((1, 1, 1), bool))['params']
    del params['output']
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


def predict(
    config: EagleConfig,
    params: Params,
    tokens: jax.Array,
    features: jax.Array,
    prompt: Prompt | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The drafter along given images, for training and evaluation.

  Args:
    config: the drafter's sizes.
    params: its parameters, attached to the target's.
    tokens: `[R, n]` the first image tokens.
    features: `[R, C - 1 + n, F]` the target's, of the condition and of all these tokens but the
      last: entry `C - 1 + k` predicted token `k`.
    prompt: the condition's tokens `[R, C]`; 'chameleon' only.

  Returns:
    logits `[R, n, V]` float32 and features `[R, n, F]`; entry `k` predicts token `k + 1`.
  """
  count = features.shape[1] - tokens.shape[1]
  first, visible, origin = _condition(config, features[:, :count + 1], prompt)
  mask = _causal(jnp.pad(visible, ((0, 0), (0, tokens.shape[1])), constant_values=True))
  position = origin[:, None] + jnp.arange(-count, tokens.shape[1])
  logits, predicted, _ = Eagle(config).apply(
      {'params': params}, jnp.concatenate([first, tokens], axis=1), features,
      _rope(config, position), mask)
  return logits[:, count:], predicted[:, count:]


def network(config: EagleConfig) -> Network:
  """The drafter for `decoding.drafters.eagle`; its parameters are those of `attach`.

  The condition that `prefill` takes is a `Prompt` for a 'chameleon' drafter; the others ignore
  it.
  """
  model = Eagle(config)

  def prefill(params, condition, features, num_slots):
    features = features.reshape(-1, *features.shape[2:])
    prompt = condition if config.family == 'chameleon' else None
    tokens, visible, origin = _condition(config, features, prompt)
    rows, count = tokens.shape
    if not count:
      shape = (rows, config.num_kv_heads, num_slots, config.head_dim)
      layer = jnp.zeros(shape, features.dtype), jnp.zeros(shape, features.dtype)
      return Cache(layer, visible, origin)
    _, _, layer = model.apply(
        {'params': params}, tokens, features[:, :count],
        _rope(config, origin[:, None] + jnp.arange(-count, 0)), _causal(visible))
    room = ((0, 0), (0, 0), (0, num_slots), (0, 0))
    return Cache(jax.tree.map(lambda x: jnp.pad(x, room), layer), visible, origin)

  def step(params, cache, tokens, features, start, depth, visible):
    streams, _, length, width = features.shape
    rows, count = cache.visible.shape
    repeat = lambda x: jnp.tile(x, (streams,) + (1,) * (x.ndim - 1))
    start, depth, visible = repeat(start), jnp.asarray(depth), jnp.asarray(visible)
    depth = repeat(depth) if depth.ndim == 2 else depth
    visible = repeat(visible) if visible.ndim == 3 else visible
    window = visible.shape[-1]

    node = jnp.arange(cache.layer[0].shape[2] - count) - start[:, None]
    seen = jnp.take_along_axis(
        jnp.broadcast_to(visible, (rows, length, window)),
        jnp.clip(node, 0, window - 1)[:, None], axis=2)
    seen = (node < 0)[:, None] | (seen & (node < window)[:, None])
    condition = jnp.broadcast_to(cache.visible[:, None], (rows, length, count))
    logits, predicted, layer = model.apply(
        {'params': params}, repeat(tokens), features.reshape(rows, length, width),
        _rope(config, (cache.origin + start)[:, None] + depth),
        jnp.concatenate([condition, seen], axis=2), cache.layer, count + start + window - length)
    split = lambda x: x.reshape(streams, -1, *x.shape[1:])
    return split(logits), split(predicted), cache._replace(layer=layer)

  return Network(prefill, step, config.vocab_size, config.num_tokens)


def _condition(
    config: EagleConfig, features: jax.Array, prompt: Prompt | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Tokens and visibility `[R, C - 1]` of the condition's entries, and the origin `[R]`."""
  rows, count = features.shape[0], features.shape[1]
  if config.family == 'llamagen':
    if prompt is not None:
      raise ValueError("prompt is given; the condition of a 'llamagen' target has no tokens.")
    # Embeddings instead of tokens: the published drafters are trained with token 0 there, and
    # they see the padding.
    return (jnp.zeros((rows, count - 1), jnp.int32), jnp.ones((rows, count - 1), bool),
            jnp.zeros((rows,), jnp.int32))
  if prompt is None:
    raise ValueError("prompt is None; a 'chameleon' drafter reads the tokens of the condition.")
  tokens, visible = (jnp.asarray(part).reshape(rows, count) for part in prompt)
  visible = visible[:, :-1]
  return tokens[:, 1:], visible, jnp.sum(visible, axis=1, dtype=jnp.int32)


def _causal(visible: jax.Array) -> jax.Array:
  """`[R, n, n]` bool; padding sees itself, so that no entry is left without anything to see."""
  length = visible.shape[1]
  return transformer.causal_mask(length) & (visible[:, None] | jnp.eye(length, dtype=bool))


def _rope(config: EagleConfig, position: jax.Array) -> transformer.Rope:
  """Tables for positions `[R, n]`; the last grid cell serves for tokens past the end."""
  axes = 2 if config.family == 'llamagen' else 1
  pairs = config.head_dim // (2 * axes)
  frequencies = np.float32(config.rope_base) ** (-np.arange(pairs, dtype=np.float32) / pairs)
  if axes == 1:
    angles = jnp.maximum(position, 0)[..., None] * frequencies
    return transformer.Rope(jnp.cos(angles), jnp.sin(angles))
  cell = jnp.divmod(jnp.clip(position, 0, config.num_tokens - 1), config.row_width)
  angles = jnp.concatenate([part[..., None] * frequencies for part in cell], axis=-1)
  # As in the target, rows of zeros make the keys of the condition vanish.
  image = (position >= 0)[..., None]
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  return transformer.Rope(jnp.where(image, cos, 0), jnp.where(image, sin, 0))
