"""Decoder-only image models of every family as decoding targets.

A sequence is the condition followed by the image tokens in raster order; every token but the last
predicts its successor. A family specifies how its condition is embedded and how positions rotate,
and may supply its own embedding and output head for image tokens (`Causal`). Masks, caches,
positions, guidance streams and commit are implemented here, for the targets and for the drafters
that read their features.

Image token `k` occupies cache slot `C + k`, after the condition. Guidance streams share every
forward pass: row `s B + b` is image `b` in stream `s`.

In the shape descriptions `B` is the number of images, `S` of guidance streams, `R` of rows
(`S B`), `C` of condition tokens, `L` of new tokens, `W` of tokens of a window, `D` the model width
and `V` the size of the image vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import base
from cspd_jax.decoding.drafters.feature_network import Network
from cspd_jax.decoding.tree import RuntimeTree, Tree
from cspd_jax.models import attention, ends as ends_lib, transformer
from cspd_jax.models.conditions import Prompt
from cspd_jax.models.ends import Embed, Ends, Logits
from cspd_jax.models.transformer import KeyValues, RopeFunction, TransformerConfig

Params = Any
Condition = Any
# Caches of at least `_TILED` slots are rounded up to a multiple of `_TILE`, because GPUs pad the
# keys and values of other sizes in every round. In smaller caches the extra slots cost as much.
_TILED, _TILE = 512, 64


class ConditionPositions(NamedTuple):
  """Positions of a condition's tokens, `[R or 1, C]` int.

  `visible` `[R, C]` bool is False for padding, `origin` int, of the first axis of `positions`, is
  the position of image token 0.
  """

  visible: jax.Array
  positions: jax.Array
  origin: jax.Array


class EmbeddedCondition(NamedTuple):
  """A condition as the input of the transformer: embeddings `[R, C, D]` and their positions.

  Padding must be finite, and the last token of every row visible: it predicts image token 0.
  `is_text` `[R, C]` bool is as for `transformer.Transformer.features`.
  """

  embeddings: jax.Array
  positions: ConditionPositions
  is_text: jax.Array | None = None


class Causal(NamedTuple):
  """Specification of a decoder-only image model: the parts in which models differ.

  Its parameters have the transformer's as `params['transformer']`. Tokens `0 .. V - 1` are
  the image tokens: those that the output head predicts, and `num_forced` more that occur only
  where they are forced.

  Attributes:
    transformer: sizes of the transformer.
    embed_condition: `(params, condition, num_streams) -> EmbeddedCondition` for the rows of all
      streams. The first axis of every leaf of the condition is `B`.
    rope: rotary tables of positions.
    num_tokens: tokens of an image.
    row_width: tokens of an image row.
    forced: None, or `positions -> tokens` (both int32 of one shape), which returns the token that
      the grammar forces at a position, or -1 if the position is free.
    num_forced: number of image tokens that the output head does not predict.
    check_condition: see `decoding.base.Target`.
    embed: `(params, tokens [...]) -> [..., D]`, the embeddings of image tokens, and of the
      condition's tokens if it is a `Prompt`. None means the transformer's embedding table.
    logits: `(params, features [..., D]) -> [..., num_outputs]` float32, the output head. None
      means the transformer's output matrix; otherwise the transformer's `num_outputs` must be 0,
      so that there is no unused matrix. `embed` and `logits` may read all parameters except the
      layers of the transformer.
    num_outputs: image tokens that `logits` predicts; None means the transformer's.
    small: see `decoding.base.Target`.
    position_embedding: None, or `(params, positions [R or 1, L]) -> [R or 1, L, D]`, which is added
      to the embeddings of all tokens, including the condition's. Positions past the end of
      the image must have one too.
  """

  transformer: TransformerConfig
  embed_condition: Callable[[Params, Condition, int], EmbeddedCondition]
  rope: RopeFunction
  num_tokens: int
  row_width: int
  forced: Callable[[jax.Array], jax.Array] | None = None
  num_forced: int = 0
  check_condition: Callable[[Condition], Any] = lambda condition: None
  embed: Embed | None = None
  logits: Logits | None = None
  num_outputs: int | None = None
  small: Callable[[jax.Array], jax.Array] | None = None
  position_embedding: Callable[[Params, jax.Array], jax.Array] | None = None

  def placed(self, params: Params, embeddings: jax.Array, positions: jax.Array) -> jax.Array:
    """Adds the embeddings of positions, if there are any, to the tokens' `[R, L, D]`."""
    if self.position_embedding is None:
      return embeddings
    return embeddings + self.position_embedding(params, positions)


class Cache(NamedTuple):
  """Keys and values, each `[R, K, C + num_slots, E]`, and what is known of the condition.

  `visible` `[R, C]` bool are its slots that may be attended to, `origin` `[R]` int is the position
  of image token 0.
  """

  layers: KeyValues
  visible: jax.Array
  origin: jax.Array


