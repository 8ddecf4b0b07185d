"""A model that is small enough to enumerate, a table of logits per prefix, and its drafters."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.base import Cache, Condition, Drafter, Features, Params, Target, TreeLike
from cspd_jax.decoding.drafters import Heads, Network, from_model, from_network
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.tree import Tree
from cspd_jax.models import conditions


class Tabular(NamedTuple):
  """A random autoregressive model in which every prefix has its own distribution.

  Its features are the number of the prefix, one number per token.

  Attributes:
    target: the model as a `Target`; its condition is one class per row, `[B]`.
    params: `[C, S, P, V]` logits per class, stream and prefix, the shortest first.
    vocab_size: `V`.
    length: `T`.
  """

  target: Target
  params: jax.Array
  vocab_size: int
  length: int

  def sequences(self) -> np.ndarray:
    """Lists all sequences `[V**T, T]`, in lexicographic order."""
    grid = np.indices((self.vocab_size,) * self.length)
    return grid.reshape(self.length, -1).T

  def probs(self, sampling: SamplingParams, label: int = 0) -> np.ndarray:
    """Returns the distribution `[P, V]` after every prefix, float64 if the parameters are."""
    logits = self.params[label][:, None]
    positions = jnp.asarray(prefix_lengths(self.vocab_size, self.length))[None]
    forced = None if self.target.forced is None else self.target.forced(positions)
    return np.asarray(warp_lib.probabilities(logits, sampling, positions, forced)[0])

  def distribution(self, sampling: SamplingParams, label: int = 0) -> np.ndarray:
    """Returns the distribution `[V**T]` of whole sequences, in the order of `sequences`."""
    probs, sequences = self.probs(sampling, label).astype(np.float64), self.sequences()
    probs /= probs.sum(axis=-1, keepdims=True)
    probability = np.ones(len(sequences))
    for k in range(self.length):
      prefix = prefix_number(sequences[:, :k], self.vocab_size)
      probability *= probs[prefix, sequences[:, k]]
    return probability


def prefix_number(prefix: np.ndarray, vocab_size: int) -> np.ndarray:
  """Numbers prefixes `[..., k]` among all prefixes, shortest first; `[...]`."""
  length = prefix.shape[-1]
  return first_prefix(length, vocab_size) + prefix @ vocab_size ** np.arange(length - 1, -1, -1)


def first_prefix(length: Any, vocab_size: int) -> Any:
  """The number of the first prefix of a length: there are as many shorter ones."""
  return (vocab_size**length - 1) // (vocab_size - 1)


def prefix_lengths(vocab_size: int, length: int) -> np.ndarray:
  """Lists the length `[P]` of every prefix shorter than `length`."""
  return np.repeat(np.arange(length), vocab_size ** np.arange(length))


def tabular(key: jax.Array, vocab_size: int = 3, length: int = 5, *, guided: bool = False,
            num_classes: int = 1, row_width: int | None = None, spread: float = 1.5,
            forced: dict[int, int] | None = None, tied: bool = False,
            dtype=jnp.float32) -> Tabular:
  """A random `Tabular` model.

  `length` is `T`, tokens per sequence, at least 1; `vocab_size` is `V`, at least 2. `guided` adds
  an unconditional stream; each of `num_classes` has a table; image rows have `row_width` tokens, by
  default all. The logits have the standard deviation `spread`; if `tied`, they are whole numbers,
  so that several tokens are often equally probable. `forced` are tokens by position, as by a
  grammar. Raises ValueError for other sizes, tokens and positions, or a table of more than 10
  million prefixes.
  """
  if vocab_size < 2 or length < 1:
    raise ValueError(
        f'vocab_size is {vocab_size} and length {length}; they must be at least 2 and 1.')
  num_prefixes, streams = first_prefix(length, vocab_size), 2 if guided else 1
  if num_prefixes > 10**7:
    raise ValueError(
        f'vocab_size {vocab_size} and length {length} result in {num_prefixes} prefixes; '
        'at most 10 million can be enumerated, so use smaller sizes.')
  shape = (num_classes, streams, num_prefixes, vocab_size)
  params = np.asarray(spread * normal(key, shape, dtype), dtype)
  params = jnp.asarray(np.round(params) if tied else params)
  table = np.full(length, -1, np.int32)
  for position, token in (forced or {}).items():
    if not (0 <= position < length and 0 <= token < vocab_size):
      raise ValueError(f'forced has token {token} at position {position}; tokens must be from 0 to '
                       f'{vocab_size - 1} and positions from 0 to {length - 1}.')
    table[position] = token

  def lookup(params: jax.Array, label: jax.Array, position: jax.Array, index: jax.Array
             ) -> tuple[jax.Array, jax.Array]:
    """Logits `[S, B, ..., V]` and features; the table has no entry for finished sequences."""
    position = jnp.minimum(position, length - 1)
    index = jnp.minimum(first_prefix(position, vocab_size) + index, num_prefixes - 1)
    return _logits(params, label, index), jnp.stack([index] * streams)[..., None].astype(dtype)

  def prefill(params: Params, condition: Condition, num_slots: int
              ) -> tuple[jax.Array, Features, Cache]:
    cache = condition, jnp.zeros((condition.shape[0], num_slots), jnp.int32)
    zero = jnp.zeros_like(condition)
    logits, features = lookup(params, condition, zero, zero)
    return logits, features[:, :, None], cache

  def score(params: Params, cache: Cache, tokens: jax.Array, start: jax.Array, tree: TreeLike
            ) -> tuple[jax.Array, Features, Cache]:
    label, slots = cache
    before = jnp.where(jnp.arange(slots.shape[1]) < start[:, None], slots, 0)
    position = jnp.broadcast_to(start[:, None] + 1 + tree.depth, tokens.shape)
    index = _index(before, tokens, start, tree, vocab_size, length)
    slots = jax.vmap(jax.lax.dynamic_update_slice)(slots, tokens, start[:, None])
    return *lookup(params, label, position, index), (label, slots)

  target = Target(
      prefill=prefill, score=score, commit=_commit, vocab_size=vocab_size, num_tokens=length,
      row_width=row_width or length, num_streams=streams,
      forced=(lambda p: jnp.asarray(table)[jnp.clip(p, 0, length - 1)]) if forced else None,
      check_condition=functools.partial(conditions.check_class_labels, num_classes=num_classes))
  return Tabular(target, params, vocab_size, length)


def normal(key: jax.Array, shape: tuple[int, ...], dtype=float) -> np.ndarray:
  """The numbers of `jax.random.normal`, by few programs for the tables of all sizes."""
  size = math.prod(shape)  # The numbers of a shape are the first of a longer one.
  numbers = jax.random.normal(key, (1 << (size - 1).bit_length(),), dtype)
  return np.asarray(numbers)[:size].reshape(shape)


def _index(before: jax.Array, tokens: jax.Array, start: jax.Array, tree: TreeLike,
           vocab_size: int, length: int) -> jax.Array:
  """The index `[B, N + 1]` of every node's prefix, committed tokens and ancestors, by length."""
  index = jnp.zeros_like(start)
  for slot in range(length):
    index = jnp.where(slot < start, index * vocab_size + before[:, slot], index)
  index = jnp.broadcast_to(index[:, None], tokens.shape)
  paths = jnp.broadcast_to(tree.paths, (*tokens.shape, tree.max_depth + 1))
  for depth in range(tree.max_depth + 1):
    on_path = jnp.take_along_axis(tokens, paths[:, :, depth], axis=1)
    index = jnp.where(depth <= tree.depth, index * vocab_size + on_path, index)
  return index


