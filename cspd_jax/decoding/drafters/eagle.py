"""EAGLE drafts: one small layer continues the target's own features.

The network reads a token together with the feature it was predicted from and
predicts the next feature; the target's output matrix turns that into a distribution
(EAGLE, arXiv 2401.15077). The target's true features of all committed tokens stay
in the network's cache, predicted ones serve while drafting only.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import published_trees
from cspd_jax.decoding.base import Cache, Condition, Draft, Drafter, Layout
from cspd_jax.decoding.base import Params, Target
from cspd_jax.decoding.drafters import siblings
from cspd_jax.decoding.tree import Tree


class Network(NamedTuple):
  """A drafting network as pure functions; shapes as in `base.Target`.

  Its sequence is one token behind the target's: entry `C - 1 + k` pairs image token
  `k` with the feature that predicted it, so entry `C - 1` pairs token 0 with the
  feature of the condition's last token.

  Attributes:
    prefill: `(params, condition, features [S, B, C, F], num_slots) -> cache`: reads all
      but the last of the features of the condition's tokens and makes room for
      `num_slots` image tokens.
    step: `(params, cache, tokens [B, n], features [S, B, n, F], start [B], depth,
      visible) -> (logits [S, B, n, V], features [S, B, n, F], cache)`. Entry `i` is
      image token number `start + depth[i]` (`[n]` or `[B, n]`) with the feature that
      predicted it. `visible`, bool `[n, m]` or `[B, n, m]`: of the `m` newest slots,
      from slot `start` on, which each entry sees; the `n` entries are written to the
      last `n` of those. All slots before `start` are seen. The features returned are
      the predicted ones, in place of the target's for the token that follows.
    vocab_size: `V`.
    num_tokens: tokens of an image.
  """

  prefill: Callable[[Params, Condition, jax.Array, int], Cache]
  step: Callable[..., tuple[jax.Array, jax.Array, Cache]]
  vocab_size: int
  num_tokens: int


class EagleState(NamedTuple):
  """Attributes:
    cache: the network's cache: entries of all committed tokens but the newest.
    tokens: `[B, D + 1]` the newest committed tokens, the last of them the root.
    features: `[S, B, D + 1, F]` the target's features that predicted them.
    fresh: `[B]` how many of these are valid.
  """

  cache: Cache
  tokens: jax.Array
  features: jax.Array
  fresh: jax.Array


def eagle(network: Network, tree: Tree = published_trees.EAGLE,
          draws: str = 'distinct') -> Drafter:
  """Drafts along a static tree (EAGLE-1, arXiv 2401.15077).

  Call the decoder with the network's parameters as `draft_params`.

  Args:
    network: the drafting network, trained for the target.
    tree: topology of the drafts; that of EAGLE-1 by default.
    draws: how siblings are chosen, one of `base.DRAWS`: 'distinct' draws them without
      replacement, as EAGLE-1 does; 'iid' independently; 'fixed' takes the most
      probable ones.

  Raises:
    ValueError: for unknown `draws` or a tree without drafts.
  """
  siblings.check_draws(draws)
  if not tree.num_nodes:
    raise ValueError('tree has no draft nodes; the network must draft at least 1 token.')
  # Nodes with children are run through the network, level by level.
  inner = np.flatnonzero(tree.children[:, 0] > 0)
  inner = inner[np.argsort(tree.depth[inner], kind='stable')]
  number = {int(node): i for i, node in enumerate(inner)}
  levels = [inner[tree.depth[inner] == depth] for depth in range(tree.max_depth)]
  probs_rows = (0,) + tuple(number[parent] for parent in tree.parents[1:])

  def propose(env, state, rng, root, start):
    del root  # It is the last of the state's tokens.
    logits, features, cache = catch_up(env, network, state, start)
    tokens = jnp.full((start.shape[0], tree.num_nodes), -1, jnp.int32)
    probs = []
    for depth, nodes in enumerate(levels):
      places = jnp.broadcast_to(start[:, None] + 1 + depth, (start.shape[0], len(nodes)))
      distribution = siblings.probabilities(env, logits, places)
      probs.append(distribution)
      children = tree.children[nodes]
      count = int((children > 0).sum(axis=1).max())
      rng, candidates = siblings.choose(env, rng, distribution, places, count, draws)
      at, rank = np.nonzero(children > 0)
      tokens = tokens.at[:, children[at, rank] - 1].set(candidates[:, at, rank])
      if depth + 1 < len(levels):
        nodes_below, before = levels[depth + 1], sum(map(len, levels[1:depth + 2]))
        above = np.searchsorted(nodes, np.asarray(tree.parents)[nodes_below])
        logits, features, cache = network.step(
            env.params, cache, jnp.maximum(tokens[:, nodes_below - 1], 0), features[:, :, above],
            start + 1, np.full(len(nodes_below), depth),
            tree.ancestors[np.ix_(nodes_below, inner[1:before + 1])])
    probs = jnp.concatenate(probs, axis=1) if env.needs_probs and draws != 'fixed' else None
    return rng, state._replace(cache=cache), Draft(tokens, probs)

  return Drafter(
      Layout(tree, probs_rows, (-1,) * (tree.num_nodes + 1), draws),
      init=lambda *args: _init(network, tree.max_depth, len(inner), *args),
      propose=propose, update=_update, check=lambda target: check(network, target))


def check(network: Network, target: Target) -> None:
  """Raises ValueError if the network was not made for such a target."""
  for name in ('vocab_size', 'num_tokens'):
    ours, theirs = getattr(network, name), getattr(target, name)
    if ours != theirs:
      raise ValueError(
          f'{name} of the drafting network is {ours}, of the target {theirs}; they must be equal.')


def _init(network, max_depth, tree_slots, env, condition, rng, outcome):
  """The state after the prefill."""
  if outcome.features is None:
    raise ValueError('The target returns no features; this drafter reads the target\'s features.')
  slots = env.target.num_tokens + max(max_depth, tree_slots) + 1
  cache = network.prefill(env.params, condition, outcome.features, slots)
  room = ((0, 0), (0, 0), (0, max_depth), (0, 0))
  return rng, EagleState(
      cache, tokens=jnp.pad(outcome.tokens[:, :1], room[1:3]),
      features=jnp.pad(outcome.features[:, :, -1:], room),
      fresh=jnp.ones_like(outcome.count))


def catch_up(env, network, state, start):
  """Reads the committed tokens that are new.

  Args:
    env: what drafters know of the round.
    network: the drafting network.
    state: what the last round left.
    start: `[B]` int32, the root's position.

  Returns:
    Logits and features after the root, of one node, and the cache with the new tokens in it.
  """
  length = state.tokens.shape[1]
  logits, features, cache = network.step(
      env.params, state.cache, state.tokens, state.features, start + 1 - state.fresh,
      np.arange(length), np.tri(length, dtype=bool))
  last = jnp.maximum(state.fresh - 1, 0)[None, :, None, None]
  return (jnp.take_along_axis(logits, last, axis=2),
          jnp.take_along_axis(features, last, axis=2), cache)


def _update(env, state, rng, outcome):
  """Takes the target's features along the accepted path."""
  del env
  first = outcome.count - outcome.accepted - 1
  numbers = first[:, None] + jnp.arange(state.tokens.shape[1])
  last = outcome.tokens.shape[1] - 1
  return rng, EagleState(
      state.cache,
      tokens=jnp.take_along_axis(outcome.tokens, jnp.minimum(numbers, last), axis=1),
      features=jnp.take_along_axis(outcome.features, outcome.path[None, :, :, None], axis=2),
      fresh=outcome.accepted + 1)
