"""MAR: a masked image model of continuous tokens (arXiv 2406.11838).

A transformer encoder reads the visible tokens after a buffer of rows that hold the class; a decoder
of the same size returns a vector `z` for every position; and a small diffusion model, the diffusion
head, samples a token from `z`. The tokens are the latents of `kl_vae`, in raster order.

The published code removes hidden tokens from the encoder's input, so that all
images of a batch must hide the same number. Here no query attends to them, which
is equivalent and allows any mask per image. The encoder is compiled for a few
static lengths and uses the shortest that holds the visible tokens of every image.

In the shape descriptions, `B` is the number of images, `R` of rows (images times guidance streams),
`T` of tokens, `C` the length of a token, `L` the number of rows of a sequence (buffer, then
tokens), `D` the width of the transformer and `W` the diffusion head's.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.continuous import base
from cspd_jax.core import fields
from cspd_jax.models import conditions, diffusion_head, ends, layers

Params = Any

_NORM_EPS = 1e-6
# Number of lengths for which the encoder is compiled: a quarter of the tokens, half of them, ...
_NUM_LENGTHS = 4
_TABLE = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class MARConfig:
  """Sizes of a MAR model; the defaults are MAR-B.

  Attributes:
    height: rows of the token grid.
    width: tokens of one row.
    token_dim: `C`, numbers per token.
    patch_size: latents of the image tokenizer per token along each side; 1 in the published models.
    dim: `D`.
    num_layers: blocks of the encoder; the decoder has as many.
    num_heads: attention heads.
    head_width: `W`.
    head_layers: residual blocks of the diffusion head.
    num_classes: number of classes without the null class.
    buffer_size: number of rows with the class, before the tokens.
  """

  height: int = 16
  width: int = 16
  token_dim: int = 16
  patch_size: int = 1
  dim: int = 768
  num_layers: int = 12
  num_heads: int = 12
  head_width: int = 1024
  head_layers: int = 6
  num_classes: int = 1000
  buffer_size: int = 64

  def __post_init__(self):
    side, depth = (1, fields.MOST_SIDE), (1, fields.MOST_LAYERS)
    fields.check(self, height=side, width=side, num_layers=depth, head_layers=depth)
    fields.require(self.dim % self.num_heads == 0, 'num_heads', self.num_heads,
                   f'a divisor of dim, {self.dim}')
    fields.require(self.token_dim % self.patch_size**2 == 0, 'token_dim', self.token_dim,
                   f'a multiple of the {self.patch_size**2} latents per token')

  @property
  def num_tokens(self) -> int:
    """The number `T` of tokens of an image."""
    return self.height * self.width

  @property
  def latent_channels(self) -> int:
    """Channels of the image tokenizer's latents."""
    return self.token_dim // self.patch_size**2

  @property
  def head(self) -> diffusion_head.Head:
    """The diffusion head."""
    return diffusion_head.Head(self.head_width, self.head_layers, self.token_dim)


PRESETS: dict[str, MARConfig] = {
    'mar_b': MARConfig(),
    'mar_l': MARConfig(dim=1024, num_layers=16, num_heads=16, head_width=1280, head_layers=8),
    'mar_h': MARConfig(dim=1280, num_layers=20, num_heads=16, head_width=1536, head_layers=12)}


