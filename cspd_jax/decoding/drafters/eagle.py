"""EAGLE: a small network continues the target's own features.

It drafts along a static tree, or (EAGLE-2) along the paths where it is most confident.
"""

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts, fields, rows
from cspd_jax.core.contracts import check_part
from cspd_jax.decoding import row_random
from cspd_jax.decoding.base import DRAWS, DecodeContext, Draft, Drafter, Layout
from cspd_jax.decoding.drafters import feature_network, siblings
from cspd_jax.decoding.drafters.feature_network import Network
from cspd_jax.decoding.tree import EAGLE, Budget, Tree, check_size, runtime_tree


def eagle(network: Network, tree: Tree = EAGLE, draws: str = 'distinct') -> Drafter:
  """Drafts along a static tree, of at least one draft (EAGLE-1, arXiv 2401.15077).

  Args:
    network: a network trained for the target; its parameters are the decoder's `draft_params`.
    tree: topology of the drafts; by default EAGLE-1's.
    draws: how siblings are selected, one of `base.DRAWS`: 'distinct' draws them without
      replacement, as EAGLE-1; 'iid' draws them independently, with a seed-exact verifier without
      replacement too; 'fixed' takes the most probable. Others raise ValueError.
  """
  check_part('network', network, Network)
  check_part('tree', tree, Tree)
  fields.check_choice('draws', draws, DRAWS)
  if not tree.num_nodes:
    raise ValueError('tree has no draft nodes; the network must draft at least 1 token.')
  # The network reads the nodes that have children, level by level.
  inner = np.flatnonzero(tree.children[:, 0] > 0)
  inner = inner[np.argsort(tree.depth[inner], kind='stable')]
  row_of = {int(node): i for i, node in enumerate(inner)}
  levels = [inner[tree.depth[inner] == depth] for depth in range(tree.max_depth)]
  # The children of every level, in the order of their parents; `order` sorts them by node.
  children = [tree.children[nodes][tree.children[nodes] > 0] for nodes in levels]
  order = np.argsort(np.concatenate(children))
  probs_rows = (0,) + tuple(row_of[parent] for parent in tree.parents[1:])

  def propose(context, state, rng, root, start):
    del root  # It is the last of the state's tokens.
    features, cache = feature_network.catch_up(context, network, state, start)
    tokens, probs = [], []
    for depth, nodes in enumerate(levels):
      positions = jnp.broadcast_to(start[:, None] + 1 + depth, (start.shape[0], len(nodes)))
      logits = contracts.feature_logits(network, context.params, features)
      distribution = siblings.probabilities(context, logits, positions)
      parent, rank = np.nonzero(tree.children[nodes] > 0)
      rng, candidates, level_probs = siblings.choose(
          context, rng, distribution, positions, int(rank.max()) + 1, draws)
      probs.append(level_probs)
      tokens.append(candidates[:, parent, rank])
      if depth + 1 < len(levels):
        nodes_below, before = levels[depth + 1], sum(map(len, levels[1:depth + 2]))
        above = np.searchsorted(nodes, np.asarray(tree.parents)[nodes_below])
        among = np.nonzero(nodes_below[:, None] == children[depth])[1]
        features, cache = contracts.step(
            network, context.params, cache, jnp.maximum(tokens[depth][:, among], 0),
            features[:, :, above], start + 1, np.full(len(nodes_below), depth),
            tree.ancestors[np.ix_(nodes_below, inner[1:before + 1])])
    recorded = jnp.concatenate(probs, axis=1) if context.needs_probs and draws != 'fixed' else None
    return rng, state._replace(cache=cache), Draft(
        jnp.concatenate(tokens, axis=1)[:, order], recorded)

  return Drafter(
      Layout(tree, probs_rows, (-1,) * (tree.num_nodes + 1), draws),
      init=lambda *args: feature_network.init(network, tree.max_depth, len(inner), *args),
      propose=propose, update=feature_network.update,
      check=feature_network.check(network), reuses_drafts=False)


