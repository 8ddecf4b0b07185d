"""The drafters, verifiers and trade-off curves of `experiments.benchmark`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.decoding import published_trees
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.base import Drafter, Verifier
from cspd_jax.decoding.drafters.dynamic import eagle2
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.drafters.model import model
from cspd_jax.decoding.verifiers.block import block
from cspd_jax.decoding.verifiers.cool import cool, cool_linear, uniform
from cspd_jax.decoding.verifiers.exact import exact
from cspd_jax.decoding.verifiers.grouped import grouped
from cspd_jax.decoding.verifiers.kseq import kseq
from cspd_jax.decoding.verifiers.lantern import lantern, lantern_pp
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.neighbours import neighbour_table
from cspd_jax.decoding.verifiers.typical import typical

# Depths over which Cool-SD spreads its relaxation; also in Jacobi windows, which are longer
# than what they accept.
_DEPTHS = published_trees.EAGLE.max_depth


class Parts(NamedTuple):
  """What drafters and verifiers are made from.

  Attributes:
    drafts: trained models that draft, by the keys of `decoders.SOURCES`.
    window: tokens of a Jacobi window.
    draft_length: tokens of a drafted chain.
    neighbours: `[V, K]` nearest codebook rows of every token.
  """

  drafts: Mapping[str, Any]
  window: int
  draft_length: int
  neighbours: np.ndarray


class DrafterEntry(NamedTuple):
  """Attributes:
    source: a key of `decoders.SOURCES`, or None if the target drafts for itself.
    build: `(parts, draws) -> Drafter`, with siblings drawn in this way if it has siblings
      and a choice.
  """

  source: str | None
  build: Callable[[Parts, str], Drafter]


class VerifierEntry(NamedTuple):
  """Attributes:
    build: `(parts, draws) -> Verifier`, for a drafter with these draws.
    draws: how siblings should be drawn.
  """

  build: Callable[[Parts, str], Verifier]
  draws: str = 'distinct'


class Method(NamedTuple):
  """A trade-off curve.

  Attributes:
    values: the relaxation at its points.
    build: `(parts, value) -> Verifier`.
    from_exact: whether the exact decoder is where the curve begins.
    like: the method of which this is a variant.
  """

  values: tuple[float, ...]
  build: Callable[[Parts, float], Verifier]
  from_exact: bool = True
  like: str = ''


# EAGLE-2 gets as many drafts as EAGLE-1's tree, and as deep, to compare the two.
DRAFTERS = {
    'model': DrafterEntry('model', lambda p, draws: model(p.drafts['model'], p.draft_length)),
    'jacobi': DrafterEntry(None, lambda p, draws: jacobi(p.window)),
    'mc_jacobi': DrafterEntry(None, lambda p, draws: jacobi(p.window, 'maximal')),
    'eagle': DrafterEntry(
        'eagle', lambda p, draws: eagle(p.drafts['eagle'], trees.chain(p.draft_length))),
    'eagle_tree': DrafterEntry(
        'eagle', lambda p, draws: eagle(p.drafts['eagle'], published_trees.EAGLE, draws)),
    'eagle2': DrafterEntry(
        'eagle', lambda p, draws: eagle2(
            p.drafts['eagle'], published_trees.EAGLE.num_nodes, 10, _DEPTHS)),
    'medusa': DrafterEntry('medusa', lambda p, draws: medusa(
        p.drafts['medusa'], trees.chain(min(p.draft_length, p.drafts['medusa'].num_heads)))),
    'medusa_tree': DrafterEntry('medusa', lambda p, draws: medusa(
        p.drafts['medusa'], cut(published_trees.EAGLE, p.drafts['medusa'].num_heads), draws)),
}

# Those of which 'all' trade-off curves are made: a chain and a tree.
CURVE_DRAFTERS = ('eagle', 'eagle_tree')

# The settings are those of the papers' tables, with LANTERN's k in proportion to the codebook.
VERIFIERS = {
    'exact': VerifierEntry(lambda p, draws: exact()),
    'match': VerifierEntry(lambda p, draws: match()),
    'block': VerifierEntry(lambda p, draws: block()),
    'kseq': VerifierEntry(lambda p, draws: kseq(), 'iid'),
    'uniform': VerifierEntry(lambda p, draws: uniform(1.1)),
    'cool': VerifierEntry(lambda p, draws: cool(1.1, length=_DEPTHS)),
    'cool_printed': VerifierEntry(lambda p, draws: cool(1.1, clamp=False, length=_DEPTHS)),
    'cool_linear': VerifierEntry(lambda p, draws: cool_linear(1.1, length=_DEPTHS)),
    'lantern': VerifierEntry(
        lambda p, draws: lantern(p.neighbours, 0.1, k=_lantern_k(len(p.neighbours)))),
    'lantern_pp': VerifierEntry(lambda p, draws: _lantern_pp(p, 2.0)),
    'lantern_pp_released': VerifierEntry(lambda p, draws: _lantern_pp(
        p, 2.0, 'released_dynamic' if draws == 'fixed' else 'released_llamagen')),
    'grouped': VerifierEntry(lambda p, draws: grouped(10)),
    'typical': VerifierEntry(lambda p, draws: typical()),
}

_FACTORS, _LAMBDAS = (1.3, 1.8, 3.0), (1.5, 2.0, 3.0, 5.0)

# For static trees and chains. With a linear schedule from 5 / 3 on no factor is below 1.
METHODS = {
    'uniform': Method(_FACTORS, lambda p, value: uniform(value)),
    'Cool-SD': Method((0.7, 1.1, 1.8, 3.0), lambda p, value: cool(value, length=_DEPTHS)),
    'Cool-SD, printed': Method(
        (0.9, 1.3, 2.0, 3.0), lambda p, value: cool(value, clamp=False, length=_DEPTHS),
        from_exact=False, like='Cool-SD'),
    'Cool-SD linear': Method(
        _FACTORS, lambda p, value: cool_linear(value, length=_DEPTHS)),
    'Cool-SD linear, printed': Method(
        (0.9, 1.1, 1.3), lambda p, value: cool_linear(value, clamp=False, length=_DEPTHS),
        from_exact=False, like='Cool-SD linear'),
    'LANTERN++, G*': Method(_LAMBDAS, lambda p, value: _lantern_pp(p, value)),
    'LANTERN++, released': Method(
        _LAMBDAS, lambda p, value: _lantern_pp(p, value, 'released_llamagen'),
        like='LANTERN++, G*'),
    'GSD': Method((3, 8, 24), lambda p, value: grouped(int(value))),
}


def neighbours(codebook: np.ndarray) -> np.ndarray:
  """`[V, K]` as many neighbours as the verifiers ask for."""
  size = len(codebook)
  return neighbour_table(codebook, min(size - 1, max(_lantern_k(size), 11)))


def cut(tree: trees.Tree, depth: int) -> trees.Tree:
  """The tree without its nodes deeper than `depth`."""
  kept = np.flatnonzero(tree.depth <= depth)
  return trees.Tree((-1,) + tuple(
      int(np.searchsorted(kept, tree.parents[node])) for node in kept[1:]))


def _lantern_k(vocab_size: int) -> int:
  """1000 for 16384 codes, as in the paper."""
  return max(1, min(1000, vocab_size // 16))


def _lantern_pp(parts: Parts, lam: float, residual: str = 'gstar') -> Verifier:
  # The released residuals look at one neighbour more.
  k = min(10, parts.neighbours.shape[1] - 1)
  return lantern_pp(parts.neighbours, lam, k=k, residual=residual)
