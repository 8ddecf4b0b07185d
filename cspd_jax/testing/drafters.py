"""A drafter whose distributions are a second table: for any tree and any kind of draws."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import contract, warp as warp_lib
from cspd_jax.decoding.base import Draft, Drafter, Layout, Rng, Target
from cspd_jax.decoding.drafters.siblings import check_draws
from cspd_jax.decoding.row_random import winners
from cspd_jax.decoding.tree import Tree
from cspd_jax.testing.tabular import Tabular


class TabularState(NamedTuple):
  """The state between two rounds."""

  label: jax.Array  # `[B]` class of the rows.
  tokens: jax.Array  # `[B, T']` the image tokens so far.


def tabular_drafter(other: Tabular, tree: Tree, draws: str = 'distinct') -> Drafter:
  """Drafts from the table `other`, level by level, without drafts of earlier rounds.

  The distribution of a node depends on the whole path to it. Call the decoder with
  `draft_params=other.params`, or another table of that shape. `draws` is how siblings are selected,
  one of `base.DRAWS`; 'fixed' selects the most probable tokens and records no distributions.

  Raises:
    ValueError: if `draws` is not one of these.
  """
  check_draws(draws)
  inner = np.flatnonzero(tree.children[:, 0] > 0)
  probs_rows = (0,) + tuple(int(row) for row in np.searchsorted(inner, tree.parents[1:]))

  def init(env, condition, rng, outcome):
    # Padded for the nodes that `score` writes past the last token.
    padded = jnp.pad(outcome.tokens, ((0, 0), (0, tree.num_nodes)))
    return rng, TabularState(condition, padded)

  def propose(env, state, rng, root, start):
    nodes = jnp.zeros((root.shape[0], tree.num_nodes + 1), jnp.int32).at[:, 0].set(root)
    positions = start[:, None] + 1 + tree.depth
    forced = contract.forced_tokens(env.target, positions)
    streams = other.target.num_streams
    warp = env.warp if streams == 2 else env.warp._replace(guidance_scale=1.0)
    probs = None
    for depth in range(tree.max_depth):
      logits, _, _ = other.target.score(
          env.params, state, jnp.maximum(nodes, 0), start, tree)
      probs = warp_lib.probabilities(logits, warp, positions, forced)
      for parent in inner[tree.depth[inner] == depth]:
        children = tree.children[parent][tree.children[parent] > 0]
        draw = lambda rng, q, count=len(children): siblings(rng, q, count, draws)
        rng, tokens = env.rowwise(draw)(rng, probs[:, parent])
        nodes = nodes.at[:, children].set(tokens)
    recorded = None
    if env.needs_probs and draws != 'fixed':
      # A node's distribution depends on its ancestors only, so the last pass contains all of them.
      recorded = probs[:, inner] if probs is not None else jnp.zeros(
          (root.shape[0], 0, other.vocab_size), env.params.dtype)
    return rng, state, Draft(nodes[:, 1:], recorded)

  def update(env, state, rng, outcome):
    del env
    size = outcome.tokens.shape[1]
    return rng, state._replace(tokens=state.tokens.at[:, :size].set(outcome.tokens))

  return Drafter(
      layout=Layout(tree, probs_rows, (-1,) * (tree.num_nodes + 1), draws),
      init=init, propose=propose, update=update, check=functools.partial(_check_sizes, other),
      reuses_drafts=False)


def _check_sizes(other: Tabular, target: Target) -> None:
  """Raises ValueError unless both models have the same vocabulary and length."""
  if (target.vocab_size, target.num_tokens) != (other.vocab_size, other.length):
    raise ValueError(
        f'other has {other.vocab_size} tokens and length {other.length}, the target '
        f'{target.vocab_size} and {target.num_tokens}; they must be equal.')


def siblings(rng: Rng, distribution: jax.Array, count: int, draws: str) -> jax.Array:
  """Selects tokens `[count]` from one distribution `[V]`; `draws` is one of `base.DRAWS`."""
  if draws == 'fixed':
    return winners(distribution, count)
  if draws == 'iid':
    return rng.draw(jnp.broadcast_to(distribution, (count, distribution.shape[0])))
  return rng.draw_distinct(distribution[None], count)[0]
