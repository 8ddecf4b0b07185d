"""Draft trees: the parent of every draft token.

Node 0 is the root, the last committed token. Every other node is one draft token; its parent is the
token that it follows. The *main chain* consists of the nodes 1, 2, ..., L in which node `i` follows
node `i - 1`; it comes first, so that the keys and values of an accepted main chain are in their
final slots already. All other nodes are *side* nodes. Siblings are tested in their order.

A `Tree` holds NumPy arrays, computed once at trace time. A `RuntimeTree` has the same attributes as
JAX arrays, for topologies that depend on the drafts.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields

MAX_NODES = 2**14  # The most drafts of a tree: more than a forward pass of any model can process.


@dataclasses.dataclass(frozen=True)
class Tree:
  """A draft tree with `N` draft nodes and a root; hashable, so it can be a static argument.

  Attributes:
    parents: the parent of every node; `parents[0]` is -1 (the root) and every other parent is an
      earlier node. Length `N + 1`, at most `MAX_NODES + 1`. Others raise ValueError.
  """

  parents: tuple[int, ...]

  def __post_init__(self):
    fields.check(self, parents=(-1, MAX_NODES))
    if len(self.parents) > MAX_NODES + 1:
      raise ValueError(
          f'parents has {len(self.parents) - 1} nodes; it may have at most {MAX_NODES}.')
    if not self.parents or self.parents[0] != -1:
      raise ValueError(
          f'parents starts with {self.parents[:1]}; the first entry is the root and must be -1.')
    for node, parent in enumerate(self.parents[1:], start=1):
      if not 0 <= parent < node:
        raise ValueError(
            f'parents[{node}] is {parent}; the parent of a node must be an earlier node, 0 to '
            f'{node - 1}.')

  @property
  def num_nodes(self) -> int:
    """The number `N` of draft tokens (the root is not one)."""
    return len(self.parents) - 1

  @functools.cached_property
  def depth(self) -> np.ndarray:
    """The number of steps `[N + 1]` from the root."""
    depth = np.zeros(len(self.parents), np.int32)
    for node, parent in enumerate(self.parents[1:], start=1):
      depth[node] = depth[parent] + 1
    return depth

  @property
  def max_depth(self) -> int:
    """The largest number of draft tokens one round can accept."""
    return int(self.depth.max())

  @functools.cached_property
  def main_length(self) -> int:
    """The length `L` of the main chain."""
    follows = np.asarray(self.parents[1:]) == np.arange(self.num_nodes)
    return int(np.argmin(np.append(follows, False)))

  @property
  def is_chain(self) -> bool:
    """Whether the tree has no side nodes."""
    return self.main_length == self.num_nodes

  @functools.cached_property
  def side_depth(self) -> int:
    """The largest depth of a side node; 0 for a chain."""
    return int(self.depth[self.main_length + 1:].max(initial=0))

  @functools.cached_property
  def rank(self) -> np.ndarray:
    """The rank `[N + 1]` of a node among its siblings, from 0; the root has 0."""
    rank = np.zeros(len(self.parents), np.int32)
    num_children: dict[int, int] = {}
    for node, parent in enumerate(self.parents[1:], start=1):
      rank[node] = num_children.get(parent, 0)
      num_children[parent] = rank[node] + 1
    return rank

  @functools.cached_property
  def children(self) -> np.ndarray:
    """The children `[N + 1, K]` of every node in order, padded with -1."""
    width = int(self.rank.max()) + 1 if self.num_nodes else 1
    children = np.full((len(self.parents), width), -1, np.int32)
    children[list(self.parents[1:]), self.rank[1:]] = np.arange(1, len(self.parents))
    return children

  @functools.cached_property
  def ancestors(self) -> np.ndarray:
    """The ancestor matrix `[N + 1, N + 1]`: `[i, j]` is whether `j` is `i` or an ancestor of it."""
    ancestors = np.eye(len(self.parents), dtype=bool)
    for node, parent in enumerate(self.parents[1:], start=1):
      ancestors[node] |= ancestors[parent]
    return ancestors

  @functools.cached_property
  def paths(self) -> np.ndarray:
    """The nodes on the path to every node, by depth, `[N + 1, D + 1]`.

    Beyond the depth of the node the row continues with the index of the main chain (`d` at depth
    `d`), the entry that a commit does not move.
    """
    paths = np.tile(np.arange(self.max_depth + 1, dtype=np.int32), (len(self.parents), 1))
    node, ancestor = np.nonzero(self.ancestors)
    paths[node, self.depth[ancestor]] = ancestor
    return paths

  def reach(self, node: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the depth `[B]` of one node per row `[B]` and the path to it, `[B, D + 1]`."""
    if self.is_chain:  # All paths are the chain.
      return node, jnp.broadcast_to(jnp.asarray(self.paths[0]), (*node.shape, self.paths.shape[1]))
    return jnp.asarray(self.depth)[node], jnp.asarray(self.paths)[node]


