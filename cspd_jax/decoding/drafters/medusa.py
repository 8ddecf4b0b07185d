"""Medusa: drafting heads on the target's last feature (arXiv 2401.10774)."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.core import contracts, fields
from cspd_jax.core.contracts import check_part
from cspd_jax.decoding.base import DRAWS, Draft, Drafter, Layout, Params
from cspd_jax.decoding.drafters import siblings
from cspd_jax.decoding.tree import Tree, chain


class Heads(NamedTuple):
  """Attributes:
    logits: `(params, features [S, B, F]) -> [S, B, H, V]`: from the feature that predicted token
      `k`, head `h` predicts token `k + 1 + h`.
    num_heads: `H`.
    vocab_size: `V`.
  """

  logits: Callable[[Params, jax.Array], jax.Array]
  num_heads: int
  vocab_size: int


def medusa(heads: Heads, tree: Tree | None = None, draws: str = 'distinct',
           length: int | None = None) -> Drafter:
  """Drafts along a static tree, from distributions that depend on the depth only.

  All nodes of one depth and rank hold the same token: the tree is the Cartesian product of the
  heads' candidates or a part of it. Only one path is accepted in a round, so paths may share their
  candidates. Raises ValueError if `draws` is not supported, the tree is too deep or empty, or both
  `tree` and `length` are passed.

  Args:
    heads: the heads, trained for the target.
    tree: topology of the drafts, such as `tree.MEDUSA`, at most `H` deep. A chain by default.
    draws: how siblings are selected, one of `base.DRAWS`; the paper uses 'fixed'.
    length: length of the chain, if `tree` is None; cut to `H`, which is the default.
  """
  check_part('heads', heads, Heads)
  fields.check_choice('draws', draws, DRAWS)
  if tree is not None and length is not None:
    raise ValueError(
        f'length is {length}, the length of a chain, but a tree is given; pass only one of them.')
  if tree is None:
    tree = chain(heads.num_heads if length is None else min(length, heads.num_heads))
  check_part('tree', tree, Tree)
  if not 1 <= tree.max_depth <= heads.num_heads:
    raise ValueError(
        f'tree is {tree.max_depth} deep; with {heads.num_heads} heads the depth must be 1 to '
        f'{heads.num_heads}.')
  depth, rank = tree.depth[1:], tree.rank[1:]

  def init(context, condition, rng, result):
    return rng, contracts.check_features(result.features, context.params)[:, :, -1]

  def propose(context, state, rng, root, start):
    logits = contracts.head_logits(heads, context.params, state)[:, :, :tree.max_depth]
    positions = start[:, None] + 1 + jnp.arange(tree.max_depth)
    probs = siblings.probabilities(context, logits, positions)
    rng, tokens, recorded = siblings.choose(
        context, rng, probs, positions, int(rank.max()) + 1, draws)
    return rng, state, Draft(tokens[:, depth - 1, rank], recorded if context.needs_probs else None)

  def update(context, state, rng, result):
    node = result.verdict.node[None, :, None, None]
    return rng, jnp.take_along_axis(result.features, node, axis=2)[:, :, 0]

  return Drafter(
      Layout(tree, (0,) + tuple(int(d) - 1 for d in depth), (-1,) * (tree.num_nodes + 1), draws),
      init=init, propose=propose, update=update, reuses_drafts=False,
      check=functools.partial(contracts.check_sizes, heads, 'heads', ('vocab_size',)))
