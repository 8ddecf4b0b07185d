"""Calls the functions of a target, a drafter or a verifier, and checks their results.

Shapes and dtypes are checked while the loop is traced, which costs nothing at run time. An error
names the function and the expected result; without the checks, a wrong shape fails far from its
cause, or not at all. `cspd_jax.testing.check_target` checks the values.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from cspd_jax.core import rows
from cspd_jax.decoding.base import (
  Cache,
  Condition,
  Draft,
  Features,
  Layout,
  Params,
  Target,
  TreeLike,
  Verdict,
)
from cspd_jax.decoding.tree import Budget, RuntimeTree, Tree

Shape = tuple[int | None, ...]


class ContractError(ValueError):
  """A function of a target, a drafter or a verifier returned a wrong result."""


def check_condition(target: Target, condition: Condition) -> Any:
  """Returns which rows the target supports, `[B]` bool.

  Raises:
    ValueError: see `Target.check_condition`.
    ContractError: if the result is not as `Target` specifies.
  """
  num_rows, supported = rows.count(condition), target.check_condition(condition)
  if supported is None:
    return jnp.ones(num_rows, bool)
  _check('check_condition of the target', 'supported rows', supported, (num_rows,), 'rows',
         jnp.bool_, 'booleans, or None for all rows,')
  return supported


def check_tree(target: Target, tree: Tree | Budget) -> None:
  """Raises ValueError if a drafter proposes a tree and the target scores chains only."""
  if target.supports_trees or isinstance(tree, Tree) and tree.is_chain:
    return
  kind = (f'the tree {tree.parents}' if isinstance(tree, Tree) else
          f'trees of {tree.num_nodes} nodes whose topology depends on the drafts')
  raise ValueError(
      f'the drafter proposes {kind}, but the target has supports_trees=False and scores chains '
      'only; pass tree=chain(LENGTH) to the drafter, or use a drafter of chains.')


def check_params(params: Params) -> None:
  """Raises ValueError if the parameters of a draft model or network are missing."""
  if params is None:
    raise ValueError(
        'draft_params is None, but the decoder drafts with a separate model or network; pass its '
        'parameters, for a model of cspd_jax.load those of model.draft_params(specification).')


def prefill(target: Target, params: Params, condition: Condition, num_slots: int,
            owner: str = 'target') -> tuple[jax.Array, Features, Cache]:
  """Calls `target.prefill` and checks the result; `owner` names the target in errors.

  Raises:
    ContractError: if the result is not as `Target` specifies. All functions here raise it.
  """
  if owner != 'target':
    check_params(params)
  function, streams = f'prefill of the {owner}', target.num_streams
  batch = jax.tree.leaves(condition)[0].shape[0]
  with _note(f'{function} was called for {batch} rows and {num_slots} slots; it must return '
             f'(logits {[streams, batch, target.vocab_size]}, features or None, cache).'):
    result = target.prefill(params, condition, num_slots)
  logits, features, cache = _triple(function, result)
  _floats(function, 'logits', logits, (streams, batch, target.vocab_size),
          'num_streams, rows, vocab_size')
  if features is not None:
    _floats(function, 'features', features, (streams, batch, None, None),
            'num_streams, rows, condition tokens, size')
  return logits, features, cache


def score(target: Target, params: Params, cache: Cache, tokens: jax.Array, start: jax.Array,
          tree: TreeLike, owner: str = 'target') -> tuple[jax.Array, Features, Cache]:
  """Calls `target.score` and checks the result."""
  function, streams = f'score of the {owner}', target.num_streams
  shape = [streams, *tokens.shape, target.vocab_size]
  with _note(f'{function} was called with tokens {_described(tokens)}, start {_described(start)} '
             f'and {_kind(tree)}; it must return (logits {shape}, features or None, cache).'):
    result = target.score(params, cache, tokens, start, tree)
  logits, features, after = _triple(function, result)
  _floats(function, 'logits', logits, (streams, *tokens.shape, target.vocab_size),
          'num_streams, rows, tokens, vocab_size')
  if features is not None:
    _floats(function, 'features', features, (streams, *tokens.shape, None),
            'num_streams, rows, tokens, size')
  _same(function, cache, after)
  return logits, features, after


def commit(target: Target, cache: Cache, start: jax.Array, path: jax.Array) -> Cache:
  """Calls `target.commit` and checks the result."""
  with _note(f'commit of the target was called with start {_described(start)} and path '
             f'{_described(path)}; it must return the cache.'):
    after = target.commit(cache, start, path)
  _same('commit of the target', cache, after)
  return after


def forced_tokens(target: Target, positions: jax.Array) -> jax.Array | None:
  """Returns the tokens that the grammar forces at `positions`, -1 if free; None without grammar."""
  if target.forced is None:
    return None
  tokens = target.forced(positions)
  _integers('forced of the target', 'tokens', tokens, positions.shape, 'as the positions')
  return tokens


def step(network: Any, params: Params, cache: Cache, tokens: jax.Array, features: jax.Array,
         start: jax.Array, depth: Any, visible: Any) -> tuple[jax.Array, Cache]:
  """Calls `step` of a drafting network (`feature_network.Network`) and checks the result."""
  function = 'step of the drafting network'
  result = network.step(params, cache, tokens, features, start, depth, visible)
  if not isinstance(result, tuple) or len(result) != 2:
    raise ContractError(
        f'{function} returned {_described(result)}; it must return (features, cache).')
  predicted, after = result
  _floats(function, 'features', predicted, (features.shape[0], *tokens.shape, features.shape[-1]),
          'num_streams, rows, tokens, size')
  _same(function, cache, after)
  return predicted, after


def feature_logits(network: Any, params: Params, features: jax.Array) -> jax.Array:
  """Calls `logits` of a drafting network and checks the result."""
  logits = network.logits(params, features)
  _floats('logits of the drafting network', 'logits', logits,
          (*features.shape[:-1], network.vocab_size), 'num_streams, rows, tokens, vocab_size')
  return logits


def head_logits(heads: Any, params: Params, features: jax.Array) -> jax.Array:
  """Calls `logits` of drafting heads (`drafters.medusa.Heads`) and checks the result."""
  logits = heads.logits(params, features)
  _floats('logits of the drafting heads', 'logits', logits,
          (*features.shape[:2], heads.num_heads, heads.vocab_size),
          'num_streams, rows, num_heads, vocab_size')
  return logits


def check_draft(draft: Draft, layout: Layout, needs_probs: bool, batch: int,
                vocab_size: int) -> TreeLike:
  """Checks the result of a drafter's `propose`, and returns the tree of the drafts."""
  function = 'propose of the drafter'
  nodes = layout.tree.num_nodes
  _integers(function, 'tokens', draft.tokens, (batch, nodes), 'rows, draft nodes')
  if needs_probs and layout.draws != 'fixed':
    rows = max(layout.probs_rows) + 1 if nodes else 0
    _floats(function, 'probs', draft.probs, (batch, rows, vocab_size),
            'rows, 1 + the largest of layout.probs_rows, vocab_size')
  tree = layout.tree if draft.tree is None else draft.tree
  if isinstance(tree, Budget):
    raise ContractError(
        f'{function} returned a draft without a tree; it must return one in every round, because '
        'layout.tree is a Budget.')
  return tree


