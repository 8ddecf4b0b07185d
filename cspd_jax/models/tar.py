"""Tar (arXiv 2506.18898): from text-aligned codes to the tokens of an image tokenizer.

A language model like an `early_fusion` one, the prior, writes the text-aligned codes of a small
square grid. The bridge maps them to features: vectors of a codebook through a few layers of a
vision transformer. AR-DTok, a transformer like LlamaGen's, reads the features as its condition and
writes the tokens of the image. It has no rotary embedding; a table of positions, of the condition
and of the tokens behind it, is added to the embeddings. The null condition is features of zeros.

In the shape descriptions `B` is the number of images, `R` of rows (images times guidance streams),
`P` of codes, `T` of tokens, `F` the width of the features and `D` the width of AR-DTok.
"""

import dataclasses
import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.core.tracing import is_concrete
from cspd_jax.models import causal, decoder_only, early_fusion, layers, transformer

Params = Any
# Sides of the grids of codes, by scale: all codes, and codes of features pooled by 2 and by 3.
SIDES = 27, 13, 9
# The condition is codes `[B, P]` int; the second stream is the null condition.
target, ends = decoder_only.target, decoder_only.ends


@dataclasses.dataclass(frozen=True)
class PriorConfig(early_fusion.EarlyFusionConfig):
  """Sizes of the language model; the defaults are for the smaller published one.

  Its grid is square, with one of `SIDES`, and there is no null condition.
  """

  has_null: ClassVar[bool] = False

  height: int = SIDES[0]
  width: int = SIDES[0]
  dim: int = 1536
  num_layers: int = 28
  num_heads: int = 12
  ffn_dim: int = 8960
  num_kv_heads: int | None = 2
  rope_base: float = 1e6
  norm_eps: float = 1e-6
  vocab_size: int = 217206
  num_codes: int = 65536
  first_code: int = 151670
  named_codes: bool = False
  qk_norm: bool = False
  qkv_bias: bool = True

  def __post_init__(self):
    super().__post_init__()
    if self.height != self.width or self.height not in SIDES:
      grids = ', '.join(f'{side}x{side}' for side in SIDES)
      raise ValueError(f'height and width are {self.height} and {self.width}; the codes of Tar '
                       f'have one of the grids {grids}.')


# The published language models.
PRIORS: dict[str, PriorConfig] = {
    'tar_1_5b': PriorConfig(),
    'tar_7b': PriorConfig(dim=3584, num_heads=28, num_kv_heads=4, ffn_dim=18944)}


@dataclasses.dataclass(frozen=True)
class BridgeConfig:
  """Sizes of the bridge from codes to features.

  Attributes:
    num_codes: text-aligned codes.
    code_dim: width of the vectors of the codes.
    normalized: whether these have norm one behind their projection.
    dim: `F`.
    num_layers: layers of the vision transformer.
    num_heads: attention heads.
    ffn_dim: hidden width of its feed-forward layers.
    side: rows and columns of its table of positions, which is resized to the grid of the codes.
    norm_eps: added to the variance in the norms.
  """

  num_codes: int = 65536
  code_dim: int = 1536
  normalized: bool = False
  dim: int = 1152
  num_layers: int = 3
  num_heads: int = 12
  ffn_dim: int = 3072
  side: int = 16
  norm_eps: float = 1e-6

  def __post_init__(self):
    fields.check(self, num_layers=(1, fields.MOST_LAYERS), side=(1, fields.MOST_SIDE))
    fields.require(self.dim % self.num_heads == 0, 'num_heads', self.num_heads,
                   f'a divisor of dim, {self.dim}')


