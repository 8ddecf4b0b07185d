# mypy: disable-error-code="empty-body"
"""The table of decoders: drafters, verifiers, and named decoders as functions of a target.

A new decoder is an entry here. Its text, such as `mc_sjd(window=32)`, and its function build the
same; `cspd_jax`, programs, pages and tests read these tables.
"""

from cspd_jax.core.spec import Call
from cspd_jax.decoding import published_trees, tree as trees
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.correctors import CORRECTORS
from cspd_jax.decoding.drafters import (
  Corrector,
  Heads,
  Network,
  ancestral,
  corrected as corrected_lib,
  draft_model,
  dynamic,
  eagle as eagle_lib,
  jacobi as jacobi_lib,
  medusa as medusa_lib,
)
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.specification import (
  DRAFTERS,
  VERIFIERS,
  DrafterEntry,
  VerifierEntry,
  named,
)
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.verifiers import (
  block,
  cool,
  exact,
  grouped,
  kseq,
  lantern,
  latent_neighbours,
  match,
  typical,
)


def default_tree(window: int) -> Tree:
  """Returns the tree of `sjd_pac` and `seed_exact` for a window.

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


def corrected_tree(window: int) -> Tree:
  """Returns the tree of `corrected` and `corrected_seed_exact` for a window.

  Chosen on the embedded model: in a long window candidates for the first tokens, whose refusal
  costs a round most, in a short one none, because there the main chain needs all the tokens.
  """
  if window >= 48:
    return trees.caterpillar(4, 6, window - 1)
  if window >= 24:
    return trees.caterpillar(3, 3, window - 1)
  return trees.chain(window - 1)


def _fill_window(arguments, window, length):
  return {'window': window}


def _fill_length(arguments, window, length):
  return {} if 'tree' in arguments else {'length': length}


def _fill_eagle(arguments, window, length):
  """EAGLE's published tree where a forward pass has room for it, a chain elsewhere."""
  if window is None:
    return {}
  chain = Call('chain', (max(window - 1, 1) if length is None else length,), {})
  return {'tree': 'EAGLE' if window > published_trees.EAGLE.num_nodes else chain}


