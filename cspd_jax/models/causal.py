"""Decoder-only image models as decoding targets, whatever their family.

A sequence is the condition and then the image tokens in raster order; every token but the last
predicts its successor. A family says how its condition becomes embeddings and how positions
rotate, and may embed its image tokens and predict them in its own way (`Causal`). Masks, caches,
positions, guidance streams and commit are written here, for the targets and for the drafters that
read their features.

Image token `k` lives in cache slot `C + k`, behind the condition. Guidance streams share every
forward pass: row `s B + b` is image `b` in stream `s`.

In the shape descriptions `B` is the number of images, `S` of guidance streams, `R` of rows
(`S B`), `C` of condition tokens, `L` of new tokens, `W` of tokens of a window, `D` the model width
and `V` the size of the image vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.values import is_concrete
from cspd_jax.decoding import base
from cspd_jax.decoding.drafters.feature_network import Network
from cspd_jax.decoding.tree import RuntimeTree, Tree
from cspd_jax.models import ends as ends_lib, transformer
from cspd_jax.models.ends import Embed, Ends, Logits
from cspd_jax.models.rope import RopeFunction
from cspd_jax.models.transformer import KeyValues, TransformerConfig

Params = Any
# From so many slots on there is a multiple of a tile, for other numbers make GPUs pad keys and
# values in every round. In smaller caches the room costs about as much.
_TILED, _TILE = 512, 64


class Places(NamedTuple):
  """Where the tokens of a condition stand; the first axes of positions and origin are equal.

  Attributes:
    visible: `[R, C]` bool, False for padding.
    positions: `[R or 1, C]` int.
    origin: `[R or 1]` int, the position of image token 0.
  """

  visible: jax.Array
  positions: jax.Array
  origin: jax.Array


class Prefix(NamedTuple):
  """A condition as the transformer reads it.

  Attributes:
    embeddings: `[R, C, D]`; padding must be finite.
    places: where they stand; the last token of every row is visible, for it predicts token 0.
  """

  embeddings: jax.Array
  places: Places


class Causal(NamedTuple):
  """What sets one decoder-only image model apart from another.

  Its parameters hold those of the transformer as `params['transformer']`. Tokens `0 .. V - 1` are
  the image tokens: those that the head predicts, and `num_forced` more that stand nowhere but where
  they are forced.

  Attributes:
    transformer: sizes of the transformer.
    embed_condition: `(params, condition, num_streams) -> Prefix` for the rows of all streams. The
      first axis of every leaf of the condition is `B`.
    rope: rotary tables of positions.
    num_tokens: tokens of an image.
    row_width: tokens of an image row.
    forced: see `decoding.base.Target`.
    num_forced: see above.
    check_condition: see `decoding.base.Target`.
    embed: `(params, tokens [...]) -> [..., D]`, the embeddings of image tokens, and of the
      condition's if it is a `Prompt`. None takes the transformer's table.
    logits: `(params, features [..., D]) -> [..., num_outputs]` float32, the head. None takes the
      transformer's output matrix; with one given, the transformer's `num_outputs` is 0, so that
      there is no matrix that nothing uses. Both hooks read everything but the layers of the
      transformer.
    num_outputs: image tokens that `logits` predicts; None takes the transformer's.
  """

  transformer: TransformerConfig
  embed_condition: Callable[[Params, Any, int], Prefix]
  rope: RopeFunction
  num_tokens: int
  row_width: int
  forced: Callable[[jax.Array], jax.Array] | None = None
  num_forced: int = 0
  check_condition: Callable[[Any], Any] = lambda condition: None
  embed: Embed | None = None
  logits: Logits | None = None
  num_outputs: int | None = None


class Cache(NamedTuple):
  """Keys and values, and what is needed to read them.

  Attributes:
    layers: keys and values of every layer, each `[R, K, C + num_slots, E]`.
    visible: `[R, C]` bool, which slots of the condition may be read.
    origin: `[R]` int, the position of image token 0.
  """

  layers: KeyValues
  visible: jax.Array
  origin: jax.Array


class Window(NamedTuple):
  """How new tokens are read on top of a cache.

  Attributes:
    positions: `[R, L]` int.
    mask: `[R, L, C + num_slots]` bool, what each token sees.
    slot: `[B]` int, the slot of the window's first token.
  """

  positions: jax.Array
  mask: jax.Array
  slot: jax.Array


def tile(x: jax.Array, num_streams: int) -> jax.Array:
  """Repeats `x` `[B, ...]` for every stream, `[R, ...]`."""
  return jnp.tile(x, (num_streams,) + (1,) * (x.ndim - 1))


def split(x: jax.Array, num_streams: int) -> jax.Array:
  """Splits rows of all streams `[R, ...]` into `[S, B, ...]`."""
  return x.reshape(num_streams, -1, *x.shape[1:])


def whole(places: Places, length: int) -> tuple[jax.Array, jax.Array]:
  """Positions `[R or 1, n]` and mask `[R, n, n]` of a condition and `length` image tokens."""
  positions = jnp.concatenate(
      [places.positions, places.origin[:, None] + jnp.arange(length)], axis=1)
  readable = jnp.pad(places.visible, ((0, 0), (0, length)), constant_values=True)
  size = readable.shape[1]
  # Padding sees itself, so that no token is left without anything to attend to.
  mask = transformer.causal_mask(size) & (readable[:, None] | jnp.eye(size, dtype=bool))
  return positions, mask


def allocate(layers: KeyValues, places: Places, num_slots: int) -> Cache:
  """The cache after a condition was read, with room for at least `num_slots` image tokens."""
  read = layers[0][0].shape[2]
  size = read + num_slots
  if size >= _TILED:
    size = -(-size // _TILE) * _TILE
  room = ((0, 0), (0, 0), (0, size - read), (0, 0))
  return Cache(
      jax.tree.map(lambda x: jnp.pad(x, room), layers), places.visible,
      jnp.broadcast_to(places.origin, places.visible.shape[:1]))


def window(cache: Cache, start: jax.Array, depth: jax.Array, seen: jax.Array) -> Window:
  """Reads tokens of a window that begins behind the committed tokens.

  Every token sees the condition, the image tokens before `start` and its part of the window.

  Args:
    cache: the cache.
    start: `[B]` number of the window's first image token.
    depth: `[L]` or `[B, L]`, how far beyond `start` the new tokens stand.
    seen: bool `[L, W]` or `[B, L, W]`, what each sees of the window's slots; they follow each
      other from `start` on.
  """
  rows, count = cache.visible.shape
  streams = rows // start.shape[0]
  slot, start = count + start, tile(start, streams)
  depth, seen = jnp.asarray(depth), jnp.asarray(seen)
  positions = (cache.origin + start)[:, None] + (
      tile(depth, streams) if depth.ndim == 2 else depth)
  node = jnp.arange(cache.layers[0][0].shape[2] - count) - start[:, None]
  last = seen.shape[-1] - 1
  clipped = jnp.clip(node, 0, last)
  if seen.ndim == 3:
    related = jnp.take_along_axis(tile(seen, streams), clipped[:, None], axis=2)
  else:
    related = seen[:, clipped].swapaxes(0, 1)
  image = (node < 0)[:, None] | (related & (node <= last)[:, None])
  condition = jnp.broadcast_to(cache.visible[:, None], (rows, image.shape[1], count))
  return Window(positions, jnp.concatenate([condition, image], axis=2), slot)


def commit(cache: Cache, start: jax.Array, path: jax.Array) -> Cache:
  """Moves the entries of an accepted path `[B, D]` in place; see `decoding.base.Target`."""
  rows, count = cache.visible.shape
  streams = rows // start.shape[0]
  # Computed once: kernels that read one array of places are joined, over all layers.
  source = jax.lax.optimization_barrier(
      tile(count + start[:, None] + path, streams)[:, None, :, None])
  # A kernel that reads slots of an array while it writes others copies all of it first.
  moved = jax.lax.optimization_barrier(jax.tree.map(
      lambda slots: jnp.take_along_axis(slots, source, axis=2), cache.layers))
  write = lambda slots, new: transformer.write_slots(slots, new, count + start + 1)
  return cache._replace(layers=jax.tree.map(write, cache.layers, moved))


def read(
    params: Params, model: Causal, prefix: Prefix, tokens: jax.Array,
) -> tuple[jax.Array, jax.Array, KeyValues]:
  """A forward pass over conditions and the image tokens `[R, L]` behind them.

  Returns:
    logits `[R, L + 1, V]` of image tokens `0 .. L`, float32; features after the final norm
    `[R, C + L, D]`; keys and values.
  """
  own = ends(model)
  positions, mask = whole(prefix.places, tokens.shape[1])
  embeddings = jnp.concatenate([prefix.embeddings, own.embed(params, tokens)], axis=1)
  features, layers = transformer.Transformer(model.transformer).apply(
      {'params': params['transformer']}, embeddings, model.rope(positions), mask, method='features')
  return own.logits(params, features[:, prefix.embeddings.shape[1] - 1:]), features, layers


def ends(model: Causal) -> Ends:
  """The embedding and the head of a model; drafters ask these, and know no table of its own.

  Raises:
    ValueError: see `ends.make`.
  """
  return ends_lib.make(
      model.transformer, model.embed, model.logits, model.num_outputs, model.num_forced)


def target(model: Causal, num_streams: int) -> base.Target:
  """The model as a decoding target with `num_streams` guidance streams."""
  network, own = transformer.Transformer(model.transformer), ends(model)

  def prefill(params, condition, num_slots):
    prefix = model.embed_condition(params, condition, num_streams)
    rows, batch = prefix.embeddings.shape[0], jax.tree.leaves(condition)[0].shape[0]
    if rows != num_streams * batch:
      raise ValueError(f'condition gives {rows} rows for {batch} images; this target has '
                       f'{num_streams} guidance streams and takes {num_streams * batch}.')
    nothing = jnp.zeros((rows, 0), jnp.int32)
    logits, features, layers = read(params, model, prefix, nothing)
    return (split(logits[:, 0], num_streams), split(features, num_streams),
            allocate(layers, prefix.places, num_slots))

  def score(params, cache: Cache, tokens, start, tree: Tree | RuntimeTree):
    at = window(cache, start, tree.depth, tree.ancestors)
    features, layers = network.apply(
        {'params': params['transformer']}, own.embed(params, tile(tokens, num_streams)),
        model.rope(at.positions), at.mask, cache.layers, at.slot, method='features')
    return (split(own.logits(params, features), num_streams), split(features, num_streams),
            cache._replace(layers=layers))

  return base.Target(
      prefill=prefill, score=score, commit=commit, vocab_size=own.vocab_size,
      num_tokens=model.num_tokens, row_width=model.row_width, num_streams=num_streams,
      forced=model.forced, check_condition=model.check_condition)


def network(model: Causal, num_streams: int) -> Network:
  """A small model whose features are of the target's kind, as a drafting network.

  It reads tokens only. The first layers of a target with its final norm are one.
  """
  whole_model = target(model, num_streams)
  module, own = transformer.Transformer(model.transformer), ends(model)

  def prefill(params, condition, features, num_slots):
    del features
    return whole_model.prefill(params, condition, num_slots)[2]

  def step(params, cache: Cache, tokens, features, start, depth, visible):
    del features
    at = window(cache, start, depth, visible)
    found, layers = module.apply(
        {'params': params['transformer']}, own.embed(params, tile(tokens, num_streams)),
        model.rope(at.positions), at.mask, cache.layers,
        at.slot + visible.shape[-1] - tokens.shape[1], method='features')
    return split(found, num_streams), cache._replace(layers=layers)

  def logits(params, features):
    flat = features.reshape(-1, *features.shape[2:])
    return split(own.logits(params, flat), features.shape[0])

  return Network(prefill, step, logits, own.vocab_size, model.num_tokens)


def first_layers(params: Params, num_layers: int, model: Callable[[int], Causal]
                 ) -> tuple[Params, Callable[[bool], Network]]:
  """A model's first layers with its final norm and its head, as a drafting network.

  Args:
    params: of the model; nothing is copied.
    num_layers: layers to keep.
    model: `num_streams -> ` what sets the model with so many layers apart.

  Returns:
    The parameters that are left, and `guided -> Network`.
  """
  def build(guided):
    streams = 2 if guided else 1
    return network(model(streams), streams)

  return ends_lib.first_layers(params, num_layers), build


class Prompt(NamedTuple):
  """A condition that is tokens itself, of any length in each guidance stream.

  Attributes:
    tokens: `[B, S, C]` int, padded on the left.
    visible: `[B, S, C]` bool, False for padding.
  """

  tokens: jax.Array
  visible: jax.Array

  def first(self, num_streams: int) -> 'Prompt':
    """The prompts of the first streams."""
    return Prompt(self.tokens[:, :num_streams], self.visible[:, :num_streams])

  def dropped(self, drop: jax.Array) -> 'Prompt':
    """The second stream of the images where `drop` `[B]` is True, the first one of the others."""
    return Prompt(*(jnp.where(drop[:, None], part[:, 1], part[:, 0])[:, None] for part in self))

  def rows(self) -> tuple[jax.Array, jax.Array]:
    """Tokens and visibility as `[R, C]`."""
    return tuple(jnp.asarray(part).swapaxes(0, 1).reshape(-1, part.shape[-1]) for part in self)


def prompt_places(visible: jax.Array) -> Places:
  """Places in the sequence, counted without the padding, of prompts `[R, C]`."""
  count = jnp.cumsum(visible, axis=1, dtype=jnp.int32)
  origin = jnp.sum(visible, axis=1, dtype=jnp.int32)
  return Places(visible, jnp.maximum(count - 1, 0), origin)


def embed_prompt(params: Params, config: TransformerConfig, prompt: Prompt) -> Prefix:
  """Prompts through the transformer's own table of tokens."""
  tokens, visible = prompt.rows()
  embeddings = transformer.Transformer(config).apply(
      {'params': params['transformer']}, tokens, method='embed')
  return Prefix(embeddings, prompt_places(visible))


