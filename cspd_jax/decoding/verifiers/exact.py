"""Exact verification: the output follows the target's law."""

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Layout, Verdict, Verifier
from cspd_jax.decoding.verifiers import walk


def exact() -> Verifier:
  """Multi-candidate speculative verification along a tree.

  Every group of siblings is tested in order; candidate `k` with the residual
  target law after `k - 1` refusals against the draft law without the earlier
  candidates. At the node where the walk stops one more token is drawn: from
  the residual law if it has children, from the target's law (the bonus token)
  if it has none. Lossless: Leviathan et al., arXiv 2211.17192, and for trees
  SJD-PAC, arXiv 2603.18599, Theorem 2.
  """
  return Verifier(_verify, exact=True, needs_laws=True)


def _verify(rng, layout, tokens, laws, target_laws, positions):
  del positions  # Only noise that belongs to positions needs them.
  accepted = _accept(rng, layout, tokens, laws, target_laws)
  node = walk.deepest(accepted, layout.tree)
  law = _stop_law(node, layout, tokens, laws, target_laws)
  if max(layout.carried) < 0:
    return Verdict(node, rng.draw(law[None])[0], samples=None)
  # At the end of a side branch there may be one more candidate, for the last token only.
  carried = jnp.asarray(layout.carried)[node]
  token = tokens[jnp.maximum(carried, 0)]
  draft_law = laws[jnp.asarray(layout.law_rows)[jnp.maximum(carried, 0)]]
  kept = rng.accept(law[token][None], draft_law[token][None])[0] & (carried >= 0)
  law = jnp.where(carried >= 0, accept.residual(law, draft_law), law)
  return Verdict(node, jnp.where(kept, token, rng.draw(law[None])[0]), samples=None)


def _accept(rng, layout: Layout, tokens, laws, target_laws) -> jax.Array:
  """`[N + 1]` bool: would the node be accepted once it is its turn?"""
  tree = layout.tree
  parents, rows = np.asarray(tree.parents), np.asarray(layout.law_rows)
  accepted = jnp.zeros(tokens.shape, bool)
  nodes = tree.children[:, 0][tree.children[:, 0] > 0]
  if not nodes.size:
    return accepted
  # The first candidates need two numbers each, not whole laws.
  first = tokens[nodes]
  p_first = target_laws[parents[nodes], jnp.maximum(first, 0)]
  q_first = laws[rows[nodes], jnp.maximum(first, 0)]
  accepted = accepted.at[nodes].set(rng.accept(p_first, q_first) & (first >= 0))

  # Later candidates exist at a few nodes only: carry the running laws there.
  has_more = np.flatnonzero(tree.children[:, 1:].max(axis=1, initial=-1) > 0)
  if not has_more.size:
    return accepted
  p, q = target_laws[has_more], laws[rows[tree.children[has_more, 0]]]
  for rank in range(1, tree.children.shape[1]):
    p, q = _refuse(p, q, tokens[tree.children[has_more, rank - 1]])
    left = np.flatnonzero(tree.children[has_more, rank] > 0)
    has_more, p, q = has_more[left], p[left], q[left]
    nodes = tree.children[has_more, rank]
    token = tokens[nodes]
    accepted = accepted.at[nodes].set(
        rng.accept(accept.take(p, jnp.maximum(token, 0)), accept.take(q, jnp.maximum(token, 0)))
        & (token >= 0))
  return accepted


def _stop_law(node, layout: Layout, tokens, laws, target_laws) -> jax.Array:
  """`[V]`: the law of the last token, all children of `node` having been refused."""
  p = target_laws[node]
  if not layout.tree.num_nodes:
    return p
  children = jnp.asarray(layout.tree.children)[node]
  q = laws[jnp.asarray(layout.law_rows)[jnp.maximum(children[0], 0)]]
  for child in children:
    p, q = _refuse(p, q, jnp.where(child > 0, tokens[child], -1))
  return p


def _refuse(p, q, token):
  """The running laws after `token` `[...]` was refused; -1 is no candidate."""
  is_candidate = (token >= 0)[..., None]
  return (jnp.where(is_candidate, accept.residual(p, q), p),
          jnp.where(is_candidate, accept.without(q, token), q))
