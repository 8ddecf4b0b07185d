"""Checks of draft trees and of `commit`, for `check_target`."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import contract
from cspd_jax.decoding.base import TreeLike
from cspd_jax.decoding.tree import Budget, RuntimeTree, Tree, runtime_tree
from cspd_jax.testing import stream_checks
from cspd_jax.testing.probe import ROWS, Probe, distance
from cspd_jax.testing.report import complaint

# A main chain of three nodes, a sibling of the first with a child, and a sibling of the second.
TREE = Tree((-1, 0, 1, 2, 0, 1, 4))
# Topologies of the rows of a run-time tree.
_PARENTS = ((-1, 0, 1, 2, 0, 1, 4), (-1, 0, 0, 0, 2, 4, 1), (-1, 0, 1, 1, 0, 4, 5))
# Follows the report of a tree that is scored as a chain.
_CHAINS_ONLY = ('. Every node sees all nodes before it, as in a chain; a target that scores chains '
                'only sets supports_trees=False.')


def static_tree(probe: Probe) -> Iterator[str]:
  """The nodes of a static tree see their ancestors and no others."""
  yield from _failures(
      probe, TREE, 'a Tree', 'a target that scores chains only sets supports_trees=False')
  yield from _problems(probe, TREE, 'a Tree')


def run_time_tree(probe: Probe) -> Iterator[str]:
  """The same for a different topology in every row."""
  kind = 'a RuntimeTree, a topology per row,'
  yield from _failures(
      probe, row_trees(), kind, 'its depth [B, N + 1], ancestors [B, N + 1, N + 1] and paths '
      '[B, N + 1, D + 1] are traced arrays, so use jax.numpy on them, not NumPy, `if` or `range`')
  yield from _problems(probe, row_trees(), kind)


def commit(probe: Probe) -> Iterator[str]:
  """After a commit, the cache contains the accepted path."""
  nodes, new = _nodes(probe), _nodes(probe)[:, -1:]
  _, _, cache = probe.score(probe.cache_at_start, nodes, probe.start, TREE)
  for node in (6, 5, 3):  # The last one ends the main chain, whose entries stay.
    path, depth = TREE.paths[node], int(TREE.depth[node])
    after = probe.commit(cache, jnp.full(ROWS, probe.start), jnp.tile(
        jnp.asarray(path[1:TREE.side_depth + 1]), (ROWS, 1)))
    got = probe.score(after, new, probe.start + depth + 1)[0][:, :, 0]
    sequence = np.concatenate([nodes[:, path[:depth + 1]], new], axis=1)
    want = probe.score_singly(sequence, probe.cache_at_start, probe.start)[0][:, :, -1]
    apart = distance(got, want).max()
    if apart <= probe.tolerance or not probe.is_inside(probe.start + depth + 2):
      continue
    if stream_checks.are_swapped(probe, got, want):
      yield ('commit: the guidance streams are swapped: after it, the next score returns in each '
             'stream the distributions of the other; the cache of a stream must stay its own.')
    is_side = node > TREE.main_length
    if is_side and jax.tree.all(jax.tree.map(np.array_equal, cache, after)):
      yield ('commit: it returns the cache unchanged; it must move the entry of node '
             'path[b, d - 1] to slot start[b] + d, or tokens after an accepted side path read '
             f'rejected drafts (distributions {apart:.2g} apart in total variation).')
    yield (f'commit: after node {node} of the tree {TREE.parents} was accepted, which lies '
           f'{"off" if is_side else "on"} the main chain, the next score returns distributions '
           f'{apart:.2g} apart in total variation from scoring the same tokens one by one; commit '
           'must move the entry of node path[b, d - 1] to slot start[b] + d unless path[b, d - 1] '
           'is d, and must not change slots before start[b] + 1.')


def commit_rows(probe: Probe) -> Iterator[str]:
  """Rows may have different starts and paths."""
  last = np.array([6, 3, 5, 0])
  start = np.minimum(np.array([0, 1, 2, 1]), max(probe.tokens.shape[1] - 6, 0))
  nodes, new = _nodes(probe), _nodes(probe)[:, -1:]
  nodes[:, 0] = probe.tokens[np.arange(ROWS), start]
  for tree in (TREE, row_trees()):
    _, _, cache = probe.score(probe.singly[2], nodes, start, tree)
    depth, path = map(np.asarray, tree.reach(jnp.asarray(last)))
    cache = probe.commit(cache, jnp.asarray(start), jnp.asarray(path[:, 1:tree.side_depth + 1]))
    got = probe.score(cache, new, start + depth + 1)[0][:, :, 0]
    rows = [np.concatenate([probe.tokens[row, :start[row]],
                            nodes[row, path[row, :depth[row] + 1]], new[row]])
            for row in range(ROWS)]
    sequence = np.stack([np.pad(row, (0, max(map(len, rows)) - len(row))) for row in rows])
    end = start + depth + 1
    want = probe.score_singly(sequence)[0][:, np.arange(ROWS), end]
    apart = np.where(probe.is_inside(end + 1), distance(got, want), 0).max()
    if apart > probe.tolerance:
      yield (f'commit: when rows accept different paths, to nodes {last.tolist()} from starts '
             f'{start.tolist()}, the next score returns distributions {apart:.2g} apart in total '
             'variation from scoring the same tokens one by one; start and path are per row.')


def _failures(probe: Probe, tree: TreeLike, kind: str, remedy: str) -> Iterator[str]:
  """Traces `score` and `commit` with a tree; yields a sentence if one of them fails."""
  start, runtime = jnp.full(ROWS, probe.start), None if isinstance(tree, Tree) else tree
  score = lambda params, cache, nodes, start, runtime: contract.score(
      probe.target, params, cache, nodes, start, runtime or tree)
  commit = functools.partial(contract.commit, probe.target)
  cache, nodes = probe.cache_at_start, jnp.asarray(_nodes(probe), jnp.int32)
  path = jnp.zeros((ROWS, tree.side_depth), jnp.int32)
  for function, arguments in ((score, (probe.params, cache, nodes, start, runtime)),
                              (commit, (cache, start, path))):
    try:
      jax.eval_shape(function, *arguments)
    except Exception as error:  # Any, of the user's code.
      name = 'score' if function is score else 'commit'
      yield complaint(error, f'{name}: with {kind} it raises {{}}; {remedy}.')


def _problems(probe: Probe, tree: TreeLike, kind: str) -> Iterator[str]:
  """Yields the mistakes in the scores of a tree, the most informative first."""
  nodes = _nodes(probe)
  depth, ancestors, paths = _tables(tree)
  score = lambda nodes: probe.score(probe.cache_at_start, nodes, probe.start, tree)[0]
  got, valid = score(nodes), probe.is_inside(probe.start + depth + 1)
  changed = []
  for node in range(nodes.shape[1]):
    other = nodes.copy()
    other[:, node] = probe.different(other[:, node])
    changed.append(np.where(valid, distance(score(other), got), 0))
  seen = np.stack(changed, axis=-1)  # [R, i, j]: the effect of node j on node i.
  want = _expected(probe, nodes, depth, paths)
  apart = np.where(valid, distance(got, want), 0)
  if apart.max() > probe.tolerance and stream_checks.are_swapped(probe, got, want, valid):
    yield (f'score: the guidance streams are swapped: with {kind} each stream has the '
           'distributions that the other has one by one; the conditional stream comes first.')

  rows, readers, read = np.nonzero((seen > probe.tolerance) & ~ancestors)
  if rows.size:
    parent = np.where(depth > 0, np.take_along_axis(
        paths, np.maximum(depth - 1, 0)[..., None], axis=2)[..., 0], -1)
    siblings = parent[rows, readers] == parent[rows, read]
    first = int(np.argmax(siblings))
    relation = ('its sibling' if siblings[first] else
                'below it' if ancestors[rows[first], read[first], readers[first]] else
                'in another branch')
    yield (f'score: with {kind} node {readers[first]} sees node {read[first]}, which is '
           f'{relation}; a node may see only the tokens before start, its ancestors and itself, as '
           f'in tree.ancestors{_CHAINS_ONLY if _is_chain(probe, seen, valid) else "."}')
  if apart.max() <= probe.tolerance:
    return
  row, node = np.argwhere(apart > probe.tolerance)[0]
  above = paths[row, node, :depth[row, node] + 1]
  unseen = [int(other) for other in above if seen[row, node, other] == 0]
  if unseen:
    yield (f'score: with {kind} node {node} does not see node {unseen[-1]}, which is above it or '
           'itself; a node must see its ancestors and itself, as in tree.ancestors.')
  yield (f'score: with {kind} node {node} sees the right nodes but has a distribution '
         f'{apart[row, node]:.2g} apart in total variation from the same tokens one by one; its '
         f'token number must be start + tree.depth[{node}], whatever its index among the nodes.')


def _is_chain(probe: Probe, seen: np.ndarray, valid: np.ndarray) -> bool:
  """Whether nodes `[R, i]` see all nodes `j` before them and no later ones, as far as valid."""
  chain = np.tri(seen.shape[-1], dtype=bool)
  valid = valid & probe.is_inside(probe.start + np.arange(seen.shape[-1]) + 1)
  return bool((np.where(valid[..., None], seen > probe.tolerance, chain) == chain).all())


def _expected(probe: Probe, nodes: np.ndarray, depth: np.ndarray, paths: np.ndarray) -> np.ndarray:
  """`[S, R, N + 1, V]` logits after the path to every node, scored one by one."""
  expected = []
  for node in range(nodes.shape[1]):
    path = paths[:, node, :depth[:, node].max() + 1]
    sequence = np.take_along_axis(nodes, path, axis=1)
    logits = probe.score_singly(sequence, probe.cache_at_start, probe.start)[0]
    expected.append(logits[:, np.arange(len(nodes)), depth[:, node]])
  return np.stack(expected, axis=2)


def _nodes(probe: Probe) -> np.ndarray:
  """`[R, N + 1]` the root and random drafts."""
  rng = np.random.default_rng(1)
  nodes = rng.integers(0, probe.target.vocab_size, (ROWS, TREE.num_nodes + 1))
  nodes[:, 0] = probe.tokens[:, probe.start]
  return nodes


def row_trees() -> RuntimeTree:
  """A topology for every row."""
  parents = jnp.asarray([_PARENTS[row % len(_PARENTS)] for row in range(ROWS)], jnp.int32)
  return runtime_tree(parents, Budget(TREE.num_nodes, 3, 3))


def _tables(tree: TreeLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  depth, ancestors, paths = map(np.asarray, (tree.depth, tree.ancestors, tree.paths))
  if isinstance(tree, RuntimeTree):
    return depth, ancestors, paths
  rows = lambda x: np.broadcast_to(x, (ROWS, *x.shape))
  return rows(depth), rows(ancestors), rows(paths)
