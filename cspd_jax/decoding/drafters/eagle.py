"""EAGLE along a static tree: a small network continues the target's own features."""

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import contract
from cspd_jax.decoding.base import Draft, Drafter, Env, Layout, RngState
from cspd_jax.decoding.drafters import feature_network, siblings
from cspd_jax.decoding.drafters.feature_network import Network, NetworkState
from cspd_jax.decoding.tree import EAGLE, Tree


def eagle(network: Network, tree: Tree = EAGLE,
          draws: str = 'distinct') -> Drafter:
  """Drafts along a static tree (EAGLE-1, arXiv 2401.15077).

  Args:
    network: the drafting network, trained for the target; its parameters are the decoder's
      `draft_params`.
    tree: topology of the drafts; that of EAGLE-1 by default.
    draws: how siblings are selected, one of `base.DRAWS`: 'distinct' draws them without
      replacement, as EAGLE-1 does; 'iid' draws them independently; 'fixed' selects the most
      probable ones.

  Raises:
    ValueError: if `draws` is not one of these, or the tree has no drafts.
  """
  siblings.check_draws(draws)
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

  def propose(env: Env, state: NetworkState, rng: RngState, root: jax.Array, start: jax.Array
              ) -> tuple[RngState, NetworkState, Draft]:
    del root  # It is the last of the state's tokens.
    features, cache = feature_network.catch_up(env, network, state, start)
    tokens: list[jax.Array] = []
    probs: list[jax.Array | None] = []
    for depth, nodes in enumerate(levels):
      positions = jnp.broadcast_to(start[:, None] + 1 + depth, (start.shape[0], len(nodes)))
      logits = contract.feature_logits(network, env.params, features)
      distribution = siblings.probabilities(env, logits, positions)
      parent, rank = np.nonzero(tree.children[nodes] > 0)
      rng, candidates, level_probs = siblings.choose(
          env, rng, distribution, positions, int(rank.max()) + 1, draws)
      probs.append(level_probs)
      tokens.append(candidates[:, parent, rank])
      if depth + 1 < len(levels):
        nodes_below, before = levels[depth + 1], sum(map(len, levels[1:depth + 2]))
        above = np.searchsorted(nodes, np.asarray(tree.parents)[nodes_below])
        among = np.nonzero(nodes_below[:, None] == children[depth])[1]
        features, cache = contract.step(
            network, env.params, cache, jnp.maximum(tokens[depth][:, among], 0),
            features[:, :, above], start + 1, np.full(len(nodes_below), depth),
            tree.ancestors[np.ix_(nodes_below, inner[1:before + 1])])
    recorded = jnp.concatenate(probs, axis=1) if env.needs_probs and draws != 'fixed' else None
    return rng, state._replace(cache=cache), Draft(
        jnp.concatenate(tokens, axis=1)[:, order], recorded)

  return Drafter(
      Layout(tree, probs_rows, (-1,) * (tree.num_nodes + 1), draws),
      init=lambda *args: feature_network.init(network, tree.max_depth, len(inner), *args),
      propose=propose, update=feature_network.update,
      check=lambda target: feature_network.check(network, target), reuses_drafts=False)
