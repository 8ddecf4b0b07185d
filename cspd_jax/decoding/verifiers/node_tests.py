"""Multi-candidate rejection tests along a tree, with any `NodeTest`.

Every group of siblings is tested in order, each with the distribution that is left of the
target's after the refusals before it. At the node where the walk stops one more
token is drawn: from what is left of the distribution if it has children, from the target's
distribution (the bonus token) if it has none.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Layout, Verdict, Verifier
from cspd_jax.decoding.tree import RuntimeTree
from cspd_jax.decoding.verifiers import walk


class NodeTest(NamedTuple):
  """When a candidate is accepted and what is left of the distribution if it is not.

  All functions take `(p [..., V], q [..., V], token [...], depth [...])`: the target's
  distribution and the draft distribution, both after the refusals of earlier siblings, the
  candidate, and its depth in the tree, from 1. In the formulas `f(x) = min(1, mass(x) / q(x))`.

  Attributes:
    mass: `-> [...]`: the target mass that speaks for the token, not negative; it is
      accepted with probability `f(token)`.
    residual: `-> [..., V]`: the distribution that is left after a refusal.
    gap: `-> [...]`: a number whose mean over the token is `sum_x [q f - p]+`: how far
      the test alone leaves the target's distribution. None if that is always 0.
    offset: `-> [...]`: total variation between `residual` and the best residual distribution,
      `[p - q f]+` normalised. None if it is the best.
  """

  mass: Callable[..., jax.Array]
  residual: Callable[..., jax.Array]
  gap: Callable[..., jax.Array] | None = None
  offset: Callable[..., jax.Array] | None = None


def rejection(test_for: Callable[[int], NodeTest], exact: bool, **kwargs) -> Verifier:
  """A verifier from a test.

  The verdict's `tv_bound` is the certificate of Theorem 2 of Cool-SD (arXiv 2601.09212)
  in its running form: for every test on the way the test's gap, and for every
  refusal its offset. Its mean is an upper bound on the total variation between the
  distribution of the output and the target's, on chains and on trees.

  Args:
    test_for: `max_depth -> NodeTest`: the test for drafts of this depth.
    exact: whether the test leaves the target's distribution as it is.
    **kwargs: further fields of the `Verifier`.
  """
  def verify(rng, layout, tokens, probs, target_probs, positions):
    del positions  # Only noise that belongs to positions needs them.
    test = test_for(layout.tree.max_depth)
    accepted, costs = _accept(rng, test, layout, tokens, probs, target_probs)
    node = walk.deepest(accepted, layout.tree)
    distribution = _stop_distribution(test, node, layout, tokens, probs, target_probs)
    tv_bound = None
    if test.gap is not None:
      tv_bound = jnp.where(walk.tested(node, accepted, layout.tree), costs, 0)
    if max(layout.leaf_candidate) < 0:
      return Verdict(node, rng.draw(distribution[None])[0], tv_bound=tv_bound)
    # At the end of a side branch there may be one more candidate, for the last token only.
    leaf = jnp.asarray(layout.leaf_candidate)[node]
    is_candidate, leaf = leaf >= 0, jnp.maximum(leaf, 0)
    token = tokens[leaf]
    drafted = probs[jnp.asarray(layout.probs_rows)[leaf]]
    kept = rng.accept(distribution[token][None], drafted[token][None])[0] & is_candidate
    distribution = jnp.where(is_candidate, accept.residual(distribution, drafted), distribution)
    return Verdict(node, jnp.where(kept, token, rng.draw(distribution[None])[0]), tv_bound=tv_bound)

  return Verifier(verify, exact=exact, needs_probs=True, verifies_fixed=True, **kwargs)


def _accept(rng, test: NodeTest, layout: Layout, tokens, probs, target_probs):
  """`[N + 1]` each: would the node be accepted in its turn, and its share of `tv_bound`, if any."""
  tree, size = layout.tree, tokens.shape[0]
  tested, accepted, costs = [], [], []
  p, q, parents = target_probs, None, np.zeros(0, np.int64)
  for rank in range(tree.children.shape[1] if tree.num_nodes else 0):
    # Few nodes have many children: the running distributions are carried for those only.
    children = tree.children[:, rank]
    if isinstance(tree, RuntimeTree):  # Its drafts are fixed: `q` is not needed.
      nodes = jnp.where(children > 0, children, size)  # Out of range: none.
    else:
      still = np.flatnonzero(children > 0)
      nodes = children[still]
      if rank == 0:
        p = _rows(target_probs, still)
        q = None if probs is None else _rows(probs, np.asarray(layout.probs_rows)[nodes])
      else:
        left = np.searchsorted(parents, still)
        p, q = p[left], None if q is None else q[left]
      parents = still
    token = tokens.at[nodes].get(mode='fill', fill_value=-1)
    depth = jnp.asarray(tree.depth).at[nodes].get(mode='fill', fill_value=1)
    is_candidate, candidate = token >= 0, jnp.maximum(token, 0)
    q_now = _draft_distribution(layout, q, candidate, p)
    kept = rng.accept(test.mass(p, q_now, candidate, depth),
                      accept.take(q_now, candidate)) & is_candidate
    tested.append(nodes)
    accepted.append(kept)
    if test.gap is not None:
      cost = test.gap(p, q_now, candidate, depth)
      if test.offset is not None:
        cost += jnp.where(kept, 0, test.offset(p, q_now, candidate, depth))
      costs.append(jnp.where(is_candidate, cost, 0))
    if rank + 1 < tree.children.shape[1]:
      p, q = _refuse(test, layout, p, q, token, depth)
  if not tested:
    return jnp.zeros(size, bool), jnp.zeros(size, target_probs.dtype)
  return _by_node(size, tested, accepted), _by_node(size, tested, costs) if costs else None


def _by_node(size: int, nodes, parts) -> jax.Array:
  """`[size]`: the numbers `parts` of the `nodes` of every turn; 0 for the root."""
  if isinstance(nodes[0], np.ndarray):
    order = np.argsort(np.concatenate([[0], *nodes]))
    return _rows(jnp.pad(jnp.concatenate(parts), (1, 0)), order)
  found = jnp.zeros(size, parts[0].dtype)
  for turn, part in zip(nodes, parts):
    found = found.at[turn].set(part, mode='drop')
  return found


def _stop_distribution(test: NodeTest, node, layout: Layout, tokens, probs,
                       target_probs) -> jax.Array:
  """`[V]`: the distribution of the last token, all children of `node` having been refused."""
  p = target_probs[node]
  if not layout.tree.num_nodes:
    return p
  children = jnp.asarray(layout.tree.children)[node]
  depth = jnp.asarray(layout.tree.depth)[node] + 1
  q = None
  if probs is not None:
    q = probs[jnp.asarray(layout.probs_rows)[jnp.maximum(children[0], 0)]]
  for child in children:
    p, q = _refuse(test, layout, p, q, jnp.where(child > 0, tokens[child], -1), depth)
  return p


def _refuse(test: NodeTest, layout: Layout, p, q, token, depth):
  """The running distributions after `token` `[...]` was refused; -1 is no candidate."""
  is_candidate, candidate = (token >= 0)[..., None], jnp.maximum(token, 0)
  left = test.residual(p, _draft_distribution(layout, q, candidate, p), candidate, depth)
  if layout.draws == 'distinct':
    q = jnp.where(is_candidate, accept.without(q, token), q)
  return jnp.where(is_candidate, left, p), q


def _draft_distribution(layout: Layout, q, token, p) -> jax.Array:
  """`q`, or the one-hot distribution of a candidate that was not drawn."""
  chosen = jax.nn.one_hot(token, p.shape[-1], dtype=p.dtype)
  if layout.draws == 'fixed':
    return chosen
  return jnp.where(accept.take(q, token)[..., None] > 0, q, chosen)


def _rows(probs: jax.Array, index: np.ndarray) -> jax.Array:
  """`probs[index]`, as a slice where it is one."""
  if np.array_equal(index, np.arange(len(index))):
    return probs[:len(index)]
  return probs[index]