def _commit(cache: Cache, start: jax.Array, path: jax.Array) -> Cache:
  label, slots = cache
  moved = jnp.take_along_axis(slots, start[:, None] + path, axis=1)
  slots = jax.vmap(jax.lax.dynamic_update_slice)(slots, moved, start[:, None] + 1)
  return label, slots


def _logits(params: jax.Array, label: jax.Array, prefix: jax.Array) -> jax.Array:
  """`[S, B, ..., V]` the table's entries of prefixes `[B, ...]`."""
  label = label.reshape((-1,) + (1,) * (prefix.ndim - 1))
  return jnp.moveaxis(params[label, :, prefix], -2, 0)


def network(target: Target) -> Network:
  """A drafting network for a tabular target; its parameters are a table of the target's shape.

  The feature of a tabular model is the number of the prefix. The network appends its input token to
  the prefix of its input feature, so with the target's own table its drafts have the target's own
  distributions if and only if token and feature belong together. It drafts for class 0.
  """
  vocab = target.vocab_size

  def step(params: Params, cache: Cache, tokens: jax.Array, features: jax.Array, start: jax.Array,
           depth: Any, visible: Any) -> tuple[jax.Array, Cache]:
    prefix = features[0, ..., 0].astype(jnp.int32) * vocab + 1 + tokens
    prefix = jnp.minimum(prefix, params.shape[2] - 1)
    return jnp.stack([prefix] * params.shape[1])[..., None].astype(features.dtype), cache

  def logits(params: Params, features: jax.Array) -> jax.Array:
    prefix = jnp.clip(jnp.round(features[0, ..., 0]).astype(jnp.int32), 0, params.shape[2] - 1)
    return _logits(params, jnp.zeros_like(prefix[:, 0]), prefix)

  return Network(
      prefill=lambda params, condition, features, num_slots: (), step=step, logits=logits,
      vocab_size=vocab, num_tokens=target.num_tokens)


def tabular_drafter(other: Tabular, tree: Tree, draws: str = 'distinct') -> Drafter:
  """Drafts from the table `other`, as `eagle` does from a network, for class 0.

  The distribution of a node depends on the whole path to it. Call the decoder with
  `draft_params=other.params`, or another table of that shape. `draws` is how siblings are selected,
  one of `base.DRAWS`; 'fixed' selects the most probable tokens and records no distributions. Raises
  ValueError if `draws` is not one of these, or the tree has no drafts.
  """
  def check(target: Target) -> None:
    if (target.vocab_size, target.num_tokens) != (other.vocab_size, other.length):
      raise ValueError(
          f'other has {other.vocab_size} tokens and length {other.length}, the target '
          f'{target.vocab_size} and {target.num_tokens}; they must be equal.')

  return eagle(network(other.target), tree, draws)._replace(check=check)


def heads(target: Target, num_heads: int) -> Heads:
  """Drafting heads for a tabular target; their parameters are stacked tables, one per head."""

  def logits(params: Params, features: jax.Array) -> jax.Array:
    prefix = features[0, ..., 0].astype(jnp.int32)
    label = jnp.zeros_like(prefix)
    return jnp.stack([_logits(table, label, prefix) for table in params], axis=2)

  return Heads(logits, num_heads, target.vocab_size)


def drafts(target: Target, small: Target, num_heads: int = 2) -> dict[str, Any]:
  """The parts that draft for a tabular target, by the keys of `Table.networks`.

  `small` is a tabular model over the same sequences, which drafts and corrects. Their
  `draft_params` are a table of the target's shape; for the heads, `num_heads` stacked tables.
  """
  return {'model': small, 'eagle': network(target), 'medusa': heads(target, num_heads),
          'neighbours': from_model(small), 'local': from_network(network(target)),
          'corrector': from_network(network(target)), 'layers': network(target)}
