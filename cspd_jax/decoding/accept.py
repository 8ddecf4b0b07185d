"""Exact rejection sampling: the residual after a rejected candidate, and the walk along a tree.

A candidate `x ~ q` is accepted with probability `min(1, p(x) / q(x))`. After a rejection the next
candidate or the final token follows `residual(p, q)`. The resulting token has distribution `p`
(Leviathan et al., arXiv 2211.17192, Theorem A.1; Chen et al., arXiv 2302.01318). With several
candidates drawn without replacement, the test is repeated with the updated distributions
(SpecInfer, arXiv 2305.09781; SJD-PAC, arXiv 2603.18599, Theorem 2).
"""

import jax
import jax.numpy as jnp

from cspd_jax.decoding.base import Layout, TreeLike
from cspd_jax.decoding.tree import Budget


def residual(p: jax.Array, q: jax.Array) -> jax.Array:
  """Returns the residual distribution, `[p - q]+` normalised; shapes `[..., V]`.

  If no mass remains, which only rounding can cause after a rejection, the result is `p`.
  """
  return normalised(p - q, p)


def normalised(weights: jax.Array, otherwise: jax.typing.ArrayLike) -> jax.Array:
  """Returns the positive part of `weights` `[..., V]` as a distribution; another if it is zero."""
  weights = jnp.maximum(weights, 0)
  mass = jnp.sum(weights, axis=-1, keepdims=True)
  return jnp.where(mass > 0, weights / jnp.where(mass > 0, mass, 1), otherwise)


def without(q: jax.Array, token: jax.Array) -> jax.Array:
  """Returns the distribution `[..., V]` of the next draw without replacement: `q` without `token`.

  It is all zero if no other token than `token` `[...]`, which was drawn from `q`, has mass.
  """
  return normalised(jnp.where(jnp.arange(q.shape[-1]) == token[..., None], 0, q), 0)


def take(distribution: jax.Array, token: jax.Array) -> jax.Array:
  """Returns the probability of `token` `[...]` under `distribution` `[..., V]`."""
  return jnp.take_along_axis(distribution, token[..., None], axis=-1)[..., 0]


def topology(layout: Layout) -> TreeLike:
  """The tree of the drafts; raises TypeError for a `Budget`, which the loop replaces by a tree."""
  if isinstance(layout.tree, Budget):
    raise TypeError(
        f'layout.tree is {layout.tree}; a verifier needs the tree itself, so pass the layout with '
        "the draft's RuntimeTree in its place.")
  return layout.tree


def last_accepted(accepted: jax.Array, tree: TreeLike) -> jax.Array:
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
