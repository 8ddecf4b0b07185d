"""Calls functions of a target, a drafter or a verifier; raises ContractError for wrong results.

The form of the results is checked here, the values by `cspd_jax.testing.check_target`.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from cspd_jax.core.returned import ContractError, check, check_same, described
from cspd_jax.decoding import base
from cspd_jax.decoding.tree import Budget, RuntimeTree, Tree

# The sizes that a draft model of the same images shares with the target.
SHARED_SIZES = ('vocab_size', 'num_tokens', 'row_width')


def check_tree(target: base.Target, tree: Tree | Budget) -> None:
  """Raises ValueError if a drafter proposes a tree and the target scores chains only."""
  if target.supports_trees or tree.is_chain:
    return
  kind = (f'the tree {tree.parents}' if isinstance(tree, Tree) else
          f'trees of {tree.num_nodes} nodes whose topology depends on the drafts')
  raise ValueError(
      f'the drafter proposes {kind}, but the target has supports_trees=False and scores chains '
      'only; pass tree=chain(LENGTH) to the drafter, or use a drafter of chains.')


def check_params(params: base.Params) -> None:
  """Raises ValueError if the parameters of a draft model or network are missing."""
  if params is None:
    raise ValueError(
        'draft_params is None, but the decoder drafts with a separate model or network; pass its '
        'parameters, for a model of cspd_jax.load those of model.draft_params(specification).')


def check_sizes(part: Any, role: str, names: tuple[str, ...], target: base.Target) -> None:
  """Raises ValueError unless the sizes `names` of a part, in its `role`, are the target's."""
  for name in names:
    size, target_size = getattr(part, name), getattr(target, name)
    if size != target_size:
      raise ValueError(
          f'{name} of the {role} is {size}, of the target {target_size}; they must be equal.')


def check_features(features: base.Features, params: base.Params) -> jax.Array:
  """Returns the target's features; raises ValueError if a drafter lacks them, or parameters."""
  check_params(params)
  if features is None:
    raise ValueError("The target returns no features; this drafter reads the target's features.")
  return features


def prefill(target: base.Target, params: base.Params, condition: base.Condition, num_slots: int,
            owner: str = 'target') -> tuple[jax.Array, base.Features, base.Cache]:
  """Calls `target.prefill` and checks the result; `owner` names the target in errors."""
  if owner != 'target':
    check_params(params)
  function, streams = f'prefill of the {owner}', target.num_streams
  batch = jax.tree.leaves(condition)[0].shape[0]
  with _note(f'{function} was called for {batch} rows and {num_slots} slots; it must return '
             f'(logits {[streams, batch, target.vocab_size]}, features or None, cache).'):
    result = target.prefill(params, condition, num_slots)
  logits, features, cache = _triple(function, result)
  check(function, 'logits', logits, (streams, batch, target.vocab_size),
        'num_streams, rows, vocab_size')
  if features is not None:
    check(function, 'features', features, (streams, batch, None, None),
          'num_streams, rows, condition tokens, size')
  return logits, features, cache


def score(target: base.Target, params: base.Params, cache: base.Cache, tokens: jax.Array,
          start: jax.Array, tree: base.TreeLike, owner: str = 'target'
          ) -> tuple[jax.Array, base.Features, base.Cache]:
  """Calls `target.score` and checks the result."""
  function, streams = f'score of the {owner}', target.num_streams
  shape = [streams, *tokens.shape, target.vocab_size]
  with _note(f'{function} was called with tokens {described(tokens)}, start {described(start)} '
             f'and {_kind(tree)}; it must return (logits {shape}, features or None, cache).'):
    result = target.score(params, cache, tokens, start, tree)
  logits, features, after = _triple(function, result)
  check(function, 'logits', logits, (streams, *tokens.shape, target.vocab_size),
        'num_streams, rows, tokens, vocab_size')
  if features is not None:
    check(function, 'features', features, (streams, *tokens.shape, None),
          'num_streams, rows, tokens, size')
  check_same(function, cache, after)
  return logits, features, after


def commit(target: base.Target, cache: base.Cache, start: jax.Array, path: jax.Array) -> base.Cache:
  """Calls `target.commit` and checks the result."""
  with _note(f'commit of the target was called with start {described(start)} and path '
             f'{described(path)}; it must return the cache.'):
    after = target.commit(cache, start, path)
  check_same('commit of the target', cache, after)
  return after