def eagle2(network: Network, num_nodes: int = 58, width: int = 10, depth: int = 5) -> Drafter:
  """Drafts along a tree that is chosen in every round (EAGLE-2, arXiv 2406.16858).

  A beam of the `width` most probable paths grows `depth` tokens deep. Of all tokens in the beam,
  the `num_nodes` with the most probable paths are drafted. They are chosen, not drawn, so their
  distribution is one-hot. This is exact, but on flat distributions few are accepted: a draft is
  accepted with the target's probability of it, not with the overlap of the two distributions.
  Raises ValueError if a number is out of range, or `num_nodes` exceeds the tokens in the beam.

  Args:
    network: the drafting network, trained for the target.
    num_nodes: drafts per round; the 59 and 60 of EAGLE's code count the root.
    width: size of the beam, and the most children that a node may have.
    depth: depth of the tree.
  """
  check_part('network', network, Network)
  _check_sizes(num_nodes, width, depth)
  budget = Budget(num_nodes, depth, width)

  def propose(context, state, rng, root, start):
    batch = start.shape[0]
    features, cache = feature_network.catch_up(context, network, state, start)
    logits = contracts.feature_logits(network, context.params, features)
    tokens, scores = _children(context, logits, jnp.zeros((batch, 1)), start, 0, width)
    pool_tokens, pool_scores = [tokens[:, 0]], [scores[:, 0]]
    pool_parents = [jnp.full((batch, width), -1, jnp.int32)]
    beam = jnp.broadcast_to(jnp.arange(width), (batch, width))  # Indices into the pool.
    features = jnp.repeat(features, width, axis=2)
    visible = jnp.broadcast_to(jnp.eye(width, dtype=bool), (batch, width, width))
    for level in range(1, depth):
      token, score = (rows.take(jnp.concatenate(x, axis=1), beam)
                      for x in (pool_tokens, pool_scores))
      features, cache = contracts.step(
          network, context.params, cache, jnp.maximum(token, 0), features, start + 1,
          np.full(width, level - 1), visible)
      logits = contracts.feature_logits(network, context.params, features)
      tokens, scores = _children(context, logits, score, start, level, width)
      before = sum(x.shape[1] for x in pool_tokens)
      pool_tokens.append(tokens.reshape(batch, -1))
      pool_scores.append(scores.reshape(batch, -1))
      pool_parents.append(jnp.repeat(beam, width, axis=1).astype(jnp.int32))
      best = jax.lax.top_k(pool_scores[-1], width)[1]
      beam, above = before + best, best // width
      features = jnp.take_along_axis(features, above[None, :, :, None], axis=2)
      visible = jnp.concatenate(
          [rows.take(visible, above),
           jnp.broadcast_to(jnp.eye(width, dtype=bool), (batch, width, width))], axis=2)
    pool, all_scores, parents = (
        jnp.concatenate(x, axis=1) for x in (pool_tokens, pool_scores, pool_parents))
    return rng, state._replace(cache=cache), _choose(pool, all_scores, parents, budget)

  return Drafter(
      Layout(budget, (0,) * (num_nodes + 1), (-1,) * (num_nodes + 1), 'fixed'),
      init=lambda *args: feature_network.init(network, depth, (depth - 1) * width, *args),
      propose=propose, update=feature_network.update,
      check=feature_network.check(network), reuses_drafts=False)


def _check_sizes(num_nodes: int, width: int, depth: int) -> None:
  for name, value in dict(num_nodes=num_nodes, width=width, depth=depth).items():
    check_size(name, value, 1)
  pool = width + (depth - 1) * width**2
  if num_nodes > pool:
    raise ValueError(
        f'num_nodes is {num_nodes}, but a beam of width {width} and depth {depth} has {pool} '
        'tokens; use fewer nodes or a larger beam.')


def _children(context: DecodeContext, logits: jax.Array, score: jax.Array, start: jax.Array,
              level: int, width: int) -> tuple[jax.Array, jax.Array]:
  """Tokens and scores `[B, n, width]` of the best children of nodes with `score` `[B, n]`."""
  positions = jnp.broadcast_to(start[:, None] + 1 + level, score.shape)
  distribution = siblings.probabilities(context, logits, positions)
  tokens = row_random.winners(distribution, width)
  mass = jnp.take_along_axis(distribution, jnp.maximum(tokens, 0), axis=2)
  # Rounding may put a probability above 1; a child must never score above its parent.
  return tokens, score[..., None] + jnp.where(
      tokens < 0, -jnp.inf, jnp.minimum(jnp.log(jnp.maximum(mass, 1e-37)), 0))


def _choose(tokens: jax.Array, scores: jax.Array, parents: jax.Array, budget: Budget) -> Draft:
  """Drafts the highest-scoring tokens of a pool `[B, P]`; `parents` are indices into it."""
  # No child scores above its parent, and of equal scores `top_k` returns the first: the parent.
  chosen = jnp.sort(jax.lax.top_k(scores, budget.num_nodes)[1], axis=1)
  parent = rows.take(parents, chosen)
  parent = jnp.where(parent < 0, 0, 1 + jax.vmap(jnp.searchsorted)(chosen, parent))
  parent = jnp.pad(parent.astype(jnp.int32), ((0, 0), (1, 0)), constant_values=-1)
  return Draft(rows.take(tokens, chosen), None, runtime_tree(parent, budget))