@dataclasses.dataclass(frozen=True)
class Budget:
  """The size of a tree whose topology depends on the drafts."""

  num_nodes: int  # `N`, the number of draft nodes.
  max_depth: int  # The largest depth of a node.
  max_children: int  # The largest number of children of a node.

  is_chain = False


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RuntimeTree:
  """The topology of one round's drafts as arrays, a different one per row.

  Parents come before their children. Attributes as of `Tree`, with a leading `B`.
  """

  parents: jax.Array
  depth: jax.Array
  children: jax.Array
  ancestors: jax.Array
  paths: jax.Array

  is_chain = False

  @property
  def num_nodes(self) -> int:
    """The number `N` of draft tokens of a row."""
    return self.depth.shape[-1] - 1

  @property
  def max_depth(self) -> int:
    """The largest depth that a node may have."""
    return self.paths.shape[-1] - 1

  @property
  def side_depth(self) -> int:
    """The largest depth that a side node may have: any node's."""
    return self.max_depth

  def reach(self, node: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the depth `[B]` of one node per row `[B]` and the path to it, `[B, D + 1]`."""
    depth = jnp.take_along_axis(self.depth, node[:, None], axis=1)[:, 0]
    return depth, jnp.take_along_axis(self.paths, node[:, None, None], axis=1)[:, 0]


def runtime_tree(parents: jax.Array, budget: Budget) -> RuntimeTree:
  """Returns the tree with `parents` `[B, N + 1]`, in the form of `Tree.parents`."""
  size, depths = budget.num_nodes + 1, budget.max_depth + 1
  nodes = jnp.arange(size, dtype=jnp.int32)

  def row(parents):
    above = jnp.maximum(parents, 0)
    # The node, its parent, and so on; the root repeats.
    line = [nodes]
    for _ in range(budget.max_depth):
      line.append(above[line[-1]])
    line = jnp.stack(line, axis=1)
    depth = jnp.sum(line > 0, axis=1, dtype=jnp.int32)
    ancestors = jnp.any(line[:, :, None] == nodes, axis=1)
    earlier = (parents[:, None] == parents) & (nodes < nodes[:, None])
    rank = jnp.sum(earlier, axis=1, dtype=jnp.int32)
    children = jnp.full((size, budget.max_children), -1, jnp.int32)
    children = children.at[parents[1:], rank[1:]].set(nodes[1:], mode='drop')
    # From the root down; beyond the node the entries that a commit does not move.
    depth_on_path = jnp.arange(depths, dtype=jnp.int32)
    steps = jnp.clip(depth[:, None] - depth_on_path, 0, budget.max_depth)
    paths = jnp.where(depth_on_path <= depth[:, None],
                      jnp.take_along_axis(line, steps, axis=1), depth_on_path)
    return RuntimeTree(parents, depth, children, ancestors, paths)

  return jax.vmap(row)(parents)


def chain(length: int) -> Tree:
  """Returns a chain of `length` draft tokens; with 0 there are no drafts."""
  check_size('length', length, 0)
  return Tree(tuple(range(-1, length)))


def paths(num_paths: int, depth: int, num_nodes: int | None = None) -> Tree:
  """Returns a tree of disjoint paths from the root; the first one extends to the main chain.

  One reading of SJD-PAC's proactive drafting (arXiv 2603.18599): `num_paths` chains of `depth`
  tokens, at least 1 each; the remaining ones of `num_nodes`, if any, extend the first.
  """
  check_size('num_paths', num_paths, 1)
  check_size('depth', depth, 1)
  main = _main_length('paths', depth, num_nodes, (num_paths - 1) * depth)
  parents = list(range(-1, main))
  for _ in range(num_paths - 1):
    parents.append(0)
    parents.extend(range(len(parents) - 1, len(parents) + depth - 2))
  return Tree(tuple(parents))


def caterpillar(num_candidates: int, depth: int, num_nodes: int | None = None) -> Tree:
  """Returns a main chain whose first `depth` tokens have siblings.

  The other reading of SJD-PAC: `num_candidates` children, at least 1, at every depth `1..depth`, of
  which only the first has children. The chain extends to `num_nodes` drafts in all, by default
  `num_candidates * depth`.
  """
  check_size('num_candidates', num_candidates, 1)
  check_size('depth', depth, 1)
  main = _main_length('caterpillar', depth, num_nodes, (num_candidates - 1) * depth)
  parents = list(range(-1, main))
  for spine in range(depth):
    parents.extend([spine] * (num_candidates - 1))
  return Tree(tuple(parents))


def kary(num_candidates: int, levels: int, num_nodes: int | None = None) -> Tree:
  """Returns the full `num_candidates`-ary tree with `levels` levels, including the root.

  There are at least 2 levels. The main chain consists of the first children and the remaining ones
  of `num_nodes` drafts, by default the full tree's, as in SJD-PAC's released code.
  """
  check_size('num_candidates', num_candidates, 1)
  check_size('levels', levels, 2)
  # A branching tree with 15 levels is larger than MAX_NODES, so deeper levels need no counting.
  full = sum(num_candidates**min(level, 15) for level in range(1, levels))
  main = _main_length('kary', levels - 1, num_nodes, full - (levels - 1))
  parents, level = list(range(-1, main)), [0]
  for depth in range(1, levels):
    # The first child of the first node is on the main chain.
    sides = [parent for parent in level for _ in range(num_candidates)][1:]
    level = [depth, *range(len(parents), len(parents) + len(sides))]
    parents += sides
  return Tree(tuple(parents))


def branching(counts: str) -> Tree:
  """Returns the tree whose nodes have the specified numbers of children.

  `counts` has the root's number of children, then `path:number` for every other node with children,
  separated by spaces; a path lists the ranks from the root to the node, one digit each.
  `'2 0:2 00:1'` has 5 drafts: 0, 1, 00, 01 and 000. ValueError for others, or a path to no node.
  """
  fields.require(isinstance(counts, str) and counts.isascii(), 'counts', counts,
                 "a string, such as '2 0:2 00:1'")
  number = {}
  for entry in counts.split():
    path, _, children = entry.rpartition(':')
    # Ranks of one digit: with more children, 10 would be both the last of them and a path.
    if not (path + children).isdecimal() or path in number or not 1 <= int(children[-9:]) <= 10:
      raise ValueError(f'counts has the entry {entry!r:.80}; it must have path:number once per '
                       'path, with a number from 1 to 10.')
    number[path] = int(children)
  nodes = ['']
  for path in nodes:  # The loop extends the list that it iterates over.
    nodes += [f'{path}{rank}' for rank in range(number.get(path, 0))]
  if missing := sorted(number.keys() - set(nodes)):
    raise ValueError(
        f'counts has children for {", ".join(missing)}, which the tree does not contain.')
  # The main chain first, then by depth.
  order = sorted(nodes, key=lambda path: (bool(path.strip('0')), len(path)))
  return Tree(tuple(-1 if not path else order.index(path[:-1]) for path in order))


def cut(tree: Tree, depth: int) -> Tree:
  """Returns the tree without its nodes deeper than `depth`."""
  check_size('depth', depth, 0)
  nodes = np.flatnonzero(tree.depth <= depth)
  return Tree((-1,) + tuple(int(np.searchsorted(nodes, tree.parents[node])) for node in nodes[1:]))


def check_size(name: str, value: int, least: int) -> None:
  """Raises ValueError unless `value` is a whole number from `least` to `MAX_NODES`."""
  words = f'a whole number from {least} to {MAX_NODES}'
  fields.check_whole(name, value, words, least, MAX_NODES)


def _main_length(kind: str, depth: int, num_nodes: int | None, side: int) -> int:
  """The length of the main chain, at least `depth`, of a tree with `side` side nodes."""
  if num_nodes is None:
    num_nodes = side + depth
  else:
    fields.check_whole('num_nodes', num_nodes)
  if max(num_nodes, side) > MAX_NODES:
    raise ValueError(f'{kind}: the tree has more than {MAX_NODES} nodes; pass a smaller one.')
  if num_nodes - side < depth:
    raise ValueError(
        f'{kind}: num_nodes is {num_nodes}, but the tree has {side} side nodes and needs a '
        f'main chain of at least {depth}; pass at least {side + depth} nodes or a smaller tree.')
  return num_nodes - side


# Trees of the EAGLE, Medusa and LANTERN releases, by the number of children of every node.

# EAGLE-1's tree, 25 drafts; LANTERN's for Lumina-mGPT.
EAGLE = branching('4 0:3 1:2 2:2 3:1 00:3 01:2 02:2 10:1 000:3 0000:2')
# LANTERN's for LlamaGen and Anole, 57 drafts.
LANTERN = branching(
    '5 0:4 1:3 2:3 3:2 4:1 00:4 01:3 02:3 03:2 10:2 11:1 20:1 '
    '000:4 001:3 002:2 003:1 010:2 011:1 020:1 0000:3 0001:2 0010:2 0011:1 0020:1')
# Two variations of LANTERN's release on EAGLE's tree, 25 drafts each.
BALANCED = branching('3 0:3 1:3 2:2 00:3 01:2 10:2 11:2 000:3 0000:2')
REVERSE_BALANCED = branching('3 0:2 1:1 2:1 00:3 01:2 10:1 000:3 001:2 0000:4 0001:3')
# Medusa's for four heads, 63 drafts.
MEDUSA = branching(
    '10 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 00:9 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 '
    '000:4 001:1 002:1 010:1')