def forced_tokens(target: Any, positions: jax.Array) -> jax.Array | None:
  """Returns tokens that `target.forced` forces at `positions`, -1 if free; None without grammar."""
  if target.forced is None:
    return None
  tokens = target.forced(positions.astype(jnp.int32))
  check('forced of the target', 'tokens', tokens, positions.shape, 'as the positions', jnp.integer)
  return tokens.astype(jnp.int32)


def step(network: Any, params: base.Params, cache: base.Cache, tokens: jax.Array,
         features: jax.Array, start: jax.Array, depth: Any, visible: Any
         ) -> tuple[jax.Array, base.Cache]:
  """Calls `step` of a drafting network (`feature_network.Network`) and checks the result."""
  function = 'step of the drafting network'
  result = network.step(params, cache, tokens, features, start, depth, visible)
  if not isinstance(result, tuple) or len(result) != 2:
    raise ContractError(
        f'{function} returned {described(result)}; it must return (features, cache).')
  predicted, after = result
  check(function, 'features', predicted, (features.shape[0], *tokens.shape, features.shape[-1]),
        'num_streams, rows, tokens, size')
  check_same(function, cache, after)
  return predicted, after


def feature_logits(network: Any, params: base.Params, features: jax.Array) -> jax.Array:
  """Calls `logits` of a drafting network and checks the result."""
  logits = network.logits(params, features)
  check('logits of the drafting network', 'logits', logits,
        (*features.shape[:-1], network.vocab_size), 'num_streams, rows, tokens, vocab_size')
  return logits


def head_logits(heads: Any, params: base.Params, features: jax.Array) -> jax.Array:
  """Calls `logits` of drafting heads (`drafters.medusa.Heads`) and checks the result."""
  logits = heads.logits(params, features)
  check('logits of the drafting heads', 'logits', logits,
        (*features.shape[:2], heads.num_heads, heads.vocab_size),
        'num_streams, rows, num_heads, vocab_size')
  return logits


def check_draft(draft: base.Draft, layout: base.Layout, needs_probs: bool, batch: int,
                vocab_size: int) -> base.TreeLike:
  """Checks the result of a drafter's `propose`, and returns the tree of the drafts."""
  function = 'propose of the drafter'
  nodes = layout.tree.num_nodes
  check(function, 'tokens', draft.tokens, (batch, nodes), 'rows, draft nodes', jnp.integer)
  if needs_probs and layout.draws != 'fixed':
    rows = max(layout.probs_rows) + 1 if nodes else 0
    check(function, 'probs', draft.probs, (batch, rows, vocab_size),
          'rows, 1 + the largest of layout.probs_rows, vocab_size')
  tree = layout.tree if draft.tree is None else draft.tree
  if isinstance(tree, Budget):
    raise ContractError(
        f'{function} returned a draft without a tree; it must return one in every round, because '
        'layout.tree is a Budget.')
  return tree


def check_verdict(verdict: base.Verdict, batch: int, nodes: int) -> None:
  """Checks the results of a verifier's `verify` for all rows."""
  function = 'verify of the verifier'
  check(function, 'node', verdict.node, (batch,), 'rows', jnp.integer)
  check(function, 'token', verdict.token, (batch,), 'rows', jnp.integer)
  if verdict.samples is not None:
    check(function, 'samples', verdict.samples, (batch, nodes), 'rows, nodes', jnp.integer)
  if verdict.tv_bound is not None:
    check(function, 'tv_bound', verdict.tv_bound, (batch, nodes), 'rows, nodes')


@contextlib.contextmanager
def _note(text: str) -> Iterator[None]:
  """Adds a note to an exception that a user's function raises, which names neither."""
  try:
    yield
  except Exception as error:
    error.add_note(text)
    raise


def _kind(tree: base.TreeLike) -> str:
  """Describes a topology, for notes."""
  if isinstance(tree, RuntimeTree):
    return (f'a RuntimeTree of {tree.num_nodes} drafts, whose attributes are traced arrays with a '
            'leading axis of rows')
  return f'a {"chain" if tree.is_chain else "Tree"} of {tree.num_nodes} drafts'


def _triple(function: str, result: Any) -> tuple[Any, Any, Any]:
  if not isinstance(result, tuple) or len(result) != 3:
    raise ContractError(
        f'{function} returned {described(result)}; it must return (logits, features, cache), with '
        'features None if the model provides none.')
  return result
