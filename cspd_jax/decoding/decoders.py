# mypy: disable-error-code="empty-body"
"""The tables of drafters and verifiers, and the named decoders as functions of a target.

A new decoder is an entry here. Its text, such as `mc_sjd(window=32)`, and its function build the
same decoder; `cspd_jax`, the programs, the documentation and the tests read these tables.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cspd_jax.core.spec import Call, Value
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.drafters import Corrector, Heads, Network, from_model, from_network
from cspd_jax.decoding.drafters.corrected import corrected as draft_corrected
from cspd_jax.decoding.drafters.draft_model import model as draft_model
from cspd_jax.decoding.drafters.eagle import eagle as draft_eagle, eagle2 as draft_eagle2
from cspd_jax.decoding.drafters.jacobi import ancestral, jacobi as draft_jacobi, reuse
from cspd_jax.decoding.drafters.medusa import medusa as draft_medusa
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.specification import DRAFTERS, VERIFIERS, DrafterEntry, VerifierEntry, named
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.verifiers import block, cool, grouped, kseq, lantern, match, node_tests


def default_tree(window: int) -> Tree:
  """Returns the tree of `sjd_pac` and `seed_exact` for a window.

  Selected by measurement on the embedded model (`experiments.topologies`): for a long window the
  full ternary tree with three levels of SJD-PAC's released code, for a medium one three candidates
  for the first token, and for a short one a chain, which needs all the tokens there.
  """
  if window >= 48:
    return trees.kary(3, 3, window - 1)
  if window >= 16:
    return trees.caterpillar(3, 1, window - 1)
  return trees.chain(window - 1)


def corrected_tree(window: int) -> Tree:
  """Returns the tree of `corrected` and `corrected_seed_exact` for a window.

  Selected as that of `default_tree`: the longer the window, the more candidates for the first
  tokens, whose rejection shortens a round most.
  """
  if window >= 48:
    return trees.caterpillar(4, 6, window - 1)
  if window >= 24:
    return trees.caterpillar(3, 3, window - 1)
  return trees.chain(window - 1)


_window_size = lambda arguments, window, length: {'window': window}
_chain_length = lambda arguments, window, length: {} if 'tree' in arguments else {'length': length}


def _eagle_tree(
    arguments: Mapping[str, Value], window: int | None, length: int | None) -> dict[str, Value]:
  """EAGLE's published tree if it fits in a forward pass of `window` tokens, else a chain."""
  if window is None:
    return {}
  chain = Call('chain', (max(window - 1, 1) if length is None else length,), {})
  return {'tree': 'EAGLE' if window > trees.EAGLE.num_nodes else chain}