def _fill_eagle2(arguments, window, length):
  if window is None or arguments.keys() & {'num_nodes', 'width', 'depth'}:
    return {}
  if window > published_trees.EAGLE.num_nodes:
    return {'num_nodes': window - 1, 'width': 10, 'depth': 5}
  return {'num_nodes': max(window - 1, 1), 'width': max(window // 2, 1), 'depth': 3}


_EAGLE = {'eagle': lambda network: network}

DRAFTERS.update({
    'ancestral': DrafterEntry(ancestral.ancestral, 'no drafts'),
    'model': DrafterEntry(
        draft_model.model, 'a chain drawn by a smaller model', {'model': lambda target: target},
        fill=_fill_length),
    'jacobi': DrafterEntry(
        jacobi_lib.jacobi, "a window of the target's own last draws", auto_tree=default_tree,
        fill=_fill_window),
    'eagle': DrafterEntry(
        eagle_lib.eagle, "a layer that continues the target's features", _EAGLE, fill=_fill_eagle),
    'eagle2': DrafterEntry(
        dynamic.eagle2, 'the same along its most probable paths', _EAGLE, fill=_fill_eagle2),
    'medusa': DrafterEntry(
        medusa_lib.medusa, "heads on the target's last feature", {'medusa': lambda heads: heads},
        fill=_fill_length),
    'corrected': DrafterEntry(
        corrected_lib.corrected, "the target's last answers, corrected by a cheap model",
        CORRECTORS, corrected_tree, _fill_window),
})

VERIFIERS.update({
    'exact': VerifierEntry(exact.exact, 'min(1, p / q), then the residual distribution'),
    'match': VerifierEntry(match.match, "a draft stays if the target's own draw equals it"),
    'block': VerifierEntry(block.block, 'the drafts of a chain are accepted together'),
    'kseq': VerifierEntry(
        kseq.kseq, 'the first of several independent candidates that passes',
        drafter_defaults={'draws': 'iid'}),
    'uniform': VerifierEntry(cool.uniform, 'one factor on the acceptance at every depth'),
    'cool': VerifierEntry(cool.cool, 'factors that fall exponentially with depth'),
    'cool_linear': VerifierEntry(
        cool.cool_linear, 'factors that fall linearly with depth'),
    'lantern': VerifierEntry(
        lantern.lantern, 'neighbours in the codebook stand in, up to a distance',
        latent_neighbours.from_codebook(lambda vocab_size: min(1000, vocab_size // 16))),
    'lantern_pp': VerifierEntry(
        lantern.lantern_pp, 'neighbours in the codebook stand in, up to a factor',
        latent_neighbours.from_codebook(lambda vocab_size: 10)),
    'grouped': VerifierEntry(
        grouped.grouped, 'tokens about as probable stand in', latent_neighbours.embeddings),
    'typical': VerifierEntry(typical.typical, 'whatever is probable enough stays'),
})


@named('ancestral+match', 'one token per forward pass')
def vanilla(target: Target, window: int = 1) -> Decoder:
  """One token per forward pass, drawn with the noise of its position.

  Args:
    target: the target.
    window: tokens per forward pass; all but the first only give it the shapes of a window decoder,
      whose tokens then are the same bit for bit. See `drafters.ancestral`.
  """


@named('model+exact', 'a smaller model drafts')
def speculative(target: Target, draft_target: Target, length: int = 4) -> Decoder:
  """Speculative sampling with a draft model (Leviathan et al., arXiv 2211.17192).

  Call the decoder with `draft_params`.

  Args:
    target: the target.
    draft_target: the draft model.
    length: drafts per round.
  """


@named('jacobi+match(seed_exact=False)', 'drafts kept if redrawn alike')
def jacobi(target: Target, window: int = 16, tree: Tree | None = None, *, fresh: str = 'uniform',
           coupling: str = 'redraw') -> Decoder:
  """Jacobi decoding with sampling: a draft stays if a fresh draw equals it.

  Args:
    target: the target.
    window: tokens per forward pass.
    tree: topology of the `window - 1` drafts; a chain by default.
    fresh: distribution of the tokens that enter the window; see `drafters.jacobi`.
    coupling: how a draft follows its predecessor; see `drafters.jacobi`.
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

  Predictive sampling (arXiv 2002.09928) with a window, and a tree whose side
  nodes hold the runners-up under the same noise. A chain gives these tokens bit for bit in any
  dtype, a tree with side nodes up to rounding. Arguments as for `sjd_pac`.
  """


@named('corrected(tree=auto)+exact', "the target's last answers, corrected by a cheap model")
def corrected(target: Target, corrector: Corrector, window: int = 16, passes: int | None = None,
              tree: Tree | None = None, *, reads: int | None = None) -> Decoder:
  """Windows of stale answers, corrected by a cheap model.

  Call the decoder with the cheap model's parameters as `draft_params`.

  Args:
    target: the target.
    corrector: the cheap model.
    window: tokens per forward pass.
    passes: how often it reads the window; see `drafters.corrected`.
    tree: topology of the `window - 1` drafts; `corrected_tree(window)` by default.
    reads: positions that it reads; see `drafters.corrected`.
  """


@named('corrected(tree=auto)+match', 'the same image as vanilla, by corrected answers')
def corrected_seed_exact(target: Target, corrector: Corrector, window: int = 16,
                         passes: int | None = None, tree: Tree | None = None, *,
                         reads: int | None = None) -> Decoder:
  """The same under the noise of each position: the tokens of `vanilla(window=window)`.

  Bit for bit or up to rounding, as those of `seed_exact`. Arguments as for `corrected`.
  """


@named('eagle+exact', "a layer on the target's features drafts")
def eagle(target: Target, network: Network, tree: Tree = published_trees.EAGLE, *,
          draws: str = 'distinct') -> Decoder:
  """Drafts of a network that continues the target's features (EAGLE, arXiv 2401.15077).

  Call the decoder with the network's parameters as `draft_params`. Arguments as for
  `drafters.eagle`.
  """


@named('eagle2+match', 'EAGLE along its most probable paths')
def eagle2(target: Target, network: Network, num_nodes: int = 58, width: int = 10,
           depth: int = 5) -> Decoder:
  """EAGLE with a tree chosen in every round (EAGLE-2, arXiv 2406.16858).

  Drafts that are chosen and not drawn can be verified by drawing the target's token and
  looking for it among them, which gives the tokens of `vanilla` up to rounding.
  Arguments as for
  `drafters.eagle2`.
  """


@named('medusa+exact', "heads on the target's last feature draft")
def medusa(target: Target, heads: Heads, tree: Tree | None = None, *, draws: str = 'distinct',
           length: int | None = None) -> Decoder:
  """Drafts of heads on the target's last feature (Medusa, arXiv 2401.10774).

  Call the decoder with the parameters of the heads as `draft_params`. Arguments as for
  `drafters.medusa`.
  """
