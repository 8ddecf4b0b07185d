"""Well-known decoders as functions; `registry` builds the same and others from text."""

from cspd_jax.decoding import published_trees, tree as trees
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.drafters import (
  Corrector,
  Heads,
  Network,
  ancestral,
  corrected as corrected_lib,
  dynamic,
  eagle as eagle_lib,
  jacobi as jacobi_lib,
  medusa as medusa_lib,
  model,
)
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.verifiers.exact import exact
from cspd_jax.decoding.verifiers.match import match


def vanilla(target: Target, window: int = 1) -> Decoder:
  """One token per forward pass, drawn with the noise of its position.

  Args:
    target: the target.
    window: tokens per forward pass; all but the first only give it the shapes of a window decoder,
      whose tokens then are the same bit for bit. See `drafters.ancestral`.
  """
  return make_decoder(target, ancestral.ancestral(window), match())


def speculative(target: Target, draft_target: Target, length: int = 4) -> Decoder:
  """Speculative sampling with a draft model (Leviathan et al., arXiv 2211.17192).

  Call the decoder with `draft_params`.
  """
  return make_decoder(target, model.model(draft_target, length), exact())


def jacobi(target: Target, window: int = 16) -> Decoder:
  """Jacobi decoding with sampling: a draft stays if a fresh draw equals it."""
  return make_decoder(target, jacobi_lib.jacobi(window), match(seed_exact=False))


def sjd(target: Target, window: int = 16) -> Decoder:
  """Speculative Jacobi decoding (arXiv 2410.01699)."""
  return make_decoder(target, jacobi_lib.jacobi(window), exact())


def mc_sjd(target: Target, window: int = 16) -> Decoder:
  """SJD whose drafts are maximally coupled from round to round (arXiv 2510.24211)."""
  return make_decoder(target, jacobi_lib.jacobi(window, 'maximal'), exact())


def sjd_pac(target: Target, window: int = 16, tree: Tree | None = None) -> Decoder:
  """Adaptive continuation and proactive drafting (SJD-PAC, arXiv 2603.18599).

  Args:
    target: the target.
    window: tokens per forward pass.
    tree: topology of the `window - 1` drafts; `default_tree(window)` by default.
  """
  tree = default_tree(window) if tree is None else tree
  return make_decoder(target, jacobi_lib.jacobi(window, 'maximal', tree=tree), exact())


def seed_exact(target: Target, window: int = 16, tree: Tree | None = None) -> Decoder:
  """Jacobi windows under the noise of each position: the tokens of `vanilla(window=window)`.

  Predictive sampling (arXiv 2002.09928) with a window, and a tree whose side
  nodes hold the runners-up under the same noise. A chain gives these tokens bit for bit in any
  dtype, a tree with side nodes up to rounding. Arguments as for `sjd_pac`.
  """
  tree = default_tree(window) if tree is None else tree
  return make_decoder(target, jacobi_lib.jacobi(window, 'noise', tree=tree), match())


def default_tree(window: int) -> Tree:
  """The tree of `sjd_pac` and `seed_exact` for a window.

  Chosen by measurement on the embedded model (`experiments.topologies`): in a long
  window the full ternary tree with three levels of SJD-PAC's released code, in a
  middling one three candidates for the first token, in a short one none, because
  there the main chain needs all the tokens.
  """
  if window >= 48:
    return trees.kary(3, 3, window - 1)
  if window >= 16:
    return trees.caterpillar(3, 1, window - 1)
  return trees.chain(window - 1)


def corrected(target: Target, corrector: Corrector, window: int = 16, passes: int | None = None,
              tree: Tree | None = None) -> Decoder:
  """Windows of stale answers, corrected by a cheap model.

  Call the decoder with the cheap model's parameters as `draft_params`.

  Args:
    target: the target.
    corrector: the cheap model.
    window: tokens per forward pass.
    passes: how often it reads the window; see `drafters.corrected`.
    tree: topology of the `window - 1` drafts; `corrected_tree(window)` by default.
  """
  tree = corrected_tree(window) if tree is None else tree
  return make_decoder(target, corrected_lib.corrected(corrector, window, passes, tree), exact())


def corrected_seed_exact(target: Target, corrector: Corrector, window: int = 16,
                         passes: int | None = None, tree: Tree | None = None) -> Decoder:
  """The same under the noise of each position: the tokens of `vanilla(window=window)`.

  Bit for bit or up to rounding, as those of `seed_exact`. Arguments as for `corrected`.
  """
  tree = corrected_tree(window) if tree is None else tree
  return make_decoder(target, corrected_lib.corrected(corrector, window, passes, tree), match())


def corrected_tree(window: int) -> Tree:
  """The tree of `corrected` and `corrected_seed_exact` for a window.

  Chosen on the embedded model: in a long window candidates for the first tokens, whose refusal
  costs a round most, in a short one none, because there the main chain needs all the tokens.
  """
  if window >= 48:
    return trees.caterpillar(4, 6, window - 1)
  if window >= 24:
    return trees.caterpillar(3, 3, window - 1)
  return trees.chain(window - 1)


def eagle(target: Target, network: Network, tree: Tree = published_trees.EAGLE) -> Decoder:
  """Drafts of a network that continues the target's features (EAGLE, arXiv 2401.15077).

  Call the decoder with the network's parameters as `draft_params`.
  """
  return make_decoder(target, eagle_lib.eagle(network, tree), exact())


def eagle2(target: Target, network: Network, num_nodes: int = 58, width: int = 10,
           depth: int = 5) -> Decoder:
  """EAGLE with a tree chosen anew every round (EAGLE-2, arXiv 2406.16858).

  Drafts that are chosen and not drawn can be verified by drawing the target's token and
  looking for it among them, which gives the tokens of `vanilla` up to rounding.
  """
  return make_decoder(target, dynamic.eagle2(network, num_nodes, width, depth), match())


def medusa(target: Target, heads: Heads, tree: Tree | None = None) -> Decoder:
  """Drafts of heads on the target's last feature (Medusa, arXiv 2401.10774).

  Args:
    target: the target.
    heads: the heads; call the decoder with their parameters as `draft_params`.
    tree: not deeper than there are heads; a chain through all of them by default.
  """
  tree = trees.chain(heads.num_heads) if tree is None else tree
  return make_decoder(target, medusa_lib.medusa(heads, tree), exact())