def _eagle2_sizes(
    arguments: Mapping[str, Value], window: int | None, length: int | None) -> dict[str, Value]:
  if window is None or arguments.keys() & {'num_nodes', 'width', 'depth'}:
    return {}
  if window > trees.EAGLE.num_nodes:
    return {'num_nodes': window - 1, 'width': 10, 'depth': 5}
  return {'num_nodes': max(window - 1, 1), 'width': max(window // 2, 1), 'depth': 3}


_as_is = lambda network: network
_EAGLE = {'eagle': _as_is}
# Turn each network that can correct windows into a `Corrector`, by the keys of
# `specification.SOURCES`. The error of the target's first layers is the same in both contexts up to
# what changed, so that all of it carries over (decay 0).
CORRECTORS: dict[str, Callable[[Any], Corrector]] = {
    'corrector': _as_is,
    'neighbours': _as_is,
    'eagle': from_network,
    'model': from_model,
    'layers': lambda network: from_network(network, decay=0.0),
}

DRAFTERS.update({
    'ancestral': DrafterEntry(ancestral, 'no drafts'),
    'model': DrafterEntry(
        draft_model, 'a chain drawn by a smaller model', {'model': _as_is},
        default_sizes=_chain_length),
    'jacobi': DrafterEntry(
        draft_jacobi, "a window of the target's draws of the last round",
        auto_tree=default_tree, default_sizes=_window_size),
    'reuse': DrafterEntry(
        reuse, 'the same, each retained while it is probable enough', auto_tree=default_tree,
        default_sizes=_window_size),
    'eagle': DrafterEntry(
        draft_eagle, "a layer that extrapolates the target's features", _EAGLE,
        default_sizes=_eagle_tree),
    'eagle2': DrafterEntry(
        draft_eagle2, 'the same along its most probable paths', _EAGLE,
        default_sizes=_eagle2_sizes),
    'medusa': DrafterEntry(
        draft_medusa, "heads on the target's last feature", {'medusa': _as_is},
        default_sizes=_chain_length),
    'corrected': DrafterEntry(
        draft_corrected, "the target's last predictions, corrected by a cheap model",
        CORRECTORS, corrected_tree, _window_size),
})

VERIFIERS.update({
    'exact': VerifierEntry(node_tests.exact, 'min(1, p / q), then the residual distribution'),
    'match': VerifierEntry(match.match, "a draft is accepted if the target's draw equals it"),
    'block': VerifierEntry(block.block, 'the drafts of a chain are accepted together'),
    'kseq': VerifierEntry(
        kseq.kseq, 'the first of several independent candidates that passes',
        drafter_defaults={'draws': 'iid'}),
    'uniform': VerifierEntry(cool.uniform, 'one factor on the acceptance at every depth'),
    'cool': VerifierEntry(cool.cool, 'factors that fall exponentially with depth'),
    'cool_linear': VerifierEntry(
        cool.cool_linear, 'factors that fall linearly with depth'),
    'lantern': VerifierEntry(
        lantern.lantern, "latent neighbours add to a draft's probability, up to a distance",
        lantern.from_codebook(lambda vocab_size: min(1000, vocab_size // 16))),
    'lantern_pp': VerifierEntry(
        lantern.lantern_pp, "latent neighbours add to a draft's probability, up to a factor",
        lantern.from_codebook(lambda vocab_size: 10)),
    'grouped': VerifierEntry(
        grouped.grouped, 'tokens of similar probability are accepted as a group',
        lantern.embeddings),
    'typical': VerifierEntry(node_tests.typical, 'drafts that are probable enough are accepted'),
})


@named('ancestral+match', 'one token per forward pass')
def vanilla(target: Target, window: int = 1) -> Decoder:
  """One token per forward pass, drawn with the noise of its position.

  With a `window`, all its tokens but the first are padding, with which the pass has the shapes of a
  window decoder, and seed-exact ones yield the same tokens bit for bit.
  """


@named('model+exact', 'a smaller model drafts')
def speculative(target: Target, draft_target: Target, length: int = 4) -> Decoder:
  """Speculative sampling with a draft model (Leviathan et al., arXiv 2211.17192).

  Call the decoder with `draft_params`. Arguments as for `drafters.model`.
  """


@named('jacobi(coupling=redraw)+match(seed_exact=False)',
       'a draft is accepted if a fresh draw equals it')
def jacobi(target: Target, window: int = 16, tree: Tree | None = None, *,
           fresh: str = 'uniform') -> Decoder:
  """Jacobi decoding with sampling: a draft is accepted if a fresh draw equals it.

  Arguments as for `drafters.jacobi`.
  """


@named('jacobi(coupling=redraw)+exact', 'Jacobi window, probabilistic acceptance')
def sjd(target: Target, window: int = 16, tree: Tree | None = None, *,
        fresh: str = 'uniform') -> Decoder:
  """Speculative Jacobi decoding (arXiv 2410.01699). Arguments as for `jacobi`."""


@named('jacobi(coupling=maximal)+exact', 'SJD with maximally coupled drafts')
def mc_sjd(target: Target, window: int = 16, tree: Tree | None = None, *,
           fresh: str = 'uniform') -> Decoder:
  """SJD whose drafts are maximally coupled from round to round (arXiv 2510.24211).

  Arguments as for `jacobi`.
  """


@named('reuse+exact', 'SJD that reuses drafts while they are probable')
def sjd_pp(target: Target, window: int = 16, threshold: float = 0.5, tree: Tree | None = None, *,
           fresh: str = 'uniform') -> Decoder:
  """SJD whose drafts are reused after a rejection while they are probable (arXiv 2512.07503).

  SJD++, with the distributions recorded that its drafts have, so that it is exact. Arguments as for
  `drafters.reuse`.
  """


@named('jacobi(coupling=maximal, tree=auto)+exact', 'coupled drafts and a candidate tree')
def sjd_pac(target: Target, window: int = 16, tree: Tree | None = None, *,
            fresh: str = 'uniform') -> Decoder:
  """Adaptive continuation and proactive drafting (SJD-PAC, arXiv 2603.18599).

  Arguments as for `jacobi`, but `tree` is `default_tree(window)` by default.
  """


@named('jacobi(coupling=noise, tree=auto)+match', 'the same image as vanilla')
def seed_exact(target: Target, window: int = 16, tree: Tree | None = None, *,
               fresh: str = 'uniform') -> Decoder:
  """Jacobi windows under the noise of each position: the tokens of `vanilla(window=window)`.

  Predictive sampling (arXiv 2002.09928) with a window, and a tree whose side nodes hold the
  runners-up under the same noise. With the same batch size a chain yields these tokens bit for bit
  in any dtype, a tree with side nodes up to rounding. Arguments as for `sjd_pac`.
  """


@named('corrected(tree=auto)+exact', "the target's last predictions, corrected by a cheap model")
def corrected(target: Target, corrector: Corrector, window: int = 16, passes: int | None = None,
              tree: Tree | None = None, *, reads: int | None = None) -> Decoder:
  """Windows of the target's last predictions, corrected by a cheap model.

  Call the decoder with the cheap model's parameters as `draft_params`. Arguments as for
  `drafters.corrected`, but `tree` is `corrected_tree(window)` by default.
  """


@named('corrected(tree=auto)+match', 'the same image as vanilla, by corrected predictions')
def corrected_seed_exact(target: Target, corrector: Corrector, window: int = 16,
                         passes: int | None = None, tree: Tree | None = None, *,
                         reads: int | None = None) -> Decoder:
  """Corrected windows under the noise of each position: the tokens of `vanilla(window=window)`.

  Bit for bit or up to rounding, as for `seed_exact`. Arguments as for `corrected`.
  """


@named('eagle+exact', "a layer on the target's features drafts")
def eagle(target: Target, network: Network, tree: Tree = trees.EAGLE, *,
          draws: str = 'distinct') -> Decoder:
  """Drafts of a network that extrapolates the target's features (EAGLE, arXiv 2401.15077).

  Call the decoder with its parameters as `draft_params`. Arguments as for `drafters.eagle`.
  """


@named('eagle2+match', 'EAGLE along its most probable paths')
def eagle2(target: Target, network: Network, num_nodes: int = 58, width: int = 10,
           depth: int = 5) -> Decoder:
  """EAGLE with a new tree in every round (EAGLE-2, arXiv 2406.16858).

  The drafts are the most probable tokens instead of draws. `match` verifies them by drawing the
  target's token and looking for it among them, which yields the tokens of `vanilla` up to rounding.
  Arguments as for `drafters.eagle2`.
  """


@named('medusa+exact', "heads on the target's last feature draft")
def medusa(target: Target, heads: Heads, tree: Tree | None = None, *, draws: str = 'distinct',
           length: int | None = None) -> Decoder:
  """Drafts of heads on the target's last feature (Medusa, arXiv 2401.10774).

  Call the decoder with their parameters as `draft_params`. Arguments as for `drafters.medusa`.
  """
