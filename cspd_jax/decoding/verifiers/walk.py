"""From accept tests at every node to the node where the round stops."""

import jax
import jax.numpy as jnp

from cspd_jax.decoding.tree import RuntimeTree, Tree


def deepest(accepted: jax.Array, tree: Tree | RuntimeTree) -> jax.Array:
  """The last node of the accepted path.

  From the root, the walk goes to the first accepted child in the order of the
  siblings, never to a later one whose continuation is longer: that choice would
  depend on tokens further on and bias the distribution.

  Args:
    accepted: `[N + 1]` bool, the outcome of the test of every node, given that
      its parent is reached and its earlier siblings were refused.
    tree: the draft tree; one row's if it is a `RuntimeTree`.

  Returns:
    Scalar int32, the index of a node (0 if nothing was accepted).
  """
  if tree.is_chain:  # As many as are accepted in a row.
    return jnp.argmin(jnp.pad(accepted[1:], (0, 1))).astype(jnp.int32)
  chosen = accepted & ~earlier_accepted(accepted, tree)
  chosen |= jnp.arange(chosen.shape[0]) == 0
  reached = jnp.all(chosen | ~tree.ancestors, axis=1)
  return jnp.argmax(jnp.where(reached, tree.depth, -1)).astype(jnp.int32)


def earlier_accepted(accepted: jax.Array, tree: Tree | RuntimeTree) -> jax.Array:
  """Tells of which nodes `[N + 1]` an earlier sibling was accepted."""
  if tree.is_chain:
    return jnp.zeros_like(accepted)
  parents, nodes = jnp.asarray(tree.parents), jnp.arange(accepted.shape[0])
  earlier = (parents[:, None] == parents) & (nodes < nodes[:, None])
  return jnp.any(earlier & accepted, axis=1)


def tested(node: jax.Array, accepted: jax.Array, tree: Tree | RuntimeTree) -> jax.Array:
  """Tells which nodes `[N + 1]` the walk that stopped at `node` has tested."""
  on_path = jnp.asarray(tree.ancestors)[node]
  parents = jnp.maximum(jnp.asarray(tree.parents), 0)
  return on_path[parents] & ~earlier_accepted(accepted, tree) & (jnp.asarray(tree.parents) >= 0)
