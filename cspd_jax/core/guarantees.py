"""The guarantees of decoders of both kinds of tokens."""

import enum
from collections.abc import Iterable


class Guarantee(enum.StrEnum):
  """How the images of a decoder relate to the distribution that it is to sample.

  The members are in order, the strongest first. Each is the string that reports contain.

  Attributes:
    SEED_EXACT: the same key yields the tokens of the baseline with as many tokens per forward pass,
      bit for bit in any dtype, and up to rounding the tokens of the baseline itself.
    UP_TO_ROUNDING: the same, but for sums in another order: two tokens that are almost tied may be
      exchanged, and a token that differs changes all later ones.
    EXACT: the images follow the distribution.
    BOUNDED: they follow another one, and the decoder reports a bound on the difference.
    BIASED: they follow another one, at least for some models, and nothing bounds the difference.
  """

  SEED_EXACT = 'seed-exact'
  UP_TO_ROUNDING = 'seed-exact up to rounding'
  EXACT = 'exact'
  BOUNDED = 'bounded'
  BIASED = 'biased'

  def satisfies(self, least: 'Guarantee') -> bool:
    """Returns whether this guarantee is at least as strong as another."""
    order = list(Guarantee)
    return order.index(self) <= order.index(least)

  @property
  def rounded(self) -> 'Guarantee':
    """The guarantee of the same decoder if its sums may have another order than the baseline's."""
    return Guarantee.UP_TO_ROUNDING if self is Guarantee.SEED_EXACT else self

  @property
  def is_exact(self) -> bool:
    """Whether the images follow the distribution."""
    return self.satisfies(Guarantee.EXACT)


def of_stages(guarantees: Iterable[Guarantee]) -> Guarantee:
  """Returns the guarantee of images that several decoders draw in turn, each given the one before.

  It is the weakest. If every decoder repeats the tokens of its baseline, so do all together: each
  has its own keys of the seed, and the same condition as its baseline. If every one samples its
  conditional distribution, all together sample the joint one. Bounds on the total variation add.
  """
  return max(guarantees, key=list(Guarantee).index)


def of_verifier(*, exact: bool, bounded: bool, seed_exact: bool = False) -> Guarantee:
  """Returns the guarantee of a decoder by the fields of its verifier."""
  if seed_exact:
    return Guarantee.SEED_EXACT
  if exact:
    return Guarantee.EXACT
  return Guarantee.BOUNDED if bounded else Guarantee.BIASED
