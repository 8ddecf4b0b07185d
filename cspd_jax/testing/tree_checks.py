"""Checks that a target scores trees as its paths one by one, and commits the accepted one."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts
from cspd_jax.decoding.base import TreeLike
from cspd_jax.decoding.tree import Budget, RuntimeTree, Tree, runtime_tree
from cspd_jax.testing.probe import ROWS, Probe, distance
from cspd_jax.testing.report import complaint

# A main chain of three nodes, a sibling of the first with a child, and a sibling of the second.
TREE = Tree((-1, 0, 1, 2, 0, 1, 4))
# Topologies of the rows of a run-time tree.
_PARENTS = ((-1, 0, 1, 2, 0, 1, 4), (-1, 0, 0, 0, 2, 4, 1), (-1, 0, 1, 1, 0, 4, 5))


def static(probe: Probe) -> Iterator[str]:
  """The nodes of a static tree have the distributions of the paths to them."""
  yield from _failures(
      probe, TREE, 'a Tree', 'a target that scores chains only sets supports_trees=False')
  yield from _apart(probe, TREE, 'a Tree')


def run_time(probe: Probe) -> Iterator[str]:
  """The same for a different topology in every row."""
  kind = 'a RuntimeTree, a topology per row,'
  yield from _failures(
      probe, _row_trees(), kind, 'its depth [B, N + 1], ancestors [B, N + 1, N + 1] and paths '
      '[B, N + 1, D + 1] are traced arrays, so use jax.numpy on them, not NumPy, `if` or `range`')
  yield from _apart(probe, _row_trees(), kind)


def commit(probe: Probe) -> Iterator[str]:
  """After a commit, the cache contains the accepted path of every row, from starts of their own."""
  last = np.array([6, 3, 5, 0])
  start = np.minimum(np.array([0, 1, 2, 1]), max(probe.tokens.shape[1] - 6, 0))
  nodes, new = _nodes(probe), _nodes(probe)[:, -1:]
  nodes[:, 0] = probe.tokens[np.arange(ROWS), start]
  for tree in (TREE, _row_trees()):
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
      kind = 'Tree' if tree is TREE else 'RuntimeTree'
      yield (f'commit: after paths to nodes {last.tolist()} of a {kind} from starts '
             f'{start.tolist()}, the next score returns distributions {apart:.2g} apart in total '
             'variation from scoring the same tokens one by one; commit must move '
             'the entry of node path[b, d - 1] to slot start[b] + d of the same stream and row, '
             'where start is the number of the root as in score, and change no earlier slot.')


def _failures(probe: Probe, tree: TreeLike, kind: str, remedy: str) -> Iterator[str]:
  """Traces `score` and `commit` with a tree; yields a sentence if one of them fails."""
  start, runtime = jnp.full(ROWS, probe.start), None if isinstance(tree, Tree) else tree
  score = lambda params, cache, nodes, start, runtime: contracts.score(
      probe.target, params, cache, nodes, start, runtime or tree)
  move = functools.partial(contracts.commit, probe.target)
  cache, nodes = probe.cache_at_start, jnp.asarray(_nodes(probe), jnp.int32)
  path = jnp.zeros((ROWS, tree.side_depth), jnp.int32)
  for function, arguments in ((score, (probe.params, cache, nodes, start, runtime)),
                              (move, (cache, start, path))):
    try:
      jax.eval_shape(function, *arguments)
    except Exception as error:  # Any, of the user's code.
      name = 'score' if function is score else 'commit'
      yield complaint(error, f'{name}: with {kind} it raises {{}}; {remedy}.')


def _apart(probe: Probe, tree: TreeLike, kind: str) -> Iterator[str]:
  """Yields the first node of a tree whose distribution is not the one after the path to it."""
  nodes = _nodes(probe)
  depth, paths = (np.broadcast_to(x, (ROWS, *np.shape(x)[-size:]))
                  for x, size in ((tree.depth, 1), (tree.paths, 2)))
  got = probe.score(probe.cache_at_start, nodes, probe.start, tree)[0]
  expected = []
  for node in range(nodes.shape[1]):
    sequence = np.take_along_axis(nodes, paths[:, node, :depth[:, node].max() + 1], axis=1)
    logits = probe.score_singly(sequence, probe.cache_at_start, probe.start)[0]
    expected.append(logits[:, np.arange(ROWS), depth[:, node]])
  apart = np.where(probe.is_inside(probe.start + depth + 1),
                   distance(got, np.stack(expected, axis=2)), 0)
  if apart.max() > probe.tolerance:
    row, node = np.argwhere(apart > probe.tolerance)[0]
    yield (f'score: with {kind} node {node} has a distribution {apart[row, node]:.2g} apart in '
           'total variation from the path to it, scored one by one: it must see the tokens before '
           'start, its ancestors and itself, as in tree.ancestors, and no other node; its token '
           f'number is start + tree.depth[{node}], whatever its index; the streams keep their '
           'order; a target that scores chains only sets supports_trees=False.')


def _nodes(probe: Probe) -> np.ndarray:
  """`[R, N + 1]` the root and random drafts."""
  rng = np.random.default_rng(1)
  nodes = rng.integers(0, probe.target.vocab_size, (ROWS, TREE.num_nodes + 1))
  nodes[:, 0] = probe.tokens[:, probe.start]
  return nodes


def _row_trees() -> RuntimeTree:
  """A topology for every row."""
  parents = jnp.asarray([_PARENTS[row % len(_PARENTS)] for row in range(ROWS)], jnp.int32)
  return runtime_tree(parents, Budget(TREE.num_nodes, 3, 3))