def check_verdict(verdict: Verdict, batch: int, nodes: int) -> None:
  """Checks the results of a verifier's `verify` for all rows."""
  function = 'verify of the verifier'
  _integers(function, 'node', verdict.node, (batch,), 'rows')
  _integers(function, 'token', verdict.token, (batch,), 'rows')
  if verdict.samples is not None:
    _integers(function, 'samples', verdict.samples, (batch, nodes), 'rows, nodes')
  if verdict.tv_bound is not None:
    _floats(function, 'tv_bound', verdict.tv_bound, (batch, nodes), 'rows, nodes')


@contextlib.contextmanager
def _note(text: str) -> Iterator[None]:
  """Adds a note to an exception that a user's function raises, which names neither."""
  try:
    yield
  except Exception as error:
    error.add_note(text)
    raise


def _kind(tree: TreeLike) -> str:
  """Describes a topology, for notes."""
  if isinstance(tree, RuntimeTree):
    return (f'a RuntimeTree of {tree.num_nodes} drafts, whose attributes are traced arrays with a '
            'leading axis of rows')
  return f'a {"chain" if tree.is_chain else "Tree"} of {tree.num_nodes} drafts'


def _triple(function: str, result: Any) -> tuple[Any, Any, Any]:
  if not isinstance(result, tuple) or len(result) != 3:
    raise ContractError(
        f'{function} returned {_described(result)}; it must return (logits, features, cache), with '
        'features None if the model provides none.')
  return result


def _floats(function: str, name: str, value: Any, shape: Shape, axes: str) -> None:
  _check(function, name, value, shape, axes, jnp.floating, 'floating-point numbers')


def _integers(function: str, name: str, value: Any, shape: Shape, axes: str) -> None:
  _check(function, name, value, shape, axes, jnp.integer, 'integers')


def _check(function: str, name: str, value: Any, shape: Shape, axes: str, kind: Any,
           kind_name: str) -> None:
  """Checks the shape, in which None allows any size, and the kind of the dtype.

  `axes` describes the axes of the shape.
  """
  actual = getattr(value, 'shape', None)
  fits = actual is not None and len(actual) == len(shape) and all(
      expected in (None, size) for size, expected in zip(actual, shape))
  if not fits or not jnp.issubdtype(value.dtype, kind):
    sizes = ', '.join('any' if size is None else str(size) for size in shape)
    raise ContractError(
        f'{function} returned {name} {_described(value)}; it must return {kind_name} of shape '
        f'({sizes}): {axes}.')


def _same(function: str, before: Cache, after: Cache) -> None:
  """Checks that a cache has the structure, shapes and dtypes of the one before."""
  old, new = (jax.tree_util.tree_flatten_with_path(cache)[0] for cache in (before, after))
  if jax.tree.structure(before) != jax.tree.structure(after):
    raise ContractError(
        f'{function} returned a cache of structure {jax.tree.structure(after)}; it must return '
        f'the structure of its argument, {jax.tree.structure(before)}.')
  for (path, leaf), (_, result) in zip(old, new):
    if jnp.shape(leaf) != jnp.shape(result) or jnp.result_type(leaf) != jnp.result_type(result):
      raise ContractError(
          f'{function} returned a cache whose leaf cache{jax.tree_util.keystr(path)} is '
          f'{_described(result)}; it must be {_described(leaf)}, as in its argument.')


def _described(value: Any) -> str:
  """Describes a result by its dtype and shape, for errors."""
  if hasattr(value, 'shape') and hasattr(value, 'dtype'):
    return f'{jnp.dtype(value.dtype).name}{list(value.shape)}'
  if isinstance(value, tuple):
    return f'a tuple of {len(value)}'
  return 'None' if value is None else f'a {type(value).__name__}'