class Window(NamedTuple):
  """Positions `[R, L]` int of new tokens on top of a cache, and the slot `[B]` int of the first.

  `mask` `[R, L, C + num_slots]` bool are the slots that each token attends to.
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


def positions_and_mask(condition: ConditionPositions, length: int) -> tuple[jax.Array, jax.Array]:
  """Positions `[R or 1, n]` and mask `[R, n, n]` of a condition and `length` image tokens."""
  positions = jnp.concatenate(
      [condition.positions, condition.origin[:, None] + jnp.arange(length)], axis=1)
  visible = jnp.pad(condition.visible, ((0, 0), (0, length)), constant_values=True)
  size = visible.shape[1]
  # Padding attends to itself, because every token must attend to something.
  mask = transformer.causal_mask(size) & (visible[:, None] | jnp.eye(size, dtype=bool))
  return positions, mask


def allocate(layers: KeyValues, condition: ConditionPositions, num_slots: int) -> Cache:
  """Builds the cache after the prefill, with slots for at least `num_slots` image tokens."""
  count = layers[0][0].shape[2]
  size = count + num_slots
  if size >= _TILED:
    size = -(-size // _TILE) * _TILE
  padding = ((0, 0), (0, 0), (0, size - count), (0, 0))
  return Cache(
      jax.tree.map(lambda x: jnp.pad(x, padding), layers), condition.visible,
      jnp.broadcast_to(condition.origin, condition.visible.shape[:1]))


def window(cache: Cache, start: jax.Array, depth: jax.Array, seen: jax.Array) -> Window:
  """Builds positions and mask of a window that begins after the committed tokens.

  Every token sees the condition, the image tokens before `start` and its part of the window.

  Args:
    start: `[B]` number of the window's first image token.
    depth: `[L]` or `[B, L]`, offset of each new token's position from `start`.
    seen: bool `[L, W]` or `[B, L, W]`, the window's slots that each token sees; the slots are
      consecutive, beginning at `start`.
  """
  rows, count = cache.visible.shape
  streams = rows // start.shape[0]
  slot, start = count + start, tile(start, streams)
  depth, seen = jnp.asarray(depth), jnp.asarray(seen)
  positions = (cache.origin + start)[:, None] + (tile(depth, streams) if depth.ndim == 2 else depth)
  node = jnp.arange(cache.layers[0][0].shape[2] - count) - start[:, None]
  last = seen.shape[-1] - 1
  clipped = jnp.clip(node, 0, last)
  if seen.ndim == 3:
    in_window = jnp.take_along_axis(tile(seen, streams), clipped[:, None], axis=2)
  else:
    in_window = seen[:, clipped].swapaxes(0, 1)
  image = (node < 0)[:, None] | (in_window & (node <= last)[:, None])
  condition = jnp.broadcast_to(cache.visible[:, None], (rows, image.shape[1], count))
  return Window(positions, jnp.concatenate([condition, image], axis=2), slot)


def commit(cache: Cache, start: jax.Array, path: jax.Array) -> Cache:
  """Moves the entries of an accepted path `[B, D]` in place."""
  rows, count = cache.visible.shape
  streams = rows // start.shape[0]
  # Computed once: XLA fuses the kernels of all layers when they read one array of indices.
  source = jax.lax.optimization_barrier(
      tile(count + start[:, None] + path, streams)[:, None, :, None])
  # A kernel that reads and writes slots of one array would copy the whole array first.
  moved = jax.lax.optimization_barrier(jax.tree.map(
      lambda slots: jnp.take_along_axis(slots, source, axis=2), cache.layers))
  write = lambda slots, new: transformer.write_slots(slots, new, count + start + 1)
  return cache._replace(layers=jax.tree.map(write, cache.layers, moved))


def forward(
    params: Params, model: Causal, condition: EmbeddedCondition, tokens: jax.Array | None,
) -> tuple[jax.Array, jax.Array, KeyValues]:
  """Runs one pass over conditions and the image tokens `[R, L]` after them, or conditions alone.

  Returns:
    logits `[R, L + 1, V]` of image tokens `0 .. L`, float32; features after the final norm
    `[R, C + L, D]`; keys and values.
  """
  model_ends, (embeddings, _, is_text) = ends(model), condition
  if tokens is not None:
    embeddings = jnp.concatenate([embeddings, model_ends.embed(params, tokens)], axis=1)
    if is_text is not None:
      is_text = jnp.pad(is_text, ((0, 0), (0, tokens.shape[1])))
  positions, mask = positions_and_mask(
      condition.positions, embeddings.shape[1] - condition.embeddings.shape[1])
  features, layers = transformer.Transformer(model.transformer).apply(
      {'params': params['transformer']}, model.placed(params, embeddings, positions),
      model.rope(positions), mask, is_text=is_text, method='features')
  logits = model_ends.logits(params, features[:, condition.embeddings.shape[1] - 1:])
  return logits, features, layers


def ends(model: Causal) -> Ends:
  """Returns the embedding and the output head of a model, which its drafters share."""
  return ends_lib.make(
      model.transformer, model.embed, model.logits, model.num_outputs, model.num_forced)


def target(model: Causal, num_streams: int) -> base.Target:
  """Returns the model as a decoding target with `num_streams` guidance streams."""
  network, model_ends = transformer.Transformer(model.transformer), ends(model)

  def prefill(params: Params, condition: Condition, num_slots: int
              ) -> tuple[jax.Array, jax.Array, Cache]:
    embedded = model.embed_condition(params, condition, num_streams)
    rows, batch = embedded.embeddings.shape[0], jax.tree.leaves(condition)[0].shape[0]
    if rows != num_streams * batch:
      raise ValueError(f'condition has {rows} rows for {batch} images; this target has '
                       f'{num_streams} guidance streams and requires {num_streams * batch} rows.')
    logits, features, layers = forward(params, model, embedded, None)
    return (split(logits[:, 0], num_streams), split(features, num_streams),
            allocate(layers, embedded.positions, num_slots))

  def score(params: Params, cache: Cache, tokens: jax.Array, start: jax.Array,
            tree: Tree | RuntimeTree) -> tuple[jax.Array, jax.Array, Cache]:
    at = window(cache, start, tree.depth, tree.ancestors)
    embeddings = model.placed(
        params, model_ends.embed(params, tile(tokens, num_streams)), at.positions)
    features, layers = network.apply(
        {'params': params['transformer']}, embeddings, model.rope(at.positions), at.mask,
        cache.layers, at.slot, method='features')
    return (split(model_ends.logits(params, features), num_streams), split(features, num_streams),
            cache._replace(layers=layers))

  return base.Target(
      prefill=prefill, score=score, commit=commit, vocab_size=model_ends.vocab_size,
      num_tokens=model.num_tokens, row_width=model.row_width, num_streams=num_streams,
      forced=model.forced, check_condition=model.check_condition, small=model.small)


def network(model: Causal, num_streams: int) -> Network:
  """Returns a small model as a drafting network that reads tokens only.

  Its features must be comparable with the target's, as the features of its first layers with its
  final norm are.
  """
  small_target = target(model, num_streams)
  module, model_ends = transformer.Transformer(model.transformer), ends(model)

  def prefill(params: Params, condition: Condition, features: jax.Array, num_slots: int) -> Cache:
    return small_target.prefill(params, condition, num_slots)[2]

  def step(params: Params, cache: Cache, tokens: jax.Array, features: jax.Array, start: jax.Array,
           depth: jax.Array, visible: jax.Array) -> tuple[jax.Array, Cache]:
    at = window(cache, start, depth, visible)
    embeddings = model.placed(
        params, model_ends.embed(params, tile(tokens, num_streams)), at.positions)
    new_features, layers = module.apply(
        {'params': params['transformer']}, embeddings, model.rope(at.positions), at.mask,
        cache.layers, at.slot + visible.shape[-1] - tokens.shape[1], method='features')
    return split(new_features, num_streams), cache._replace(layers=layers)

  def logits(params: Params, features: jax.Array) -> jax.Array:
    return model_ends.logits(params, features)

  return Network(prefill, step, logits, model_ends.vocab_size, model.num_tokens)


def prompt_positions(visible: jax.Array) -> ConditionPositions:
  """Returns positions that do not count padding, from the visibility `[R, C]` of prompts."""
  count = jnp.cumsum(visible, axis=1, dtype=jnp.int32)
  origin = jnp.sum(visible, axis=1, dtype=jnp.int32)
  return ConditionPositions(visible, jnp.maximum(count - 1, 0), origin)


def embed_prompt(params: Params, config: TransformerConfig, prompt: Prompt) -> EmbeddedCondition:
  """Embeds prompts with the transformer's own table of tokens."""
  tokens, visible = prompt.rows()
  embeddings = transformer.Transformer(config).apply(
      {'params': params['transformer']}, tokens, method='embed')
  return EmbeddedCondition(embeddings, prompt_positions(visible))


def with_int8_cache(prefill: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a `prefill` of this module, the last result a `Cache`, with keys and values in int8.

  Tokens attend to rounded keys and values then, also to their own; see `attention.Int8Slots`.
  """
  def run(params: Params, condition: Condition, num_slots: int) -> Any:
    *others, cache = prefill(params, condition, num_slots)
    layers = tuple((attention.quantized(keys), attention.quantized(values))
                   for keys, values in cache.layers)
    return *others, cache._replace(layers=layers)

  return run