def check_prompt(prompt: Any, num_streams: int, vocab_size: int) -> Any:
  """Which rows of a `Prompt` for `num_streams` streams a model knows, `[B]` bool.

  Raises:
    ValueError: if it is no such prompt, or a row whose values are known is none.
  """
  if not isinstance(prompt, Prompt):
    raise ValueError(f'condition is a {type(prompt).__name__}; this model takes a causal.Prompt.')
  as_array = np.asarray if is_concrete(prompt) else jnp.asarray
  tokens, visible = as_array(prompt.tokens), as_array(prompt.visible)
  if tokens.ndim != 3 or tokens.shape[1] != num_streams or visible.shape != tokens.shape:
    raise ValueError(
        f'condition has tokens {tokens.shape} and visible {visible.shape}; this target takes '
        f'[B, {num_streams}, C] for both.')
  visible = visible.astype(bool)
  padded = (visible[..., 1:] | ~visible[..., :-1]).all(axis=(1, 2))
  if tokens.shape[2]:
    padded = padded & visible[..., -1].all(axis=1)
  if not tokens.shape[2] or is_concrete(prompt) and not padded.all():
    raise ValueError(
        'condition: visible must be False and then True along the last axis, with a True at the '
        'end; prompts are padded on the left and hold at least one token.')
  known = ((tokens >= 0) & (tokens < vocab_size)).all(axis=(1, 2))
  if is_concrete(prompt) and not known.all():
    raise ValueError(f'condition holds tokens from {tokens.min()} to {tokens.max()}; this model '
                     f'knows 0 to {vocab_size - 1}.')
  return padded & known