class MAR(nn.Module):
  """All parameters of a model; `dropout` is the rate in the transformer, for training only.

  The transformer computes in their dtype, the diffusion head in float32.
  """

  config: MARConfig
  dropout: float = 0.0

  def setup(self):
    c = self.config
    length = c.buffer_size + c.num_tokens
    dense = functools.partial(nn.Dense, c.dim, kernel_init=layers.XAVIER)
    norm = functools.partial(layers.layer_norm, _NORM_EPS)
    build = lambda: [layers.VisionLayer(c.num_heads, 4 * c.dim, _NORM_EPS, dropout=self.dropout)
                     for _ in range(c.num_layers)]
    self.class_embedding = self.param('class_embedding', _TABLE, (c.num_classes, c.dim))
    self.null_embedding = self.param('null_embedding', _TABLE, (1, c.dim))
    self.token_in, self.token_norm = dense(), norm()
    self.encoder_positions = self.param('encoder_positions', _TABLE, (1, length, c.dim))
    self.encoder_layers, self.encoder_norm = build(), norm()
    self.decoder_in = dense()
    self.mask_token = self.param('mask_token', _TABLE, (1, 1, c.dim))
    self.decoder_positions = self.param('decoder_positions', _TABLE, (1, length, c.dim))
    self.decoder_layers, self.decoder_norm = build(), norm()
    self.z_positions = self.param('z_positions', _TABLE, (1, c.num_tokens, c.dim))
    self.head = c.head

  def encode(
      self, labels: jax.Array, drop: jax.Array, tokens: jax.Array, visible: jax.Array,
  ) -> jax.Array:
    """Returns the encoder's output `[R, L, D]`; rows of hidden tokens are undefined.

    Where `drop` `[R]` is True, the null class replaces the label `[R]`. Hidden tokens, of
    `[R, T, C]`, may hold any value; `visible` is `[R, T]` bool.
    """
    c = self.config
    # Hidden tokens may hold NaN, which an attention mask would not remove.
    tokens = jnp.where(visible[..., None], tokens, 0).astype(self.mask_token.dtype)
    condition = jnp.where(
        drop[:, None], self.null_embedding, jnp.take(self.class_embedding, labels, axis=0))
    buffer = jnp.broadcast_to(condition[:, None], (tokens.shape[0], c.buffer_size, c.dim))
    x = jnp.concatenate([buffer, self.token_in(tokens)], axis=1)
    x = self.token_norm(x + self.encoder_positions)
    mask = self._with_buffer(visible)
    step = -(-c.num_tokens // _NUM_LENGTHS)
    branches = [functools.partial(MAR._encode_first, length=c.buffer_size + tokens)
                for tokens in range(step, c.num_tokens, step)]
    shortest = (visible.sum(axis=1).max() - 1) // step
    return nn.switch(shortest, [*branches, MAR._encode_rows], self, x, mask)

  def _encode_rows(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Runs the layers on `n` rows `[R, n, D]`; `mask` `[R, n]` marks the visible ones."""
    for layer in self.encoder_layers:
      x = layer(x, mask[:, None, None])
    return self.encoder_norm(x)

  def _encode_first(self, x: jax.Array, mask: jax.Array, length: int) -> jax.Array:
    """Like `_encode_rows`, but runs only the visible rows, at most `length` of them."""
    order = jnp.argsort(~mask, axis=1, stable=True)
    inverse = jnp.argsort(order, axis=1)
    gather = lambda x, rows: jnp.take_along_axis(x, rows[..., None], axis=1)
    first = order[:, :length]
    x = self._encode_rows(gather(x, first), jnp.take_along_axis(mask, first, axis=1))
    return gather(x, jnp.minimum(inverse, length - 1))

  def decode(self, encoded: jax.Array, visible: jax.Array) -> jax.Array:
    """Returns vectors `z` `[R, T, D]` from the encoder's output."""
    x = self.decoder_in(encoded)
    x = jnp.where(self._with_buffer(visible)[..., None], x, self.mask_token)
    x = x + self.decoder_positions
    all_visible = jnp.ones((1, 1, 1, 1), bool)
    for layer in self.decoder_layers:
      x = layer(x, all_visible)
    return self.decoder_norm(x)[:, self.config.buffer_size:] + self.z_positions

  def _with_buffer(self, visible: jax.Array) -> jax.Array:
    """Extends the visibility of tokens by the buffer, which is always visible, to `[R, L]`."""
    return jnp.pad(visible, ((0, 0), (self.config.buffer_size, 0)), constant_values=True)

  def transform(self, labels: jax.Array, drop: jax.Array, tokens: jax.Array, visible: jax.Array
                ) -> jax.Array:
    """Returns vectors `z` `[R, T, D]`; arguments as for `encode`."""
    return self.decode(self.encode(labels, drop, tokens, visible), visible)

  def denoise(self, x: jax.Array, step: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Predicts noise and variance."""
    return self.head(x, step, z)

  def __call__(self, labels, drop, tokens, visible):
    z = self.transform(labels, drop, tokens, visible)
    return self.denoise(tokens[:, 0], jnp.zeros(labels.shape, jnp.int32), z[:, 0])


def init(config: MARConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters as MAR does: tables normal, matrices Xavier-uniform.

  The modulation and output matrices of the diffusion head are zero: it predicts no noise at first.
  """
  tokens = jnp.zeros((1, config.num_tokens, config.token_dim))
  run = lambda key: MAR(config).init(
      key, jnp.zeros((1,), jnp.int32), jnp.zeros((1,), bool), tokens,
      jnp.ones(tokens.shape[:2], bool))
  return jax.jit(run)(key)['params']


def target(config: MARConfig, *, guided: bool) -> base.Target:
  """Returns the model as a decoding target of class labels `[B]`; `guided` runs the null class too.
  """
  model, streams = MAR(config), 2 if guided else 1

  def transform(params: Params, labels: jax.Array, tokens: jax.Array, visible: jax.Array
                ) -> jax.Array:
    drop = jnp.repeat(jnp.arange(streams) == 1, labels.shape[0])
    z = model.apply(
        {'params': params}, jnp.tile(labels, streams), drop, jnp.tile(tokens, (streams, 1, 1)),
        jnp.tile(visible, (streams, 1)), method='transform')
    return z.reshape(streams, -1, *z.shape[1:])

  return base.Target(
      transform=transform, denoise=ends.denoise(config.head), num_tokens=config.num_tokens,
      token_dim=config.token_dim, num_streams=streams,
      modulation=ends.modulation(config.head), sizes=_sizes(config),
      check_condition=functools.partial(
          conditions.check_class_labels, num_classes=config.num_classes))


def _sizes(config: MARConfig) -> base.Sizes:
  """Returns the bytes of intermediate results, which programs for CPUs hold in float32."""
  rows = config.buffer_size + config.num_tokens
  features, scores = rows * config.dim, config.num_heads * rows**2
  # Two arrays of scores with features, queries, keys and values; or half of the scores with arrays
  # of twenty widths, most of them the hidden features before and after their activation.
  per_pass = max(2 * scores + 6 * features, 20 * features + scores / 2)
  modulation = diffusion_head.num_parts(config.head_layers) * config.head_width
  return base.Sizes(4.0 * per_pass, 4.0 * modulation)


def patchify(config: MARConfig, latents: jax.Array) -> jax.Array:
  """Cuts scaled latents `[B, height p, width p, C / p^2]` into tokens `[B, T, C]` in raster order.

  `p` is the patch size. Within a token the channel varies slowest, then the row.
  """
  p = config.patch_size
  grid = latents.reshape(-1, config.height, p, config.width, p, config.latent_channels)
  return grid.transpose(0, 1, 3, 5, 2, 4).reshape(-1, config.num_tokens, config.token_dim)


def unpatchify(config: Any, tokens: jax.Array) -> jax.Array:
  """Returns the scaled latents of tokens, for `kl_vae.decode`; the inverse of `patchify`."""
  p = config.patch_size
  grid = tokens.reshape(-1, config.height, config.width, config.latent_channels, p, p)
  return grid.transpose(0, 1, 4, 2, 5, 3).reshape(
      -1, config.height * p, config.width * p, config.latent_channels)
