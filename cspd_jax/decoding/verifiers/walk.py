"""From accept tests at every node to the node where the round stops."""

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding.tree import Tree


def deepest(accepted: jax.Array, tree: Tree) -> jax.Array:
  """The last node of the accepted path.

  From the root, the walk goes to the first accepted child in the order of the
  siblings, never to a later one whose continuation is longer: that choice would
  depend on tokens further on and bias the law.

  Args:
    accepted: `[N + 1]` bool, the outcome of the test of every node, given that
      its parent is reached and its earlier siblings were refused.
    tree: the static draft tree.

  Returns:
    Scalar int32, the index of a node (0 if nothing was accepted).
  """
  chosen = accepted
  if not tree.is_chain:
    parents, nodes = np.asarray(tree.parents), np.arange(len(tree.parents))
    earlier = (parents[:, None] == parents) & (nodes < nodes[:, None])
    chosen = accepted & ~jnp.any(earlier & accepted, axis=1)
  chosen = chosen.at[0].set(True)
  reached = jnp.all(chosen | ~tree.ancestors, axis=1)
  return jnp.argmax(jnp.where(reached, tree.depth, -1)).astype(jnp.int32)