class Bridge(nn.Module):
  """Maps codes `[B, P]` of square grids to features `[B, P, F]`."""

  config: BridgeConfig

  @nn.compact
  def __call__(self, codes: jax.Array) -> jax.Array:
    c, init = self.config, nn.initializers.normal(0.02)
    table = self.param('codebook', init, (c.num_codes, c.code_dim))
    x = layers.Linear(c.code_dim, name='code')(jnp.take(table, codes, axis=0))
    if c.normalized:
      wide = x.astype(jnp.float32)
      length = jnp.sqrt(jnp.sum(wide * wide, axis=-1, keepdims=True))
      x = (wide / jnp.maximum(length, 1e-12)).astype(x.dtype)
    x = layers.Linear(c.code_dim, name='out_of_code')(x)

    side = math.isqrt(codes.shape[1])
    positions = self.param('positions', init, (c.side**2, c.dim))
    resized = jnp.einsum('ps,sd->pd', _resize(c.side, side), positions.astype(jnp.float32))
    x = layers.Linear(c.dim, name='patch')(x) + resized.astype(x.dtype)
    for index in range(c.num_layers):
      x = layers.VisionLayer(c.num_heads, c.ffn_dim, c.norm_eps, 'gelu_tanh',
                             name=f'layers_{index}')(x, jnp.ones((1, 1, 1, 1), bool))
    x = layers.layer_norm(c.norm_eps, 'norm')(x)
    return layers.Linear(c.dim, name='task_out')(jnp.tanh(layers.Linear(c.dim, name='task_in')(x)))


def _resize(side: int, new: int) -> np.ndarray:
  """Returns the matrix `[new**2, side**2]` that resizes a grid bilinearly, with antialiasing."""
  scale = side / new
  center = (np.arange(new) + 0.5) * scale - 0.5
  weights = np.maximum(1 - np.abs(np.arange(side) - center[:, None]) / max(scale, 1), 0)
  weights /= weights.sum(axis=1, keepdims=True)
  return np.kron(weights, weights).astype(np.float32)


def init_bridge(config: BridgeConfig, key: jax.Array) -> Params:
  """Initialises the parameters of a bridge, float32."""
  return jax.jit(Bridge(config).init)(key, jnp.zeros((1, 1), jnp.int32))['params']


