"""The local network: predicts the target's features from what is near, without attention.

Its inputs are the nearby tokens that `neighbours` reads, and the target's features that predicted
the nearest of them. In place of a cache it retains the features of one row. Like an EAGLE network
it predicts the next feature, which the target's head maps to logits, and as the corrector of the
target's stale features (`drafters.corrected`) it has a learned correction of its error.

In the shape descriptions `B` is the number of images, `S` of guidance streams, `n` of positions,
`L` of drafts, `W` of tokens in a row, `F` the width of a feature and `H` of the hidden layers.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.base import DecodeContext, RoundResult
from cspd_jax.decoding.drafters import correctors
from cspd_jax.decoding.drafters.correctors import Corrector
from cspd_jax.models import ends as ends_lib, neighbours
from cspd_jax.models.ends import Ends
from cspd_jax.models.layers import Linear

Params = Any
# How many of `neighbours.OFFSETS` have their features read: left, above, above to the right.
NUM_FEATURES = 3

# Three features of about this scale are added up.
_READ_INIT = nn.initializers.variance_scaling(0.25, 'fan_in', 'truncated_normal')


@dataclasses.dataclass(frozen=True)
class LocalConfig(neighbours.NeighboursConfig):
  """Sizes of the network: a neighbours network's, and two more.

  Attributes:
    feature_dim: `F`, the target's width.
    correction_dim: hidden width of the learned correction.
  """

  hidden_dim: int = 256
  feature_dim: int = 1280
  correction_dim: int = 64


class Prediction(NamedTuple):
  """Predicted features `[..., S, F]`, and their part in the correction, `[..., S, C]`."""

  features: jax.Array
  hidden: jax.Array


class Local(nn.Module):
  """The network in parts, so that what does not change between passes is computed once."""

  config: LocalConfig

  def setup(self):
    config = self.config
    self.embedding = nn.Embed(config.vocab_size + 1, config.dim)
    self.fc = Linear(NUM_FEATURES * config.hidden_dim, use_bias=False, kernel_init=_READ_INIT)
    self.hidden_0, self.hidden_1 = Linear(config.hidden_dim), Linear(config.hidden_dim)
    self.out = Linear(config.feature_dim + config.correction_dim)
    self.hidden_2 = Linear(config.correction_dim)
    self.gain = Linear(
        2 * config.feature_dim, use_bias=False, kernel_init=nn.initializers.zeros)
    self.log_decay = self.param(
        'log_decay', lambda key: jnp.full((), np.log(correctors.DECAY), jnp.float32))

  def read(self, features: jax.Array) -> jax.Array:
    """Maps features `[..., F]` to what they add to the tokens near theirs, `[..., 3, H]`."""
    x = self.fc(features)
    return x.reshape(*x.shape[:-1], NUM_FEATURES, -1)

  def predict(self, tokens: jax.Array, reads: jax.Array) -> Prediction:
    """Predicts features `[..., S, F]` from nearby tokens `[..., k]` and sums `[..., S, H]`."""
    x = self.embedding(tokens)
    x = self.hidden_0(x.reshape(*x.shape[:-2], -1))[..., None, :] + reads
    x = self.out(jax.nn.silu(self.hidden_1(jax.nn.silu(x))))
    return Prediction(*jnp.split(x, [self.config.feature_dim], axis=-1))

  def correct(self, new: Prediction, old: Prediction, stale: jax.Array) -> jax.Array:
    """Corrected features: the formula of `corrected_features` with a learned decay, gain and shift.

    The decay is learned, and a hidden layer on the change, on the old prediction and on the stale
    features adds to the gain of the error, per channel, and to the feature.
    """
    hidden = nn.silu(new.hidden - old.hidden + self.hidden_2(
        jnp.concatenate([stale, old.features], axis=-1)))
    gain, shift = jnp.split(self.gain(hidden), 2, axis=-1)
    corrected = correctors.corrected_features(
        new.features, old.features, stale, jnp.exp(self.log_decay))
    return corrected + gain * (stale - old.features) + shift

  def every(self, tokens: jax.Array, features: jax.Array) -> jax.Array:
    """Applies every part once, to initialise them all."""
    new = self.predict(tokens, jnp.sum(self.read(features), axis=-2))
    return self.correct(new, new, features)


def init(config: LocalConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters, without those that the network shares with the target."""
  inputs = jnp.zeros((1, config.num_inputs), jnp.int32), jnp.zeros((1, 1, config.feature_dim))
  return jax.jit(functools.partial(Local(config).init, method='every'))(key, *inputs)['params']


def attach(target_params: Params, params: Params) -> Params:
  """Adds the target's parameters without its layers, for its head; nothing is copied."""
  return {**params, 'target': ends_lib.first_layers(target_params, 0)}


def read(params: Params, config: LocalConfig, features: jax.Array) -> jax.Array:
  """Maps features `[..., F]` to what `predict` reads of them, `[..., 3, H]`."""
  return Local(config).apply({'params': params}, features, method='read')


def predict(params: Params, config: LocalConfig, image: jax.Array, reads: jax.Array,
            start: jax.Array) -> Prediction:
  """Predicts the features `[B, n, S, F]` of the tokens after token number `start` `[B]`.

  `image` are tokens `[B, R]`. `reads` `[B, W + n, S, 3, H]`, of `read`, are of the features that
  predicted those from number `start - W` on; entries before the image do not count.
  """
  count = reads.shape[1] - config.row_width
  tokens, places, in_image = neighbours.nearby(
      config, image, start[:, None] + 1 + jnp.arange(count))
  index = places[..., :NUM_FEATURES] - (start - config.row_width)[:, None, None]
  index = jnp.clip(index, 0, reads.shape[1] - 1)
  near = jax.vmap(lambda row, at: row[at, :, np.arange(NUM_FEATURES)])(reads, index)
  near = jnp.sum(jnp.where(in_image[..., :NUM_FEATURES, None, None], near, 0), axis=2)
  return Local(config).apply({'params': params}, tokens, near, method='predict')


