"""A drafter whose distributions are a second table: for any tree and any kind of draws."""

import functools

from cspd_jax.decoding.base import Drafter, Target
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.tree import Tree
from cspd_jax.testing.tabular import Tabular, network


def tabular_drafter(other: Tabular, tree: Tree, draws: str = 'distinct') -> Drafter:
  """Drafts from the table `other`, as `eagle` does from a network, for class 0.

  The distribution of a node depends on the whole path to it. Call the decoder with
  `draft_params=other.params`, or another table of that shape. `draws` is how siblings are selected,
  one of `base.DRAWS`; 'fixed' selects the most probable tokens and records no distributions.

  Raises:
    ValueError: if `draws` is not one of these, or the tree has no drafts.
  """
  return eagle(network(other.target), tree, draws)._replace(
      check=functools.partial(_check_sizes, other))


def _check_sizes(other: Tabular, target: Target) -> None:
  if (target.vocab_size, target.num_tokens) != (other.vocab_size, other.length):
    raise ValueError(
        f'other has {other.vocab_size} tokens and length {other.length}, the target '
        f'{target.vocab_size} and {target.num_tokens}; they must be equal.')
