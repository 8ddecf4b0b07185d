"""The guarantees of decoders, the same in both engines."""

import enum
from collections.abc import Collection
from typing import Any


class Guarantee(enum.StrEnum):
  """How the images of a decoder relate to the distribution that it is to sample.

  The members are in order, the strongest first. Each is the string that reports contain.

  Attributes:
    SEED_EXACT: the same key yields the tokens of the baseline with as many tokens per forward pass,
      bit for bit in any dtype, and up to rounding those of the baseline itself.
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


def weakest(verifiers: Collection[Any], is_chain: bool = True) -> Guarantee:
  """Returns the guarantee of a decoder, of either engine, that uses all of these verifiers.

  `is_chain` is whether its drafts are a chain. The key of an accepted side node was scored in
  another slot than the one where it stays, so that its sums have another order than the baseline's.
  """
  order = list(Guarantee)
  result = max(map(_guarantee, verifiers), key=order.index)
  return result.rounded if not is_chain else result


def _guarantee(verifier: Any) -> Guarantee:
  if getattr(verifier, 'seed_exact', False):  # Continuous tokens have no such verifiers.
    return Guarantee.SEED_EXACT
  if verifier.exact:
    return Guarantee.EXACT
  return Guarantee.BOUNDED if verifier.bounded else Guarantee.BIASED
