"""From accept tests at every node to the node where the round stops."""

import jax
import jax.numpy as jnp

from cspd_jax.decoding.base import Layout, TreeLike
from cspd_jax.decoding.tree import Budget


def topology(layout: Layout) -> TreeLike:
  """The tree of the drafts.

  Raises:
    TypeError: if the layout has a `Budget` only; the loop replaces it by the row's `RuntimeTree`.
  """
  if isinstance(layout.tree, Budget):
    raise TypeError(
        f'layout.tree is {layout.tree}; a verifier needs the tree itself, so pass the layout with '
        "the draft's RuntimeTree in its place.")
  return layout.tree


def deepest(accepted: jax.Array, tree: TreeLike) -> jax.Array:
  """The last node of the accepted path, a scalar int32 (0 if nothing was accepted).

  From the root, the walk goes to the first accepted child in the order of the siblings, never to a
  later one whose continuation is longer: that choice would depend on later tokens and bias the
  distribution. `accepted` `[N + 1]` is the test of every node, given that its parent is reached and
  its earlier siblings were rejected.
  """
  if tree.is_chain:  # The number of leading drafts that are accepted.
    return jnp.argmin(jnp.pad(accepted[1:], (0, 1))).astype(jnp.int32)
  chosen = accepted & ~earlier_accepted(accepted, tree)
  chosen |= jnp.arange(chosen.shape[0]) == 0
  reached = jnp.all(chosen | ~tree.ancestors, axis=1)
  return jnp.argmax(jnp.where(reached, tree.depth, -1)).astype(jnp.int32)


def earlier_accepted(accepted: jax.Array, tree: TreeLike) -> jax.Array:
  """For every node `[N + 1]`, whether an earlier sibling was accepted."""
  if tree.is_chain:
    return jnp.zeros_like(accepted)
  parents, nodes = jnp.asarray(tree.parents), jnp.arange(accepted.shape[0])
  earlier = (parents[:, None] == parents) & (nodes < nodes[:, None])
  return jnp.any(earlier & accepted, axis=1)


def tested(node: jax.Array, accepted: jax.Array, tree: TreeLike) -> jax.Array:
  """For every node `[N + 1]`, whether the walk that stopped at `node` tested it."""
  on_path = jnp.asarray(tree.ancestors)[node]
  parents = jnp.maximum(jnp.asarray(tree.parents), 0)
  return on_path[parents] & ~earlier_accepted(accepted, tree) & (jnp.asarray(tree.parents) >= 0)