@dataclasses.dataclass(frozen=True)
class ArDtokConfig(decoder_only.DecoderOnlySizes):
  """Sizes of AR-DTok; the defaults are for the published networks, at 1024 pixels.

  Attributes:
    ffn_dim: None means two thirds of `4 * dim`, rounded up to a multiple of 256.
    vocab_size: tokens of the image tokenizer.
    condition_dim: `F`.
    num_positions: rows of the table of positions, for all codes and all tokens but the last.
  """

  height: int = 64
  width: int = 64
  dim: int = 1280
  num_layers: int = 30
  num_heads: int = 20
  ffn_dim: int | None = None
  vocab_size: int = 16384
  condition_dim: int = 1152
  num_positions: int = 4824

  def __post_init__(self):
    self.check()
    if self.ffn_dim is None:
      object.__setattr__(self, 'ffn_dim', -(-(8 * self.dim // 3) // 256) * 256)
    if self.num_positions < self.num_tokens:
      raise ValueError(f'num_positions is {self.num_positions}; images of {self.num_tokens} tokens '
                       'need as many, and more for a condition.')
    _ = self.transformer  # Checks the sizes that only the transformer uses.

  @property
  def num_image_tokens(self) -> int:
    """The number of tokens that can occur in an image."""
    return self.vocab_size

  @property
  def most_codes(self) -> int:
    """The most codes that the table of positions has room for."""
    return self.num_positions + 1 - self.num_tokens

  @property
  def transformer(self) -> transformer.TransformerConfig:
    """Sizes of the transformer."""
    return self.sizes(self.vocab_size)


@dataclasses.dataclass(frozen=True)
class TarConfig(ArDtokConfig):
  """Sizes of AR-DTok and of the bridge, whose parameters are in the entry 'bridge' of its own."""

  bridge: BridgeConfig = BridgeConfig()

  def causal(self, num_streams: int) -> causal.Causal:
    """The specification of the model."""

    def embed_condition(params: Params, codes: jax.Array, count: int) -> causal.EmbeddedCondition:
      features = _features(params, self, codes)
      null = [jnp.zeros_like(features)] * (count - 1)
      return _embedded(params, jnp.concatenate([features, *null]))

    return causal.Causal(
        transformer=self.transformer, embed_condition=embed_condition, rope=transformer.no_rope,
        num_tokens=self.num_tokens, row_width=self.width, check_condition=self.check_codes,
        position_embedding=lambda params, positions: jnp.take(
            params['positions'], positions, axis=0, mode='clip'))

  def check_codes(self, codes: Any) -> Any:
    """Checks a condition; returns which rows are valid, `[B]` bool.

    Raises ValueError for another shape or dtype, and for concrete codes that are out of range.
    """
    array = np.asarray(codes) if is_concrete(codes) else jnp.asarray(codes)
    is_grid = array.ndim == 2 and math.isqrt(array.shape[1])**2 == array.shape[1] > 0
    if not is_grid or not np.issubdtype(array.dtype, np.integer):
      raise ValueError(f'condition has shape {array.shape} and dtype {array.dtype}; this model '
                       'requires the codes of one square grid per image, integers [B, P], such as '
                       f'P = {SIDES[0]**2}.')
    if array.shape[1] > self.most_codes:
      raise ValueError(f'condition has {array.shape[1]} codes; the table of {self.num_positions} '
                       f'positions has room for {self.most_codes} before {self.num_tokens} tokens, '
                       'so use a smaller grid of codes.')
    most = self.bridge.num_codes - 1
    valid = ((array >= 0) & (array <= most)).all(axis=1)
    if is_concrete(codes) and not valid.all():
      raise ValueError(f'condition holds codes from {array.min()} to {array.max()}; this model '
                       f'supports 0 to {most}.')
    return valid


# The published networks, by the pixels of their images.
PRESETS: dict[str, ArDtokConfig] = {
    f'ar_dtok_{16 * side}': ArDtokConfig(
        height=side, width=side, num_positions=SIDES[0]**2 + side**2 - 1) for side in (16, 32, 64)}


def init(config: ArDtokConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters without a bridge: normal with deviation 0.02, norms one.

  Biases and the output matrix are zero.
  """
  def run(key: jax.Array) -> Params:
    keys = jax.random.split(key, 3)
    normal = lambda key, *shape: 0.02 * jax.random.normal(key, shape)
    return {'transformer': decoder_only.init_transformer(config, keys[0]),
            'positions': normal(keys[1], config.num_positions, config.dim),
            'condition': {'kernel': normal(keys[2], config.condition_dim, config.dim),
                          'bias': jnp.zeros(config.dim)}}

  return jax.jit(run)(key)


def logits_and_features(
    params: Params, config: TarConfig, codes: jax.Array, tokens: jax.Array, drop: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Returns next-token logits and features of whole images, for training and evaluation.

  As `decoder_only.logits_and_features`, with codes `[B, P]` as the condition, whose features are
  zero where `drop`.
  """
  features = jnp.where(drop[:, None, None], 0, _features(params, config, codes))
  return causal.forward(
      params, config.causal(1), _embedded(params, features), tokens[:, :-1])[:2]


def _features(params: Params, config: TarConfig, codes: jax.Array) -> jax.Array:
  return Bridge(config.bridge).apply({'params': params['bridge']}, codes)


def _embedded(params: Params, features: jax.Array) -> causal.EmbeddedCondition:
  """Embeds features `[R, P, F]`."""
  layer = params['condition']
  embeddings = features.astype(layer['kernel'].dtype) @ layer['kernel'] + layer['bias']
  rows, count = features.shape[:2]
  return causal.EmbeddedCondition(embeddings, causal.ConditionPositions(
      jnp.ones((rows, count), bool), jnp.arange(count)[None], jnp.full(1, count, jnp.int32)))
