"""The named decoders: well-known combinations of a drafter and a verifier."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cspd_jax.decoding import published_trees, tree as trees
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.drafters.ancestral import ancestral
from cspd_jax.decoding.drafters.dynamic import eagle2 as eagle2_drafter
from cspd_jax.decoding.drafters.eagle import Network, eagle as eagle_drafter
from cspd_jax.decoding.drafters.jacobi import jacobi as jacobi_drafter
from cspd_jax.decoding.drafters.medusa import Heads, medusa as medusa_drafter
from cspd_jax.decoding.drafters.model import model
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.verifiers.exact import exact
from cspd_jax.decoding.verifiers.match import match


def vanilla(target: Target) -> Decoder:
  """One token per forward pass, drawn with the noise of its position."""
  return make_decoder(target, ancestral(), match())


def speculative(target: Target, draft_target: Target, length: int = 4) -> Decoder:
  """Speculative sampling with a draft model (Leviathan et al., arXiv 2211.17192).

  Call the decoder with `draft_params`.
  """
  return make_decoder(target, model(draft_target, length), exact())


def jacobi(target: Target, window: int = 16) -> Decoder:
  """Jacobi decoding with sampling: a draft stays if a fresh draw equals it."""
  return make_decoder(target, jacobi_drafter(window), match(seed_exact=False))


def sjd(target: Target, window: int = 16) -> Decoder:
  """Speculative Jacobi decoding (arXiv 2410.01699)."""
  return make_decoder(target, jacobi_drafter(window), exact())


def mc_sjd(target: Target, window: int = 16) -> Decoder:
  """SJD whose drafts are maximally coupled from round to round (arXiv 2510.24211)."""
  return make_decoder(target, jacobi_drafter(window, 'maximal'), exact())


def sjd_pac(target: Target, window: int = 16, tree: Tree | None = None) -> Decoder:
  """Adaptive continuation and proactive drafting (SJD-PAC, arXiv 2603.18599).

  Args:
    target: the target.
    window: tokens per forward pass.
    tree: topology of the `window - 1` drafts; `default_tree(window)` by default.
  """
  tree = default_tree(window) if tree is None else tree
  return make_decoder(target, jacobi_drafter(window, 'maximal', tree=tree), exact())


def seed_exact(target: Target, window: int = 16, tree: Tree | None = None) -> Decoder:
  """Jacobi windows under the noise of each position: the tokens of `vanilla`.

  Predictive sampling (arXiv 2002.09928) with a window, and a tree whose side
  nodes hold the runners-up under the same noise. Arguments as for `sjd_pac`.
  """
  tree = default_tree(window) if tree is None else tree
  return make_decoder(target, jacobi_drafter(window, 'noise', tree=tree), match())


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


def eagle(target: Target, network: Network, tree: Tree = published_trees.EAGLE) -> Decoder:
  """Drafts of a network that continues the target's features (EAGLE, arXiv 2401.15077).

  Call the decoder with the network's parameters as `draft_params`.
  """
  return make_decoder(target, eagle_drafter(network, tree), exact())


def eagle2(target: Target, network: Network, num_nodes: int = 58, width: int = 10,
           depth: int = 5) -> Decoder:
  """EAGLE with a tree chosen anew every round (EAGLE-2, arXiv 2406.16858).

  Drafts that are chosen and not drawn can be verified by drawing the target's token and
  looking for it among them, which gives the tokens of `vanilla`.
  """
  return make_decoder(target, eagle2_drafter(network, num_nodes, width, depth), match())


def medusa(target: Target, heads: Heads, tree: Tree | None = None) -> Decoder:
  """Drafts of heads on the target's last feature (Medusa, arXiv 2401.10774).

  Args:
    target: the target.
    heads: the heads; call the decoder with their parameters as `draft_params`.
    tree: not deeper than there are heads; a chain through all of them by default.
  """
  tree = trees.chain(heads.num_heads) if tree is None else tree
  return make_decoder(target, medusa_drafter(heads, tree), exact())


class Named(NamedTuple):
  """An entry of the registry.

  Attributes:
    guarantee: in a word or two. 'exact': the output has the target's distribution; 'seed-exact': it
      equals the output of `vanilla` with the same key, token for token; any other word says
      that it does not have the distribution (continuous tokens only).
    drafts: what drafts: None, the target itself; or one of `SOURCES`.
    summary: one line for tables.
  """

  guarantee: str
  drafts: str | None
  summary: str


# Trained models that draft: what `build` takes for them, in words.
SOURCES = {'model': 'a draft model', 'eagle': 'an EAGLE network', 'medusa': 'Medusa heads'}

DECODERS = {
    'vanilla': Named('seed-exact', None, 'one token per forward pass'),
    'speculative': Named('exact', 'model', 'a smaller model drafts'),
    'jacobi': Named('exact', None, 'drafts kept if redrawn alike'),
    'sjd': Named('exact', None, 'Jacobi window, probabilistic acceptance'),
    'mc_sjd': Named('exact', None, 'SJD with maximally coupled drafts'),
    'sjd_pac': Named('exact', None, 'coupled drafts and a candidate tree'),
    'seed_exact': Named('seed-exact', None, 'the same image as vanilla'),
    'eagle': Named('exact', 'eagle', "a layer on the target's features drafts"),
    'eagle2': Named('seed-exact', 'eagle', 'EAGLE along its most probable paths'),
    'medusa': Named('exact', 'medusa', "heads on the target's last feature draft"),
}


def build(name: str, target: Target, *, window: int = 16, draft_length: int = 4,
          drafts: Mapping[str, Any] = MappingProxyType({})) -> Decoder:
  """Builds a decoder of the registry by name, in a size that suits the machine.

  Args:
    name: a key of `DECODERS`.
    target: the target.
    window: tokens a forward pass should have at most: the window of the Jacobi
      decoders. From 26 on EAGLE drafts along its published tree, below along a chain.
    draft_length: length of drafted chains.
    drafts: by the keys of `SOURCES`: a `Target`, a `Network`, `Heads`.

  Raises:
    ValueError: for an unknown name, a missing drafting model or options that do
      not fit the target.
  """
  if name not in DECODERS:
    raise ValueError(f'decoder is {name!r}; it must be one of {", ".join(DECODERS)}.')
  source = DECODERS[name].drafts
  if source is not None and source not in drafts:
    raise ValueError(f'decoder {name} needs {SOURCES[source]}; give drafts[{source!r}].')
  published = window > published_trees.EAGLE.num_nodes
  return {
      'vanilla': lambda: vanilla(target),
      'speculative': lambda: speculative(target, drafts['model'], draft_length),
      'jacobi': lambda: jacobi(target, window),
      'sjd': lambda: sjd(target, window),
      'mc_sjd': lambda: mc_sjd(target, window),
      'sjd_pac': lambda: sjd_pac(target, window),
      'seed_exact': lambda: seed_exact(target, window),
      'eagle': lambda: eagle(
          target, drafts['eagle'],
          published_trees.EAGLE if published else trees.chain(draft_length)),
      'eagle2': lambda: eagle2(target, drafts['eagle'], *(
          (window - 1, 10, 5) if published else (max(window - 1, 1), max(window // 2, 1), 3))),
      'medusa': lambda: medusa(
          target, drafts['medusa'], trees.chain(min(draft_length, drafts['medusa'].num_heads))),
  }[name]()