def correct(params: Params, config: LocalConfig, new: Prediction, old: Prediction,
            stale: jax.Array, has_stale: jax.Array) -> jax.Array:
  """Corrects predictions by stale features, all `[..., S, F]`; those without are returned."""
  corrected = Local(config).apply({'params': params}, new, old, stale, method='correct')
  return jnp.where(
      has_stale[..., None, None], corrected.astype(new.features.dtype), new.features)


class _State(NamedTuple):
  """The state between two rounds."""

  tokens: jax.Array  # `[B, T']` committed tokens.
  nodes: jax.Array  # `[B, L]` main chain of the last round without its root.
  first: jax.Array  # `[B]` the number of that root.
  # What is read of features: `[B, L, S, 3, H]` of those after these nodes, and `[B, W + 1, ...]` of
  # those that predicted the last tokens up to the new root, and up to the token after the old one.
  reads: jax.Array
  row: jax.Array
  old_row: jax.Array


_write = jax.vmap(jax.lax.dynamic_update_slice_in_dim, (0, 0, 0, None))
_take = jax.vmap(lambda row, at: row[at])


def corrector(config: LocalConfig, target: Ends) -> Corrector:
  """Returns the network as a corrector; its parameters, of `attach`, are the `draft_params`."""

  def init(context: DecodeContext, condition: Any, result: RoundResult, length: int) -> _State:
    features = contracts.check_features(result.features, context.params)
    last = read(context.params, config, jnp.moveaxis(features[:, :, -1:], 0, 2))
    row = jnp.pad(last, ((0, 0), (config.row_width, 0), (0, 0), (0, 0), (0, 0)))
    token = result.tokens[:, :1]
    return _State(result.tokens, jnp.repeat(token, length, axis=1), jnp.zeros_like(token[:, 0]),
                  jnp.repeat(last, length, axis=1), row, row)

  def of_window(context: DecodeContext, committed: jax.Array, tokens: jax.Array, row: jax.Array,
                reads: jax.Array, start: jax.Array) -> Prediction:
    """Predicts the features of `tokens` `[B, n]`, which follow token number `start`."""
    count = tokens.shape[1]
    image = _write(jnp.pad(committed, ((0, 0), (0, count))), tokens, start + 1, 0)
    return predict(context.params, config, image,
                   jnp.concatenate([row, reads[:, :count - 1]], axis=1), start)

  def begin(context: DecodeContext, state: _State, tokens: jax.Array, estimate: jax.Array,
            start: jax.Array) -> tuple[Prediction, Prediction, _State]:
    # One call: the images before and after the last round are concatenated along the batch. In the
    # old one, the first node counts as the root.
    both = lambda old, new: jnp.concatenate([old, new])
    count, room = tokens.shape[1], state.nodes.shape[1] - tokens.shape[1]
    fill = lambda x: jnp.pad(x, ((0, 0), (0, room)) + ((0, 0),) * (x.ndim - 2))
    image = _write(state.tokens, state.nodes[:, :1], state.first + 1, 0)
    after = jnp.pad(state.nodes[:, 1:], ((0, 0), (0, 1)))
    pair = of_window(
        context, both(image, state.tokens), both(after, fill(tokens)),
        both(state.old_row, state.row),
        both(state.reads, fill(read(context.params, config, estimate))),
        both(state.first + 1, start))
    old, new = (Prediction(*parts) for parts in zip(*(jnp.split(x, 2) for x in pair)))
    return jax.tree.map(lambda x: x[:, :count], new), old, state

  def score(context: DecodeContext, state: _State, tokens: jax.Array, estimate: jax.Array,
            start: jax.Array) -> tuple[Prediction, _State]:
    reads = read(context.params, config, estimate)
    return of_window(context, state.tokens, tokens, state.row, reads, start), state

  def update(context: DecodeContext, state: _State, result: RoundResult) -> _State:
    length = state.nodes.shape[1]
    reads = read(context.params, config, jnp.moveaxis(result.features, 0, 2))
    row = jnp.concatenate([state.row, _take(reads, result.path)], axis=1)
    index = result.accepted[:, None] + 1 + jnp.arange(config.row_width + 1)
    return _State(
        result.tokens, result.nodes[:, 1:length + 1], result.root, reads[:, 1:length + 1],
        _take(row, index), jnp.concatenate([state.row[:, 1:], reads[:, :1]], axis=1))

  def correct_features(
      context: DecodeContext, prediction: Prediction, old: Prediction, stale: jax.Array,
      has_stale: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    features = correct(context.params, config, prediction, old, stale, has_stale)
    head = context.params['target']
    plain = lambda streams: correctors.uncut(context, target.logits(head, streams), positions)

    def guided(streams):
      mixed = warp_lib.guided(streams, context.sampling, positions)[None].astype(streams.dtype)
      return correctors.uncut(context, target.logits(head, mixed), positions)

    # Guided before the product with a matrix, it is for one stream; on a GPU that is one kernel
    # more, and the product takes as long, because it reads the same matrix.
    return jax.lax.platform_dependent(
        jnp.moveaxis(features, 2, 0), cpu=guided if target.matrix is not None else plain,
        default=plain), features

  return Corrector(
      init, begin, score, update, lambda result: jnp.moveaxis(result.features, 0, 2),
      correct_features,
      functools.partial(contracts.check_sizes, config, 'corrector', contracts.SHARED_SIZES))
