"""Multi-candidate rejection tests along a tree, with any `AcceptanceRule`.

Every group of siblings is tested in order, each with what the rejections before it have left of the
target's distribution. At the node where the walk stops one more token is drawn: from what is left
of the distribution, or, if the node has no children, from the target's own (the bonus token).

`rejection` and `typical` are verifiers of this kind; the others have modules of their own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Layout, Rng, Verdict, Verifier
from cspd_jax.decoding.tree import RuntimeTree

# Maps `(p [..., V], q [..., V], token [...], depth [...])` to numbers; see `AcceptanceRule`.
NodeFunction = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


class AcceptanceRule(NamedTuple):
  """When a candidate is accepted, and the distribution that remains if it is rejected.

  All functions have the arguments `(p [..., V], q [..., V], token [...], depth [...])`: the
  target's distribution and the draft distribution, both after the rejections of earlier siblings,
  the candidate, and its depth in the tree, from 1. In the formulas
  `f(x) = min(1, mass(x) / q(x))`.

  Attributes:
    mass: `-> [...]`: the target mass credited to the token, not negative; the token is accepted
      with probability `f(token)`.
    residual: `-> [..., V]`: the distribution that remains after a rejection.
    gap: `-> [...]`: a number whose mean over the token is `sum_x [q f - p]+`: how far the test
      alone departs from the target's distribution. None if that is always 0.
    offset: `-> [...]`: total variation between `residual` and the best residual distribution,
      `[p - q f]+` normalised. None if it is the best.
  """

  mass: NodeFunction
  residual: NodeFunction
  gap: NodeFunction | None = None
  offset: NodeFunction | None = None

  @property
  def is_bounded(self) -> bool:
    """Whether `tv_bound` is computed; without it, the bound of a test that is not exact is NaN."""
    return self.gap is not None or self.offset is not None


def tree_rejection(test_for: Callable[[int], AcceptanceRule], exact: bool,
                   **kwargs: Any) -> Verifier:
  """Builds a verifier from a test, `test_for(max_depth)`, for drafts of a depth.

  The verdict's `tv_bound` is the certificate of Theorem 2 of Cool-SD (arXiv 2601.09212) as a
  running sum: the gap of every test on the way, and the offset of every rejection. Its mean is an
  upper bound on the total variation between the distribution of the output and the target's, on
  chains and on trees. `exact` and other arguments are fields of the `Verifier`.
  """
  # Of a chain with the exact test: accept leading drafts with u q < p, and draw from [p - q]+ then.
  def verify(rng: Rng, layout: Layout, tokens: jax.Array, probs: jax.Array | None,
             target_probs: jax.Array, positions: jax.Array) -> Verdict:
    del positions  # Needed only for noise that belongs to positions.
    tree = accept.topology(layout)
    test = test_for(tree.max_depth)
    accepted, costs = _accept(rng, test, layout, tokens, probs, target_probs)
    node = accept.last_accepted(accepted, tree)
    distribution = _stop_distribution(test, node, layout, tokens, probs, target_probs)
    tv_bound = None
    if test.is_bounded:
      tv_bound = jnp.where(accept.tested(node, accepted, tree), costs, 0)
    if max(layout.leaf_candidate) < 0:
      return Verdict(node, rng.draw(distribution[None])[0], tv_bound=tv_bound)
    # At the end of a side branch there may be one more candidate, for the last token only.
    assert probs is not None  # Such candidates are drawn, and the verifier has needs_probs.
    leaf = jnp.asarray(layout.leaf_candidate)[node]
    is_candidate, leaf = leaf >= 0, jnp.maximum(leaf, 0)
    token = tokens[leaf]
    drafted = probs[jnp.asarray(layout.probs_rows)[leaf]]
    passed = rng.accept(distribution[token][None], drafted[token][None])[0] & is_candidate
    distribution = jnp.where(is_candidate, accept.residual(distribution, drafted), distribution)
    return Verdict(
        node, jnp.where(passed, token, rng.draw(distribution[None])[0]), tv_bound=tv_bound)

  return Verifier(verify, exact=exact, needs_probs=True, verifies_fixed=True, **kwargs)


def _accept(rng: Rng, test: AcceptanceRule, layout: Layout, tokens: jax.Array,
            probs: jax.Array | None, target_probs: jax.Array) -> tuple[jax.Array, jax.Array | None]:
  """Whether every node is accepted in its turn, and its share of `tv_bound` or None, `[N + 1]`.

  Siblings of one rank are tested together, rank 0 first.
  """
  tree, size = accept.topology(layout), tokens.shape[0]
  if not tree.num_nodes:
    return jnp.zeros(size, bool), jnp.zeros(size, target_probs.dtype)
  if isinstance(tree, RuntimeTree):
    return _accept_at_run_time(rng, test, layout, tree, tokens, target_probs)
  # Few nodes have many children; only their running distributions are carried on.
  parents = np.flatnonzero(tree.children[:, 0] > 0)
  rows = np.asarray(layout.probs_rows)[tree.children[parents, 0]]
  p, q = _rows(target_probs, parents), None if probs is None else _rows(probs, rows)
  tested: list[np.ndarray] = []
  accepted: list[jax.Array] = []
  costs: list[Any] = []
  for rank in range(tree.children.shape[1]):
    if rank:
      token, depth = tokens[tested[-1]], jnp.asarray(tree.depth)[tested[-1]]
      p, q = _reject(test, layout, p, q, token, depth)
      is_left = tree.children[parents, rank] > 0
      index, parents = np.flatnonzero(is_left), parents[is_left]
      p, q = p[index], None if q is None else q[index]
    nodes = tree.children[parents, rank]
    passed, cost = _test(rng, test, layout, p, q, tokens[nodes], jnp.asarray(tree.depth)[nodes])
    tested.append(nodes)
    accepted.append(passed)
    costs.append(cost)
  order = np.argsort(np.concatenate([[0], *tested]))
  by_node = lambda parts: _rows(jnp.pad(jnp.concatenate(parts), (1, 0)), order)
  return by_node(accepted), by_node(costs) if test.is_bounded else None


def _accept_at_run_time(rng: Rng, test: AcceptanceRule, layout: Layout, tree: RuntimeTree,
                        tokens: jax.Array, target_probs: jax.Array
                        ) -> tuple[jax.Array, jax.Array | None]:
  """`_accept` for a tree known at run time, whose drafts are fixed and have no distributions."""
  size, p, q = tokens.shape[0], target_probs, None
  accepted, costs = jnp.zeros(size, bool), jnp.zeros(size, target_probs.dtype)
  for rank in range(tree.children.shape[1]):
    children = tree.children[:, rank]
    nodes = jnp.where(children > 0, children, size)  # `size` is out of range: no node.
    token = tokens.at[nodes].get(mode='fill', fill_value=-1)
    depth = tree.depth.at[nodes].get(mode='fill', fill_value=1)
    passed, cost = _test(rng, test, layout, p, q, token, depth)
    accepted = accepted.at[nodes].set(passed, mode='drop')
    if test.is_bounded:
      costs = costs.at[nodes].set(cost, mode='drop')
    if rank + 1 < tree.children.shape[1]:
      p, q = _reject(test, layout, p, q, token, depth)
  return accepted, costs if test.is_bounded else None


def _test(rng: Rng, test: AcceptanceRule, layout: Layout, p: jax.Array, q: jax.Array | None,
          token: jax.Array, depth: jax.Array) -> tuple[jax.Array, jax.Array | None]:
  """Whether candidates `[n]` pass their tests, and what these add to `tv_bound`, or None."""
  is_candidate, candidate = token >= 0, jnp.maximum(token, 0)
  q = _draft_distribution(layout, q, candidate, p)
  passed = rng.accept(test.mass(p, q, candidate, depth), accept.take(q, candidate)) & is_candidate
  if not test.is_bounded:
    return passed, None
  cost = jnp.zeros_like(q[:, 0]) if test.gap is None else test.gap(p, q, candidate, depth)
  if test.offset is not None:
    cost += jnp.where(passed, 0, test.offset(p, q, candidate, depth))
  return passed, jnp.where(is_candidate, cost, 0)


def _stop_distribution(test: AcceptanceRule, node: jax.Array, layout: Layout, tokens: jax.Array,
                       probs: jax.Array | None, target_probs: jax.Array) -> jax.Array:
  """`[V]`: the distribution of the last token after the rejection of all children of `node`."""
  p, tree = target_probs[node], accept.topology(layout)
  if not tree.num_nodes:
    return p
  children = jnp.asarray(tree.children)[node]
  depth = jnp.asarray(tree.depth)[node] + 1
  q = None
  if probs is not None:
    q = probs[jnp.asarray(layout.probs_rows)[jnp.maximum(children[0], 0)]]
  for child in children:
    p, q = _reject(test, layout, p, q, jnp.where(child > 0, tokens[child], -1), depth)
  return p


def _reject(test: AcceptanceRule, layout: Layout, p: jax.Array, q: jax.Array | None,
            token: jax.Array, depth: jax.Array) -> tuple[jax.Array, jax.Array | None]:
  """The running distributions after the rejection of `token` `[...]`, -1 for no candidate."""
  is_candidate, candidate = (token >= 0)[..., None], jnp.maximum(token, 0)
  residual = test.residual(p, _draft_distribution(layout, q, candidate, p), candidate, depth)
  if layout.draws == 'distinct':
    q = jnp.where(is_candidate, accept.without(q, token), q)
  return jnp.where(is_candidate, residual, p), q


def _draft_distribution(layout: Layout, q: jax.Array | None, token: jax.Array, p: jax.Array
                        ) -> jax.Array:
  """`q`, or the one-hot distribution of a candidate that was chosen, not drawn."""
  chosen = jax.nn.one_hot(token, p.shape[-1], dtype=p.dtype)
  if layout.draws == 'fixed':
    return chosen
  return jnp.where(accept.take(q, token)[..., None] > 0, q, chosen)


def _rows(probs: jax.Array, index: np.ndarray) -> jax.Array:
  """`probs[index]`, as a slice where it is one."""
  if np.array_equal(index, np.arange(len(index))):
    return probs[:len(index)]
  return probs[index]


def rejection() -> Verifier:
  """Multi-candidate speculative verification along a tree.

  Candidate `k` of a group of siblings is accepted with probability `min(1, p / q)`, where `p` is
  the residual target distribution after `k - 1` rejections and `q` is the draft distribution
  without the earlier candidates (unchanged if candidates are drawn independently). Lossless:
  Leviathan et al., arXiv 2211.17192, and for trees SJD-PAC, arXiv 2603.18599, Theorem 2.
  """
  test = AcceptanceRule(
      mass=lambda p, q, token, depth: accept.take(p, token),
      residual=lambda p, q, token, depth: accept.residual(p, q))
  return tree_rejection(lambda max_depth: test, exact=True)


def typical(epsilon: float = 0.09, delta: float = 0.3) -> Verifier:
  """Accepts candidate `x` if `p(x) > min(epsilon, delta exp(-H(p)))`, deterministically.

  `H` is the entropy in nats. Relaxed: no values make it exact. The test does not read the draft
  distribution, but the residual distribution with the smallest bound does: `[p - q f]+`,
  normalised, with `f` 1 for typical tokens and 0 for others (Cool-SD, arXiv 2601.09212, Equation
  10). Tokens that the test never accepts are therefore still generated, and a bound on total
  variation is available. `p` is the target's distribution after the rejections of earlier siblings.
  Raises ValueError for values outside their range.

  Args:
    epsilon: a token with a larger probability is always accepted; above 0, below 1. The defaults
      are Medusa's code's.
    delta: factor of the threshold for flat distributions; above 0, at most 1, so that the most
      probable token is always typical.
  """
  fields.require(0 < epsilon < 1, 'epsilon', epsilon, 'above 0 and below 1')
  fields.require(0 < delta <= 1, 'delta', delta, 'above 0 and at most 1')

  def accepted(p: jax.Array, q: jax.Array) -> jax.Array:
    """`[..., V]`: `q f`."""
    entropy = jnp.sum(jax.scipy.special.entr(p), axis=-1, keepdims=True)
    return jnp.where(p > jnp.minimum(epsilon, delta * jnp.exp(-entropy)), q, 0)

  test = AcceptanceRule(
      mass=lambda p, q, token, depth: accept.take(accepted(p, q), token),
      residual=lambda p, q, token, depth: accept.residual(p, accepted(p, q)),
      gap=lambda p, q, token, depth: jnp.sum(jnp.maximum(accepted(p, q) - p, 0), axis=-1))
  return tree_rejection(lambda max_depth: test, exact=False, bounded=True)
